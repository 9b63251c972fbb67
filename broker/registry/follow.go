package registry

import (
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"

	"github.com/nats-io/nats.go/jetstream"
)

// follow keeps a view what the store of its region has, until ctx ends.
func (r *Registry) follow(ctx context.Context, v *view) {
	for failures := 0; ctx.Err() == nil; failures++ {
		err := r.followOnce(ctx, v)
		if ctx.Err() != nil {
			return
		}
		r.away(v, err)
		if failures == 1 && v == &r.view {
			r.cfg.Log.Warn("store of the registry", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(openRetry):
		}
	}
}

// followOnce takes what the store has, and each change, until that ends.
func (r *Registry) followOnce(ctx context.Context, v *view) error {
	id, err := v.store.open(ctx)
	if err != nil {
		return fmt.Errorf("store of the registry: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	epoch := r.newEpoch(v, id) // before the watch begins, so that it brings all that is not of this epoch
	if v == &r.view {
		wakeUp(r.opened)
	}
	watch, err := v.store.watch(ctx)
	if err != nil {
		return fmt.Errorf("store of the registry: %w", err)
	}
	defer watch.Stop()
	began := time.Now()
	stale := time.NewTicker(r.beatEvery)
	defer stale.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-stale.C:
			if r.deaf(v, began) {
				return errors.New("store of the registry: what is written is not heard of")
			}
		case entry, open := <-watch.Updates():
			if !open {
				return errors.New("store of the registry: the watch has ended")
			}
			if entry == nil {
				r.synced(v, epoch, id)
				continue
			}
			r.applyEntry(v, entry, epoch)
		}
	}
}

// newEpoch begins to take what a bucket has from the start. Revisions that are known say
// nothing then: it may be another bucket, or have lost its last changes, as NATS servers
// do that lose their power.
func (r *Registry) newEpoch(v *view, id string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	v.epoch++
	v.seen = 0
	own := v == &r.view
	if own {
		r.cfg.Revocations.watched(false)
	}
	v.newStore = id != v.storeID
	for key, k := range r.hosts {
		if r.homeOf(k) != v {
			continue
		}
		k.rev = 0
		if v.newStore && own {
			k.unwritten = k.Users.current(time.Now())
			r.dirty[key] = true // until it is known that the bucket has all of it
		}
	}
	for _, p := range r.peers {
		if v.newStore && p.home == r.foreign(v) {
			p.rev = 0
		}
	}
	return v.epoch
}

// deaf reports whether this relay has written, long ago, what the watch, which began then, has not
// brought, and whether that has brought nothing else for so long: else it is only behind,
// and to begin anew would put it back further. Of another region nothing is written.
func (r *Registry) deaf(v *view, began time.Time) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	heard := later(v.heard, began)
	if v != &r.view {
		return time.Since(heard) > 5*r.beatEvery
	}
	return r.wrote.Sub(later(r.beaten, heard)) > 5*r.beatEvery
}

// applyEntry takes one entry of the store.
func (r *Registry) applyEntry(v *view, entry jetstream.KeyValueEntry, epoch uint64) {
	defer r.note(v, entry.Revision())
	gone := entry.Operation() != jetstream.KeyValuePut
	key, now := entry.Key(), time.Now()
	bad := func(err error) { r.cfg.Log.Warn("store of the registry", "key", key, "error", err) }
	switch {
	case strings.HasPrefix(key, hostKeys):
		s := hostState{Key: strings.TrimPrefix(key, hostKeys)}
		if !gone {
			err := json.Unmarshal(entry.Value(), &s)
			if err == nil {
				err = s.check()
			}
			if err == nil && hostKeys+s.Key != key {
				err = errors.New("is of another host")
			}
			if err != nil {
				bad(err)
				return
			}
		}
		r.takeHost(v, s, entry.Revision(), epoch, gone)
	case strings.HasPrefix(key, relayKeys):
		var s session
		rev := entry.Revision()
		if gone {
			rev = 0
		} else if err := json.Unmarshal(entry.Value(), &s); err != nil {
			bad(err)
			return
		}
		instance := strings.TrimPrefix(key, relayKeys)
		if instance != r.cfg.Instance {
			now = earlier(now, entry.Created()) // a new watch brings what is old
		}
		r.hearSession(v, instance, s, rev, epoch, now)
	case strings.HasPrefix(key, revokedKeys) && gone:
		if v == &r.view {
			r.cfg.Revocations.removed(key)
		}
	case strings.HasPrefix(key, revokedKeys):
		var rev auth.Revocation
		if err := json.Unmarshal(entry.Value(), &rev); err != nil {
			bad(err)
			return
		}
		if v != &r.view { // it is to be in this region's store too
			r.cfg.Revocations.hear([]auth.Revocation{rev})
			return
		}
		r.cfg.Revocations.stored(rev, entry.Revision())
	}
}

// note notes how far the watch has come.
func (r *Registry) note(v *view, rev uint64) {
	r.mu.Lock()
	v.seen, v.heard = rev, time.Now()
	if v != &r.view {
		r.hearLocked(v)
	}
	r.mu.Unlock()
}

// takeHost takes a host as the store of a region has it, from the watch or, of epoch 0,
// because this relay has just written or read it.
func (r *Registry) takeHost(v *view, s hostState, rev, epoch uint64, gone bool) {
	r.mu.Lock()
	if epoch == 0 {
		epoch = v.epoch
	}
	if !r.decidesLocked(v, &s, rev, gone) {
		r.mu.Unlock()
		return
	}
	k := r.hosts[s.Key]
	known := k != nil
	if !known {
		k = &knownHost{hostState: hostState{Key: s.Key}, home: r.foreign(v)}
	}
	k.epoch = max(k.epoch, epoch)
	if rev <= k.rev {
		r.mu.Unlock()
		return
	}
	if gone {
		r.forgetLocked(k)
		r.mu.Unlock()
		return
	}
	if !known {
		r.addLocked(k)
	}
	r.putLocked(k, s, rev)
	// While all is read that there is, it is not known yet who else is there: see turn.
	wanted := v.taken == v.epoch && r.standsByLocked(s.tenant()) && (len(k.Users.current(time.Now())) > 0 || r.aliveLocked(k))
	r.mu.Unlock()
	if wanted {
		r.openTenant(s.tenant())
	}
}

// addLocked makes a host known.
func (r *Registry) addLocked(k *knownHost) {
	r.hosts[k.Key] = k
	r.tenantLocked(k.tenant()).hosts[k.Key] = k
}

// putLocked replaces what is known of a host by what the store has.
func (r *Registry) putLocked(k *knownHost, s hostState, rev uint64) {
	r.keptByLocked(k.Lease, k.Key, false)
	s.LastSeen = later(s.LastSeen, k.LastSeen)
	all := s.Users.with(k.unwritten...)
	if all.equal(s.Users) {
		k.unwritten = nil
	}
	s.Users = all
	users := !s.Users.equal(k.Users)
	older := k.outdates(&s, r.homeOf(k).newStore)
	overtaken := k.own != nil && !older && k.overtaken(s.Lease, r.cfg.Instance)
	if older && k.own == nil {
		k.own = k.Lease // it is written again
	}
	k.hostState, k.rev = s, rev
	r.keptByLocked(k.Lease, k.Key, true)
	if k.own != nil && !overtaken && k.own.number() < k.Lease.number() { // see outnumber
		own := *k.own
		own.Fence = k.Lease.number()
		k.own = &own
	}
	switch {
	case overtaken:
		if s.Lease != nil && s.Lease.Instance != k.own.Instance {
			r.cutLocked(k.Key, k.own.Instance)
		}
		r.dropLocked(k)
	case k.own != nil && (k.Lease == nil || !k.own.says(k.Lease)):
		k.dirty = true
	}
	if k.dirty || len(k.unwritten) > 0 {
		r.dirty[k.Key] = true
		wakeUp(r.write)
	}
	r.entrustedLocked(k)
	if users {
		r.tokensLocked(k)
	}
	r.changedLocked(k.Key)
	if home := r.homeOf(k); home.taken == home.epoch { // else all of it is written when it is there
		r.file.changed(true)
	}
}

// keptByLocked notes who keeps a lease.
func (r *Registry) keptByLocked(l *lease, key string, keeps bool) {
	switch {
	case !l.runs():
	case keeps:
		r.peerLocked(l.Keeper).keeps[key] = true
	default:
		delete(r.peerLocked(l.Keeper).keeps, key)
	}
}

// dropLocked has this relay keep a lease no more.
func (r *Registry) dropLocked(k *knownHost) {
	k.own, k.dirty = nil, false
	if k.kept != nil {
		heap.Remove(&r.kept, k.kept.place)
		k.kept = nil
	}
	delete(r.dirty, k.Key)
}

// forgetLocked forgets a host that the store has no more.
func (r *Registry) forgetLocked(k *knownHost) {
	if r.hosts[k.Key] != k {
		return
	}
	r.keptByLocked(k.Lease, k.Key, false)
	if k.kept != nil {
		r.cutLocked(k.Key, k.own.Instance)
	}
	r.dropLocked(k)
	k.Users = nil
	r.tokensLocked(k)
	delete(r.hosts, k.Key)
	t := r.tenantLocked(k.tenant())
	delete(t.hosts, k.Key)
	if len(t.hosts) == 0 {
		delete(r.tenants, t.name)
		r.forgotten = append(r.forgotten, t.name)
		wakeUp(r.wake)
	}
	r.file.changed(true)
}

// synced is called when all that the store had has been taken. What it does not have is
// forgotten, or written if the bucket is one that this relay has not seen before, or if
// the host-agent is heard here.
func (r *Registry) synced(v *view, epoch uint64, id string) {
	own := v == &r.view
	if own {
		r.cfg.Revocations.watched(true)
	}
	r.mu.Lock()
	fresh := id != v.storeID && own
	v.storeID, v.newStore = id, false
	var missing []string
	for key, k := range r.hosts {
		if k.epoch == epoch || r.homeOf(k) != v {
			continue
		}
		if fresh || k.kept != nil {
			k.rev = 0
			missing = append(missing, key)
		} else {
			r.forgetLocked(k)
		}
	}
	for _, p := range r.peers {
		if p.epoch != epoch && p.home == r.foreign(v) {
			p.rev = 0
		}
	}
	for _, key := range missing {
		r.dirty[key] = true
	}
	first := !v.isSynced
	v.isSynced, v.taken = true, epoch
	r.mu.Unlock()
	r.file.changed(true)
	wakeUp(r.write)
	if first && own {
		close(r.ready)
	}
	if len(missing) > 0 {
		r.cfg.Log.Info("hosts are written into the store of the registry, which did not have them", "hosts", len(missing))
	}
	r.away(v, nil)
}

// away notes whether the store of a region can be used.
func (r *Registry) away(v *view, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case v != &r.view: // it is told when nothing was heard for a while
	case err != nil && v.storeErr == nil:
		r.cfg.Log.Warn("the store of the registry is away: hosts that are there go on, others wait", "error", err)
	case err == nil && v.storeErr != nil && v.isSynced:
		r.cfg.Log.Info("the store of the registry is there")
	}
	v.storeErr = err
}

// beats writes this relay's session again and again, and sees to the store, until
// ctx ends.
func (r *Registry) beats(ctx context.Context) {
	tick := time.NewTicker(r.beatEvery)
	defer tick.Stop()
	tended, written := time.Now(), time.Now()
	for {
		if r.store.bucket() != nil {
			if r.writeSession(ctx, false) {
				written = time.Now()
			}
			r.sayRegion()
			if now := time.Now(); now.Sub(tended) > tendEvery {
				tended = now
				r.tend(ctx)
			}
		}
		if time.Since(written) > reviveAfter*r.beatEvery {
			written = time.Now()
			r.revive()
		}
		select {
		case <-ctx.Done():
			return
		case <-r.opened:
		case <-tick.C:
		}
	}
}

// revive has the store of this relay's own server begin anew.
func (r *Registry) revive() {
	if r.cfg.Revive == nil {
		return
	}
	if err := r.cfg.Revive(); err != nil {
		r.cfg.Log.Warn("the store of the registry cannot begin anew", "error", err)
	}
}

// reviveAfter is for how many beats the store cannot have been written when a server of
// this relay's own is told to begin anew.
const reviveAfter = 5

// putSession says that this relay is there, or that it ends, and returns the revision of
// that.
func (r *Registry) putSession(ctx context.Context, bye bool) (uint64, error) {
	r.mu.RLock()
	s := session{
		Instance: r.cfg.Instance, Version: r.cfg.Version, Started: r.started.UTC(),
		URL: r.cfg.URL, Keys: r.cfg.Keys(), Former: r.formerLocked(time.Now()), Bye: bye,
	}
	r.mu.RUnlock()
	if n := r.cfg.Neighbours; n != nil {
		s.Node = n.Name()
		_, s.Port, _ = net.SplitHostPort(n.ClusterAddr())
	}
	return r.store.put(ctx, relayKeys+r.cfg.Instance, s)
}

// writeSession is putSession again and again. It reports whether the store has that.
func (r *Registry) writeSession(ctx context.Context, bye bool) bool {
	_, err := r.putSession(ctx, bye)
	if ctx.Err() != nil || bye {
		return err == nil
	}
	if err == nil {
		r.mu.Lock()
		r.wrote = time.Now()
		r.mu.Unlock()
	}
	r.away(&r.view, err)
	return err == nil
}

// tend sees to the store: one relay for all.
func (r *Registry) tend(ctx context.Context) {
	if r.cfg.Cluster { // the store goes on without this relay's copy, if that has stopped
		r.revive()
	}
	status, err := r.store.status(ctx)
	if err == nil {
		r.mu.Lock()
		r.status = status
		r.mu.Unlock()
	}
	if !r.first() {
		return
	}
	r.replaceCopies(ctx, status)
	r.forgetUnseen(ctx, time.Now())
	if err := r.tidyStore(ctx); err != nil && ctx.Err() == nil {
		r.cfg.Log.Warn("store of the registry: what is over is not removed yet", "error", err)
	}
}

// replaceCopies gives up servers whose copy of the store has been away for long, while
// most are there: those of relays that were replaced by others without their
// directory. The store is copied to others then.
func (r *Registry) replaceCopies(ctx context.Context, status storeStatus) {
	missing := map[string]int{}
	for _, node := range status.away {
		missing[node] = r.missing[node] + 1
		if missing[node] < giveUpAfter || r.cfg.Neighbours == nil || len(r.cfg.Neighbours.Routes())+1 < broker.MaxCopies {
			continue
		}
		r.cfg.Log.Warn("a server of the cluster is given up: its copy of the store is made elsewhere", "server", node)
		if err := r.cfg.Neighbours.GiveUp(ctx, node); err != nil {
			r.cfg.Log.Warn("a server of the cluster cannot be given up", "server", node, "error", err)
		}
		delete(missing, node)
	}
	r.missing = missing
}

// Tends reports whether this relay is the one that does for the stores of all what one is to do.
func (r *Registry) Tends() bool { return r.first() }

// first reports whether this relay is the one that does what one of its region is to do.
func (r *Registry) first() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for instance, p := range r.peers {
		if p.home == nil && p.thereLocked(r.patience) && instance < r.cfg.Instance {
			return false
		}
	}
	return true
}
