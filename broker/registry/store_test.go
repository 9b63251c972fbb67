package registry_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// A member is a relay of a cluster: an embedded server and a registry, which tests start with serve
// and join.
type member struct {
	*natssite.Site
	*registry.Registry
	name   string
	server embedded.Config
	config registry.Config
}

// newCluster returns n members of a cluster. Nothing is started yet.
func newCluster(t *testing.T, n int, cfg registry.Config) []*member {
	t.Helper()
	keys, routes := natssite.NewKeys(t), make([]string, n)
	for i := range routes {
		routes[i] = natssite.FreePort(t)
	}
	members := make([]*member, n)
	for i := range members {
		members[i] = newMember(t, string(rune('a'+i)), keys, routes[i], routes)
		config := cfg
		config.Instance, config.Cluster = members[i].name, true
		members[i].config = config
	}
	return members
}

func newMember(t *testing.T, name string, keys *auth.Keys, listen string, routes []string) *member {
	return &member{name: name, server: embedded.Config{
		Keys: keys, Name: name, Listen: "127.0.0.1:0", Store: t.TempDir(), Cluster: natssite.Cluster(listen, routes...),
	}}
}

// serve starts a member's server.
func (m *member) serve(t *testing.T) {
	t.Helper()
	server, err := embedded.Start(m.server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	m.Site = &natssite.Site{Keys: m.server.Keys, Server: server}
}

// join starts a member's registry.
func (m *member) join(t *testing.T) {
	t.Helper()
	m.config.Neighbours = m.Server
	m.Registry = registryWith(t, m.Site, m.config)
}

// crash ends a member's server before its registry, so that the registry cannot send its last
// message.
func (m *member) crash() {
	m.Server.Close()
	m.Registry.Close()
}

func startCluster(t *testing.T, n int, cfg registry.Config) []*member {
	t.Helper()
	members := newCluster(t, n, cfg)
	for _, m := range members {
		m.serve(t)
	}
	for _, m := range members {
		m.join(t)
	}
	for _, m := range members {
		awaitStore(t, m)
	}
	return members
}

func awaitStore(t *testing.T, m *member) {
	t.Helper()
	for deadline := time.Now().Add(3 * natssite.Patience); m.Degraded() != ""; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s has no store after %v: %s; want it connected", m.name, 3*natssite.Patience, m.Degraded())
		}
	}
}

// holderOf returns a lease holder for a host, whose host-agent knows the addresses of all members
// in at, and its connection.
func holderOf(t *testing.T, host string, at []*member, change func(*registry.LeaseConfig)) (*registry.LeaseHolder, *broker.Conn) {
	t.Helper()
	agent := at[0].AgentConfig(t, "acme", host, 0)
	for _, m := range at[1:] {
		agent.URLs = append(agent.URLs, m.URL())
	}
	conn := natssite.DialAgent(t, agent)
	cfg := registry.LeaseConfig{
		Conn: conn, Tenant: "acme", Host: host, Instance: agent.Instance, Renew: shortRenew, Presence: registry.Presence{State: registry.Online},
	}
	if change != nil {
		change(&cfg)
	}
	h, err := registry.NewLeaseHolder(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h, conn
}

// flaps records each state of a host other than online that a member reports from now on. The
// returned function returns them.
func flaps(m *member, host string) func() []registry.Host {
	heard := make(chan registry.Host, 1000)
	m.Subscribe(func(h registry.Host) {
		if h.Name == host && h.State != registry.Online {
			heard <- h
		}
	})
	return func() (all []registry.Host) {
		for len(heard) > 0 {
			all = append(all, <-heard)
		}
		return all
	}
}

// TestCrashedRelayLosesNoHost crashes the relay of a host-agent. Another relay must take over the
// lease, and no relay may ever show the host as offline. A new relay with only the keys must learn
// all hosts, and serve their host-agents.
func TestCrashedRelayLosesNoHost(t *testing.T) {
	t.Parallel()
	members := startCluster(t, 3, registry.Config{})
	a, b, c := members[0], members[1], members[2]
	natssite.Enrol(t, a, "acme", "spare")
	gone := make(chan []string, 10000)
	held, agent := holderOf(t, "laptop", []*member{b, a}, func(cfg *registry.LeaseConfig) {
		cfg.Instance, cfg.Gone = "agent", func(relays []string) { gone <- relays }
	})
	acquire(t, held)
	run(t, held)
	for _, m := range members {
		if h := wantHost(t, m.Registry, registry.Online, ""); h.AgentInstance != "agent" || h.Fence == 0 {
			t.Errorf("%s knows the host as %+v; want the instance agent and a fence", m.name, h)
		}
	}
	rival, _ := holderOf(t, "laptop", []*member{c}, named("rival"))
	if err := rival.Acquire(t.Context()); !errors.Is(err, registry.ErrHostTaken) || !strings.Contains(err.Error(), "instance agent") {
		t.Errorf("Acquire by a second instance at a different relay = %v; want ErrHostTaken", err)
	}

	atA, atC := flaps(a, "laptop"), flaps(c, "laptop")
	b.crash()
	fresh := newMember(t, "d", b.server.Keys, "127.0.0.1:0", b.server.Cluster.Routes)
	fresh.config = registry.Config{Instance: "d", Cluster: true}
	fresh.serve(t)
	start := time.Now()
	fresh.join(t)
	for _, host := range []string{"laptop", "spare"} {
		natssite.Eventually(t, "the new relay knows "+host, func() bool { _, ok := fresh.Lookup("acme", host); return ok })
	}
	t.Logf("a relay that joins knows all hosts after %v", time.Since(start))
	natssite.Eventually(t, "the host-agent is back", agent.Connected)
	if told := natssite.Next(t, "word of the relay that crashed", gone); len(told) != 1 || told[0] != "b" {
		t.Errorf("the host-agent is told that the relays %v have crashed; want b", told)
	}
	natssite.WantPassage(t, agent, fresh.Relay(t), "ahp.v1.acme.laptop.x")
	natssite.WantPassage(t, fresh.Relay(t), agent, "ahp.v1.acme.laptop.y")
	natssite.Eventually(t, "a change is taken when two of three are there", func() bool { return fresh.Enrol("acme", "late") == nil })
	for _, m := range []*member{a, c, fresh} {
		natssite.Eventually(t, m.name+" hears of a change", func() bool { _, ok := m.Lookup("acme", "late"); return ok })
		if h := wantHost(t, m.Registry, registry.Online, ""); h.AgentInstance != "agent" {
			t.Errorf("%s knows the host as %+v; want the instance agent", m.name, h)
		}
	}
	if told := append(atA(), atC()...); len(told) > 0 {
		t.Errorf("the host of the crashed relay was reported as changed to %+v; want no report", told)
	}
}

// TestHeldHostContinuesWithoutTheStore crashes one of two relays, which makes the store unwritable.
// A host with a lease must continue at the other relay. New hosts and leases must be refused, with
// the reason. All changes meanwhile must be in the store when it is back.
func TestHeldHostContinuesWithoutTheStore(t *testing.T) {
	t.Parallel()
	members := startCluster(t, 2, registry.Config{})
	a, b := members[0], members[1]
	for _, host := range []string{"laptop", "desktop"} {
		natssite.Enrol(t, a, "acme", host)
	}
	held, _ := holderOf(t, "laptop", []*member{b, a}, named("agent"))
	acquire(t, held)
	stop := run(t, held)
	wantHost(t, a.Registry, registry.Online, "")
	told := flaps(a, "laptop")
	b.crash()
	natssite.Eventually(t, "the store is away", func() bool { return strings.Contains(a.Degraded(), "store") })
	was := time.Now()
	natssite.Eventually(t, "the other relay has taken the lease", func() bool {
		h, _ := a.Lookup("acme", "laptop")
		return h.State == registry.Online && h.LastSeen.After(was)
	})
	held.Update(registry.Presence{State: registry.Online, HostVersion: "2"})
	natssite.Eventually(t, "what the host-agent says counts here", func() bool {
		h, _ := a.Lookup("acme", "laptop")
		return h.HostVersion == "2"
	})

	if err := a.Enrol("acme", "new"); !errors.Is(err, registry.ErrStoreAway) {
		t.Errorf("Enrol of a new host: %v; want ErrStoreAway", err)
	}
	trouble := make(chan error, 1000)
	other, _ := holderOf(t, "desktop", []*member{a}, func(cfg *registry.LeaseConfig) {
		cfg.Instance, cfg.Trouble = "other", func(err error) { trouble <- err }
	})
	acquired := make(chan error, 1)
	go func() { acquired <- other.Acquire(t.Context()) }()
	for !strings.Contains(natssite.Next(t, "why a new instance has to wait", trouble).Error(), "registry store") {
	}
	known := auth.Enrolment{ID: "t", Tenant: "acme", Host: "laptop", IssuedAt: time.Now()}
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Admit(t.Context(), known, key.Public(), time.Now().Add(time.Hour)); err != nil {
		t.Errorf("credentials for a known host: %v; want no error", err)
	}
	if a.AllWritten("acme", "laptop") {
		t.Error("AllWritten = true for a user that is not in the store; want false")
	}
	revoked := auth.Revocation{Tenant: "acme", Subject: "ada", At: time.Now().UTC()}
	if err := a.Revocations().Add(revoked); err != nil || !a.Revocations().Revoked(revoked.At, revoked.Key()) {
		t.Errorf("a revocation without the store: %v; want it in force at once", err)
	}
	select {
	case err := <-acquired:
		t.Errorf("a new instance got a host without the store: %v; want it to wait", err)
	default:
	}

	b.serve(t)
	b.config.Revocations = nil
	b.join(t)
	awaitStore(t, a)
	awaitStore(t, b)
	if err := natssite.Next(t, "lease of the one that waited", acquired); err != nil {
		t.Errorf("Acquire after the store's return: %v; want no error", err)
	}
	natssite.Eventually(t, "the store has what was said meanwhile", func() bool {
		h, _ := b.Lookup("acme", "laptop")
		return h.HostVersion == "2" && b.Revocations().Revoked(revoked.At, revoked.Key()) && a.AllWritten("acme", "laptop")
	})
	if all := told(); len(all) > 0 {
		t.Errorf("the host was reported as changed to %+v; want no report", all)
	}
	if err := stop(); err != nil {
		t.Errorf("Run = %v; want nil", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
	if err := held.Release(ctx); err != nil {
		t.Error(err)
	}
	wantHost(t, b.Registry, registry.Offline, "stopped")
}

// TestWitnessKeepsStoreWritable crashes one of two relays, beside a third server without a
// registry. The store must stay writable, so that a new host can be enrolled and held.
func TestWitnessKeepsStoreWritable(t *testing.T) {
	t.Parallel()
	members := newCluster(t, 3, registry.Config{})
	a, b := members[0], members[1] // the third member is only a server
	for _, m := range members {
		m.serve(t)
	}
	a.join(t)
	b.join(t)
	awaitStore(t, a)
	awaitStore(t, b)
	witnessed := func() bool { return a.Enrol("acme", "new") == nil }
	b.crash()
	natssite.Eventually(t, "a new host is enrolled", witnessed)
	held, _ := holderOf(t, "new", []*member{a}, nil)
	acquire(t, held)
	if h, _ := a.Lookup("acme", "new"); h.State != registry.Online {
		t.Errorf("the new host is %+v; want it online", h)
	}
}
