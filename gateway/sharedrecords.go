package gateway

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/people"
	"ahprelay/broker/registry"
	"ahprelay/broker/store"
	"ahprelay/gateway/notify"
	"ahprelay/gateway/remembered"
	"ahprelay/gateway/waiting"
)

// Relays share five stores in NATS: the registry, and four of package store. A full store
// of people refuses new records. A full store of notification records drops the oldest.
// The store of remembered sessions has quotas (package remembered), and the store of items
// for offline hosts has limits (package waiting).

// peopleBucket is the name of the store of people.
const peopleBucket = "ahp-people"

// How long a starting relay waits for the stores of people and notification records. A
// single relay waits longer, because no other relay has the data.
const (
	storesWait        = 30 * time.Second
	storesWaitCluster = 3 * time.Second
)

func (r *Relay) startRecords(ctx context.Context, cfg *RelayConfig, tends *atomic.Pointer[registry.Registry]) (err error) {
	first := func() bool {
		g := tends.Load()
		return g != nil && g.Maintains()
	}
	start := func(c store.Config, purpose, file string) (*store.Store, error) {
		c.Conn, c.Log, c.Maintains = r.conn, r.log, first
		if file != "" {
			c.File = filepath.Join(cfg.DataDir, file)
		}
		if cfg.ClusterListen != "" {
			c.Servers = func() int { return len(r.nats.Routes()) }
		}
		if c.Sealer, err = r.keys.Sealer(purpose); err != nil {
			return nil, err
		}
		return store.Start(ctx, c)
	}
	if r.people, err = start(store.Config{
		Name: "people and devices", Bucket: peopleBucket, Most: people.MaxRecords, Known: true, Brief: people.BriefRecords(),
	}, "people", peopleName); err != nil {
		return err
	}
	if r.records, err = start(store.Config{Name: "notification records", Room: notify.MaxSettings, Shared: notify.SettingsPrefix}, "records", recordsName); err != nil {
		return err
	}
	if r.kept, err = start(store.Config{
		Name: "remembered sessions", Stream: remembered.Stream, Subjects: remembered.Subjects, Sizes: true, MaxBytes: remembered.MaxBytes,
		Room: store.MaxRecords, Shared: remembered.Prefix,
	}, "remembered", ""); err != nil {
		return err
	}
	r.waits, err = start(store.Config{
		Name: "waiting items", Stream: waiting.Stream, Subjects: waiting.Subjects, Most: waiting.MaxRecords, MaxBytes: waiting.StoreBytes,
		Room: store.MaxRecords, Shared: waiting.Prefix,
	}, "waiting", "")
	return err
}

// startKeeper starts package remembered, which stores hosts' last states, and package
// waiting, which stores items for offline hosts.
func (r *Relay) startKeeper(cfg *RelayConfig, server *Server) {
	r.keeper = remembered.Start(remembered.Config{
		Store: r.kept, Tenants: r.tenants, Registry: r.registry, PerHost: cfg.RememberHost, PerTenant: cfg.RememberTenant, Log: r.log,
	})
	server.keeper.Store(r.keeper)
	r.waiting = waiting.Start(waiting.Config{
		Store: r.waits, Tenants: r.tenants, Registry: r.registry, Log: r.log, Standing: server.people.Standing,
		Removed: func(tenant, id string) bool {
			device, _, err := server.cfg.People.Device(id)
			return errors.Is(err, people.ErrNone) || err == nil && device.Tenant != tenant
		},
		Sign:  func(body []byte) auth.Signed { return r.keys.Sign(auth.WaitingItems, body) },
		Wakes: server.hostAPI.CanWake, Wake: server.hostAPI.WakeFor,
	})
	server.waiting.Store(r.waiting)
}

// awaitRecords waits until a store is loaded. in is false after a timeout.
func (r *Relay) awaitRecords(ctx context.Context, s *store.Store, limit time.Time) (in bool, err error) {
	select {
	case <-s.Ready():
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-r.conn.Done():
		return false, errors.New("the connection to NATS is closed")
	case <-time.After(time.Until(limit)):
		r.log.Warn("shared store unavailable", "effect", "the relay has only its local copy", "error", s.Away())
		return false, nil
	}
}

// sharedPeople implements [people.Store] with the shared store.
type sharedPeople struct{ store *store.Store }

func (s sharedPeople) Update(key string, change func(old []byte) ([]byte, error)) error {
	return ofPeople(s.store.Update(key, change))
}

func (s sharedPeople) Get(key string) ([]byte, error) {
	value, err := s.store.Read(key)
	return value, ofPeople(err)
}

func (s sharedPeople) CatchUp() error { return ofPeople(s.store.CatchUp(context.Background())) }

// ofPeople translates an error of the store into that of package people.
func ofPeople(err error) error {
	switch {
	case errors.Is(err, store.ErrFull):
		return people.ErrFull
	case errors.Is(err, store.ErrAway):
		return fmt.Errorf("%w: %w", people.ErrAway, err)
	}
	return err
}

func (s sharedPeople) All(prefix string) (map[string][]byte, error) { return s.store.All(prefix) }
