package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"ahprelay/internal/clock"
)

// Bounds of writes.
const (
	maxConflicts = 8                     // attempts to make a change despite conflicts
	conflictWait = 20 * time.Millisecond // mean delay after a conflict
	flushers     = 32                    // hosts that are written concurrently
	flushLater   = time.Second           // delay before a failed write is repeated
	clientsEvery = 5 * time.Second       // interval at which changed client counts are written
)

// A writer writes changes of hosts to the store.
type writer struct {
	r    *Registry
	wake chan struct{} // wakes run, because there are changes to write

	// Guarded by Registry.mu.
	dirty  map[string]bool // hosts with changes to write
	writes uint64          // number of writes of hosts so far
}

// update changes a host, first in the store and then in memory. Change gets the
// known state and returns the new state, or nil for no change. It is called again
// after each conflict. The error wraps ErrStoreAway if it is unknown whether the
// write has succeeded.
func (w *writer) update(ctx context.Context, key string, change func(k *knownHost, alive bool) *hostState) error {
	for range maxConflicts {
		k, alive := w.r.known(key)
		next := change(&k, alive)
		if next == nil {
			return nil
		}
		if err := w.r.upkeep.noRoom(); err != nil {
			return fmt.Errorf("%w: %w", ErrStoreAway, err)
		}
		home := w.r.regions.homeOf(&k)
		rev, err := home.store.write(ctx, hostKeys+key, next, k.rev)
		if err == nil {
			w.r.mu.Lock()
			w.writes++
			w.r.mu.Unlock()
			w.r.applyHost(home, *next, rev, 0, false)
			return nil
		}
		if !errors.Is(err, errConflict) {
			return err
		}
		if err := w.refresh(ctx, key); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: too many concurrent changes to %s", ErrStoreAway, key)
}

// known returns a copy of what this relay knows of a host, and whether its lease is
// current.
func (r *Registry) known(key string) (k knownHost, alive bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if known := r.hosts[key]; known != nil {
		return *known, r.aliveLocked(known)
	}
	return knownHost{hostState: hostState{Key: key}}, false
}

// refresh reads a host from the store, after a random delay that spreads writers.
func (w *writer) refresh(ctx context.Context, key string) error {
	if !clock.Sleep(ctx, rand.N(2*conflictWait)) {
		return fmt.Errorf("%w: %w", ErrStoreAway, context.Cause(ctx))
	}
	s := hostState{Key: key}
	k, _ := w.r.known(key)
	home := w.r.regions.homeOf(&k)
	rev, err := home.store.read(ctx, hostKeys+key, &s)
	switch {
	case err != nil:
		return err
	case rev != 0:
		w.r.applyHost(home, s, rev, 0, false)
		return nil
	}
	w.r.mu.Lock()
	if k := w.r.hosts[key]; k != nil {
		k.rev = 0
	}
	w.r.mu.Unlock()
	return nil
}

// run writes this relay's changes to the store until ctx ends: client counts every
// clientsEvery, all other changes at once.
func (w *writer) run(ctx context.Context) {
	soft := time.Tick(clientsEvery)
	var again <-chan time.Time
	for {
		all := false
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-again:
		case <-soft:
			all = true
		}
		again = nil
		if w.flushOnce(ctx, all) != nil {
			again = time.After(flushLater)
		}
	}
}

var errReading = errors.New("this relay is still reading the region's store")

// flushOnce writes this relay's changes. If only the client count of a host has changed, it
// writes that host only if all is set.
func (w *writer) flushOnce(ctx context.Context, all bool) error {
	w.r.mu.RLock()
	err := w.r.view.writeError()
	w.r.mu.RUnlock()
	if err != nil {
		return err
	}
	failed := errors.Join(w.r.revoker.write(ctx), w.r.regions.removeSurplus(ctx))
	w.r.mu.RLock()
	var keys []string
	for key := range w.dirty {
		k := w.r.hosts[key]
		if k == nil || !all && !k.dirty && k.rev != 0 && len(k.unwritten) == 0 {
			continue
		}
		if err := w.r.regions.homeOf(k).writeError(); err != nil {
			failed = err
			continue
		}
		keys = append(keys, key)
	}
	w.r.mu.RUnlock()
	if len(keys) == 0 {
		return failed
	}
	var mu sync.Mutex
	next := make(chan string)
	var wg sync.WaitGroup
	for range min(flushers, len(keys)) {
		wg.Go(func() {
			for key := range next {
				if err := w.flushHost(ctx, key); err != nil {
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

// flushHost writes this relay's state of a host to the store. If the host was forgotten
// meanwhile, it writes nothing unless this relay keeps the host's lease. Each case of an
// own lease has its branch.
func (w *writer) flushHost(ctx context.Context, key string) error {
	var wrote *lease
	var before uint64 // the revision before a conflict
	err := w.update(ctx, key, func(k *knownHost, _ bool) *hostState {
		s := k.hostState
		wrote = k.own
		forgotten := before != 0 && k.rev == 0
		before = k.rev
		switch {
		case forgotten && !k.kept:
			return nil // the watch delivers the removal
		case k.rev != 0 && len(k.unwritten) == 0 && (k.own == nil || k.Lease != nil && k.own.sameForRelays(k.Lease) && k.own.Presence.Clients == k.Lease.Presence.Clients):
			return nil // the store has the current state
		case k.own != nil:
			own := *k.own
			s.Lease = &own
			if k.kept {
				s.LastSeen = clock.Later(s.LastSeen, k.renewed.UTC().Round(0))
			}
		}
		return &s
	})
	if err != nil {
		return err
	}
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	k := w.r.hosts[key]
	if k == nil {
		delete(w.dirty, key)
		return nil
	}
	k.unwritten = nil
	if k.own == wrote { // not changed during the write
		delete(w.dirty, key)
		k.dirty = false
		if !k.kept {
			k.own = nil
		}
	}
	return nil
}
