package registry

import (
	"context"
	"errors"
	"maps"
)

// tidyAtOnce is how many leases, and how many revocations, are seen to in a turn.
const tidyAtOnce = 1000

// tidyStore removes from the store what is over, for all relays.
func (r *Registry) tidyStore(ctx context.Context) error {
	if err := r.endLost(ctx); err != nil {
		return err
	}
	over := r.silentSessions()
	revoked := r.cfg.Revocations.toRemove()
	for key := range revoked {
		if len(revoked) > tidyAtOnce {
			delete(revoked, key)
		}
	}
	maps.Copy(over, revoked)
	for key, rev := range over {
		err := r.store.remove(ctx, key, rev)
		if err != nil && !errors.Is(err, errConflict) {
			return err
		}
		r.cfg.Revocations.removed(key) // or it has changed, which the watch tells
	}
	return nil
}

// silentSessions returns the sessions in the store of relays that have been silent for
// long.
func (r *Registry) silentSessions() map[string]uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	old := map[string]uint64{}
	for instance, p := range r.peers {
		if p.rev != 0 && p.home == nil && (p.Bye || p.missed > int(forgetAfter/r.beatEvery)) {
			old[relayKeys+instance] = p.rev
		}
	}
	return old
}

// endLost says of the leases of relays that have been silent for long that they have
// run out, which those relays cannot say. Else a relay that starts, and does not know
// yet who is silent, would take those hosts for online.
func (r *Registry) endLost(ctx context.Context) error {
	for key, keeper := range r.lostLeases() {
		err := r.update(ctx, key, func(k *knownHost, _ bool) *hostState {
			if k.own != nil || !k.Lease.runs() || k.Lease.Keeper != keeper {
				return nil // somebody has it again
			}
			s, l := k.hostState, *k.Lease
			l.Lost = true
			s.Lease, s.LastSeen = &l, later(s.LastSeen, r.lastHeard(keeper))
			return &s
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lostLeases returns some hosts whose lease was kept by a relay that has been silent
// for long, and which one.
func (r *Registry) lostLeases() map[string]string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	lost := map[string]string{}
	for instance, p := range r.peers {
		if instance == r.cfg.Instance || p.missed <= int(forgetAfter/r.beatEvery) {
			continue
		}
		for key := range p.keeps {
			if k := r.hosts[key]; k == nil || k.home != nil {
				continue // another region says so
			}
			if len(lost) == tidyAtOnce {
				return lost
			}
			lost[key] = instance
		}
	}
	return lost
}
