package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"ahprelay/ahp"
	"ahprelay/broker"
)

// Unread returns why this relay has not read its region's store yet, or nil. Until the
// first complete read, a host missing here may be online elsewhere.
func (r *Registry) Unread() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.view.isSynced {
		return nil
	}
	return fmt.Errorf("%w: %w", errUnread, r.view.writeError())
}

// errUnread reports that the store was not read completely since the start.
var errUnread = errors.New("the registry store has not been read since the start")

// Find returns nil if a host was ever enrolled, and ErrUnknownHost only if the stores of
// all regions confirm that it was not: another relay may just have enrolled it. While
// that is not certain, the error wraps ErrStoreAway.
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

// all returns the views of all known regions.
func (rg *regions) all() []*view {
	rg.r.mu.RLock()
	defer rg.r.mu.RUnlock()
	views := []*view{&rg.r.view}
	for _, v := range rg.others {
		views = append(views, v)
	}
	return views
}

// find reads a host from a region's store. It returns ErrUnknownHost if the store does
// not have it.
func (v *view) find(ctx context.Context, key string) error {
	v.r.mu.RLock()
	silent := !v.silent.IsZero()
	v.r.mu.RUnlock()
	if silent {
		return fmt.Errorf("%w: region %s cannot be reached", ErrStoreAway, v.name)
	}
	s := hostState{Key: key}
	rev, err := v.store.readLast(ctx, hostKeys+key, &s)
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

// readLast is read, answered by the leader of the copies. Other copies, which answer
// read, may be behind.
func (s *store) readLast(ctx context.Context, key string, value any) (rev uint64, err error) {
	rev, data, err := broker.LastMessage(ctx, s.js, "KV_"+s.name, "$KV."+s.name+"."+key)
	if err != nil {
		return 0, storeError(err)
	}
	if len(data) == 0 { // the key is missing, or was removed
		return 0, nil
	}
	return rev, json.Unmarshal(data, value)
}
