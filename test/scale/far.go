package scale

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/test/faultproxy"
	"ahprelay/test/load"
	"ahprelay/test/must"
)

// soon limits the time until all relays know a change.
const soon = 500 * time.Millisecond

// watched is the host whose changes are measured.
const watched = "watched"

// nowhere is an address at which nothing listens.
const nowhere = "127.0.0.1:1"

// Ways are proxies for the connections between relays: the first index is the number of
// the relay that connects, the second that of its target.
type Ways [][]*faultproxy.Proxy

// NewWays returns proxies to relays' addresses, which must have the same port. Each
// proxy delays its traffic.
//
// A relay that loses its connection to another relay tries to connect to that relay's
// port, at the IP address of the lost connection. A refusal would prove that the other
// relay has crashed. Therefore each proxy listens on that port and uses its own IP
// address at both ends: during a cut it accepts connections and stays silent.
func NewWays(to []string, delay time.Duration) (w Ways) {
	defer must.Undo(func() { w.Close() })
	for i := range to {
		w = append(w, make([]*faultproxy.Proxy, len(to)))
		for j, address := range to {
			if i == j {
				continue
			}
			w[i][j] = must.Get(faultproxy.New(must.Get(faultproxy.SamePort(address)), address))
			w[i][j].DialFromListener()
			w[i][j].Shape(faultproxy.Shape{Delay: delay})
		}
	}
	return w
}

// Close closes all proxies.
func (w Ways) Close() {
	w.each(func(_, _ int, p *faultproxy.Proxy) { p.Close() })
}

func (w Ways) each(do func(from, to int, p *faultproxy.Proxy)) {
	for i, row := range w {
		for j, p := range row {
			if p != nil {
				do(i, j, p)
			}
		}
	}
}

// Cut isolates a relay: packets to and from it are lost without an error.
func (w Ways) Cut(relay int) {
	w.each(func(from, to int, p *faultproxy.Proxy) {
		if from == relay || to == relay {
			p.Freeze()
		}
	})
}

// Heal ends Cut, and sets the delay of all proxies.
func (w Ways) Heal(delay time.Duration) (err error) {
	w.each(func(_, _ int, p *faultproxy.Proxy) {
		err = errors.Join(err, p.Heal())
		p.Shape(faultproxy.Shape{Delay: delay})
	})
	return err
}

// Routes returns the addresses at which a relay finds all relays. own is the relay's
// own address.
func (w Ways) Routes(relay int, own string) (routes []string) {
	for to, p := range w[relay] {
		if to == relay {
			routes = append(routes, own)
		} else {
			routes = append(routes, p.Addr())
		}
	}
	return routes
}

// Spread puts proxies with a delay between the relays of a cluster that has not
// started. With regions, it makes each relay its own region.
func (c *Cluster) Spread(delay time.Duration, regions bool) {
	c.ways = NewWays(c.routes, delay)
	for i, r := range c.Relays {
		if !regions {
			r.config.Cluster.Routes = c.ways.Routes(i, c.routes[i])
			r.config.Cluster.Advertise = nowhere // otherwise a relay could learn this address from a third relay, and bypass the proxies
			continue
		}
		r.config.Cluster = embedded.Cluster{}
		g := embedded.Gateways{Region: regionName(i), Listen: c.routes[i], Remotes: map[string][]string{}}
		for to, address := range c.ways.Routes(i, c.routes[i]) {
			g.Remotes[regionName(to)] = []string{address}
		}
		g.Advertise = c.ways[(i+1)%len(c.Relays)][i].Addr()
		r.config.Gateways = g
	}
}

func regionName(i int) string { return fmt.Sprint("region-", i) }

// An ear records the changes of hosts that a relay notices.
type ear struct {
	mu   sync.Mutex           // guards the fields below
	fell int                  // number of hosts that became offline
	when map[string]time.Time // time at which each change of the watched host arrived
}

func (e *ear) hear(h registry.Host) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch _, known := e.when[h.HostVersion]; {
	case h.Name == watched && !known:
		e.when[h.HostVersion] = time.Now()
	case h.Name != watched && (h.State == registry.Offline || !h.Silent.IsZero()):
		e.fell++
	}
}

// heard returns the time at which a change of the watched host arrived, and false if it
// has not.
func (e *ear) heard(what string) (at time.Time, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, known = e.when[what]
	return at, known
}

func far(ctx context.Context, c *Cluster, s *Plan) []Row     { return apart(ctx, c, s, false) }
func regions(ctx context.Context, c *Cluster, s *Plan) []Row { return apart(ctx, c, s, true) }

// apart measures three relays, or three regions, with long delays between them.
func apart(ctx context.Context, c *Cluster, s *Plan, regions bool) []Row {
	c.Spread(s.Delay, regions)
	defer c.ways.Close()
	c.Start(ctx)
	defer c.Stop()
	defer s.fleet(ctx, c, s.Far)()
	for _, r := range c.Relays {
		if err := await(ctx, func() bool { return r.Online(FleetTenants) >= s.Far }); err != nil {
			must.Fail("%s: %d hosts of %d come online: %w", r.config.Name, r.Online(FleetTenants), s.Far, err)
		}
	}
	holder, end := c.Relays[0].hold(ctx)
	defer end()
	ears := make([]*ear, len(c.Relays))
	for i, r := range c.Relays {
		ears[i] = &ear{when: map[string]time.Time{}}
		defer r.Registry.Subscribe(ears[i].hear)()
	}
	worst := changes(ctx, s, holder, ears)
	fell := 0
	for _, e := range ears {
		e.mu.Lock()
		fell += e.fell
		e.mu.Unlock()
	}
	kind := map[bool]string{false: "relays", true: "regions"}[regions]
	what := fmt.Sprintf("%d %s, %v between them each way", len(c.Relays), kind, s.Delay)
	return []Row{
		none(fmt.Sprintf("%s: of %d hosts, listed as not there in %v, by all relays", what, s.Far, s.Watch), fell),
		within(fmt.Sprintf("%s: the slowest of %d changes is known everywhere", what, s.Changes), worst, soon, time.Millisecond),
	}
}

// changes updates the watched host again and again during the time s.Watch. It returns
// the longest time until all relays knew an update.
func changes(ctx context.Context, s *Plan, holder *registry.LeaseHolder, ears []*ear) (worst time.Duration) {
	began := time.Now()
	for i := range s.Changes {
		change, said := fmt.Sprint("change-", i), time.Now()
		holder.Update(registry.Presence{State: registry.Online, HostVersion: change})
		for _, e := range ears {
			var at time.Time
			must.Within(change, func() { must.Do(await(ctx, func() (known bool) { at, known = e.heard(change); return known })) })
			worst = max(worst, at.Sub(said))
		}
		load.Pause(ctx, time.Until(began.Add(s.Watch*time.Duration(i+1)/time.Duration(s.Changes))))
	}
	return worst
}

// hold lets a host-agent at this relay hold the watched host until end is called.
func (r *Relay) hold(ctx context.Context) (holder *registry.LeaseHolder, end func()) {
	tenant := Tenant(0)
	must.Do(r.Registry.Enrol(tenant, watched))
	key := must.Get(auth.NewAgentKey())
	conn := must.Get(broker.DialAgent(ctx, broker.AgentDialConfig{
		URLs: []string{"nats://" + r.Server.Addr().String()}, Tenant: tenant, Host: watched, Instance: link.NewInstance(), Sign: key.SignNonce,
		Credentials: func(context.Context) (string, error) {
			userJWT, _, err := r.config.Keys.Authority().AgentUser(tenant, watched, key.Public(), time.Hour)
			return userJWT, err
		},
	}))
	defer must.Undo(conn.Close)
	holder = must.Get(registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: conn, Tenant: tenant, Host: watched, Instance: link.NewInstance(), Presence: registry.Presence{State: registry.Online},
	}))
	must.Do(holder.Acquire(ctx))
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := holder.Run(ctx); err != nil {
			slog.Error("the host-agent of the watched host", "error", err)
		}
	})
	return holder, func() { cancel(); running.Wait(); conn.Close() }
}
