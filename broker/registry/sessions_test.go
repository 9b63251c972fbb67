package registry

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"
)

// newSessions returns a registry without a store, which knows the host t/h. The names in former are
// instances that preceded it.
func newSessions(former ...string) *Registry {
	r := &Registry{
		cfg: Config{Instance: "me", LeaseTTL: DefaultLeaseTTL, Previous: former, Log: slog.New(slog.DiscardHandler)}, started: time.Now(),
		beatEvery: beatEvery,
		wake:      make(chan struct{}, 1), hosts: map[string]*knownHost{}, changed: map[string]bool{},
	}
	r.wire()
	r.addLocked(&knownHost{hostState: hostState{Key: "t.h"}})
	return r
}

func (r *Registry) lost(instance string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.relays.lostLocked(r.hosts["t.h"], instance)
}

// TestSilenceIsCounted makes another relay silent. It must count as lost when this relay has
// completed a number of writes without it, and not when time has passed while this relay itself
// could not write. When it is heard again, it must no longer count as lost.
func TestSilenceIsCounted(t *testing.T) {
	r := newSessions()
	now, rev := time.Now(), uint64(1)
	other := func() { rev++; r.relays.apply(&r.view, "other", session{Started: now}, rev, 1, now) }
	beat := func(n int) {
		for range n {
			rev++
			now = now.Add(beatEvery)
			r.relays.apply(&r.view, "me", session{}, rev, 1, now)
		}
	}
	other()
	r.relays.peers["other"].keeps["t.h"] = true
	now = now.Add(time.Hour) // for an hour, this relay writes nothing
	beat(1)
	if r.lost("other") {
		t.Error("a relay counts as lost after a pause of the observing relay; want it present")
	}
	other()
	for range 5 { // five delayed beats arrive at once
		rev++
		r.relays.apply(&r.view, "me", session{}, rev, 1, now)
	}
	beat(r.relays.patience)
	if r.lost("other") {
		t.Errorf("a relay counts as lost after %d beats; want it present for a lease's %d beats", r.relays.peers["other"].missed, r.relays.patience)
	}
	clear(r.changed)
	beat(1)
	if !r.lost("other") || !r.changed["t.h"] {
		t.Errorf("after %d missed beats, the relay counts as lost: %v, with the changed hosts %v; want true, and its host", r.relays.peers["other"].missed, r.lost("other"), r.changed)
	}
	r.relays.apply(&r.view, "other", r.relays.peers["other"].session, r.relays.peers["other"].rev, 2, now) // from a new watch
	if !r.lost("other") {
		t.Error("a relay's old beat, read by a new watch, makes it present; want it lost")
	}
	clear(r.changed)
	other()
	if r.lost("other") || !r.changed["t.h"] {
		t.Errorf("after a new beat, the relay counts as lost: %v, with the changed hosts %v; want false, and its host", r.lost("other"), r.changed)
	}
	if len(r.relays.gone) > 0 {
		t.Errorf("the silent relays %v count as crashed; want none", r.relays.gone)
	}
}

// TestStoppedIsNotLost pauses a relay for less than a lease time, just before its next beat. It
// must not count as lost.
func TestStoppedIsNotLost(t *testing.T) {
	r := newSessions()
	start, rev := time.Now(), uint64(0)
	hear := func(instance string, at time.Duration) {
		rev++
		r.relays.apply(&r.view, instance, session{Started: start}, rev, 1, start.Add(at))
	}
	const stopped = DefaultLeaseTTL - time.Second
	hear("other", 0)
	for at := time.Millisecond; at < beatEvery+stopped; at += beatEvery { // paused before its next beat
		hear("me", at)
		if r.lost("other") {
			t.Fatalf("a relay counts as lost %v after its last beat, and %v after it was stopped; want it present", at, at-beatEvery)
		}
	}
}

// TestSuccessorIsProof starts relays that name others as their predecessors. A named predecessor
// must count as crashed once it is silent. While it is not silent, it must not: its data directory
// was only copied.
func TestSuccessorIsProof(t *testing.T) {
	r := newSessions("mine")
	now, rev := time.Now(), uint64(1)
	hear := func(instance string, s session) { rev++; r.relays.apply(&r.view, instance, s, rev, 1, now) }
	turns := func(n int, each func()) {
		for range n {
			now = now.Add(beatEvery)
			each()
			hear("me", session{})
		}
	}
	claim := func() { hear("new", session{Previous: []string{"old", "older", "me"}}) }
	turns(5, func() { hear("old", session{}); claim() })
	gone := r.relays.goneRelays()
	slices.Sort(gone)
	if !slices.Equal(gone, []string{"mine", "older"}) {
		t.Errorf("the relays counted as crashed are %q; want mine and older", gone)
	}
	turns(absentAfter+2, claim)
	if gone := r.relays.goneRelays(); len(gone) != 3 {
		t.Errorf("the relays counted as crashed are %v; want old too, and not me", gone)
	}
	hear("old", session{})
	if gone := r.relays.goneRelays(); len(gone) != 2 {
		t.Errorf("the relays counted as crashed are %v; want two, because the third has sent a beat since", gone)
	}
}

// TestExpectedHostsStayOnline makes another relay silent, while this relay or a third one expects
// host-agents that it has refused, or while other hosts of the silent relay get new leases. The
// silent relay's last host must stay online until neither happens for a lease time, but at most two
// minutes longer than otherwise. Its lease must expire as usual.
func TestExpectedHostsStayOnline(t *testing.T) {
	for name, test := range map[string]struct {
		by      string // the relay that expects host-agents
		beats   int    // for how long
		returns int    // how many other hosts get a new lease, one in each beat
		expired int    // the beats that must not count
	}{
		"this relay":                {by: "me", beats: 20, expired: 20},
		"a third relay":             {by: "third", beats: 20, expired: 20},
		"for longer than permitted": {by: "me", beats: 1000, expired: int(maxExpected / beatEvery)},
		"none":                      {expired: 0},
		"others return":             {returns: 20, expired: 20},
		"others return for long":    {returns: 1000, expired: int(maxExpected / beatEvery)},
		"others return while this relay expects more": {by: "me", beats: 20, returns: 10, expired: 20},
	} {
		t.Run(name, func(t *testing.T) {
			r := newSessions()
			r.hosts["t.h"].Lease = &lease{Instance: "agent", Keeper: "other"}
			now, rev := time.Now(), uint64(1)
			hear := func(instance string, s session) {
				rev++
				s.Started = r.started
				r.relays.apply(&r.view, instance, s, rev, 1, now)
			}
			hear("other", session{})
			keeps := r.relays.peers["other"].keeps
			keeps["t.h"] = true
			for i := range test.returns {
				keeps[fmt.Sprint("t.other-", i)] = true
			}
			r.relays.beat(now) // while the silent relay still keeps all hosts
			hear("other", session{})
			online := func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.relays.onlineLocked(r.hosts["t.h"])
			}
			for i, offline := 1, test.expired+r.relays.patience+1; i <= offline+1; i++ {
				now = now.Add(beatEvery)
				clear(r.changed)
				delete(keeps, fmt.Sprint("t.other-", i-1))
				for _, instance := range []string{"third", "me"} {
					hear(instance, session{Expects: instance == test.by && i <= test.beats})
				}
				if online() != (i < offline) {
					t.Fatalf("after %d beats the host is online: %v; want it offline from beat %d on", i, online(), offline)
				}
				if r.changed["t.h"] != (i == offline) {
					t.Fatalf("beat %d reports a change of the host: %v; want a report at beat %d only", i, r.changed["t.h"], offline)
				}
				if lost := r.lost("other"); lost != (i > r.relays.patience) {
					t.Fatalf("after %d beats the lease is lost: %v; want that after %d", i, lost, r.relays.patience)
				}
			}
			hear("other", session{})
			if !online() || !r.changed["t.h"] {
				t.Errorf("after the relay's new beat the host is online: %v, with the changed hosts %v; want true, and the host", online(), r.changed)
			}
		})
	}
}
