package registry

import (
	"fmt"
	"testing"
	"time"

	"ahprelay/auth"
)

// TestRevocationIsWrittenBesideARemoval revokes a token again while another relay removes the
// expired revocation from the store, and this relay does not know of the removal yet. The new
// revocation must be in the store.
func TestRevocationIsWrittenBesideARemoval(t *testing.T) {
	r := startTest(t, newTestServer(t), Config{})
	rev := auth.Revocation{Token: "1", At: time.Now().UTC().Round(0), Until: time.Now().UTC().Round(0).Add(time.Hour)}
	key := revokedKey(rev)
	old := put(t, r.view.store, key, rev)
	if err := r.view.store.remove(t.Context(), key, old); err != nil {
		t.Fatal(err)
	}
	last, err := r.view.store.last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for !r.view.hasSeen(last) {
		time.Sleep(time.Millisecond)
	}
	all := r.cfg.Revocations
	all.mu.Lock()
	all.mergeLocked(rev)
	all.revs[key] = old
	all.behind[rev.Key()] = true
	all.mu.Unlock()
	var there auth.Revocation
	for until := time.Now().Add(10 * time.Second); there.Token == ""; time.Sleep(10 * time.Millisecond) {
		if err := r.revoker.write(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.view.store.read(t.Context(), key, &there); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(until) {
			t.Fatal("the store lacks the revocation; want it there")
		}
	}
}

// TestRevocationsAreWrittenInTheirOrder revokes tokens while the store is away. They must be written
// in the order in which they were revoked: a relay must read that a renewed credential is in use
// before it reads that the former one has ended. Otherwise it calls the renewed one a copy.
func TestRevocationsAreWrittenInTheirOrder(t *testing.T) {
	t.Parallel()
	all, err := LoadRevocations("", nil)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	for i := range 20 {
		if err := all.Add(auth.Revocation{Token: fmt.Sprint(i), Alone: true, At: at.Add(time.Duration(i) * time.Microsecond)}); err != nil {
			t.Fatal(err)
		}
	}
	all.stored(auth.Revocation{Token: "7", Alone: true, At: at.UTC()}, 42) // an older form
	list, revs := all.toStore()
	for i, rev := range list {
		if rev.Token != fmt.Sprint(i) || (revs[i] == 42) != (i == 7) {
			t.Errorf("the store gets revocation %s as number %d, in place of revision %d; want them in order", rev.Token, i, revs[i])
		}
	}
	if len(list) != 20 {
		t.Errorf("the store gets %d revocations; want 20", len(list))
	}
}
