package scale

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/test/faultproxy"
	"ahprelay/test/must"
)

// A Relay is the part of a relay that serves hosts: the NATS server, its connections,
// and the registry of hosts.
type Relay struct {
	Server   *embedded.Server
	Registry *registry.Registry

	conn    *broker.Conn
	tenants *broker.Tenants
	name    string // name of the relay's instance
	dir     string
	config  embedded.Config
}

// A Cluster is several relays, which run in this process.
type Cluster struct {
	Keys   *auth.Keys
	Relays []*Relay

	dir    string
	routes []string
	ways   Ways // proxies between relays that are far from each other
	log    *slog.Logger
}

// keyDir returns the directory with the relays' keys.
func keyDir(dir string) string { return filepath.Join(dir, "keys") }

// NewCluster returns a cluster with a number of relays. Start starts them.
func NewCluster(dir string, relays int, log *slog.Logger) (*Cluster, error) {
	keys, err := auth.LoadKeys(keyDir(dir))
	if err != nil {
		return nil, err
	}
	c := &Cluster{Keys: keys, dir: dir, log: log}
	route, err := faultproxy.FreeAddress()
	for range relays {
		if err != nil {
			return nil, err
		}
		c.routes = append(c.routes, route)
		route, err = faultproxy.SamePort(route) // NewWays needs the same port for all relays
	}
	for i := range relays {
		c.add(i, c.routes[i])
	}
	return c, nil
}

// runningCluster returns a cluster with relays that run in another process. joinAndKnow can
// add a relay to it.
func runningCluster(dir string, routes []string, relays int, log *slog.Logger) (*Cluster, error) {
	keys, err := auth.ExistingKeys(keyDir(dir))
	return &Cluster{Keys: keys, Relays: make([]*Relay, relays), dir: dir, routes: routes, log: log}, err
}

func (c *Cluster) add(i int, listen string) *Relay {
	dir := filepath.Join(c.dir, fmt.Sprint("relay-", i))
	r := &Relay{dir: dir, config: embedded.Config{
		Keys: c.Keys, Name: fmt.Sprint("relay-", i), Listen: "127.0.0.1:0", Store: filepath.Join(dir, "jetstream"),
	}}
	if len(c.routes) > 1 {
		r.config.Cluster = embedded.Cluster{Listen: listen, Routes: c.routes}
	}
	c.Relays = append(c.Relays, r)
	return r
}

// Start starts all relays, and waits until they have read the store.
func (c *Cluster) Start(ctx context.Context) {
	for _, r := range c.Relays {
		r.Server = must.Get(embedded.Start(r.config))
	}
	for _, r := range c.Relays {
		c.join(ctx, r)
	}
	for _, r := range c.Relays {
		if err := await(ctx, func() bool { return r.Registry.Degraded() == "" }); err != nil {
			must.Fail("%s: %w: %s", r.config.Name, err, r.Registry.Degraded())
		}
	}
	for _, r := range c.Relays { // relays do the same when host-agents request credentials
		for i := range FleetTenants {
			var err error
			enrolled := func() bool { err = r.Registry.Enrol(Tenant(i), fmt.Sprintf("host-%d", i)); return err == nil }
			if late := await(ctx, enrolled); late != nil {
				must.Fail("%w: %w", late, err)
			}
		}
	}
}

func (c *Cluster) join(ctx context.Context, r *Relay) {
	dial := broker.RelayDialConfig{Keys: c.Keys, Instance: link.NewInstance(), Server: r.Server}
	r.name = dial.Instance
	r.conn = must.Get(broker.DialRelay(ctx, dial))
	r.tenants = must.Get(broker.StartTenants(ctx, broker.TenantsConfig{Relay: dial}))
	cfg := registry.Config{
		Conn: r.conn, Tenants: r.tenants, Instance: dial.Instance, File: filepath.Join(r.dir, "hosts.json"), Log: c.log,
	}
	if len(c.routes) > 1 {
		cfg.Cluster, cfg.Neighbours, cfg.Region = true, r.Server, r.config.Gateways.Region
	}
	r.Registry = must.Get(registry.Start(ctx, cfg))
}

// joinAndKnow adds a relay that has only the cluster's keys, and waits until it knows a
// number of hosts.
func (c *Cluster) joinAndKnow(ctx context.Context, hosts int) error {
	return must.Catch(func() {
		r := c.add(len(c.Relays), "127.0.0.1:0")
		r.Server = must.Get(embedded.Start(r.config))
		c.join(ctx, r)
		must.Do(await(ctx, func() bool { return r.Registry.Stats().Hosts >= hosts }))
	})
}

// Stop stops all relays. Start can start them again.
func (c *Cluster) Stop() {
	for _, r := range c.Relays {
		if r.Registry != nil {
			r.Registry.Close()
		}
		if r.tenants != nil {
			r.tenants.Close()
		}
		if r.conn != nil {
			r.conn.Close()
		}
		if r.Server != nil {
			r.Server.Close()
		}
		r.Registry, r.tenants, r.conn, r.Server = nil, nil, nil, nil
	}
}

// urls returns the NATS URLs of the relays for host-agents. The relay's name stands
// after #.
func (c *Cluster) urls() (urls []string) {
	for _, r := range c.Relays {
		urls = append(urls, "nats://"+r.Server.Addr().String()+"#"+r.name)
	}
	return urls
}

// Online returns how many hosts a relay lists as online, among the first tenants of a
// fleet.
func (r *Relay) Online(tenants int) (n int) {
	for i := range tenants {
		for _, h := range r.Registry.Hosts(Tenant(i)) {
			if h.State == registry.Online {
				n++
			}
		}
	}
	return n
}

var errLate = errors.New("the awaited state is not reached in time")

// await polls holds until it returns true or ctx ends. It pauses long after a slow
// poll, so that checking many hosts does not load the relays.
func await(ctx context.Context, holds func() bool) error {
	for {
		began := time.Now()
		if holds() {
			return nil
		}
		select {
		case <-ctx.Done():
			return errLate
		case <-time.After(max(20*time.Millisecond, 20*time.Since(began))):
		}
	}
}
