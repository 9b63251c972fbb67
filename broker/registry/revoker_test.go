package registry

import (
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
