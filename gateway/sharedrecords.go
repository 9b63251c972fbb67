package gateway

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"ahprelay/auth/people"
	"ahprelay/broker/registry"
	"ahprelay/broker/store"
)

// What relays keep together beside the registry is in two stores of package store: of
// people, where a request from outside is refused when there is no more room, and of
// what is to be told, where the oldest goes.

// peopleBucket has the records of people.
const peopleBucket = "ahp-people"

// How long a relay waits for what others know, of all stores together. One that is alone
// needs nobody else.
const (
	storesWait        = 15 * time.Second
	storesWaitCluster = 3 * time.Second
)

// startRecords begins to take what relays keep together, while the registry starts.
func (r *Relay) startRecords(ctx context.Context, cfg *RelayConfig, tends *atomic.Pointer[registry.Registry]) (err error) {
	first := func() bool {
		g := tends.Load()
		return g != nil && g.Maintains()
	}
	start := func(c store.Config, purpose, file string) (*store.Store, error) {
		c.Conn, c.Log, c.Maintains, c.File = r.conn, r.log, first, filepath.Join(cfg.DataDir, file)
		if cfg.ClusterListen != "" {
			c.Servers = func() int { return len(r.nats.Routes()) }
		}
		if c.Sealer, err = r.keys.Sealer(purpose); err != nil {
			return nil, err
		}
		return store.Start(ctx, c)
	}
	if r.people, err = start(store.Config{
		Name: "people and devices that AHP relays let in", Bucket: peopleBucket, Most: people.MaxRecords, Known: true,
	}, "people", peopleName); err != nil {
		return err
	}
	r.records, err = start(store.Config{Name: "what AHP relays tell people"}, "records", recordsName)
	return err
}

// awaitRecords waits for all that a store has; in is false if that was not there in time.
func (r *Relay) awaitRecords(ctx context.Context, s *store.Store, limit time.Time) (in bool, err error) {
	timeout := time.NewTimer(time.Until(limit))
	defer timeout.Stop()
	select {
	case <-s.Ready():
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-r.conn.Done():
		return false, errors.New("the connection to NATS is closed")
	case <-timeout.C:
		r.log.Warn("the relays' store is not there yet: starting with what this relay knew", "error", s.Away())
		return false, nil
	}
}

// sharedPeople are the records of people that all relays have.
type sharedPeople struct{ store *store.Store }

// Update implements [people.Store].
func (s sharedPeople) Update(key string, change func(old []byte) ([]byte, error)) error {
	err := s.store.Update(key, change)
	switch {
	case errors.Is(err, store.ErrFull):
		return people.ErrFull
	case errors.Is(err, store.ErrAway):
		return fmt.Errorf("%w: %w", people.ErrAway, err)
	}
	return err
}

// Get implements [people.Store].
func (s sharedPeople) Get(key string) ([]byte, error) {
	value, err := s.store.Read(key)
	if errors.Is(err, store.ErrAway) {
		err = fmt.Errorf("%w: %w", people.ErrAway, err)
	}
	return value, err
}

// All implements [people.Store].
func (s sharedPeople) All(prefix string) (map[string][]byte, error) { return s.store.All(prefix) }
