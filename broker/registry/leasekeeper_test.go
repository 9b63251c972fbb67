package registry

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// attends tells the registry of a connection from an instance for host t/h. The function heard
// returns when it last delivered bytes. It returns the number of Cut calls, and a function to call
// when the connection ends.
func (r *Registry) attends(instance string, heard func() time.Time) (cuts *int, ended func()) {
	cuts = new(int)
	return cuts, r.Attend(&Line{Tenant: "t", Host: "h", Instance: instance, Heard: heard, Cut: func() { *cuts++ }})
}

// TestLineKeepsLease never renews a lease. The lease must run while its holder's connection
// delivers bytes. After DefaultLeaseTTL of silence, it must expire, and the connection be cut.
func TestLineKeepsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeper(t)
		r.applyHost(&r.view, leased("agent", "me", 1, 1), 7, 1, false)
		last := time.Now()
		cuts, _ := r.attends("agent", func() time.Time { return last })
		rounds := 0
		for ; time.Since(last) <= DefaultLeaseTTL; time.Sleep(time.Second) {
			if rounds++; rounds < 100 && rounds%4 == 0 {
				last = time.Now()
			}
			r.keeping.sweep(time.Now())
			if h, _ := r.Lookup("t", "h"); h.State != Online || !h.LastSeen.Equal(last) {
				t.Fatalf("%v after the holder was heard, the host is %+v; want online, and seen at that time", time.Since(last), h)
			}
		}
		r.keeping.sweep(time.Now())
		if h, _ := r.Lookup("t", "h"); h.State != Offline || !h.LastSeen.Equal(last) {
			t.Errorf("%v after the holder was last heard, the host is %+v; want offline, and seen at that time", time.Since(last), h)
		}
		if *cuts != 1 {
			t.Errorf("the silent holder's connection was cut %d times; want once, so that a live holder would reconnect", *cuts)
		}
	})
}

// TestExpectedHolderKeepsItsLease makes the holder of a lease silent while a relay expects
// host-agents that it has refused. The host must stay online until maxExpected after its lease would
// have expired, and only while a relay expects host-agents. Another instance must get the host as
// soon as the holder has been silent for the lease time.
func TestExpectedHolderKeepsItsLease(t *testing.T) {
	for name, test := range map[string]struct {
		expects time.Duration // for how long a relay expects host-agents
		offline time.Duration // silence after which the host is offline
		rival   bool          // another instance requests the host after the lease time
	}{
		"expected":  {expects: time.Hour, offline: DefaultLeaseTTL + maxExpected},
		"no longer": {expects: time.Minute, offline: time.Minute},
		"never":     {offline: DefaultLeaseTTL},
		"taken":     {expects: time.Hour, offline: DefaultLeaseTTL, rival: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newKeeper(t)
				r.applyHost(&r.view, leased("agent", "me", 1, 1), 7, 1, false)
				began := time.Now()
				for rev := uint64(8); time.Since(began) <= test.offline+2*time.Second; rev++ {
					silent := time.Since(began)
					r.relays.apply(&r.view, "other", session{Expects: silent <= test.expects && test.expects > 0}, rev, 1, time.Now())
					if test.rival && silent > DefaultLeaseTTL {
						r.keeping.check("t.h", "rival")
					}
					r.keeping.sweep(time.Now())
					h, _ := r.Lookup("t", "h")
					if (h.State == Online) != (silent <= test.offline) {
						t.Fatalf("after %v of silence the host is %s; want it offline after %v", silent, h.State, test.offline)
					}
					r.keeping.check("t.h", "agent") // the holder's own request ends no lease
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// TestRivalAfterPauseGetsNoHost pauses this process for longer than the lease time. Another instance
// requests the host before the bytes are read that its holder has sent meanwhile. The holder must keep
// its lease.
func TestRivalAfterPauseGetsNoHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeper(t)
		r.applyHost(&r.view, leased("agent", "me", 1, 1), 7, 1, false)
		last := time.Now()
		cuts, _ := r.attends("agent", func() time.Time { return last })
		time.Sleep(2 * DefaultLeaseTTL)
		r.keeping.check("t.h", "rival")
		last = time.Now()
		r.keeping.sweep(time.Now())
		if h, _ := r.Lookup("t", "h"); h.State != Online || *cuts > 0 {
			t.Errorf("after a pause, the host is %s, and its holder's connection was cut %d times; want it online", h.State, *cuts)
		}
	})
}

// TestForeignLineKeepsNoLease never renews a lease. Neither a connection from a different instance,
// nor the holder's connection after its end, may keep the lease alive.
func TestForeignLineKeepsNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeper(t)
		r.applyHost(&r.view, leased("agent", "me", 1, 1), 7, 1, false)
		r.attends("another", time.Now)
		_, ended := r.attends("agent", time.Now)
		time.Sleep(DefaultLeaseTTL)
		ended()
		time.Sleep(DefaultLeaseTTL)
		r.keeping.sweep(time.Now())
		if h, _ := r.Lookup("t", "h"); h.State != Online {
			t.Fatalf("a lease's time after its connection ended, the host is %+v; want online", h)
		}
		time.Sleep(time.Second)
		r.keeping.sweep(time.Now())
		if h, _ := r.Lookup("t", "h"); h.State != Offline {
			t.Errorf("after the lease's time, the host is %+v; want it offline", h)
		}
	})
}

// TestLineProvesHolderToRival lets a rival request a host. The holder renews no lease, but its
// connection delivers bytes. After further bytes, the answer to the rival must have a higher revision:
// it proves to the rival that the holder is alive.
func TestLineProvesHolderToRival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeper(t)
		r.applyHost(&r.view, leased("agent", "me", 1, 1), 7, 1, false)
		heard := time.Now()
		r.attends("agent", func() time.Time { return heard })
		ask := func(seq uint64) uint64 {
			answer := r.keeping.hold(t.Context(), "t.h", leaseRequest{Op: opHold, Instance: "rival", Seq: seq, Presence: online}, "me")
			if answer.Result != leaseTaken || answer.Holder != "agent" {
				t.Fatalf("the rival's request is answered %+v; want taken, with the holder agent", answer)
			}
			return answer.Revision
		}
		first := ask(1)
		if again := ask(2); again != first {
			t.Errorf("the first answer has revision %d, and the second %d though the holder was silent; want the same", first, again)
		}
		time.Sleep(4 * time.Second)
		heard = time.Now()
		if again := ask(3); again <= first {
			t.Errorf("the first answer has revision %d, and the one after the holder was heard %d; want a higher one", first, again)
		}
	})
}

// TestReturnBeforeOfflineKeepsTimes lets a host-agent return after its keeper's silence has expired
// its lease. If the host is still listed as online, because host-agents were expected, the lease
// must keep its times and its number. Otherwise, or for a different instance, it is a new lease.
func TestReturnBeforeOfflineKeepsTimes(t *testing.T) {
	t.Parallel()
	server := newTestServer(t)
	r := startTest(t, server, Config{})
	for name, test := range map[string]struct {
		expected int // beats with expected host-agents
		instance string
		same     bool
	}{
		"still online":       {r.relays.patience, "agent", true},
		"offline":            {0, "agent", false},
		"different instance": {r.relays.patience, "another", false},
	} {
		key := "t." + strings.ReplaceAll(name, " ", "-")
		s := leased("agent", "other", 1, 3)
		s.Key, s.Lease.Since = key, time.Now().Add(-time.Hour).UTC()
		rev := put(t, r.view.store, hostKeys+key, s)
		r.applyHost(&r.view, s, rev, 0, false)
		r.mu.Lock()
		other := r.relays.getLocked("other")
		other.missed, other.expected = r.relays.patience+2, test.expected
		r.mu.Unlock()
		answer := r.keeping.hold(t.Context(), key, leaseRequest{Op: opHold, Instance: test.instance, Seq: 2, Presence: online}, "me")
		k, alive := r.known(key)
		l := k.lease()
		if answer.Result != leaseHeld || !alive || l.Instance != test.instance || l.Keeper != "me" {
			t.Fatalf("%s: the answer is %+v, with the lease %+v; want it held here", name, answer, l)
		}
		if same := l.Since.Equal(s.Lease.Since) && l.number() == 3; same != test.same {
			t.Errorf("%s: the lease is number %d since %v; want number 3 since %v: %v", name, l.number(), l.Since, s.Lease.Since, test.same)
		}
	}
}

// TestLostHolderIsDisconnected moves a lease to another keeper: the holder's connection must stay.
// Then it gives the lease to another instance: the former holder's connection must be cut.
func TestLostHolderIsDisconnected(t *testing.T) {
	r := newKeeper(t)
	r.applyHost(&r.view, leased("agent", "me", 1, 1), 7, 1, false)
	cuts, _ := r.attends("agent", time.Now)
	r.applyHost(&r.view, leased("agent", "other", 2, 1), 8, 1, false)
	if *cuts != 0 {
		t.Errorf("the connection was cut %d times while its instance holds the host; want 0", *cuts)
	}
	r.applyHost(&r.view, leased("agent", "me", 3, 1), 9, 1, false)
	r.applyHost(&r.view, leased("rival", "other", 1, 2), 10, 1, false)
	if *cuts != 1 {
		t.Errorf("the connection was cut %d times after a rival has taken the host; want 1", *cuts)
	}
}

// TestLongRenewalIntervalNeedsLine asks registries for the renewal interval. Only the relay that
// keeps the lease and also has its holder's connection may grant the long interval. The holder must
// use it only while its connection is quiet.
func TestLongRenewalIntervalNeedsLine(t *testing.T) {
	r := newKeeper(t)
	_, ended := r.attends("agent", time.Now)
	for i, keeper := range []string{"", "other"} {
		if keeper != "" {
			r.applyHost(&r.view, leased("agent", keeper, 1, uint64(i)), uint64(5+i), 1, false)
		}
		if got := r.keeping.renewEvery("t.h", "agent"); got != 0 {
			t.Errorf("a holder whose lease the relay %[2]q keeps is told to renew every %[1]d ms; want 0, which leaves the interval to the holder", got, keeper)
		}
	}
	r.applyHost(&r.view, leased("agent", "me", 1, 2), 7, 1, false)
	h := &LeaseHolder{cfg: LeaseConfig{Renew: defaultRenew}}
	for _, test := range []struct {
		instance string
		quiet    func() bool
		want     time.Duration
	}{
		{"agent", func() bool { return true }, renewLined},
		{"agent", func() bool { return false }, defaultRenew},
		{"agent", nil, defaultRenew},
		{"another", func() bool { return true }, defaultRenew},
	} {
		h.cfg.Quiet, h.every = test.quiet, time.Duration(r.keeping.renewEvery("t.h", test.instance))*time.Millisecond
		if got := h.renewal(); got > test.want || got < test.want*9/10 {
			t.Errorf("%+v: the holder renews after %v; want 90 to 100 %% of the field want", test, got)
		}
	}
	if ended(); r.keeping.renewEvery("t.h", "agent") != 0 || len(r.keeping.lines) > 0 {
		t.Errorf("after the holder's connections have ended, renewEvery must return 0 and no connection may be listed: %v", r.keeping.lines)
	}
}

// TestLeasesRunOut renews leases and delivers bytes at random. Each lease must expire
// DefaultLeaseTTL after its holder was last heard, and not before.
func TestLeasesRunOut(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newKeeper(t)
			const hosts = 8
			heard := map[string]*time.Time{}
			for i := range hosts {
				s := leased(fmt.Sprint("agent-", i), "me", 1, 1)
				s.Key = fmt.Sprint("t.h", i)
				at := time.Now()
				heard[s.Key] = &at
				r.applyHost(&r.view, s, uint64(7+i), 1, false)
				r.Attend(&Line{Tenant: "t", Host: fmt.Sprint("h", i), Instance: s.Lease.Instance, Heard: func() time.Time { return *heard[s.Key] }, Cut: func() {}})
			}
			for step := range rapid.IntRange(1, 60).Draw(rt, "steps") {
				time.Sleep(time.Duration(rapid.IntRange(1, 5000).Draw(rt, "ms")) * time.Millisecond)
				i := rapid.IntRange(0, hosts-1).Draw(rt, "host")
				key := fmt.Sprint("t.h", i)
				if heard[key] != nil && rapid.Bool().Draw(rt, "asks") {
					r.keeping.renew(key, leaseRequest{Op: opHold, Instance: fmt.Sprint("agent-", i), Seq: uint64(2 + step), Presence: online}, "me")
				}
				if heard[key] != nil {
					*heard[key] = time.Now()
				}
				r.keeping.sweep(time.Now())
				for key, at := range heard {
					h, _ := r.Lookup("t", key[2:])
					if late := time.Since(*at) > DefaultLeaseTTL; late != (h.State == Offline) {
						rt.Fatalf("%s, heard %v ago, is %s; want offline exactly after the lease's time", key, time.Since(*at), h.State)
					} else if late {
						delete(heard, key)
					}
				}
				if len(r.keeping.kept) != len(heard) {
					rt.Fatalf("%d leases are kept; want the %d which run", len(r.keeping.kept), len(heard))
				}
			}
		})
	})
}
