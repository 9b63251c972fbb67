package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Bounds of writing.
const (
	maxConflicts = 8                     // attempts at a change that meets conflicts
	conflictWait = 20 * time.Millisecond // mean delay before the next attempt
	flushers     = 32                    // hosts written concurrently
	flushLater   = time.Second           // delay before failed writes are repeated
	clientsEvery = 5 * time.Second       // maximum age of the number of clients that other relays know
)

// update changes a host in the store, and then in memory. Change receives the known
// state and returns the new one, or nil for no change; after a conflict it is called
// again. The error wraps ErrStoreAway if the outcome is unknown.
func (r *Registry) update(ctx context.Context, key string, change func(k *knownHost, alive bool) *hostState) error {
	for range maxConflicts {
		k, alive := r.known(key)
		next := change(&k, alive)
		if next == nil {
			return nil
		}
		home := r.regions.homeOf(&k)
		rev, err := home.store.write(ctx, hostKeys+key, next, k.rev)
		if err == nil {
			r.mu.Lock()
			r.writes++
			r.mu.Unlock()
			r.applyHost(home, *next, rev, 0, false)
			return nil
		}
		if !errors.Is(err, errConflict) {
			return err
		}
		if err := r.refresh(ctx, key); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: too many concurrent changes to %s", ErrStoreAway, key)
}

// known returns a copy of a host's state.
func (r *Registry) known(key string) (k knownHost, alive bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if known := r.hosts[key]; known != nil {
		return *known, r.aliveLocked(known)
	}
	return knownHost{hostState: hostState{Key: key}}, false
}

// refresh reads a host from the store.
func (r *Registry) refresh(ctx context.Context, key string) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrStoreAway, context.Cause(ctx))
	case <-time.After(rand.N(2 * conflictWait)):
	}
	s := hostState{Key: key}
	k, _ := r.known(key)
	home := r.regions.homeOf(&k)
	rev, err := home.store.read(ctx, hostKeys+key, &s)
	switch {
	case err != nil:
		return err
	case rev != 0:
		r.applyHost(home, s, rev, 0, false)
		return nil
	}
	r.mu.Lock()
	if k := r.hosts[key]; k != nil {
		k.rev = 0
	}
	r.mu.Unlock()
	return nil
}

// flush writes this relay's changes into the store until ctx ends: most at once, the
// numbers of clients periodically.
func (r *Registry) flush(ctx context.Context) {
	soft := time.NewTicker(clientsEvery)
	defer soft.Stop()
	var again <-chan time.Time
	for {
		all := false
		select {
		case <-ctx.Done():
			return
		case <-r.write:
		case <-again:
		case <-soft.C:
			all = true
		}
		again = nil
		if r.flushOnce(ctx, all) != nil {
			again = time.After(flushLater)
		}
	}
}

// flushAll writes all pending changes.
func (r *Registry) flushAll(ctx context.Context) { _ = r.flushOnce(ctx, true) }

// errReading reports a store whose first read is not complete.
var errReading = errors.New("the store is being read")

// flushOnce writes the urgent changes, or with all set every change.
func (r *Registry) flushOnce(ctx context.Context, all bool) error {
	r.mu.RLock()
	err := r.writeError()
	r.mu.RUnlock()
	if err != nil {
		return err
	}
	failed := errors.Join(r.revoker.write(ctx), r.regions.removeSurplus(ctx))
	r.mu.RLock()
	var keys []string
	for key := range r.dirty {
		k := r.hosts[key]
		if k == nil || !all && !k.dirty && k.rev != 0 && len(k.unwritten) == 0 {
			continue
		}
		if err := r.regions.homeOf(k).writeError(); err != nil {
			failed = err
			continue
		}
		keys = append(keys, key)
	}
	r.mu.RUnlock()
	if len(keys) == 0 {
		return failed
	}
	var mu sync.Mutex
	next := make(chan string)
	var wg sync.WaitGroup
	for range min(flushers, len(keys)) {
		wg.Go(func() {
			for key := range next {
				if err := r.flushHost(ctx, key); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}
		})
	}
	for _, key := range keys {
		next <- key
	}
	close(next)
	wg.Wait()
	return failed
}

// flushHost writes this relay's state of one host, unless another writer has changed
// the holder meanwhile.
func (r *Registry) flushHost(ctx context.Context, key string) error {
	var wrote *lease
	err := r.update(ctx, key, func(k *knownHost, _ bool) *hostState {
		s := k.hostState
		wrote = k.own
		switch {
		case k.rev != 0 && len(k.unwritten) == 0 && (k.own == nil || k.Lease != nil && k.own.sameForRelays(k.Lease) && k.own.Presence.Clients == k.Lease.Presence.Clients):
			return nil // the store has everything
		case k.own != nil:
			own := *k.own
			s.Lease = &own
			if k.kept != nil {
				s.LastSeen = later(s.LastSeen, k.renewed.UTC().Round(0))
			}
		}
		return &s
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.hosts[key]
	if k == nil {
		delete(r.dirty, key)
		return nil
	}
	k.unwritten = nil
	if k.own == wrote { // not changed meanwhile
		delete(r.dirty, key)
		k.dirty = false
		if k.kept == nil {
			k.own = nil
		}
	}
	return nil
}
