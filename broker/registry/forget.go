package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ahprelay/internal/clock"
)

// ErrHostServed reports that a host cannot be forgotten because its host-agent is
// connected.
var ErrHostServed = errors.New("its host-agent is connected; stop it first")

// ErrUnknownHost reports an unknown host.
var ErrUnknownHost = errors.New("no such host")

// forgetAtOnce bounds the hosts that forgetUnseen removes in one pass.
const forgetAtOnce = 1000

// Forget removes a host from all relays. Its host-agent must not be connected. The
// host-agent's credentials stay valid: revoke them first, otherwise the host returns
// when its host-agent connects.
func (r *Registry) Forget(ctx context.Context, tenant, host string) error {
	err := r.forget(ctx, hostKey(tenant, host), time.Time{})
	if err != nil {
		return fmt.Errorf("forget %s/%s: %w", tenant, host, err)
	}
	return nil
}

// forget removes a host from the store. It fails if the host is served. If
// unseenSince is set, it does nothing for a host seen after that time.
func (r *Registry) forget(ctx context.Context, key string, unseenSince time.Time) error {
	for attempt := range maxConflicts {
		k, alive := r.known(key)
		if k.rev == 0 && attempt == 0 { // the store may just be read again
			if err := r.writer.refresh(ctx, key); err != nil {
				return err
			}
			k, alive = r.known(key)
		}
		switch {
		case k.rev == 0:
			return ErrUnknownHost
		case alive:
			return ErrHostServed
		case !unseenSince.IsZero() && k.seen().After(unseenSince):
			return nil
		}
		home := r.regions.homeOf(&k).store
		if err := home.putFormer(ctx, &k.hostState, time.Now()); err != nil {
			return err
		}
		err := home.remove(ctx, hostKeys+key, k.rev)
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
		if err := r.writer.refresh(ctx, key); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: too many concurrent changes", ErrStoreAway)
}

// putFormer stores the users of a host that is about to be forgotten, until their credentials
// have expired. If these users are revoked, a relay that starts later must refuse them too.
func (s *store) putFormer(ctx context.Context, host *hostState, now time.Time) error {
	users := host.Users.current(now)
	if len(users) == 0 {
		return nil
	}
	var until time.Time
	for _, user := range users {
		until = clock.Later(until, user.Expires)
	}
	return s.putFor(ctx, formerKeys+host.Key, hostState{Key: host.Key, Users: users}, until.Add(userSlack).Sub(now))
}

// seen returns when the host-agent was last heard, or the enrolment if that is
// later.
func (s *hostState) seen() time.Time { return clock.Later(s.Enrolled, s.LastSeen) }

// Stats are a registry's counters.
type Stats struct {
	Hosts   int    // known hosts
	Kept    int    // leases that this relay keeps
	Heard   int    // kept leases whose host-agent is connected to this relay
	Tenants int    // known tenants
	Relays  int    // present relays, including this relay
	Writes  uint64 // writes of hosts into the store
	Refused uint64 // requests answered with "busy"
	Full    uint64 // host-agents refused because of their tenant's limit
	Dropped uint64 // requests dropped unread because of their host's rate
	Waiting int    // hosts with changes not yet written to the store
	Store   bool   // the store is usable
	Copies  int    // configured copies of the store; 0: unknown
	Current int    // copies on connected servers
}

// Stats returns the counters.
func (r *Registry) Stats() Stats {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := Stats{
		Hosts: len(r.hosts), Kept: len(r.keeping.kept), Tenants: len(r.accounts.tenants), Relays: 1,
		Writes: r.writer.writes, Refused: r.refused, Full: r.accounts.full, Dropped: r.dropped, Waiting: len(r.writer.dirty), Store: r.view.storeErr == nil,
		Copies: r.upkeep.status.copies, Current: r.upkeep.status.current,
	}
	for key := range r.keeping.lines {
		if k := r.hosts[key]; k != nil && k.kept && r.keeping.connectedLocked(key, k.own.Instance) {
			s.Heard++
		}
	}
	for instance, p := range r.relays.peers {
		if instance != r.cfg.Instance && p.presentLocked(r.relays.patience) {
			s.Relays++
		}
	}
	return s
}

// presentLocked reports whether a relay is running: its session exists and has not
// ended, and it has not missed more beats than patience.
func (p *peer) presentLocked(patience int) bool { return p.rev != 0 && !p.Bye && p.missed <= patience }
