package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/internal/clock"
	"ahprelay/internal/signal"

	"github.com/nats-io/nats.go/jetstream"
)

// follow keeps a view up to date with its region's store until ctx ends.
func (v *view) follow(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		err := v.followOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		v.setStoreError(err)
		if failures == 1 && v.own() {
			v.r.cfg.Log.Warn("registry store unreachable", "error", err)
		}
		clock.Sleep(ctx, openRetry)
	}
}

// followOnce reads the store and watches it until the watch fails.
func (v *view) followOnce(ctx context.Context) error {
	id, err := v.store.open(ctx)
	if err != nil {
		return fmt.Errorf("registry store: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	epoch := v.newEpoch(id) // begins before the watch, so that entries missing in the bucket keep an older epoch
	if v.own() {
		signal.Send(v.r.upkeep.opened)
	}
	newest, err := v.store.last(ctx)
	if err != nil {
		return fmt.Errorf("registry store: %w", err)
	}
	watch, err := v.store.watch(ctx)
	if err != nil {
		return fmt.Errorf("registry store: %w", err)
	}
	defer watch.Stop()
	began := time.Now()
	stale := time.Tick(v.r.beatEvery)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-stale:
			if v.watchStalled(began) {
				return errors.New("registry store: the watch has stalled")
			}
		case entry, open := <-watch.Updates():
			if !open {
				return errors.New("registry store: the watch has ended")
			}
			if entry != nil {
				v.applyEntry(entry, epoch)
				continue
			}
			if !v.hasSeen(newest) {
				return errors.New("registry store: the watch reads a copy that lags")
			}
			v.synced(epoch, id)
		}
	}
}

// newEpoch begins a complete read of a bucket. The known revisions become invalid,
// because the bucket may be new, or may have lost its last changes in a power failure.
func (v *view) newEpoch(id string) uint64 {
	v.r.mu.Lock()
	defer v.r.mu.Unlock()
	v.epoch++
	v.seen = 0
	own := v.own()
	if own {
		v.r.cfg.Revocations.watched(false)
	}
	v.newStore = id != v.storeID
	for key, k := range v.r.hosts {
		if v.r.regions.homeOf(k) != v {
			continue
		}
		k.rev = 0
		if v.newStore && own {
			k.unwritten = k.Users.current(time.Now())
			v.r.writer.dirty[key] = true // until the read shows that the bucket contains them
		}
	}
	for _, p := range v.r.relays.peers {
		if v.newStore && p.home == v.r.regions.foreign(v) {
			p.rev = 0
		}
	}
	return v.epoch
}

// watchStalled reports whether the watch has stopped delivering. In this relay's own
// region, that is the case if a write of this relay has not come back for a long time,
// and nothing else has arrived since. A watch that still delivers is only late, and a
// restart would delay it further. This relay writes nothing in other regions; there, a
// long silence counts.
func (v *view) watchStalled(began time.Time) bool {
	v.r.mu.RLock()
	defer v.r.mu.RUnlock()
	heard := clock.Later(v.heard, began)
	if !v.own() {
		return time.Since(heard) > 5*v.r.beatEvery
	}
	return v.r.upkeep.wrote.Sub(clock.Later(v.r.relays.beaten, heard)) > 5*v.r.beatEvery
}

func readHost(key string, value []byte, gone bool) (hostState, error) {
	s := hostState{Key: strings.TrimPrefix(key, hostKeys)}
	if gone {
		return s, nil
	}
	if err := json.Unmarshal(value, &s); err != nil {
		return s, err
	}
	if hostKeys+s.Key != key {
		return s, errors.New("key and host differ")
	}
	return s, s.check()
}

// applyEntry applies an entry that the watch has delivered.
func (v *view) applyEntry(entry jetstream.KeyValueEntry, epoch uint64) {
	defer v.noteProgress(entry.Revision())
	gone := entry.Operation() != jetstream.KeyValuePut
	key, now := entry.Key(), time.Now()
	bad := func(err error) { v.r.cfg.Log.Warn("registry entry invalid", "key", key, "error", err) }
	switch {
	case strings.HasPrefix(key, hostKeys):
		s, err := readHost(key, entry.Value(), gone)
		if err != nil {
			bad(err)
			return
		}
		v.r.applyHost(v, s, entry.Revision(), epoch, gone)
	case strings.HasPrefix(key, formerKeys):
		s, err := readHost(hostKeys+strings.TrimPrefix(key, formerKeys), entry.Value(), gone)
		if err != nil {
			bad(err)
			return
		}
		v.r.accounts.applyFormer(v, s)
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
		if instance != v.r.cfg.Instance {
			now = earlier(now, entry.Created()) // a new watch delivers old sessions again
		}
		v.r.relays.apply(v, instance, s, rev, epoch, now)
	case strings.HasPrefix(key, revokedKeys) && gone:
		if v.own() {
			v.r.cfg.Revocations.removed(key)
		}
	case strings.HasPrefix(key, revokedKeys):
		var rev auth.Revocation
		if err := json.Unmarshal(entry.Value(), &rev); err != nil {
			bad(err)
			return
		}
		if !v.own() { // it must also be written to this region's store
			v.r.cfg.Revocations.receive([]auth.Revocation{rev})
			return
		}
		v.r.cfg.Revocations.stored(rev, entry.Revision())
	}
}

// hasSeen reports whether the watch has delivered a revision, or a later one.
func (v *view) hasSeen(rev uint64) bool {
	v.r.mu.RLock()
	defer v.r.mu.RUnlock()
	return v.seen >= rev
}

// noteProgress records the last revision that the watch has delivered.
func (v *view) noteProgress(rev uint64) {
	v.r.mu.Lock()
	v.seen, v.heard = rev, time.Now()
	if !v.own() {
		v.r.regions.markHeardLocked(v)
	}
	v.r.mu.Unlock()
}

// applyHost applies revision rev of a host's entry from a region's store. If gone is true,
// the entry was deleted. epoch is the number of the watch that delivered the entry, or 0 if
// this relay has read or written it itself.
func (r *Registry) applyHost(v *view, s hostState, rev, epoch uint64, gone bool) {
	r.mu.Lock()
	epoch = cmp.Or(epoch, v.epoch)
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
	refuses := r.putLocked(k, s, rev)
	// During the first read this relay does not know the other relays yet. tidy later
	// chooses the additional relay.
	wanted := v.taken == v.epoch && r.accounts.standsByLocked(s.tenant()) && (len(k.Users.current(time.Now())) > 0 || r.aliveLocked(k))
	r.mu.Unlock()
	switch {
	case wanted:
		r.accounts.open(s.tenant())
	case refuses: // the revocation has arrived before its user
		r.accounts.openAgain(s.tenant())
	}
}

func (r *Registry) addLocked(k *knownHost) {
	r.hosts[k.Key] = k
	r.accounts.tenantLocked(k.tenant()).hosts[k.Key] = k
	k.unwritten = r.accounts.returnLocked(k.Key)
}

// putLocked replaces a host's state with the state from the store. Its branches
// compare the store's lease with this relay's own. Their order matters, because later
// branches use the result of earlier ones. It reports whether the host has new users of
// which NATS must refuse some.
func (r *Registry) putLocked(k *knownHost, s hostState, rev uint64) (refuses bool) {
	r.keptByLocked(k.Lease, k.Key, false)
	s.LastSeen = clock.Later(s.LastSeen, k.LastSeen)
	all := s.Users.with(k.unwritten...)
	if all.equal(s.Users) {
		k.unwritten = nil
	}
	s.Users = all
	users := !s.Users.equal(k.Users)
	older := k.outdates(&s, r.regions.homeOf(k).newStore)
	overtaken := k.own != nil && !older && k.overtaken(s.Lease, r.cfg.Instance)
	if older && k.own == nil {
		k.own = k.Lease // this relay's lease is newer, and is written again
	}
	k.hostState, k.rev = s, rev
	r.keptByLocked(k.Lease, k.Key, true)
	if k.own != nil && !overtaken && k.own.number() < k.Lease.number() { // raiseFence has raised the number in the store
		own := *k.own
		own.Fence = k.Lease.number()
		k.own = &own
	}
	switch {
	case overtaken:
		r.keeping.overtakenLocked(k)
	case k.own != nil && (k.Lease == nil || !k.own.sameForRelays(k.Lease)):
		k.dirty = true
	}
	if k.dirty || len(k.unwritten) > 0 {
		r.writer.dirty[k.Key] = true
		signal.Send(r.writer.wake)
	}
	r.keeping.adoptLocked(k)
	if l := k.lease(); l.held() && l.Lost && r.keeping.connectedLocked(k.Key, l.Instance) {
		r.keeping.recheckLocked(k.Key, l.Instance)
	}
	if users {
		refuses = r.accounts.tokensLocked(k)
	}
	r.changedLocked(k.Key)
	if home := r.regions.homeOf(k); home.taken == home.epoch { // during a complete read, the file is written only at its end
		r.file.changed(true)
	}
	return refuses
}

// keptByLocked adds a lease to its keeper's set, or removes it.
func (r *Registry) keptByLocked(l *lease, key string, keeps bool) {
	switch {
	case !l.runs():
	case keeps:
		r.relays.getLocked(l.Keeper).keeps[key] = true
	default:
		delete(r.relays.getLocked(l.Keeper).keeps, key)
	}
}

// forgetLocked removes a host that the store no longer contains.
func (r *Registry) forgetLocked(k *knownHost) {
	if r.hosts[k.Key] != k {
		return
	}
	r.keptByLocked(k.Lease, k.Key, false)
	if k.kept {
		r.keeping.cutLocked(k.Key, k.own.Instance)
	}
	r.keeping.dropLocked(k)
	r.accounts.forgetLocked(k)
	delete(r.hosts, k.Key)
	t := r.accounts.tenantLocked(k.tenant())
	delete(t.hosts, k.Key)
	if len(t.hosts) == 0 {
		delete(r.accounts.tenants, t.name)
		r.accounts.forgotten = append(r.accounts.forgotten, t.name)
		signal.Send(r.wake)
	}
	r.file.changed(true)
}

// synced ends a complete read of the store. A host without an entry is forgotten. But
// if the bucket is new to this relay, or this relay keeps the host's lease, the host
// is written to the store again.
func (v *view) synced(epoch uint64, id string) {
	own := v.own()
	if own {
		v.r.cfg.Revocations.watched(true)
	}
	v.r.mu.Lock()
	fresh := id != v.storeID && own
	v.storeID, v.newStore = id, false
	var missing []string
	for key, k := range v.r.hosts {
		if k.epoch == epoch || v.r.regions.homeOf(k) != v {
			continue
		}
		if fresh || k.kept {
			k.rev = 0
			missing = append(missing, key)
		} else {
			v.r.forgetLocked(k)
		}
	}
	for _, p := range v.r.relays.peers {
		if p.epoch != epoch && p.home == v.r.regions.foreign(v) {
			p.rev = 0
		}
	}
	for _, key := range missing {
		v.r.writer.dirty[key] = true
	}
	first := !v.isSynced
	v.isSynced, v.taken = true, epoch
	v.r.mu.Unlock()
	v.r.file.changed(true)
	signal.Send(v.r.writer.wake)
	if first && own {
		close(v.r.ready)
	}
	if len(missing) > 0 {
		v.r.cfg.Log.Info("writing missing hosts to the registry store again", "hosts", len(missing))
	}
	v.setStoreError(nil)
}

// setStoreError records why a region's store is unusable; nil: it is usable.
func (v *view) setStoreError(err error) {
	v.r.mu.Lock()
	defer v.r.mu.Unlock()
	switch {
	case !v.own(): // findSilent reports other regions
	case err != nil && v.storeErr == nil:
		v.r.cfg.Log.Warn("registry store unreachable", "effect", "connected hosts continue, others wait", "error", err)
	case err == nil && v.storeErr != nil && v.isSynced:
		v.r.cfg.Log.Info("registry store reachable")
	}
	v.storeErr = err
}

// If no write has succeeded for reviveAfter intervals of beatEvery, this relay may restart the
// store of its own server.
const reviveAfter = 5

// Maintains reports whether this relay maintains its region's stores on behalf of all
// relays.
func (r *Registry) Maintains() bool { return r.relays.leads() }
