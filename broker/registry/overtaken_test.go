package registry

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// TestLowerSeqNeverOvertakes compares this relay's own lease with random stored leases of the same
// instance. A stored lease with a lower Seq must never replace the own lease; with a higher Seq it
// always must.
func TestLowerSeqNeverOvertakes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := func(name string) lease {
			return lease{
				Instance: "agent", Seq: rapid.Uint64Range(1, 5).Draw(t, name+" seq"), Keeper: rapid.SampledFrom([]string{"me", "other"}).Draw(t, name+" keeper"),
				Lost: rapid.Bool().Draw(t, name+" lost"), Released: rapid.Bool().Draw(t, name+" released"), Fence: 1, Presence: online,
			}
		}
		own, was, stored := some("own"), some("was"), some("stored")
		k := &knownHost{own: &own, hostState: hostState{Lease: &was}}
		if rapid.Bool().Draw(t, "kept") {
			k.kept = true
		}
		if got := k.overtaken(&stored, "me"); got && stored.Seq < own.Seq {
			t.Errorf("the relay's own lease %+v is replaced by the older %+v; want it kept", own, stored)
		} else if !got && stored.Seq > own.Seq {
			t.Errorf("the relay's own lease %+v is not replaced by the newer %+v; want it replaced", own, stored)
		}
	})
}

// TestLateWriteLosesNoConnectedHost connects a host-agent here, and then delivers a late write: its
// last request at the previous relay. The host must stay online without renewals for as long as this
// relay has allowed, and the store must be corrected.
func TestLateWriteLosesNoConnectedHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeper(t)
		r.applyHost(&r.view, leased("agent", "other", 4, 1), 7, 1, false)
		r.attends("agent", time.Now)
		if answer, done := r.asks("agent", 6); !done || answer.Result != leaseHeld || r.keeping.renewEvery("t.h", "agent") == 0 {
			t.Fatalf("answer %+v; want the lease, for renewLined", answer)
		}
		r.applyHost(&r.view, leased("agent", "other", 5, 1), 8, 1, false)
		for range int(renewLined / time.Second) {
			time.Sleep(time.Second)
			r.keeping.sweep(time.Now())
			if h, _ := r.Lookup("t", "h"); h.State != Online || !r.hosts["t.h"].kept {
				t.Fatalf("the host is %+v, kept: %v; want online and kept", h, r.hosts["t.h"].kept)
			}
		}
		if k := r.hosts["t.h"]; !k.dirty || k.own.Seq != 6 || k.own.Keeper != "me" {
			t.Errorf("the host is to be written: %v, with the lease %+v; want true, and this relay as keeper", k.dirty, k.own)
		}
	})
}

// TestHostAgentLearnsOfItsLeaseAtOnce changes a lease in various ways. The relay must make the
// host-agent check its lease at once only if the lease has moved to a different relay, has expired,
// or was reported lost by a different relay.
func TestHostAgentLearnsOfItsLeaseAtOnce(t *testing.T) {
	lost := leased("agent", "other", 3, 1)
	lost.Lease.Lost = true
	for name, test := range map[string]struct {
		connected bool
		change    func(r *Registry)
		want      string // instance that must check its lease; "": none
	}{
		"moved":                 {true, func(r *Registry) { r.applyHost(&r.view, leased("agent", "other", 3, 1), 8, 1, false) }, "agent"},
		"moved, not connected":  {false, func(r *Registry) { r.applyHost(&r.view, leased("agent", "other", 3, 1), 8, 1, false) }, ""},
		"lost by another relay": {true, func(r *Registry) { r.applyHost(&r.view, lost, 8, 1, false) }, "agent"},
		"expired":               {false, func(r *Registry) { time.Sleep(2 * DefaultLeaseTTL); r.keeping.sweep(time.Now()) }, "agent"},
		"late write":            {true, func(r *Registry) { r.applyHost(&r.view, leased("agent", "other", 1, 1), 8, 1, false) }, ""},
		"taken, and cut":        {true, func(r *Registry) { r.applyHost(&r.view, leased("rival", "other", 1, 2), 8, 1, false) }, ""},
		"renewed":               {true, func(r *Registry) { r.asks("agent", 9) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newKeeper(t)
				if test.connected {
					r.attends("agent", time.Now)
				}
				r.applyHost(&r.view, leased("agent", "me", 2, 1), 7, 1, false)
				test.change(r)
				if got := r.keeping.recheck["t.h"]; got != test.want {
					t.Errorf("the host-agent that must check its lease is %q; want %q", got, test.want)
				}
			})
		})
	}
}
