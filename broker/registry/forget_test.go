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
	if err := r.Enrol("t", "h"); err != nil {
		t.Fatal(err)
	}
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
