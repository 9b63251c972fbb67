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

// shortTTL is the lease time in tests that wait for expiry. Host-agents renew every shortRenew.
const (
	shortTTL   = time.Second
	shortRenew = 200 * time.Millisecond
)

// startRegistry starts a registry with its own relay connection and the given lease time.
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
		t.Fatalf("registry.Start: %v; want no error", err)
	}
	t.Cleanup(r.Close)
	return r
}

// holder connects a host-agent for acme/laptop. It returns its lease holder, which has no lease
// yet, and the connection.
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
		t.Fatalf("NewLeaseHolder: %v; want no error", err)
	}
	return h, conn
}

// named returns a change for holder: it sets the instance.
func named(instance string) func(*registry.LeaseConfig) {
	return func(cfg *registry.LeaseConfig) { cfg.Instance = instance }
}

func acquire(t *testing.T, h *registry.LeaseHolder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
	if err := h.Acquire(ctx); err != nil {
		t.Fatalf("Acquire: %v; want no error", err)
	}
}

// run renews the lease in a new goroutine until stop is called, which returns the result of Run.
func run(t *testing.T, h *registry.LeaseHolder) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	return stop
}

// wantHost waits until acme/laptop has a state and a reason that contains reason. It returns the
// host.
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

// TestSuccessorDoesNotWaitForTheLease ends a host-agent without a release, and starts another that
// names it as its predecessor. The new one must get the host without waiting for the old lease. A
// third host-agent that names the same predecessor must be refused, because the second now has the
// host.
func TestSuccessorDoesNotWaitForTheLease(t *testing.T) {
	s := natssite.New(t)
	r := startRegistry(t, s, 10*natssite.Patience) // longer than the test waits
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
		t.Errorf("Acquire of an instance whose predecessor has a successor already = %v; want ErrHostTaken", err)
	}
	if h, _ := r.Lookup("acme", "laptop"); h.AgentInstance != "next" {
		t.Errorf("host = %+v; want it served by its current instance, next", h)
	}
}

func TestRegistryLifecycle(t *testing.T) {
	s := natssite.New(t)
	one, two := startRegistry(t, s, 0), startRegistry(t, s, 0)
	if _, ok := two.Lookup("acme", "laptop"); ok {
		t.Error("Lookup found the host before its enrolment; want it unknown")
	}
	heard := make(chan registry.Host, 100)
	cancel := two.Subscribe(func(h registry.Host) { heard <- h })

	for range 2 {
		natssite.Enrol(t, one, "acme", "laptop")
	}
	h := natssite.Next(t, "enrolled host", heard)
	if h.State != registry.Offline || h.Reason != "host-agent has never connected" || h.Enrolled.IsZero() || !h.LastSeen.IsZero() {
		t.Errorf("the enrolled host is %+v; want it offline, never connected", h)
	}

	holder, conn := holder(t, s, nil)
	acquire(t, holder)
	stop := run(t, holder)
	online := natssite.Next(t, "online host", heard)
	if online.State != registry.Online || online.Reason != "" || online.AgentVersion != "1.1" || online.HostVersion != "9" ||
		online.AgentInstance == "" || time.Since(online.Since) > natssite.Patience || time.Since(online.LastSeen) > natssite.Patience {
		t.Errorf("the online host is %+v; want both versions and an instance, just seen", online)
	}

	start := time.Now()
	holder.Update(registry.Presence{State: registry.Offline, Reason: "ws://127.0.0.1:1: refused"})
	h = natssite.Next(t, "offline host", heard)
	t.Logf("a change of state is known after %v", time.Since(start))
	if h.State != registry.Offline || h.Reason != "ws://127.0.0.1:1: refused" || h.AgentInstance != online.AgentInstance {
		t.Errorf("the offline host is %+v; want its last error and the same instance", h)
	}
	down := h.Since

	if err := stop(); err != nil {
		t.Errorf("Run = %v; want nil", err)
	}
	if err := holder.Release(t.Context()); err != nil {
		t.Errorf("Release: %v; want no error", err)
	}
	h = natssite.Next(t, "released host", heard)
	if h.State != registry.Offline || h.Reason != "host-agent stopped" || h.AgentInstance != "" || !h.Since.Equal(down) {
		t.Errorf("released host: %+v; want it offline since %v", h, down)
	}
	if err := holder.Release(t.Context()); err != nil {
		t.Errorf("the second Release: %v; want no error", err)
	}

	cancel()
	holder.Update(registry.Presence{State: registry.Online})
	acquire(t, holder) // a host is free at once after a release
	wantHost(t, one, registry.Online, "")
	wantHost(t, two, registry.Online, "")
	if len(heard) > 0 {
		t.Errorf("a cancelled subscription received %+v; want nothing", <-heard)
	}
	for _, name := range []string{"b", "a"} {
		natssite.Enrol(t, one, "acme", name)
	}
	natssite.Enrol(t, one, "acm", "e")
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
		t.Error("Enrol of the host a.b succeeded; want an error")
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
	if err := second.Release(t.Context()); err != nil { // does nothing, since second has no lease
		t.Errorf("Release: %v; want no error", err)
	}
	if h := wantHost(t, r, registry.Online, ""); h.AgentInstance != "first" {
		t.Errorf("the host's lease is held by %q; want first", h.AgentInstance)
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
		t.Errorf("Run of the first instance = %v; want %v that names the second", err, registry.ErrHostTaken)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Errorf("Release: %v; want no error", err)
	}
	if h := wantHost(t, r, registry.Online, ""); h.AgentInstance != "second" {
		t.Errorf("the host's lease is held by %q; want second", h.AgentInstance)
	}
}

// TestCrashedInstanceLosesLeaseInTime acquires a lease that nothing renews. The lease must expire, and
// both relays must show the host as offline since it was last seen. Another instance must then get
// the host, and a third one must get it when the second lease has expired.
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
	var h registry.Host
	for h.State != registry.Offline || h.Reason != "host-agent unreachable" { // a busy relay may not report the short time online
		h = natssite.Next(t, "lost host", heard)
	}
	t.Logf("the end of a lease is known %v after it", time.Since(h.LastSeen)-shortTTL)
	if !h.Since.Equal(h.LastSeen) || h.AgentVersion != "1.1" {
		t.Errorf("lost host: %+v; want it offline since it was last seen", h)
	}
	wantHost(t, one, registry.Offline, "host-agent unreachable")

	second, _ := holder(t, s, named("second"))
	acquire(t, second)
	third, _ := holder(t, s, named("third"))
	acquire(t, third)
	run(t, third)
	for h.State != registry.Online || h.AgentInstance != "third" {
		h = natssite.Next(t, "news that the host is held by third", held)
	}
}

// TestHostOfACrashedInstanceIsReleased releases a host in the name of its crashed instance. Relays
// must show the instance and the reason, and another instance must get the host at once. A further
// such release must then do nothing.
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
		t.Fatalf("ReleaseCrashed: %v; want no error", err)
	}
	h := wantHost(t, r, registry.Offline, "host-agent crashed ")
	if h.Released != "first" || h.AgentInstance != "" {
		t.Errorf("released host: %+v; want it released by first", h)
	}
	second, _ := holder(t, s, named("second"))
	acquire(t, second)
	// This release in the first instance's name comes too late.
	if err := registry.ReleaseCrashed(t.Context(), late, "host-agent crashed"); err != nil {
		t.Errorf("a second ReleaseCrashed for the first instance: %v; want no error", err)
	}
	if h := wantHost(t, r, registry.Online, ""); h.AgentInstance != "second" || h.Released != "" {
		t.Errorf("the host held by the second instance: %+v; want it unchanged", h)
	}
}

// TestOneOfManyInstancesGetsHost lets twelve instances request a host through two relays at once.
// Exactly one must get it; the others must be refused.
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
	// A loser gives up when the winner renews its lease, so the winner must run.
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
			t.Errorf("Acquire: %v; want no error", err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d instances acquired the host; want 1", won, rivals)
	}
	wantHost(t, r, registry.Online, "")
}

func TestRegistryOutlivesRestart(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	cfg := registry.Config{File: filepath.Join(t.TempDir(), "hosts.json")}
	r := registryWith(t, s, cfg)
	for _, host := range []string{"spare", "laptop"} {
		natssite.Enrol(t, r, "acme", host)
	}
	wantHost(t, r, registry.Offline, "never")
	holder, _ := holder(t, s, named("first"))
	acquire(t, holder)
	run(t, holder)
	before := wantHost(t, r, registry.Online, "")
	if _, ok := r.Lookup("acme", "spare"); !ok {
		t.Error("after the restart, the host spare is unknown; want it known")
	}
	r.Close()

	s.Restart(t)
	r = registryWith(t, s, cfg)
	after := wantHost(t, r, registry.Online, "")
	if !after.Since.Equal(before.Since) || !after.Enrolled.Equal(before.Enrolled) || after.AgentInstance != "first" {
		t.Errorf("after the restart, the host is %+v; before, it was\n%+v\nwant the same holder and times", after, before)
	}
	if h, ok := r.Lookup("acme", "spare"); !ok || h.Reason != "host-agent has never connected" {
		t.Errorf("the host spare after the restart: %+v; want host-agent has never connected", h)
	}
	natssite.Eventually(t, "the lease is renewed", func() bool {
		h, _ := r.Lookup("acme", "laptop")
		return h.LastSeen.After(after.LastSeen)
	})
}

// TestLeaseEndsWhileRelayIsAway stops the only relay until a lease has expired. The new relay must
// show the host as offline since about when it was last seen.
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
	<-time.After(shortTTL) // now the lease has expired
	s.Start(t, addr)
	r = registryWith(t, s, cfg)
	h := wantHost(t, r, registry.Offline, "host-agent unreachable")
	if h.Since.Sub(seen).Abs() > time.Second || h.AgentInstance != "" {
		t.Errorf("after a restart: %+v; want it offline since about %v", h, seen)
	}
}

// TestHolderOutlivesRelays starts a lease holder before its relay, and later replaces the relay.
// The holder must pass the error to Trouble each time, and continue when a relay answers.
func TestHolderOutlivesRelays(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	trouble := make(chan error, 1000)
	holder, _ := holder(t, s, func(cfg *registry.LeaseConfig) { cfg.Trouble = func(err error) { trouble <- err } })
	acquired := make(chan error, 1)
	go func() { acquired <- holder.Acquire(t.Context()) }()
	if err := natssite.Next(t, "trouble", trouble); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("the error passed to Trouble is %v; want %v", err, nats.ErrNoResponders)
	}
	r := startRegistry(t, s, 0)
	if err := natssite.Next(t, "lease", acquired); err != nil {
		t.Fatalf("Acquire: %v; want no error", err)
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
			t.Errorf("the incompatible host-agent gets the errors %q; want one, with %q", told, want)
		}
		h := wantHost(t, r, registry.Incompatible, want)
		if h.AgentVersion != "1.1" || h.Since.IsZero() {
			t.Errorf("incompatible host: version %q, since %v; want 1.1 and a time", h.AgentVersion, h.Since)
		}
		if err := holder.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestBadLeaseRequests sends invalid requests, as a manipulated host-agent could. Each must be
// refused with its reason. The relay must not answer to a foreign subject.
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
			t.Fatalf("Request: %v; want an answer", err)
		}
		var answer struct{ Result, Error string }
		if err := json.Unmarshal(reply, &answer); err != nil || answer.Result != "refused" || !strings.Contains(answer.Error, want) {
			t.Errorf("%.40s: answer %s; want refused with %q", body, reply, want)
		}
	}
	// A request names a foreign subject for the reply.
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
			t.Errorf("the relay answered a bad lease request on %s; want no answer", msg.Subject)
		}
	}
}

func TestStartRegistryRefuses(t *testing.T) {
	s := natssite.New(t)
	if _, err := registry.Start(t.Context(), registry.Config{}); err == nil {
		t.Error("Start without a Conn succeeded; want an error")
	}
	relay := s.Relays(t)
	if _, err := registry.Start(t.Context(), registry.Config{Conn: relay}); err == nil {
		t.Error("Start without Tenants succeeded; want an error")
	}
	tenants := s.Tenants(t)
	if _, err := registry.Start(t.Context(), registry.Config{Conn: relay, Tenants: tenants, File: t.TempDir()}); err == nil {
		t.Error("Start with a directory as its file succeeded; want an error")
	}
	relay.Close()
	if _, err := registry.Start(t.Context(), registry.Config{Conn: relay, Tenants: tenants}); err == nil {
		t.Error("Start with a closed Conn succeeded; want an error")
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
