package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
)

// shortTTL is a lease time for tests of expiry; agents renew every shortRenew.
const (
	shortTTL   = time.Second
	shortRenew = 200 * time.Millisecond
)

// startRegistry starts a registry on its own relay connection.
func startRegistry(t *testing.T, s *natssite.Site, ttl time.Duration) *registry.Registry {
	t.Helper()
	return registryWith(t, s, registry.Config{LeaseTTL: ttl})
}

func registryWith(t *testing.T, s *natssite.Site, cfg registry.Config) *registry.Registry {
	t.Helper()
	cfg.Conn, cfg.Version = s.Relays(t), "1.2"
	cfg.Tenants = s.Tenants(t)
	natssite.Open(t, cfg.Tenants, "acme")
	r, err := registry.Start(t.Context(), cfg)
	if err != nil {
		t.Fatalf("StartRegistry: %v", err)
	}
	t.Cleanup(r.Close)
	return r
}

// holder connects a host-agent and returns its lease holder.
func holder(t *testing.T, s *natssite.Site, change func(*registry.LeaseConfig)) (*registry.LeaseHolder, *broker.Conn) {
	t.Helper()
	agent := s.AgentConfig(t, "acme", "laptop", 0)
	conn := natssite.DialAgent(t, agent)
	cfg := registry.LeaseConfig{
		Conn: conn, Tenant: "acme", Host: "laptop", Instance: agent.Instance, Renew: shortRenew,
		Presence: registry.Presence{State: registry.Online, AgentVersion: "1.1", HostVersion: "9"},
	}
	if change != nil {
		change(&cfg)
	}
	h, err := registry.NewLeaseHolder(cfg)
	if err != nil {
		t.Fatalf("NewLeaseHolder: %v", err)
	}
	return h, conn
}

// named sets the instance of a holder.
func named(instance string) func(*registry.LeaseConfig) {
	return func(cfg *registry.LeaseConfig) { cfg.Instance = instance }
}

func acquire(t *testing.T, h *registry.LeaseHolder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
	if err := h.Acquire(ctx); err != nil {
		t.Fatalf("Acquire: %v", err)
	}
}

// run renews in the background until stop, which returns Run's result.
func run(t *testing.T, h *registry.LeaseHolder) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	return stop
}

// wantHost waits for a state of acme/laptop.
func wantHost(t *testing.T, r *registry.Registry, want registry.State, reason string) registry.Host {
	t.Helper()
	var h registry.Host
	natssite.Eventually(t, fmt.Sprintf("acme/laptop is %s %q", want, reason), func() bool {
		var ok bool
		h, ok = r.Lookup("acme", "laptop")
		return ok && h.State == want && strings.Contains(h.Reason, reason)
	})
	return h
}

// TestSuccessorDoesNotWaitForTheLease starts a host-agent that knows its ended predecessor: it does not wait
// for that lease, and the predecessor's late requests fail. An unknown instance keeps
// the host.
func TestSuccessorDoesNotWaitForTheLease(t *testing.T) {
	s := natssite.New(t)
	r := startRegistry(t, s, 10*natssite.Patience) // longer than acquire waits
	first, _ := holder(t, s, named("first"))
	acquire(t, first)
	next, _ := holder(t, s, func(cfg *registry.LeaseConfig) { cfg.Instance, cfg.Previous = "next", []string{"before", "first"} })
	acquire(t, next)
	if h, _ := r.Lookup("acme", "laptop"); h.State != registry.Online || h.AgentInstance != "next" {
		t.Errorf("host = %+v; want it served by the successor", h)
	}
	run(t, next)
	late, _ := holder(t, s, func(cfg *registry.LeaseConfig) { cfg.Instance, cfg.Previous = "late", []string{"first"} })
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
	if err := late.Acquire(ctx); !errors.Is(err, registry.ErrHostTaken) {
		t.Errorf("one that knows of another's end: %v; want ErrHostTaken", err)
	}
	if h, _ := r.Lookup("acme", "laptop"); h.AgentInstance != "next" {
		t.Errorf("host = %+v; want it served by the one that is there", h)
	}
}

func TestRegistryLifecycle(t *testing.T) {
	s := natssite.New(t)
	one, two := startRegistry(t, s, 0), startRegistry(t, s, 0)
	if _, ok := two.Lookup("acme", "laptop"); ok {
		t.Error("Lookup before enrolment found it")
	}
	heard := make(chan registry.Host, 100)
	cancel := two.Subscribe(func(h registry.Host) { heard <- h })

	for range 2 {
		if err := one.Enrol("acme", "laptop"); err != nil {
			t.Fatalf("Enrol: %v", err)
		}
	}
	h := natssite.Next(t, "enrolled host", heard)
	if h.State != registry.Offline || h.Reason != "host-agent has never connected" || h.Enrolled.IsZero() || !h.LastSeen.IsZero() {
		t.Errorf("enrolled host: %+v", h)
	}

	holder, conn := holder(t, s, nil)
	acquire(t, holder)
	stop := run(t, holder)
	online := natssite.Next(t, "online host", heard)
	if online.State != registry.Online || online.Reason != "" || online.AgentVersion != "1.1" || online.HostVersion != "9" ||
		online.AgentInstance == "" || time.Since(online.Since) > natssite.Patience || time.Since(online.LastSeen) > natssite.Patience {
		t.Errorf("online host: %+v", online)
	}

	start := time.Now()
	holder.Update(registry.Presence{State: registry.Offline, Reason: "ws://127.0.0.1:1: refused"})
	h = natssite.Next(t, "offline host", heard)
	t.Logf("a change of state is known after %v", time.Since(start))
	if h.State != registry.Offline || h.Reason != "ws://127.0.0.1:1: refused" || h.AgentInstance != online.AgentInstance {
		t.Errorf("offline host: %+v", h)
	}
	down := h.Since

	if err := stop(); err != nil {
		t.Errorf("Run = %v; want nil", err)
	}
	if err := holder.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	h = natssite.Next(t, "released host", heard)
	if h.State != registry.Offline || h.Reason != "host-agent stopped" || h.AgentInstance != "" || !h.Since.Equal(down) {
		t.Errorf("released host: %+v; want it offline since %v", h, down)
	}
	if err := holder.Release(t.Context()); err != nil {
		t.Errorf("second Release: %v", err)
	}

	cancel()
	holder.Update(registry.Presence{State: registry.Online})
	acquire(t, holder) // a released host is free at once
	wantHost(t, one, registry.Online, "")
	wantHost(t, two, registry.Online, "")
	if len(heard) > 0 {
		t.Errorf("told after cancel: %+v", <-heard)
	}
	for _, name := range []string{"b", "a"} {
		if err := one.Enrol("acme", name); err != nil {
			t.Error(err)
		}
	}
	if err := one.Enrol("acm", "e"); err != nil {
		t.Error(err)
	}
	var names []string
	natssite.Eventually(t, "all hosts are known", func() bool {
		names = nil
		for _, h := range two.Hosts("acme") {
			names = append(names, h.Name)
		}
		return len(names) == 3
	})
	if diff := cmp.Diff([]string{"a", "b", "laptop"}, names); diff != "" {
		t.Errorf("Hosts (-want +got):\n%s", diff)
	}
	if err := one.Enrol("acme", "a.b"); err == nil {
		t.Error("Enrol of a.b succeeded")
	}
	conn.Close()
}

func TestSecondInstanceIsRefused(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	r := startRegistry(t, s, 0)
	first, _ := holder(t, s, named("first"))
	acquire(t, first)
	run(t, first)
	since := wantHost(t, r, registry.Online, "").Since

	var waited atomic.Bool
	second, _ := holder(t, s, func(cfg *registry.LeaseConfig) {
		cfg.Instance = "second"
		cfg.Trouble = func(err error) { waited.Store(errors.Is(err, registry.ErrHostTaken)) }
	})
	err := second.Acquire(t.Context())
	if !errors.Is(err, registry.ErrHostTaken) || !waited.Load() {
		t.Fatalf("Acquire = %v; want %v", err, registry.ErrHostTaken)
	}
	for _, want := range []string{"acme/laptop", "instance first", since.Format(time.RFC3339)} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Acquire = %q; want it to contain %q", err, want)
		}
	}
	if err := second.Release(t.Context()); err != nil { // without effect
		t.Errorf("Release: %v", err)
	}
	if h := wantHost(t, r, registry.Online, ""); h.AgentInstance != "first" {
		t.Errorf("held by %q; want first", h.AgentInstance)
	}
}

func TestNamedSuccessorTakesTheHostOver(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	r := startRegistry(t, s, 0)
	first, _ := holder(t, s, named("first"))
	acquire(t, first)
	lost := make(chan error, 1)
	go func() { lost <- first.Run(t.Context()) }()

	second, _ := holder(t, s, func(cfg *registry.LeaseConfig) { cfg.Instance, cfg.TakeOver = "second", true })
	acquire(t, second)
	run(t, second)
	if err := natssite.Next(t, "end of the first", lost); !errors.Is(err, registry.ErrHostTaken) || !strings.Contains(err.Error(), "instance second") {
		t.Errorf("Run = %v; want %v by the second", err, registry.ErrHostTaken)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	if h := wantHost(t, r, registry.Online, ""); h.AgentInstance != "second" {
		t.Errorf("held by %q; want second", h.AgentInstance)
	}
}

// A crashed instance's lease expires in time.
func TestCrashedInstanceLosesLeaseInTime(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	one, two := startRegistry(t, s, shortTTL), startRegistry(t, s, shortTTL)
	heard := make(chan registry.Host, 100)
	two.Subscribe(func(h registry.Host) { heard <- h })
	held := make(chan registry.Host, 100)
	one.Subscribe(func(h registry.Host) { held <- h })
	first, _ := holder(t, s, named("first"))
	acquire(t, first)
	natssite.Next(t, "online host", heard)

	second, _ := holder(t, s, named("second"))
	acquired := make(chan error, 1)
	go func() { acquired <- second.Acquire(t.Context()) }()
	h := natssite.Next(t, "lost host", heard)
	for h.State == registry.Online { // reported again
		h = natssite.Next(t, "lost host", heard)
	}
	t.Logf("the end of a lease is known %v after it", time.Since(h.LastSeen)-shortTTL)
	if h.State != registry.Offline || h.Reason != "host-agent unreachable" || !h.Since.Equal(h.LastSeen) || h.AgentVersion != "1.1" {
		t.Errorf("lost host: %+v; want it offline since it was last seen", h)
	}
	if err := natssite.Next(t, "lease of the second", acquired); err != nil {
		t.Errorf("Acquire: %v", err)
	}
	for h = natssite.Next(t, "news", held); h.State != registry.Online || h.AgentInstance != "second"; { // briefly: it is not renewed
		h = natssite.Next(t, "news that the host is held by second", held)
	}
}

// A crashed instance's host can be released on its behalf: another instance gets it at
// once, and relays know the ended instance and the reason.
func TestHostOfACrashedInstanceIsReleased(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	r := startRegistry(t, s, 0)
	first, _ := holder(t, s, named("first"))
	acquire(t, first)
	if h := wantHost(t, r, registry.Online, ""); h.Released != "" {
		t.Errorf("online host: %+v; want nothing released", h)
	}
	conn := natssite.DialAgent(t, s.AgentConfig(t, "acme", "laptop", 0))
	late := registry.LeaseConfig{Conn: conn, Tenant: "acme", Host: "laptop", Instance: "first"}
	if err := registry.ReleaseCrashed(t.Context(), late, "host-agent crashed\n"); err != nil {
		t.Fatalf("ReleaseCrashed: %v", err)
	}
	h := wantHost(t, r, registry.Offline, "host-agent crashed ")
	if h.Released != "first" || h.AgentInstance != "" {
		t.Errorf("released host: %+v; want it released by first", h)
	}
	second, _ := holder(t, s, named("second"))
	acquire(t, second)
	// Too late for the first instance and for another release in its name.
	if err := registry.ReleaseCrashed(t.Context(), late, "host-agent crashed"); err != nil {
		t.Errorf("ReleaseCrashed again: %v", err)
	}
	if h := wantHost(t, r, registry.Online, ""); h.AgentInstance != "second" || h.Released != "" {
		t.Errorf("host held by the second: %+v", h)
	}
}

// One of many instances gets a host that all request through two relays at once.
func TestOneOfManyInstancesGetsHost(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	r := startRegistry(t, s, 0)
	startRegistry(t, s, 0)
	const rivals = 12
	holders := make([]*registry.LeaseHolder, rivals)
	for i := range holders {
		holders[i], _ = holder(t, s, named(fmt.Sprintf("rival-%d", i)))
	}
	// A loser gives up when the winner's lease is renewed.
	results := make(chan error, rivals)
	var winner atomic.Pointer[registry.LeaseHolder]
	for _, h := range holders {
		go func() {
			err := h.Acquire(t.Context())
			if err == nil && !winner.CompareAndSwap(nil, h) {
				err = errors.New("a second winner")
			} else if err == nil {
				go h.Run(t.Context())
			}
			results <- err
		}()
	}
	won := 0
	for range rivals {
		switch err := natssite.Next(t, "result", results); {
		case err == nil:
			won++
		case !errors.Is(err, registry.ErrHostTaken):
			t.Errorf("Acquire: %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d won; want 1", won, rivals)
	}
	wantHost(t, r, registry.Online, "")
}

func TestRegistryOutlivesRestart(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	cfg := registry.Config{File: filepath.Join(t.TempDir(), "hosts.json")}
	r := registryWith(t, s, cfg)
	for _, host := range []string{"spare", "laptop"} {
		if err := r.Enrol("acme", host); err != nil {
			t.Fatal(err)
		}
	}
	wantHost(t, r, registry.Offline, "never")
	holder, _ := holder(t, s, named("first"))
	acquire(t, holder)
	run(t, holder)
	before := wantHost(t, r, registry.Online, "")
	if _, ok := r.Lookup("acme", "spare"); !ok {
		t.Error("spare is not known")
	}
	r.Close()

	s.Restart(t)
	r = registryWith(t, s, cfg)
	after := wantHost(t, r, registry.Online, "")
	if !after.Since.Equal(before.Since) || !after.Enrolled.Equal(before.Enrolled) || after.AgentInstance != "first" {
		t.Errorf("after a restart: %+v\nbefore: %+v", after, before)
	}
	if h, ok := r.Lookup("acme", "spare"); !ok || h.Reason != "host-agent has never connected" {
		t.Errorf("spare after a restart: %+v", h)
	}
	natssite.Eventually(t, "the lease is renewed", func() bool {
		h, _ := r.Lookup("acme", "laptop")
		return h.LastSeen.After(after.LastSeen)
	})
}

// The only relay is away while a lease expires.
func TestLeaseEndsWhileRelayIsAway(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	cfg := registry.Config{LeaseTTL: shortTTL, File: filepath.Join(t.TempDir(), "hosts.json")}
	r := registryWith(t, s, cfg)
	holder, conn := holder(t, s, nil)
	acquire(t, holder)
	seen := wantHost(t, r, registry.Online, "").LastSeen
	r.Close()
	conn.Close()
	addr := s.Server.Addr().String()
	s.Server.Close()
	<-time.After(shortTTL) // the lease expires in any case
	s.Start(t, addr)
	r = registryWith(t, s, cfg)
	h := wantHost(t, r, registry.Offline, "host-agent unreachable")
	if h.Since.Sub(seen).Abs() > time.Second || h.AgentInstance != "" {
		t.Errorf("after a restart: %+v; want it offline since about %v", h, seen)
	}
}

// A host-agent keeps asking, whether its relay is not yet up or has gone away.
func TestHolderOutlivesRelays(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	trouble := make(chan error, 1000)
	holder, _ := holder(t, s, func(cfg *registry.LeaseConfig) { cfg.Trouble = func(err error) { trouble <- err } })
	acquired := make(chan error, 1)
	go func() { acquired <- holder.Acquire(t.Context()) }()
	if err := natssite.Next(t, "trouble", trouble); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("Trouble(%v); want %v", err, nats.ErrNoResponders)
	}
	r := startRegistry(t, s, 0)
	if err := natssite.Next(t, "lease", acquired); err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	stop := run(t, holder)
	r.Close()
	natssite.Next(t, "trouble", trouble)
	r = startRegistry(t, s, 0)
	was := wantHost(t, r, registry.Online, "").LastSeen
	natssite.Eventually(t, "the lease is renewed", func() bool {
		h, _ := r.Lookup("acme", "laptop")
		return h.LastSeen.After(was)
	})
	if err := stop(); err != nil {
		t.Errorf("Run = %v; want nil", err)
	}
	r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := holder.Release(ctx); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("Release without a relay = %v; want %v", err, nats.ErrNoResponders)
	}
}

func TestIncompatibleHostAgentIsToldOnce(t *testing.T) {
	s := natssite.New(t)
	r := startRegistry(t, s, 0)
	for want, wire := range map[string][2]int{
		"upgrade the relay 1.2":      {link.WireMax + 1, link.WireMax + 2},
		"upgrade the host-agent 1.1": {-1, 0},
	} {
		var told []string
		holder, _ := holder(t, s, func(cfg *registry.LeaseConfig) {
			cfg.Presence.Wire = wire
			cfg.Trouble = func(err error) {
				if errors.Is(err, link.ErrIncompatible) {
					told = append(told, err.Error())
				}
			}
		})
		acquire(t, holder)
		acquire(t, holder)
		if len(told) != 1 || !strings.HasSuffix(told[0], want) || strings.Count(told[0], link.ErrIncompatible.Error()) != 1 {
			t.Errorf("host-agent is told %q; want once, with %q", told, want)
		}
		h := wantHost(t, r, registry.Incompatible, want)
		if h.AgentVersion != "1.1" || h.Since.IsZero() {
			t.Errorf("incompatible host: %+v", h)
		}
		if err := holder.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Requests of a manipulated host-agent.
func TestBadLeaseRequests(t *testing.T) {
	s := natssite.New(t)
	r := startRegistry(t, s, 0)
	agent := s.AgentConfig(t, "acme", "laptop", 0)
	conn := natssite.DialAgent(t, agent)
	for body, want := range map[string]string{
		``:                               "invalid JSON",
		`[]`:                             "invalid JSON",
		`{"op":1}`:                       "invalid JSON",
		`{}`:                             "instance",
		`{"op":"x","instance":"a"}`:      "op is neither",
		`{"op":"hold","instance":"a.b"}`: "instance",
		`{"op":"hold","instance":"a","presence":{"state":"fine"}}`: "state",
		`{"pad":"` + strings.Repeat("x", 5000) + `"}`:              "at most 4096",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
		reply, err := conn.Request(ctx, "ahp.v1.acme.laptop.ctl.lease", []byte(body))
		cancel()
		if err != nil {
			t.Fatalf("Request: %v", err)
		}
		var answer struct{ Result, Error string }
		if err := json.Unmarshal(reply, &answer); err != nil || answer.Result != "refused" || !strings.Contains(answer.Error, want) {
			t.Errorf("%.40s: answer %s; want refused with %q", body, reply, want)
		}
	}
	// The relay must not write to a foreign subject.
	relay := s.Relay(t)
	victim := natssite.Subscribe(t, relay, "ahp.v1.acme.server.link.>")
	natssite.WantPassage(t, s.Relay(t), relay, "ahp.v1.acme.server.link.ready")
	raw, err := natssite.Connect(s.URL(), nats.UserJWT(func() (string, error) { return agent.Credentials(t.Context()) }, agent.Sign))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	for _, reply := range []string{"ahp.v1.acme.server.link.a.b.up", "ahp.v1.acme.laptop.link.a.b.up"} {
		request := `{"op":"hold","instance":"evil","seq":1,"presence":{"state":"online"}}`
		if err := raw.PublishRequest("ahp.v1.acme.laptop.ctl.lease", reply, []byte(request)); err != nil {
			t.Fatal(err)
		}
	}
	holder, _ := holder(t, s, nil)
	acquire(t, holder)
	wantHost(t, r, registry.Online, "")
	for len(victim) > 0 {
		if msg := <-victim; strings.Contains(string(msg.Data), "result") {
			t.Errorf("the relay answered on %s", msg.Subject)
		}
	}
}

func TestStartRegistryRefuses(t *testing.T) {
	s := natssite.New(t)
	if _, err := registry.Start(t.Context(), registry.Config{}); err == nil {
		t.Error("StartRegistry without a Conn succeeded")
	}
	relay := s.Relays(t)
	if _, err := registry.Start(t.Context(), registry.Config{Conn: relay}); err == nil {
		t.Error("StartRegistry without Tenants succeeded")
	}
	tenants := s.Tenants(t)
	if _, err := registry.Start(t.Context(), registry.Config{Conn: relay, Tenants: tenants, File: t.TempDir()}); err == nil {
		t.Error("StartRegistry with a directory for its file succeeded")
	}
	relay.Close()
	if _, err := registry.Start(t.Context(), registry.Config{Conn: relay, Tenants: tenants}); err == nil {
		t.Error("StartRegistry on a closed Conn succeeded")
	}
}

func TestNewLeaseHolderRefuses(t *testing.T) {
	s := natssite.New(t)
	conn := natssite.DialAgent(t, s.AgentConfig(t, "acme", "laptop", 0))
	good := registry.LeaseConfig{
		Conn: conn, Tenant: "acme", Host: "laptop", Instance: "i", Presence: registry.Presence{State: registry.Online},
	}
	for want, spoil := range map[string]func(*registry.LeaseConfig){
		"no Conn":  func(c *registry.LeaseConfig) { c.Conn = nil },
		"Tenant":   func(c *registry.LeaseConfig) { c.Tenant = "" },
		"Host":     func(c *registry.LeaseConfig) { c.Host = "*" },
		"Instance": func(c *registry.LeaseConfig) { c.Instance = "a b" },
		"Presence": func(c *registry.LeaseConfig) { c.Presence.State = "" },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := registry.NewLeaseHolder(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewLeaseHolder = %v; want an error with %q", err, want)
		}
	}
}
