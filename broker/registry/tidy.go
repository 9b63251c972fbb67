package registry

import (
	"context"
	"errors"
	"maps"
)

// tidyAtOnce bounds the leases, and the revocations, that one pass handles.
const tidyAtOnce = 1000

// tidyStore removes ended sessions and revocations from the store, on behalf of all
// relays.
func (r *Registry) tidyStore(ctx context.Context) error {
	if err := r.endLost(ctx); err != nil {
		return err
	}
	over := r.relays.ended()
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
		r.cfg.Revocations.removed(key) // after a conflict the watch brings the change
	}
	return nil
}

// endLost ends the leases of relays that have been silent for long and cannot do so
// themselves. Otherwise a relay that starts, and does not yet know about the silence,
// would list those hosts as online.
func (r *Registry) endLost(ctx context.Context) error {
	for key, keeper := range r.lostLeases() {
		err := r.update(ctx, key, func(k *knownHost, _ bool) *hostState {
			if k.own != nil || !k.Lease.runs() || k.Lease.Keeper != keeper {
				return nil // somebody has it again
			}
			s, l := k.hostState, *k.Lease
			l.Lost = true
			s.Lease, s.LastSeen = &l, later(s.LastSeen, r.relays.lastHeard(keeper))
			return &s
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lostLeases returns hosts whose lease is kept by a relay that has been silent for
// long, with that relay.
func (r *Registry) lostLeases() map[string]string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	lost := map[string]string{}
	for instance, p := range r.relays.peers {
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
