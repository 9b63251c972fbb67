package registry

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
)

// TestEndedEntriesLeaveStore stores the session of a relay, a lease that it keeps, and a
// revocation. When the relay is silent and the revocation expired, tidyStore must remove the
// session and the revocation, and mark the lease as lost.
func TestEndedEntriesLeaveStore(t *testing.T) {
	t.Parallel()
	r := startTest(t, newTestServer(t), Config{})
	ctx := t.Context()
	await := func(what string, done func() bool) {
		t.Helper()
		for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			r.mu.RLock()
			ok := done()
			r.mu.RUnlock()
			if ok {
				return
			}
			if time.Now().After(until) {
				t.Fatalf("not within a minute: %s", what)
			}
		}
	}
	s := leased("agent", "other", 1, 1)
	if _, err := r.view.store.write(ctx, hostKeys+s.Key, s, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.view.store.put(ctx, relayKeys+"other", session{Instance: "other", Started: time.Now()}); err != nil {
		t.Fatal(err)
	}
	rev := auth.Revocation{Token: "spent", At: time.Now(), Until: time.Now().Add(time.Hour)}
	if err := r.Revocations().Add(rev); err != nil {
		t.Fatal(err)
	}
	stored := func() bool {
		r.cfg.Revocations.mu.RLock()
		defer r.cfg.Revocations.mu.RUnlock()
		return r.cfg.Revocations.revs[revokedKey(rev)] != 0
	}
	await("the store has all", func() bool {
		return stored() && r.hosts["t.h"] != nil && r.relays.peers["other"] != nil && r.relays.peers["other"].rev != 0
	})
	if h, _ := r.Lookup("t", "h"); h.State != Online {
		t.Fatalf("the host is %+v; want it online", h)
	}
	if err := r.upkeep.tidyStore(ctx); err != nil {
		t.Fatal(err)
	}
	var kept auth.Revocation
	if at, err := r.view.store.read(ctx, revokedKey(rev), &kept); at == 0 || err != nil {
		t.Fatalf("a revocation in force is not in the store: %v; want it kept", err)
	}

	r.mu.Lock()
	heard := r.relays.peers["other"].heard.UTC().Round(0)
	r.relays.peers["other"].missed = 1 << 20
	r.mu.Unlock()
	tidy := func() {
		t.Helper()
		r.cfg.Revocations.prune(time.Now().Add(2 * time.Hour)) // the relay's own message may add the revocation once more
		if err := r.upkeep.tidyStore(ctx); err != nil {
			t.Fatal(err)
		}
	}
	tidy()
	var now hostState
	if _, err := r.view.store.read(ctx, hostKeys+s.Key, &now); err != nil || !now.Lease.Lost || now.LastSeen.Before(heard) {
		t.Errorf("the store has the host %+v with the lease %+v, %v; want the lease expired", now, now.Lease, err)
	}
	inStore := func(key string) bool {
		at, err := r.view.store.read(ctx, key, &struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		return at != 0
	}
	for until := time.Now().Add(time.Minute); inStore(relayKeys+"other") || inStore(revokedKey(rev)); { // recent changes wait for the next call
		if time.Now().After(until) {
			t.Fatal("a silent relay's session or an expired revocation is still in the store; want both removed")
		}
		tidy()
	}
	await("nothing is remembered", func() bool {
		p := r.relays.peers["other"]
		return (p == nil || len(p.keeps) == 0 && p.rev == 0) && !stored()
	})
	if len(r.cfg.Revocations.toRemove()) > 0 {
		t.Error("toRemove lists removed revocations; want none")
	}
}

// TestStoppedCopyIsRestarted calls maintain at a relay in a cluster. It must call Revive although
// the store is writable: this relay's own copy could have stopped.
func TestStoppedCopyIsRestarted(t *testing.T) {
	t.Parallel()
	revived := 0
	r := startTest(t, newTestServer(t), Config{Cluster: true, Revive: func() error { revived++; return nil }})
	r.upkeep.maintain(t.Context())
	if revived == 0 {
		t.Error("maintain did not check the copy of this relay; want a restart")
	}
}

// A removingNeighbours is a Neighbours that lets a test observe removals.
type removingNeighbours struct {
	namedNeighbours
	remove func(ctx context.Context, name string) error
}

func (n *removingNeighbours) GiveUp(ctx context.Context, name string) error {
	return n.remove(ctx, name)
}

// TestConnectedServerIsNotRemoved reports offline copies on a server that has just returned, on this
// relay's own server, and on a server that was replaced under a new name. Only the replaced server
// must be removed from the cluster: the leader of the copies may notice late that a server is back.
func TestConnectedServerIsNotRemoved(t *testing.T) {
	t.Parallel()
	var removed []string
	near := &removingNeighbours{remove: func(_ context.Context, name string) error { removed = append(removed, name); return nil }}
	u := &upkeep{r: &Registry{cfg: Config{Neighbours: near, Log: slog.New(slog.DiscardHandler)}}}
	status, now := storeStatus{copies: 3, current: 1, away: []string{"returned", "own", "replaced"}}, time.Now()
	near.routes = map[string]string{"other": "127.0.0.1"}
	u.replaceCopies(t.Context(), status, now)
	near.routes = map[string]string{"other": "127.0.0.1", "returned": "127.0.0.1"}
	u.replaceCopies(t.Context(), status, now.Add(2*replacedAfter))
	if got, want := fmt.Sprint(removed), "[replaced]"; got != want {
		t.Errorf("the servers %s are removed from the cluster; want %s", got, want)
	}
}

// TestRemovalOfAServerIsBounded removes a server from a cluster that does not answer, because its
// store has no leader. replaceCopies must return: only afterwards, the relay writes its session.
func TestRemovalOfAServerIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near := &removingNeighbours{remove: func(ctx context.Context, _ string) error { <-ctx.Done(); return context.Cause(ctx) }}
		near.routes = map[string]string{"other": "127.0.0.1", "replacement": "127.0.0.1"}
		u := &upkeep{r: &Registry{cfg: Config{Neighbours: near, Log: slog.New(slog.DiscardHandler)}}}
		status, now := storeStatus{copies: 3, current: 1, away: []string{"replaced"}}, time.Now()
		u.replaceCopies(t.Context(), status, now)
		u.replaceCopies(t.Context(), status, now.Add(2*replacedAfter))
		if took := time.Since(now); took == 0 || took > 10*time.Second {
			t.Errorf("the removal ended after %v; want it to wait for an answer, and to end", took)
		}
	})
}
