package registry

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrHostThere reports a host that cannot be forgotten, because it is served.
var ErrHostThere = errors.New("its host-agent is there; stop it first")

// ErrUnknownHost reports a host that nobody knows.
var ErrUnknownHost = errors.New("no such host")

// forgetAtOnce is how many hosts are forgotten in a turn.
const forgetAtOnce = 1000

// Forget has all relays forget a host that nobody serves. Credentials that its
// host-agent has got stay good: revoke them first, or it is known again when it comes
// back.
func (r *Registry) Forget(ctx context.Context, tenant, host string) error {
	err := r.forget(ctx, hostKey(tenant, host), time.Time{})
	if err != nil {
		return fmt.Errorf("forget %s/%s: %w", tenant, host, err)
	}
	return nil
}

// forget removes a host from the store, unless it is there, or was seen after the
// given time, if one is given.
func (r *Registry) forget(ctx context.Context, key string, unseenSince time.Time) error {
	for range maxConflicts {
		k, alive := r.look(key)
		switch {
		case k.rev == 0:
			return ErrUnknownHost
		case alive:
			return ErrHostThere
		case !unseenSince.IsZero() && k.seen().After(unseenSince):
			return nil
		}
		err := r.homeOf(&k).store.remove(ctx, hostKeys+key, k.rev)
		if err == nil {
			r.mu.Lock()
			if known := r.hosts[key]; known != nil && known.rev == k.rev {
				r.forgetLocked(known)
			}
			r.mu.Unlock()
			return nil
		}
		if !errors.Is(err, errConflict) {
			return err
		}
		if err := r.refresh(ctx, key); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: others change it all the time", ErrStoreAway)
}

// seen is when anything was last heard of a host.
func (s *hostState) seen() time.Time { return later(s.Enrolled, s.LastSeen) }

// forgetUnseen forgets hosts that nobody has seen for as long as is configured. One
// relay does that for all. A host whose lease has not run out was seen until its relay
// fell silent, which is noted when the lease is said to have run out (tidyStore).
func (r *Registry) forgetUnseen(ctx context.Context, now time.Time) {
	if r.cfg.ForgetAfter == 0 {
		return
	}
	since := now.Add(-r.cfg.ForgetAfter)
	r.mu.RLock()
	var old []string
	for key, k := range r.hosts {
		if len(old) < forgetAtOnce && k.rev != 0 && k.home == nil && !k.seen().After(since) && !k.lease().runs() {
			old = append(old, key)
		}
	}
	r.mu.RUnlock()
	for _, key := range old {
		if err := r.forget(ctx, key, since); err != nil && !errors.Is(err, ErrHostThere) && !errors.Is(err, ErrUnknownHost) {
			r.cfg.Log.Warn("a host that nobody has seen for long cannot be forgotten", "host", key, "error", err)
			return
		}
		r.cfg.Log.Info("host forgotten: nobody has seen it for long", "host", key, "after", r.cfg.ForgetAfter)
	}
}

// Stats are what a registry counts.
type Stats struct {
	Hosts   int    // known
	Kept    int    // whose leases this relay keeps
	Heard   int    // of those, whose host-agents' connections end at this relay
	Tenants int    // known
	Relays  int    // that are there, this one included
	Writes  uint64 // of hosts, into the store
	Refused uint64 // requests that were told to come again
	Dropped uint64 // requests that were not read because their host sends too many
	Waiting int    // changes that the store does not have yet
	Store   bool   // it can be used
	Copies  int    // of the store that there are to be; 0: not known
	Current int    // of those that are there
}

// Stats returns what is counted.
func (r *Registry) Stats() Stats {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := Stats{
		Hosts: len(r.hosts), Kept: len(r.kept), Tenants: len(r.tenants), Relays: 1,
		Writes: r.writes, Refused: r.refused, Dropped: r.dropped, Waiting: len(r.dirty), Store: r.storeErr == nil,
		Copies: r.status.copies, Current: r.status.current,
	}
	for key := range r.lines {
		if k := r.hosts[key]; k != nil && k.kept != nil && r.hasLineLocked(key, k.own.Instance) {
			s.Heard++
		}
	}
	for instance, p := range r.peers {
		if instance != r.cfg.Instance && p.thereLocked(r.patience) {
			s.Relays++
		}
	}
	return s
}

// thereLocked reports whether a relay is there.
func (p *peer) thereLocked(patience int) bool { return p.rev != 0 && !p.Bye && p.missed <= patience }
