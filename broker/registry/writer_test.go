package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"ahprelay/auth"
	"ahprelay/broker"
)

// newKeeper returns a registry that can keep leases. It has no store, and knows the host t/h.
func newKeeper(t *testing.T) *Registry {
	t.Helper()
	r := newSessions()
	r.file = newStateFile("", nil)
	r.cfg.LeaseTTL = DefaultLeaseTTL
	r.cfg.Revocations, _ = LoadRevocations("", nil)
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	relay := broker.RelayDialConfig{Keys: keys, Instance: "me", Server: struct{ broker.Server }{}}
	if r.cfg.Tenants, err = broker.StartTenants(t.Context(), broker.TenantsConfig{Relay: relay}); err != nil {
		t.Fatal(err)
	}
	r.cfg.Tenants.Close() // closed, so that it opens no accounts
	return r
}

// online is the presence of a host-agent whose host is online.
var online = withDefaults(Presence{State: Online})

// leased returns the state of host t/h with a lease of the given instance, keeper, Seq and number.
func leased(instance, keeper string, seq, number uint64) hostState {
	return hostState{Key: "t.h", Lease: &lease{Instance: instance, Keeper: keeper, Seq: seq, Fence: number, Presence: online}}
}

func (r *Registry) asks(instance string, seq uint64) (leaseAnswer, bool) {
	return r.keeping.renew("t.h", leaseRequest{Op: opHold, Instance: instance, Seq: seq, Presence: online}, "me")
}

// TestAssignedLeaseIsKept delivers a lease that names this relay as its keeper. Without renewals,
// the lease must expire here, because no other relay would end it. This holds whichever relay has
// written the lease.
func TestAssignedLeaseIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeper(t)
		r.applyHost(&r.view, leased("agent", "me", 1, 1), 7, 1, false)
		if h, _ := r.Lookup("t", "h"); h.State != Online {
			t.Fatalf("the host is %+v; want it online", h)
		}
		time.Sleep(DefaultLeaseTTL + time.Second)
		r.keeping.sweep(time.Now())
		if h, _ := r.Lookup("t", "h"); h.State != Offline || !r.writer.dirty["t.h"] {
			t.Errorf("after its lease's time, the host is %+v, and marked to be written: %v; want offline, and true", h, r.writer.dirty)
		}
	})
}

// TestLateRequestKeepsNoLease delivers a request that is older than those another relay has
// answered. This relay must answer it, but not keep the lease. After a newer request, it must keep
// the lease.
func TestLateRequestKeepsNoLease(t *testing.T) {
	r := newKeeper(t)
	r.applyHost(&r.view, leased("agent", "other", 9, 1), 7, 1, false)
	answer, done := r.asks("agent", 8)
	if !done || answer.Result != leaseHeld || len(r.keeping.kept) > 0 {
		t.Errorf("the answer to a lease request that arrives late is %+v, %v, and the relay keeps %d leases; want held, and 0", answer, done, len(r.keeping.kept))
	}
	if _, done := r.asks("agent", 10); !done || len(r.keeping.kept) != 1 || !r.writer.dirty["t.h"] {
		t.Errorf("the next request is answered: %v, and the relay keeps %d leases; want true and 1", done, len(r.keeping.kept))
	}
}

// TestHeardIsNotOvertaken delivers stored states that differ from what this relay knows of a
// host-agent it hears. The host must stay with that host-agent, unless another has a later lease,
// and the store must be corrected.
func TestHeardIsNotOvertaken(t *testing.T) {
	for _, test := range []struct {
		name   string
		stored hostState
		holder string
	}{
		{"the other side of a partition has taken it for lost", func() hostState {
			s := leased("agent", "other", 5, 3)
			s.Lease.Lost = true
			return s
		}(), "agent"},
		{"a new store begins with a lease of long ago", leased("older", "ancient", 500, 2), "agent"},
		{"a new store has the host without a lease", hostState{Key: "t.h"}, "agent"},
		{"the other side of a partition has given it to another", leased("later", "other", 1, 4), "later"},
		{"its host-agent is at another relay now", leased("agent", "other", 50, 3), "agent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newKeeper(t)
			r.applyHost(&r.view, leased("agent", "me", 1, 3), 7, 1, false)
			r.asks("agent", 10)
			r.view.newEpoch("new store")
			r.applyHost(&r.view, test.stored, 9, 2, false)
			h, _ := r.Lookup("t", "h")
			if h.AgentInstance != test.holder || h.State != Online {
				t.Errorf("the host is %+v; want %s", h, test.holder)
			}
			_, held := r.asks("agent", 60)
			if held != (test.holder == "agent") {
				t.Errorf("the host-agent is answered from memory: %v; want it exactly for the holder", held)
			}
			if k := r.hosts["t.h"]; held && !k.dirty && test.stored.Lease != nil && test.stored.Lease.Seq != 50 {
				t.Error("the host is not marked to be written to the store; want it marked")
			}
		})
	}
}

// TestNeverAnOlderHolder delivers random leases, and new or older stores. A relay must never return
// to an earlier lease of a host, unless the host was forgotten and enrolled again.
func TestNeverAnOlderHolder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newKeeper(t)
		start := time.Now().UTC()
		life, rev, epoch, bucket, seq := 0, uint64(1), uint64(1), 0, uint64(0)
		newest := map[int]uint64{} // newest lease number since each enrolment
		r.view.storeID = "0"
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			rev++
			number := rapid.Uint64Range(1, 6).Draw(rt, "number")
			instance := fmt.Sprint("agent-", number)
			switch rapid.IntRange(0, 5).Draw(rt, "step") {
			case 0: // a new bucket, which a relay has filled
				bucket++
				epoch = r.view.newEpoch(fmt.Sprint(bucket))
			case 1: // a new watch of the same bucket
				epoch = r.view.newEpoch(fmt.Sprint(bucket))
			case 2:
				seq++
				r.asks(instance, seq)
			case 3:
				if !r.view.newStore { // the host was forgotten and enrolled again, unnoticed by this relay
					life++
				}
				fallthrough
			default:
				s := leased(instance, rapid.SampledFrom([]string{"me", "other"}).Draw(rt, "keeper"), seq, number)
				s.Enrolled = start.Add(time.Duration(life) * time.Hour)
				s.Lease.Lost = rapid.Bool().Draw(rt, "lost")
				s.Lease.Released = rapid.Bool().Draw(rt, "released")
				r.applyHost(&r.view, s, rev, epoch, false)
				newest[life] = max(newest[life], number)
			}
			h, _ := r.Lookup("t", "h")
			if h.Fence < newest[life] {
				rt.Fatalf("the host is %+v; want its newest known lease %d", h, newest[life])
			}
			if h.AgentInstance != "" && h.AgentInstance != fmt.Sprint("agent-", h.Fence) {
				rt.Fatalf("lease %d belongs to %s; want the instance which asked for it", h.Fence, h.AgentInstance)
			}
			if k := r.hosts["t.h"]; k.Lease != nil && h.Fence > k.Lease.number() && (!k.dirty || !r.writer.dirty["t.h"]) {
				rt.Fatal("the newer lease is not to be written to the store; want it written")
			}
		}
	})
}

// TestNewWatchForgetsRemovedHosts restarts the watch. Hosts that the store no longer has must be
// forgotten. A host written meanwhile must stay. If the store has lost a host that this relay
// hears, the relay must write it again.
func TestNewWatchForgetsRemovedHosts(t *testing.T) {
	r := newKeeper(t)
	r.upkeep.opened, r.ready = make(chan struct{}, 1), make(chan struct{})
	r.view.storeErr = context.Canceled
	r.view.storeID = "store"
	r.hosts["t.h"].rev = 0 // known from the file, and removed from the store since
	epoch := r.view.newEpoch("store")
	written := leased("agent", "me", 1, 1)
	written.Key = "t.new"
	r.applyHost(&r.view, written, 8, 0, false) // written while the watch delivers older entries
	r.view.synced(epoch, "store")
	if _, known := r.Lookup("t", "h"); known {
		t.Error("a host which is not in the store any more is known; want it forgotten")
	}
	if h, _ := r.Lookup("t", "new"); h.State != Online {
		t.Errorf("a host that was just written is %+v; want online", h)
	}

	// Now the store has lost its last changes.
	r.asks("agent", 2)
	epoch = r.view.newEpoch("store")
	older := leased("agent", "other", 1, 1)
	older.Key = "t.new"
	r.applyHost(&r.view, older, 3, epoch, false)
	if k := r.hosts["t.new"]; k.rev != 3 {
		t.Errorf("the known revision is %d; want the store's 3", k.rev)
	}
	r.view.synced(epoch, "store")
	r.applyHost(&r.view, written, 4, 0, false)
	r.view.synced(r.view.newEpoch("store"), "store")
	if h, _ := r.Lookup("t", "new"); h.State != Online || !r.writer.dirty["t.new"] {
		t.Errorf("a host with a live host-agent that the store has lost is %+v, and marked to be written: %v; want online and written", h, r.writer.dirty)
	}
}

// TestLeaseIsTakenOver moves a host-agent to another relay. That relay must answer without the
// store, and soon be the keeper in the store, even if the request is a repeated one. The old keeper
// must stop keeping the lease. Then a rival takes the host over: the second relay must drop the
// lease.
func TestLeaseIsTakenOver(t *testing.T) {
	server := newTestServer(t)
	one, two := startTest(t, server, Config{Instance: "one"}), startTest(t, server, Config{Instance: "two"})
	req := leaseRequest{Op: opHold, Instance: "agent", Seq: 7, Presence: Presence{State: Online}}
	if answer := one.keeping.hold(t.Context(), "t.h", req, "one"); answer.Result != leaseHeld {
		t.Fatalf("hold: %+v; want held", answer)
	}
	eventually := func(what string, holds func() bool) {
		t.Helper()
		for until := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("not within a minute: %s", what)
			}
		}
	}
	eventually("two knows the host", func() bool { _, ok := two.Lookup("t", "h"); return ok })
	before, _ := two.known("t.h")
	fence := before.lease().number()
	if answer, done := two.keeping.renew("t.h", req, "two"); !done || answer.Result != leaseHeld {
		t.Fatalf("the same request at a different relay: %+v, %v; want held", answer, done)
	}
	eventually("one knows that two keeps the lease", func() bool {
		k, alive := one.known("t.h")
		return alive && !k.kept && k.Lease.Keeper == "two" && k.lease().number() == fence
	})
	rival := leaseRequest{Op: opHold, Instance: "rival", Seq: 1, Presence: Presence{State: Online}}
	if answer := one.leases.decide(t.Context(), "t.h", rival); answer.Result != leaseTaken || answer.Holder != "agent" {
		t.Errorf("a rival's request at the first relay: %+v; want taken, with the holder agent", answer)
	}
	if answer := one.keeping.hold(t.Context(), "t.h", leaseRequest{Op: opHold, Instance: "rival", Seq: 2, TakeOver: true, Presence: rival.Presence}, "one"); answer.Result != leaseHeld {
		t.Fatalf("a rival's request to take over: %+v; want held", answer)
	}
	eventually("two has dropped the lease", func() bool {
		k, _ := two.known("t.h")
		return !k.kept && k.own == nil && k.lease().Instance == "rival" && k.lease().number() > fence
	})
	if answer := two.keeping.hold(t.Context(), "t.h", leaseRequest{Op: opHold, Instance: "agent", Seq: 8, Presence: req.Presence}, "two"); answer.Result != leaseTaken {
		t.Errorf("the former holder's request: %+v; want taken", answer)
	}
}

// TestStoreRaisesFenceOfKeptLease delivers a higher number for a lease that this relay keeps, as
// another region can grant. The relay must keep the lease with the higher number, and answer with
// it.
func TestStoreRaisesFenceOfKeptLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeper(t)
		r.applyHost(&r.view, leased("agent", "me", 1, 1), 7, 1, false)
		if answer, _ := r.asks("agent", 2); answer.Fence != 1 {
			t.Fatalf("the host-agent is told %+v; want number 1", answer)
		}
		r.applyHost(&r.view, leased("agent", "me", 1, 4), 8, 1, false)
		if h, _ := r.Lookup("t", "h"); h.State != Online || h.Fence != 4 {
			t.Errorf("the host is %+v; want it online with number 4", h)
		}
		if answer, done := r.asks("agent", 3); !done || answer.Result != leaseHeld || answer.Fence != 4 {
			t.Errorf("the host-agent is told %+v, %v; want that it holds its lease, number 4", answer, done)
		}
	})
}

// TestErrorsOfTheStoreNameTheirCause uses a store that is full, and one that is not open. The
// errors must wrap ErrStoreAway, and name the cause.
func TestErrorsOfTheStoreNameTheirCause(t *testing.T) {
	r := newKeeper(t)
	r.view.store = &store{}
	r.cfg.Revive = func() error { return nil }
	check := func(err error, cause string) {
		t.Helper()
		if want := ErrStoreAway.Error() + ": " + cause; !errors.Is(err, ErrStoreAway) || !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "unreachable") {
			t.Errorf("the error is %v; want %s", err, want)
		}
	}
	check(r.Forget(t.Context(), "t", "h"), "it is not open yet")
	check(r.Enrol("t", "new"), "it is not open yet")
	r.upkeep.full = errors.New("no space left")
	check(r.Enrol("t", "new"), "no space left")
}
