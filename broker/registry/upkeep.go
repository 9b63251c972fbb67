package registry

import (
	"context"
	"errors"
	"maps"
	"net"
	"time"

	"ahprelay/broker"
	"ahprelay/internal/clock"
)

// tidyAtOnce bounds the number of leases, and of revocations, that a single call of tidyStore
// handles.
const tidyAtOnce = 1000

// An upkeep writes this relay's session and maintains the store.
type upkeep struct {
	r       *Registry
	opened  chan struct{}        // wakes run, because the store was opened
	missing map[string]time.Time // since when the copy on a server has been offline; owned by run

	// Guarded by Registry.mu.
	wrote  time.Time // when this relay's session was last written
	full   error     // why the store's directory cannot be written; nil: it can, as far as is known
	status storeStatus
}

// tidyStore ends the leases of lost relays, and removes ended sessions and expired
// revocations from the store. It does so on behalf of all relays.
func (u *upkeep) tidyStore(ctx context.Context) error {
	if err := u.endLost(ctx); err != nil {
		return err
	}
	over := u.r.relays.ended()
	revoked := u.r.cfg.Revocations.toRemove()
	for key := range revoked {
		if len(revoked) > tidyAtOnce {
			delete(revoked, key)
		}
	}
	maps.Copy(over, revoked)
	for key, rev := range over {
		err := u.r.view.store.remove(ctx, key, rev)
		if err != nil && !errors.Is(err, errConflict) {
			return err
		}
		u.r.cfg.Revocations.removed(key) // after a conflict, the watch delivers the change
	}
	return nil
}

// endLost ends the leases of relays that have been silent for long. Otherwise a relay
// that starts later, and does not know of the silence yet, would list their hosts as
// online.
func (u *upkeep) endLost(ctx context.Context) error {
	for key, keeper := range u.lostLeases() {
		err := u.r.writer.update(ctx, key, func(k *knownHost, _ bool) *hostState {
			if k.own != nil || !k.Lease.runs() || k.Lease.Keeper != keeper || k.rev == 0 {
				return nil // a relay keeps the lease again, or the host was forgotten
			}
			s, l := k.hostState, *k.Lease
			l.Lost = true
			s.Lease, s.LastSeen = &l, clock.Later(s.LastSeen, u.r.relays.lastHeard(keeper))
			return &s
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lostLeases returns the hosts whose lease is kept by a relay that has been silent for
// long, and that relay.
func (u *upkeep) lostLeases() map[string]string {
	u.r.mu.RLock()
	defer u.r.mu.RUnlock()
	lost := map[string]string{}
	for instance, p := range u.r.relays.peers {
		if instance == u.r.cfg.Instance || p.missed <= int(forgetAfter/u.r.beatEvery) {
			continue
		}
		for key := range p.keeps {
			if k := u.r.hosts[key]; k == nil || k.home != nil {
				continue // that host's home region decides
			}
			if len(lost) == tidyAtOnce {
				return lost
			}
			lost[key] = instance
		}
	}
	return lost
}

// run writes this relay's session regularly and maintains the store, until ctx ends.
func (u *upkeep) run(ctx context.Context) {
	tick := time.Tick(u.r.beatEvery)
	tended, written := time.Now(), time.Now()
	for {
		next := tick
		switch full := u.noRoom() != nil; {
		case full:
			if !u.checkRoom() {
				u.revive()
			}
			next, written = time.After(roomEvery), time.Now()
		case u.r.view.store.bucket() != nil:
			wrote := u.writeSession(ctx, false)
			if wrote {
				written = time.Now()
			}
			if !wrote || u.isFull() {
				u.checkRoom()
			}
			u.r.regions.announce()
			if now := time.Now(); now.Sub(tended) > u.tendAfter() {
				tended = now
				u.maintain(ctx)
			}
		}
		if time.Since(written) > reviveAfter*u.r.beatEvery && u.writesNothing(ctx) {
			written = time.Now()
			u.revive()
		}
		select {
		case <-ctx.Done():
			return
		case <-u.opened:
		case <-next:
		}
	}
}

// writesNothing reports whether the store is reachable but does not write: it refuses
// writes, or it answers a query although it has not answered this relay's writes. A store
// that answers nothing may be slow or unreachable, and a restart would not help.
func (u *upkeep) writesNothing(ctx context.Context) bool {
	err := u.r.storeAway()
	if u.r.view.store.bucket() == nil || refuses(err) {
		return refuses(err)
	}
	_, asked := u.r.view.store.status(ctx)
	return asked == nil || refuses(asked)
}

// roomEvery is the interval at which a full disk is checked for free space.
const roomEvery = 500 * time.Millisecond

// checkRoom checks and records whether the directory of this relay's own store can be
// written.
func (u *upkeep) checkRoom() (full bool) {
	if u.r.cfg.Room == nil {
		return false
	}
	err := u.r.cfg.Room()
	u.r.mu.Lock()
	was := u.full
	u.full = err
	u.r.mu.Unlock()
	switch {
	case err != nil && was == nil:
		u.r.cfg.Log.Error("data directory not writable", "effect", "hosts and clients continue; new hosts and changes wait", "error", err)
	case err == nil && was != nil:
		u.r.cfg.Log.Info("data directory writable again")
	}
	return err != nil
}

// isFull returns the last result of checkRoom.
func (u *upkeep) isFull() bool {
	u.r.mu.RLock()
	defer u.r.mu.RUnlock()
	return u.full != nil
}

// noRoom returns why the store cannot be written, if this relay's own store is the only
// one.
func (u *upkeep) noRoom() error {
	u.r.mu.RLock()
	defer u.r.mu.RUnlock()
	if !u.r.decidesAlone() {
		return nil
	}
	return u.full
}

// revive restarts the store of this relay's own server.
func (u *upkeep) revive() {
	if u.r.cfg.Revive == nil {
		return
	}
	if err := u.r.cfg.Revive(); err != nil {
		u.r.cfg.Log.Warn("registry store not restarted", "error", err)
	}
}

// putSession writes this relay's session and returns its revision. Bye marks that the
// relay is ending.
func (u *upkeep) putSession(ctx context.Context, bye bool) (uint64, error) {
	u.r.mu.RLock()
	s := session{
		Instance: u.r.cfg.Instance, Version: u.r.cfg.Version, Started: u.r.started.UTC(),
		URL: u.r.cfg.URL, Keys: u.r.cfg.Keys(), Previous: u.r.relays.previousLocked(time.Now()), Bye: bye,
		Expects: u.r.Arrivals.Expected(),
	}
	u.r.mu.RUnlock()
	if n := u.r.cfg.Neighbours; n != nil {
		s.Node = n.Name()
		_, s.Port, _ = net.SplitHostPort(n.ClusterAddr())
	}
	return u.r.view.store.put(ctx, relayKeys+u.r.cfg.Instance, s)
}

// writeSession writes the session, records the result, and reports success.
func (u *upkeep) writeSession(ctx context.Context, bye bool) bool {
	_, err := u.putSession(ctx, bye)
	if ctx.Err() != nil || bye {
		return err == nil
	}
	if err == nil {
		u.r.mu.Lock()
		u.wrote = time.Now()
		u.r.mu.Unlock()
	}
	u.r.view.setStoreError(err)
	return err == nil
}

// maintain maintains the store. Most of the work is done by the leading relay on behalf
// of all.
func (u *upkeep) maintain(ctx context.Context) {
	if u.r.cfg.Cluster { // the other copies may work while this relay's copy has stopped
		u.revive()
	}
	status, err := u.r.view.store.status(ctx)
	if err == nil {
		u.r.mu.Lock()
		u.status = status
		u.r.mu.Unlock()
	}
	if err == nil && u.firstConnected() {
		u.replaceCopies(ctx, status, time.Now())
	}
	if !u.r.relays.leads() {
		return
	}
	u.forgetUnseen(ctx, time.Now())
	if err := u.tidyStore(ctx); err != nil && ctx.Err() == nil {
		u.r.cfg.Log.Warn("registry store not cleaned up", "error", err)
	}
}

// firstConnected reports whether this relay's server has the first name of all connected
// servers. Unlike the leading relay, it is known as soon as a connection to a server is
// lost.
func (u *upkeep) firstConnected() bool {
	n := u.r.cfg.Neighbours
	if n == nil {
		return false
	}
	for name := range n.Routes() {
		if name < n.Name() {
			return false
		}
	}
	return true
}

// tendAfter returns the interval at which the copies are checked.
func (u *upkeep) tendAfter() time.Duration {
	if len(u.missing) > 0 {
		return tendSoon
	}
	return tendEvery
}

// replaceCopies removes servers whose copy has been offline for giveUpAfter, if at least
// MaxCopies servers are connected. It assumes that such a server was replaced without its
// data directory. The store is then copied to a different server. If as many other servers
// are connected as are configured, the replacement has joined already, and replacedAfter
// suffices. A connected server is never removed: it has returned, possibly without its data,
// and the leader that described the copies has not noticed. JetStream would refuse a removed
// server for minutes.
func (u *upkeep) replaceCopies(ctx context.Context, status storeStatus, now time.Time) {
	missing := map[string]time.Time{}
	n := u.r.cfg.Neighbours
	routes := n.Routes()
	for _, node := range status.away {
		if _, connected := routes[node]; connected || node == n.Name() {
			continue
		}
		since, known := u.missing[node]
		if !known {
			since = now
		}
		missing[node] = since
		if len(routes)+1 < broker.MaxCopies {
			continue
		}
		patience := giveUpAfter
		if len(routes) >= max(len(n.Others()), broker.MaxCopies-1) {
			patience = replacedAfter
		}
		if now.Sub(since) < patience {
			continue
		}
		u.r.cfg.Log.Warn("removing server from the cluster", "effect", "its copy of the store moves", "server", node)
		if err := u.giveUp(ctx, node); err != nil {
			u.r.cfg.Log.Warn("server not removed from the cluster", "server", node, "error", err)
		}
		delete(missing, node)
	}
	u.missing = missing
}

// giveUp removes a server from the cluster. Without a leader, the cluster does not answer.
func (u *upkeep) giveUp(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return u.r.cfg.Neighbours.GiveUp(ctx, node)
}

// forgetUnseen removes hosts that have been absent for ForgetAfter. One relay does this
// for all. Hosts with a current lease are not affected: when their relay becomes silent,
// tidyStore ends the lease and records when they were last seen.
func (u *upkeep) forgetUnseen(ctx context.Context, now time.Time) {
	if u.r.cfg.ForgetAfter == 0 {
		return
	}
	since := now.Add(-u.r.cfg.ForgetAfter)
	u.r.mu.RLock()
	var old []string
	for key, k := range u.r.hosts {
		if len(old) < forgetAtOnce && k.rev != 0 && k.home == nil && !k.seen().After(since) && !k.lease().runs() {
			old = append(old, key)
		}
	}
	u.r.mu.RUnlock()
	for _, key := range old {
		switch err := u.r.forget(ctx, key, since); {
		case err == nil:
			u.r.cfg.Log.Info("unseen host forgotten", "host", key, "after", u.r.cfg.ForgetAfter)
		case errors.Is(err, ErrHostServed), errors.Is(err, ErrUnknownHost):
		default:
			u.r.cfg.Log.Warn("unseen host not forgotten", "host", key, "error", err)
			return
		}
	}
}
