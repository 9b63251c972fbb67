package registry

import (
	"testing"
	"time"
)

// TestLeaseIsTakenOver has a host-agent come to another relay: that answers from memory,
// and the store says soon who keeps the lease, even if the request was a repeated one. The
// relay that kept it does no more.
func TestLeaseIsTakenOver(t *testing.T) {
	server := newTestServer(t)
	one, two := startTest(t, server, Config{Instance: "one"}), startTest(t, server, Config{Instance: "two"})
	req := leaseRequest{Op: opHold, Instance: "agent", Seq: 7, Presence: Presence{State: Online}}
	if answer := one.hold(t.Context(), "t.h", req, "one"); answer.Result != leaseHeld {
		t.Fatalf("hold: %+v", answer)
	}
	eventually := func(what string, holds func() bool) {
		t.Helper()
		for until := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("not so: %s", what)
			}
		}
	}
	eventually("two knows the host", func() bool { _, ok := two.Lookup("t", "h"); return ok })
	before, _ := two.look("t.h")
	fence := before.fence()
	if answer, done := two.renew("t.h", req, "two"); !done || answer.Result != leaseHeld {
		t.Fatalf("the same request at another relay: %+v, %v", answer, done)
	}
	eventually("one knows that two keeps the lease", func() bool {
		k, alive := one.look("t.h")
		return alive && k.kept == nil && k.Lease.Keeper == "two" && k.fence() == fence
	})
	rival := leaseRequest{Op: opHold, Instance: "rival", Seq: 1, Presence: Presence{State: Online}}
	if answer := one.desk.decide(t.Context(), "t.h", rival); answer.Result != leaseTaken || answer.Holder != "agent" {
		t.Errorf("a rival at the other relay: %+v", answer)
	}
	if answer := one.hold(t.Context(), "t.h", leaseRequest{Op: opHold, Instance: "rival", Seq: 2, TakeOver: true, Presence: rival.Presence}, "one"); answer.Result != leaseHeld {
		t.Fatalf("take over: %+v", answer)
	}
	eventually("two has dropped the lease", func() bool {
		k, _ := two.look("t.h")
		return k.kept == nil && k.own == nil && k.lease().Instance == "rival" && k.fence() > fence
	})
	if answer := two.hold(t.Context(), "t.h", leaseRequest{Op: opHold, Instance: "agent", Seq: 8, Presence: req.Presence}, "two"); answer.Result != leaseTaken {
		t.Errorf("the one that was taken over: %+v", answer)
	}
}
