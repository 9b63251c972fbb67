package registry

import (
	"errors"
	"testing"
	"time"

	"ahprelay/test/natssite"
)

// TestHostIsForgottenWhileTheStoreIsRead forgets a host while the relay reads its store again. An
// unknown host must be reported as unknown.
func TestHostIsForgottenWhileTheStoreIsRead(t *testing.T) {
	r := startTest(t, newTestServer(t), Config{})
	natssite.Enrol(t, r, "t", "h")
	natssite.Eventually(t, "the host is in the store", func() bool {
		k, _ := r.known("t.h")
		return k.rev != 0
	})
	r.mu.Lock()
	r.hosts["t.h"].rev = 0 // as newEpoch does
	r.mu.Unlock()
	if err := r.Forget(t.Context(), "t", "h"); err != nil {
		t.Errorf("Forget while the store is read: %v; want no error", err)
	}
	if err := r.Forget(t.Context(), "t", "h"); !errors.Is(err, ErrUnknownHost) {
		t.Errorf("Forget of an unknown host: %v; want ErrUnknownHost", err)
	}
}

// TestForgottenHostStaysForgotten has a relay that has missed the removal of a host, because it
// stood still. It ends the lease of the host, once as the lease's keeper, and once for a lost
// relay. The host must not be in the store again.
func TestForgottenHostStaysForgotten(t *testing.T) {
	r := startTest(t, newTestServer(t), Config{})
	for name, end := range map[string]func(key string) error{
		"me": func(key string) error {
			r.mu.Lock()
			r.keeping.endLocked(r.hosts[key])
			r.mu.Unlock()
			return r.writer.flushHost(t.Context(), key)
		},
		"lost": func(string) error {
			r.mu.Lock()
			r.relays.getLocked("lost").missed = int(forgetAfter/r.beatEvery) + 1
			r.mu.Unlock()
			return r.upkeep.endLost(t.Context())
		},
	} {
		key := "t." + name
		s := hostState{Key: key, Enrolled: time.Now().UTC(), Lease: &lease{Instance: "i", Presence: Presence{State: Online}, Keeper: name}}
		rev, err := r.view.store.write(t.Context(), hostKeys+key, s, 0)
		if err != nil {
			t.Fatal(err)
		}
		natssite.Eventually(t, "the host is known", func() bool { _, known := r.Lookup("t", name); return known })
		if err := r.view.store.remove(t.Context(), hostKeys+key, rev); err != nil {
			t.Fatal(err)
		}
		natssite.Eventually(t, "the host is forgotten", func() bool { _, known := r.Lookup("t", name); return !known })
		r.applyHost(&r.view, s, rev, 0, false) // as if the removal had not arrived yet
		if err := end(key); err != nil {
			t.Errorf("ending the lease kept by %s: %v; want no error", name, err)
		}
		if rev, err := r.view.store.read(t.Context(), hostKeys+key, &s); rev != 0 || err != nil {
			t.Errorf("after the lease kept by %s has ended, the forgotten host has the revision %d, %v; want none", name, rev, err)
		}
	}
}

func TestOnlyHostsUnseenForLongAreForgotten(t *testing.T) {
	r := startTest(t, newTestServer(t), Config{ForgetAfter: time.Hour})
	now := time.Now().UTC()
	for key, s := range map[string]hostState{
		"t.old":    {Enrolled: now.Add(-3 * time.Hour), LastSeen: now.Add(-2 * time.Hour)},
		"t.never":  {Enrolled: now.Add(-2 * time.Hour)},
		"t.new":    {Enrolled: now},
		"t.seen":   {Enrolled: now.Add(-3 * time.Hour), LastSeen: now},
		"t.silent": {Enrolled: now.Add(-3 * time.Hour), LastSeen: now.Add(-2 * time.Hour), Lease: &lease{Instance: "i", Presence: Presence{State: Online}, Keeper: "lost"}},
		"t.there":  {Enrolled: now.Add(-3 * time.Hour), LastSeen: now.Add(-2 * time.Hour), Lease: &lease{Instance: "i", Presence: Presence{State: Online}, Keeper: "me"}},
	} {
		s.Key = key
		rev, err := r.view.store.write(t.Context(), hostKeys+key, s, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.applyHost(&r.view, s, rev, 0, false)
	}
	r.mu.Lock()
	r.relays.peers["lost"].missed = r.relays.patience + 1 // silent for a moment only
	r.mu.Unlock()
	r.upkeep.forgetUnseen(t.Context(), now)
	// The watch may first deliver the earlier write, and then the removal.
	natssite.Eventually(t, "the unseen hosts, and no others, are forgotten", func() bool {
		for name, want := range map[string]bool{"old": false, "never": false, "new": true, "seen": true, "silent": true, "there": true} {
			if _, known := r.Lookup("t", name); known != want {
				return false
			}
		}
		return true
	})
	natssite.Eventually(t, "the statistics count the remaining hosts", func() bool {
		s := r.Stats()
		return s.Hosts == 4 && s.Relays == 1 && s.Store
	})
}
