package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Settings of writing.
const (
	maxConflicts = 8                     // a change is tried so often while others change the same
	conflictWait = 20 * time.Millisecond // on average, before it is tried again
	flushers     = 32                    // hosts that are written at a time
	flushLater   = time.Second           // what could not be written is tried again
	clientsEvery = 5 * time.Second       // how old the number of clients may be that other relays know
)

// update changes what the store has of a host, and then what this relay knows. Change
// gets what is known and returns what is to be, nil for no change; it is called
// again if somebody else has changed the host meanwhile. The error wraps
// ErrStoreAway if it is not known whether the change was made.
func (r *Registry) update(ctx context.Context, key string, change func(k *knownHost, alive bool) *hostState) error {
	for range maxConflicts {
		k, alive := r.look(key)
		next := change(&k, alive)
		if next == nil {
			return nil
		}
		home := r.homeOf(&k)
		rev, err := home.store.write(ctx, hostKeys+key, next, k.rev)
		if err == nil {
			r.mu.Lock()
			r.writes++
			r.mu.Unlock()
			r.takeHost(home, *next, rev, 0, false)
			return nil
		}
		if !errors.Is(err, errConflict) {
			return err
		}
		if err := r.refresh(ctx, key); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: others change %s all the time", ErrStoreAway, key)
}

// look returns a copy of what is known of a host.
func (r *Registry) look(key string) (k knownHost, alive bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if known := r.hosts[key]; known != nil {
		return *known, r.aliveLocked(known)
	}
	return knownHost{hostState: hostState{Key: key}}, false
}

// refresh takes what the store has of a host now.
func (r *Registry) refresh(ctx context.Context, key string) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrStoreAway, context.Cause(ctx))
	case <-time.After(rand.N(2 * conflictWait)):
	}
	s := hostState{Key: key}
	k, _ := r.look(key)
	home := r.homeOf(&k)
	rev, err := home.store.read(ctx, hostKeys+key, &s)
	switch {
	case err != nil:
		return err
	case rev != 0:
		r.takeHost(home, s, rev, 0, false)
		return nil
	}
	r.mu.Lock()
	if k := r.hosts[key]; k != nil {
		k.rev = 0
	}
	r.mu.Unlock()
	return nil
}

// hold carries out a request of a host-agent that is connected where the relay
// keeper is.
func (r *Registry) hold(ctx context.Context, key string, req leaseRequest, keeper string) leaseAnswer {
	if answer, done := r.renew(key, req, keeper); done {
		return answer
	}
	r.heardHere(key) // who wants the host of another instance sees by that whether it is there
	var answer leaseAnswer
	var next *lease
	now := time.Now().UTC()
	err := r.update(ctx, key, func(k *knownHost, alive bool) *hostState {
		current := k.lease()
		if current.held() && !alive {
			current = nil
		}
		next, answer = decide(current, k.downSince(), k.renewals, req, now)
		answer.Fence = k.lease().number()
		if next == nil {
			return nil
		}
		next.Keeper = keeper
		s := k.hostState
		s.Lease, s.LastSeen, s.Enrolled = next, now, earlier(k.Enrolled, now)
		next.Fence = k.lease().number()
		if current == nil || current.Released || current.Instance != next.Instance {
			next.Fence++
		}
		answer.Fence = next.Fence
		return &s
	})
	switch {
	case err != nil && req.Op == opRelease && r.releaseHere(key, req):
		return leaseAnswer{Result: leaseReleased}
	case err != nil:
		return leaseAnswer{Result: leaseRetry, Error: err.Error()}
	}
	if next.held() && keeper == r.cfg.Instance {
		r.openTenant(tenantOfKey(key))
	}
	return answer
}

// renew answers an instance that has its host already, from memory: the store need
// not be there. Done says that it has.
func (r *Registry) renew(key string, req leaseRequest, keeper string) (answer leaseAnswer, done bool) {
	if req.Op != opHold || keeper != r.cfg.Instance {
		return answer, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.hosts[key]
	if k == nil || !r.aliveLocked(k) || k.lease().Instance != req.Instance {
		return answer, false
	}
	was, now := k.lease(), time.Now()
	next, answer := decide(was, k.downSince(), k.renewals, req, now.UTC())
	if next == nil && req.Seq < was.Seq { // later ones came before it, maybe at another relay, which keeps the lease then
		answer.Fence = was.number()
		return answer, true
	}
	if next == nil { // a repeated one
		same := *was
		next = &same
	}
	next.Keeper, next.Fence = keeper, was.number()
	answer.Fence = next.Fence
	k.own = next
	if !next.says(was) {
		k.dirty = true
	}
	if k.dirty || next.Presence.Clients != was.Presence.Clients {
		r.changedLocked(key)
	}
	r.keptLocked(k, now)
	if k.dirty || k.Lease.Presence.Clients != k.lease().Presence.Clients {
		r.dirty[key] = true
	}
	if k.dirty {
		wakeUp(r.write)
	}
	return answer, true
}

// says reports whether two leases say the same to other relays, except for what may
// be a little old there.
func (l *lease) says(o *lease) bool {
	a, b := l.Presence, o.Presence
	a.Clients, b.Clients, a.Silent, b.Silent = 0, 0, 0, 0
	return a == b && l.Instance == o.Instance && l.Keeper == o.Keeper && l.Released == o.Released && l.Lost == o.Lost && l.number() == o.number() && l.Silent.Equal(o.Silent)
}

// entrustedLocked has this relay keep a lease of which the store says that it does: it
// was granted here, or by another relay for this one. Whether the word of that came
// back does not matter: nobody else ends the lease.
func (r *Registry) entrustedLocked(k *knownHost) {
	l := k.Lease
	if k.own != nil || !l.runs() || l.Keeper != r.cfg.Instance {
		return
	}
	own := *l
	k.own = &own
	r.keptLocked(k, time.Now())
}

// releaseHere notes that an instance gives its host up, while the store is away.
func (r *Registry) releaseHere(key string, req leaseRequest) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.hosts[key]
	if k == nil || !k.lease().held() || k.lease().Instance != req.Instance {
		return false
	}
	next, _ := decide(k.lease(), k.downSince(), k.renewals, req, time.Now().UTC())
	if next == nil {
		return false
	}
	next.Keeper, next.Fence = r.cfg.Instance, k.lease().number()
	r.dropLocked(k)
	k.own, k.dirty = next, true
	r.dirty[key] = true
	r.changedLocked(key)
	return true
}

// flush writes what this relay says beyond the store, until ctx ends: changes at
// once, the number of clients now and then.
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

// flushAll writes everything that there is to write.
func (r *Registry) flushAll(ctx context.Context) { _ = r.flushOnce(ctx, true) }

// errReading reports a store of which it is not known yet what it has.
var errReading = errors.New("the store is being read")

// flushOnce writes what is to be written, with all what can wait.
func (r *Registry) flushOnce(ctx context.Context, all bool) error {
	r.mu.RLock()
	err := r.whyNot()
	r.mu.RUnlock()
	if err != nil {
		return err
	}
	failed := errors.Join(r.writeRevocations(ctx), r.removeSurplus(ctx))
	r.mu.RLock()
	var keys []string
	for key := range r.dirty {
		k := r.hosts[key]
		if k == nil || !all && !k.dirty && k.rev != 0 && len(k.unwritten) == 0 {
			continue
		}
		if err := r.homeOf(k).whyNot(); err != nil {
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

// flushHost writes what this relay says of one host, unless somebody else has
// changed who holds it since.
func (r *Registry) flushHost(ctx context.Context, key string) error {
	var wrote *lease
	err := r.update(ctx, key, func(k *knownHost, _ bool) *hostState {
		s := k.hostState
		wrote = k.own
		switch {
		case k.rev != 0 && len(k.unwritten) == 0 && (k.own == nil || k.Lease != nil && k.own.says(k.Lease) && k.own.Presence.Clients == k.Lease.Presence.Clients):
			return nil // all is there
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
