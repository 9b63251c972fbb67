package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"ahprelay/auth"

	"github.com/nats-io/nats.go/jetstream"
)

// follow keeps a view up to date with its region's store, until ctx ends.
func (r *Registry) follow(ctx context.Context, v *view) {
	for failures := 0; ctx.Err() == nil; failures++ {
		err := r.followOnce(ctx, v)
		if ctx.Err() != nil {
			return
		}
		r.setStoreError(v, err)
		if failures == 1 && v == &r.view {
			r.cfg.Log.Warn("registry store unreachable", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(openRetry):
		}
	}
}

// followOnce reads the store and watches it until the watch fails.
func (r *Registry) followOnce(ctx context.Context, v *view) error {
	id, err := v.store.open(ctx)
	if err != nil {
		return fmt.Errorf("registry store: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	epoch := r.newEpoch(v, id) // before the watch begins: entries that it does not bring keep an older epoch
	if v == &r.view {
		wakeUp(r.upkeep.opened)
	}
	watch, err := v.store.watch(ctx)
	if err != nil {
		return fmt.Errorf("registry store: %w", err)
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
			if r.watchStalled(v, began) {
				return errors.New("registry store: the watch has stalled")
			}
		case entry, open := <-watch.Updates():
			if !open {
				return errors.New("registry store: the watch has ended")
			}
			if entry == nil {
				r.synced(v, epoch, id)
				continue
			}
			r.applyEntry(v, entry, epoch)
		}
	}
}

// newEpoch begins a complete read of a bucket. Known revisions become invalid: the
// bucket may be new, or have lost its last changes in a power failure.
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
		if r.regions.homeOf(k) != v {
			continue
		}
		k.rev = 0
		if v.newStore && own {
			k.unwritten = k.Users.current(time.Now())
			r.writer.dirty[key] = true // until the bucket is known to have them all
		}
	}
	for _, p := range r.relays.peers {
		if v.newStore && p.home == r.regions.foreign(v) {
			p.rev = 0
		}
	}
	return v.epoch
}

// watchStalled reports whether the watch has stopped delivering: this relay wrote long
// ago, and neither that write nor anything else has come back since. A watch that
// still delivers is only behind, and a restart would set it back further. This relay
// writes nothing to another region, so only that region's silence counts.
func (r *Registry) watchStalled(v *view, began time.Time) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	heard := later(v.heard, began)
	if v != &r.view {
		return time.Since(heard) > 5*r.beatEvery
	}
	return r.upkeep.wrote.Sub(later(r.relays.beaten, heard)) > 5*r.beatEvery
}

// applyEntry applies one entry of the store.
func (r *Registry) applyEntry(v *view, entry jetstream.KeyValueEntry, epoch uint64) {
	defer r.noteProgress(v, entry.Revision())
	gone := entry.Operation() != jetstream.KeyValuePut
	key, now := entry.Key(), time.Now()
	bad := func(err error) { r.cfg.Log.Warn("registry entry invalid", "key", key, "error", err) }
	switch {
	case strings.HasPrefix(key, hostKeys):
		s := hostState{Key: strings.TrimPrefix(key, hostKeys)}
		if !gone {
			err := json.Unmarshal(entry.Value(), &s)
			if err == nil {
				err = s.check()
			}
			if err == nil && hostKeys+s.Key != key {
				err = errors.New("key and host differ")
			}
			if err != nil {
				bad(err)
				return
			}
		}
		r.applyHost(v, s, entry.Revision(), epoch, gone)
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
			now = earlier(now, entry.Created()) // a new watch repeats old sessions
		}
		r.relays.apply(v, instance, s, rev, epoch, now)
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
		if v != &r.view { // copied into this region's store too
			r.cfg.Revocations.receive([]auth.Revocation{rev})
			return
		}
		r.cfg.Revocations.stored(rev, entry.Revision())
	}
}

// noteProgress records how far the watch has come.
func (r *Registry) noteProgress(v *view, rev uint64) {
	r.mu.Lock()
	v.seen, v.heard = rev, time.Now()
	if v != &r.view {
		r.regions.markHeardLocked(v)
	}
	r.mu.Unlock()
}

// applyHost applies a host's state from a region's store: from the watch, or, with
// epoch 0, after this relay has read or written it.
func (r *Registry) applyHost(v *view, s hostState, rev, epoch uint64, gone bool) {
	r.mu.Lock()
	if epoch == 0 {
		epoch = v.epoch
	}
	if !r.regions.decidesLocked(v, &s, rev, gone) {
		r.mu.Unlock()
		return
	}
	k := r.hosts[s.Key]
	known := k != nil
	if !known {
		k = &knownHost{hostState: hostState{Key: s.Key}, home: r.regions.foreign(v)}
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
	// During the first read the other relays are not known yet: see turn.
	wanted := v.taken == v.epoch && r.accounts.standsByLocked(s.tenant()) && (len(k.Users.current(time.Now())) > 0 || r.aliveLocked(k))
	r.mu.Unlock()
	if wanted {
		r.accounts.open(s.tenant())
	}
}

// addLocked adds a host.
func (r *Registry) addLocked(k *knownHost) {
	r.hosts[k.Key] = k
	r.accounts.tenantLocked(k.tenant()).hosts[k.Key] = k
}

// putLocked replaces a host's state by the store's.
func (r *Registry) putLocked(k *knownHost, s hostState, rev uint64) {
	r.keptByLocked(k.Lease, k.Key, false)
	s.LastSeen = later(s.LastSeen, k.LastSeen)
	all := s.Users.with(k.unwritten...)
	if all.equal(s.Users) {
		k.unwritten = nil
	}
	s.Users = all
	users := !s.Users.equal(k.Users)
	older := k.outdates(&s, r.regions.homeOf(k).newStore)
	overtaken := k.own != nil && !older && k.overtaken(s.Lease, r.cfg.Instance)
	if older && k.own == nil {
		k.own = k.Lease // it is written again
	}
	k.hostState, k.rev = s, rev
	r.keptByLocked(k.Lease, k.Key, true)
	if k.own != nil && !overtaken && k.own.number() < k.Lease.number() { // see raiseFence
		own := *k.own
		own.Fence = k.Lease.number()
		k.own = &own
	}
	switch {
	case overtaken:
		if s.Lease != nil && s.Lease.Instance != k.own.Instance {
			r.keeping.cutLocked(k.Key, k.own.Instance)
		}
		r.keeping.dropLocked(k)
	case k.own != nil && (k.Lease == nil || !k.own.sameForRelays(k.Lease)):
		k.dirty = true
	}
	if k.dirty || len(k.unwritten) > 0 {
		r.writer.dirty[k.Key] = true
		wakeUp(r.writer.wake)
	}
	r.keeping.adoptLocked(k)
	if users {
		r.accounts.tokensLocked(k)
	}
	r.changedLocked(k.Key)
	if home := r.regions.homeOf(k); home.taken == home.epoch { // otherwise the file is written after the complete read
		r.file.changed(true)
	}
}

// keptByLocked updates the keeper's set of leases.
func (r *Registry) keptByLocked(l *lease, key string, keeps bool) {
	switch {
	case !l.runs():
	case keeps:
		r.relays.getLocked(l.Keeper).keeps[key] = true
	default:
		delete(r.relays.getLocked(l.Keeper).keeps, key)
	}
}

// forgetLocked removes a host that the store no longer has.
func (r *Registry) forgetLocked(k *knownHost) {
	if r.hosts[k.Key] != k {
		return
	}
	r.keptByLocked(k.Lease, k.Key, false)
	if k.kept != nil {
		r.keeping.cutLocked(k.Key, k.own.Instance)
	}
	r.keeping.dropLocked(k)
	k.Users = nil
	r.accounts.tokensLocked(k)
	delete(r.hosts, k.Key)
	t := r.accounts.tenantLocked(k.tenant())
	delete(t.hosts, k.Key)
	if len(t.hosts) == 0 {
		delete(r.accounts.tenants, t.name)
		r.accounts.forgotten = append(r.accounts.forgotten, t.name)
		wakeUp(r.wake)
	}
	r.file.changed(true)
}

// synced completes a read of the store. A host without an entry is forgotten. It is
// written again if the bucket is new to this relay, or if this relay keeps its lease.
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
		if k.epoch == epoch || r.regions.homeOf(k) != v {
			continue
		}
		if fresh || k.kept != nil {
			k.rev = 0
			missing = append(missing, key)
		} else {
			r.forgetLocked(k)
		}
	}
	for _, p := range r.relays.peers {
		if p.epoch != epoch && p.home == r.regions.foreign(v) {
			p.rev = 0
		}
	}
	for _, key := range missing {
		r.writer.dirty[key] = true
	}
	first := !v.isSynced
	v.isSynced, v.taken = true, epoch
	r.mu.Unlock()
	r.file.changed(true)
	wakeUp(r.writer.wake)
	if first && own {
		close(r.ready)
	}
	if len(missing) > 0 {
		r.cfg.Log.Info("hosts missing in the registry store are written again", "hosts", len(missing))
	}
	r.setStoreError(v, nil)
}

// setStoreError records whether a region's store is usable.
func (r *Registry) setStoreError(v *view, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case v != &r.view: // missRegions reports other regions
	case err != nil && v.storeErr == nil:
		r.cfg.Log.Warn("registry store unreachable: connected hosts continue, others wait", "error", err)
	case err == nil && v.storeErr != nil && v.isSynced:
		r.cfg.Log.Info("registry store reachable")
	}
	v.storeErr = err
}

// reviveAfter is the number of beats without a successful write after which this
// relay's own server is told to restart its store.
const reviveAfter = 5

// Maintains reports whether this relay performs the maintenance of stores for all
// relays.
func (r *Registry) Maintains() bool { return r.relays.leads() }
