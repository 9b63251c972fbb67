package registry

import (
	"testing"

	"ahprelay/test/natssite"
)

// TestLateRelayAsksTheStore has a relay that reads the store late: its memory still has the former
// instance's lease. It must renew the lease of the instance that has taken over, and end it on that
// instance's request. Otherwise the host-agent would stop, or its host would stay online.
func TestLateRelayAsksTheStore(t *testing.T) {
	t.Parallel()
	server := newTestServer(t)
	a, late := startTest(t, server, Config{Instance: "a"}), startTest(t, server, Config{Instance: "late"})
	online := Presence{State: Online, Wire: [2]int{1, 1}}
	seq := uint64(0)
	ask := func(r *Registry, host string, req leaseRequest) leaseResult {
		t.Helper()
		var answer leaseAnswer
		natssite.Eventually(t, "the relay decides", func() bool {
			seq++
			req.Seq = seq
			answer = r.keeping.hold(t.Context(), "t."+host, req, r.cfg.Instance)
			return answer.Result != leaseRetry
		})
		return answer.Result
	}
	hosts := []string{"renewed", "left"}
	for _, host := range hosts {
		if result := ask(a, host, leaseRequest{Op: opHold, Instance: "first", Presence: online}); result != leaseHeld {
			t.Fatalf("the first instance's request: %s; want held", result)
		}
		natssite.Eventually(t, "the other relay knows the lease", func() bool {
			k, alive := late.known("t." + host)
			return alive && k.lease().Instance == "first"
		})
	}
	late.cancel() // it reads no further changes
	late.running.Wait()
	for _, host := range hosts {
		if result := ask(a, host, leaseRequest{Op: opHold, Instance: "second", TakeOver: true, Presence: online}); result != leaseHeld {
			t.Fatalf("the second instance's request: %s; want held", result)
		}
	}
	if result := ask(late, "renewed", leaseRequest{Op: opHold, Instance: "second", Presence: online}); result != leaseHeld {
		t.Errorf("the holder's request at a relay that is late: %s; want held", result)
	}
	result := ask(late, "left", leaseRequest{Op: opRelease, Instance: "second"})
	k := knownHost{hostState: hostState{Key: "t.left"}}
	_, err := a.view.store.read(t.Context(), hostKeys+"t.left", &k.hostState)
	if err != nil || result != leaseReleased || !k.lease().Released {
		t.Errorf("the holder's release at a relay that is late: %s, %v, in the store %+v; want released", result, err, k.lease())
	}
}
