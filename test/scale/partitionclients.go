package scale

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/auth"
	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/hostagent"
	"ahprelay/test/hostrecord"
	"ahprelay/test/load"
	"ahprelay/test/must"
	"ahprelay/test/procs"
	"ahprelay/test/stack"
)

// clientsEach is the number of clients on each side of a cut.
const clientsEach = 3

// partitionClients is partition with complete relays, two host-agents for the same
// host, and clients under load on both sides: at the isolated relay, and at the relay
// without a host-agent. The isolated relay must go on serving its clients.
func partitionClients(ctx context.Context, c *Cluster, s *Plan) (rows []Row) {
	defer func() { c.ways.Close() }() // p.start sets them
	p := &divided{}
	defer p.close()
	p.start(ctx, c, gateway.MinorityServe)
	p.agent(p.relays[0])
	must.Within("before the cut", func() { p.awaitEndpoint(ctx, p.relays[2], p.relays[0]) })
	p.watch(0, 2)
	must.Within("before the cut", func() { must.Do(p.crowd.AwaitWhole(ctx)) })
	p.agent(p.relays[1]) // the first host-agent has the host, so this one waits
	return p.measure(ctx, c, s)
}

// measure cuts the cluster in two and heals it. It returns rows with the effects on
// clients.
func (p *divided) measure(ctx context.Context, c *Cluster, s *Plan) (rows []Row) {
	c.ways.Cut(0)
	began := time.Now()
	must.Within("while it is cut", func() { p.awaitEndpoint(ctx, p.relays[2], p.relays[1]) })
	took := time.Since(began)
	must.Within("while it is cut", func() { must.Do(p.crowd.AwaitWhole(ctx)) })
	won := time.Now()
	load.Pause(ctx, time.Until(began.Add(s.Cut)))
	apart := ends(p.minority, began)
	must.Do(c.ways.Heal(0))
	healed := time.Now()
	must.Within("after healing", func() { p.awaitEndpoint(ctx, p.relays[0], p.relays[1]) })
	agreed := time.Since(healed)
	load.Pause(ctx, s.Cut/2)
	closed, moved := ends(p.crowd.Viewers, won), ends(p.minority, healed)
	report := must.Get(p.crowd.Finish(ctx, []string{p.record}))
	name := fmt.Sprintf("one relay of three cut off for %v with --minority=serve, clients on both sides", s.Cut)
	return []Row{
		{Name: name + ": closed beside the relay that is cut off and its host-agent, while it is", Got: codes(apart), Wanted: "none", Good: len(apart) == 0},
		{Name: name + ": closed in the majority, from when the other host-agent has the host", Got: fmt.Sprintf("%s (it has it after %v)", codes(closed), took.Round(100*time.Millisecond)), Wanted: "none", Good: len(closed) == 0},
		{Name: name + ": lost and repeated there", Got: fmt.Sprintf("%d and %d of %d %v", report.Lost, report.Repeated, report.Sent, report.Faults), Wanted: "none", Good: report.Lost+report.Repeated+len(report.Faults) == 0},
		{Name: name + ": after it, clients of the other are told", Got: fmt.Sprintf("%s (agreed after %v)", codes(moved), agreed.Round(100*time.Millisecond)), Wanted: "all", Good: len(moved) >= clientsEach},
	}
}

// ends returns the ends of the viewers' connections that came later than after.
func ends(viewers []*load.Viewer, after time.Time) (all []load.End) {
	for _, v := range viewers {
		all = append(all, v.Ends()...)
	}
	return slices.DeleteFunc(all, func(e load.End) bool { return !e.At.After(after) })
}

// codes returns the close codes of connections as a text, sorted, one for each connection.
func codes(all []load.End) string {
	if len(all) == 0 {
		return "none"
	}
	list := make([]string, 0, len(all))
	for _, e := range all {
		list = append(list, fmt.Sprint(e.Code))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// A divided is a cluster with complete relays that can be cut in two, with a host, its
// host-agents and clients.
type divided struct {
	relays   []*gateway.Relay
	keys     *auth.Keys
	token    string // client token
	server   *stack.Server
	record   string // name of the file in which the host records its frames
	crowd    *load.Crowd
	minority []*load.Viewer

	log  *slog.Logger // log of the host-agents; nil: none
	ends []func()     // functions that close calls, the last first
}

// start starts the cluster's relays with proxies between them, and a host. minority is
// the behaviour of an isolated relay.
func (p *divided) start(ctx context.Context, c *Cluster, minority gateway.Minority) {
	p.keys, p.record = c.Keys, filepath.Join(c.dir, "record")
	p.token = must.Get(c.Keys.Tokens().IssueClient(auth.Client{
		Tenant: stack.Tenant, Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	}))
	file := must.Get(os.Create(p.record))
	p.atEnd(func() { _ = file.Close() })
	host := must.Get(scripted.New(agenthost.Config{Recorder: hostrecord.To(file)}))
	p.atEnd(func() { _ = host.Close() })
	p.server = must.Get(stack.Serve(host))
	p.atEnd(p.server.Stop)
	c.Spread(0, false)
	p.relays = make([]*gateway.Relay, len(c.Relays))
	p.atEnd(func() {
		for _, r := range p.relays {
			if r != nil {
				r.Close()
			}
		}
	})
	var all errgroup.Group
	for i, r := range c.Relays {
		all.Go(func() (err error) {
			p.relays[i], err = c.whole(ctx, r, c.routes[i], minority)
			return err
		})
	}
	must.Do(all.Wait())
}

func (p *divided) atEnd(end func()) { p.ends = append(p.ends, end) }

// watch connects the clients of both sides: those of the minority to relay minority, the
// others and the driver to relay majority and to the host.
func (p *divided) watch(minority, majority int) {
	for i := range clientsEach {
		v := load.Watch(fmt.Sprintf("minority-%d", i+1), p.target(minority))
		p.minority = append(p.minority, v)
		p.atEnd(v.Close)
	}
	p.crowd = load.Gather(load.Target{URL: p.server.URL()}, p.target(majority), clientsEach)
	p.atEnd(p.crowd.Close)
}

// whole starts a complete relay in place of r.
func (c *Cluster) whole(ctx context.Context, r *Relay, listen string, minority gateway.Minority) (*gateway.Relay, error) {
	if err := procs.CopyKeys(filepath.Join(keyDir(c.dir), "keys"), filepath.Join(r.dir, "keys")); err != nil {
		return nil, err
	}
	cfg := gateway.RelayConfig{
		DataDir: r.dir, Listen: "127.0.0.1:0", AdminListen: gateway.NoListener,
		ClusterListen: listen, ClusterRoutes: r.config.Cluster.Routes, ClusterAdvertise: r.config.Cluster.Advertise,
	}
	cfg.Gateway.Log, cfg.Gateway.OwnURL, cfg.Gateway.Minority = c.log, "http://"+r.config.Name, minority
	return gateway.StartRelay(ctx, cfg)
}

// endpoint returns the host's endpoint as a relay's API reports it.
func (p *divided) endpoint(ctx context.Context, at *gateway.Relay) (string, error) {
	info, err := procs.GetJSON[hostsapi.Info](ctx, at.URL()+"/api/hosts/"+stack.Host, p.token)
	return info.Endpoint, err
}

// awaitEndpoint waits until the relay "at" answers that the host's endpoint is at the relay "host".
func (p *divided) awaitEndpoint(ctx context.Context, at, host *gateway.Relay) {
	want := p.named(slices.Index(p.relays, host))
	var got string
	var err error
	if late := await(ctx, func() bool { got, err = p.endpoint(ctx, at); return got == want }); late != nil {
		must.Fail("the host is at %q, not at %q: %w, %w", got, want, late, err)
	}
}

func (p *divided) target(i int) load.Target {
	return load.Target{URL: "ws" + strings.TrimPrefix(p.relays[i].URL(), "http") + "/ahp/" + stack.Host, Token: p.token}
}

// agent starts a host-agent for the host. It knows only these relays.
func (p *divided) agent(reaches ...*gateway.Relay) {
	token := must.Get(p.keys.Tokens().IssueHost(auth.Enrolment{Tenant: stack.Tenant, Host: stack.Host, Expires: time.Now().Add(time.Hour)}))
	cfg := hostagent.Config{Token: func() (string, error) { return token, nil }, Log: p.log}
	for _, r := range reaches {
		cfg.Relays = append(cfg.Relays, r.URL())
	}
	cfg.Upstream.URL = p.server.URL()
	agent := must.Get(hostagent.New(cfg))
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = agent.Run(ctx) }) // Run ends when another host-agent has the host
	p.atEnd(func() { stop(); running.Wait() })
}

func (p *divided) close() {
	for _, end := range slices.Backward(p.ends) {
		end()
	}
}
