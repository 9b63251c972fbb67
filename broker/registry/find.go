package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"ahprelay/ahp"
)

// Unread returns nil if this relay has read its region's store completely, else the
// reason. Before that, a host missing here may be online at a different relay.
func (r *Registry) Unread() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.view.isSynced {
		return nil
	}
	return fmt.Errorf("%w: %w", errUnread, r.view.writeError())
}

var errUnread = errors.New("the registry store has not been read since the start")

// Find returns nil if a host is enrolled. It returns ErrUnknownHost only if the stores
// of all regions confirm that the host is not enrolled; the views in memory do not
// suffice, because a different relay may just have enrolled it. If a store cannot be
// asked, the error wraps ErrStoreAway.
func (r *Registry) Find(ctx context.Context, tenant, host string) error {
	if errors.Join(ahp.CheckName("tenant", tenant), ahp.CheckName("host", host)) != nil {
		return ErrUnknownHost
	}
	if _, known := r.Lookup(tenant, host); known {
		return nil
	}
	if err := r.Unread(); err != nil {
		return fmt.Errorf("%w: %w", ErrStoreAway, err)
	}
	if err := r.regions.pending(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	for _, v := range r.regions.all() {
		if err := v.find(ctx, hostKey(tenant, host)); !errors.Is(err, ErrUnknownHost) {
			return err
		}
	}
	return ErrUnknownHost
}

func (rg *regions) all() []*view {
	rg.r.mu.RLock()
	defer rg.r.mu.RUnlock()
	return slices.AppendSeq([]*view{&rg.r.view}, maps.Values(rg.others))
}

// find reads a host from a region's store. The error is ErrUnknownHost if the store does
// not contain the host.
func (v *view) find(ctx context.Context, key string) error {
	v.r.mu.RLock()
	silent := !v.silent.IsZero()
	v.r.mu.RUnlock()
	if silent {
		return fmt.Errorf("%w: region %s cannot be reached", ErrStoreAway, v.name)
	}
	s := hostState{Key: key}
	rev, err := v.store.read(ctx, hostKeys+key, &s)
	if err == nil && rev == 0 {
		return ErrUnknownHost
	}
	if err == nil {
		err = s.check()
	}
	if err == nil {
		v.r.applyHost(v, s, rev, 0, false)
	}
	return err
}
