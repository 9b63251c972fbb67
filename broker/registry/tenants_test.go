package registry_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"

	"github.com/nats-io/nats.go"
)

// admit returns a host-agent's configuration. Its credentials are issued for a new enrolment and
// admitted by r, as a relay does.
func admit(t *testing.T, s *natssite.Site, r *registry.Registry, tenant, host string) broker.AgentDialConfig {
	t.Helper()
	return admitFor(t, s, r, auth.Enrolment{ID: "token-of-" + host, Tenant: tenant, Host: host, IssuedAt: time.Now()})
}

func admitFor(t *testing.T, s *natssite.Site, r *registry.Registry, e auth.Enrolment) broker.AgentDialConfig {
	t.Helper()
	return admitForAt(t, s, r, e, s.URL())
}

func admitForAt(t *testing.T, s *natssite.Site, r *registry.Registry, e auth.Enrolment, url string) broker.AgentDialConfig {
	t.Helper()
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.AgentConfigAt(t, url, e.Tenant, e.Host, 0)
	cfg.Sign = key.SignNonce
	cfg.Credentials = func(ctx context.Context) (string, error) {
		userJWT, expires, err := s.Keys.Authority().AgentUser(e.Tenant, e.Host, key.Public(), 0)
		if err != nil {
			return "", err
		}
		return userJWT, r.Admit(ctx, e, key.Public(), expires)
	}
	return cfg
}

// TestNewTenantIsServedAtOnce logs in as a host-agent of an unknown tenant: the server must refuse
// it. After r has admitted a host-agent of the tenant, it must be able to connect and hold its host
// at once.
func TestNewTenantIsServedAtOnce(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	r := startRegistry(t, s, 0)
	early := s.AgentConfig(t, "umbrella", "laptop", 0)
	if nc, err := natssite.Connect(s.URL(), nats.UserJWT(func() (string, error) { return early.Credentials(t.Context()) }, early.Sign)); err == nil {
		nc.Close()
		t.Error("a user of an unknown tenant connects; want a refusal")
	}
	for _, tenant := range []string{"umbrella", "other"} {
		cfg := admit(t, s, r, tenant, "laptop")
		holder, err := registry.NewLeaseHolder(registry.LeaseConfig{
			Conn: natssite.DialAgent(t, cfg), Tenant: tenant, Host: "laptop", Instance: cfg.Instance, Presence: registry.Presence{State: registry.Online},
		})
		if err != nil {
			t.Fatal(err)
		}
		acquire(t, holder)
		if h, _ := r.Lookup(tenant, "laptop"); h.AgentInstance != cfg.Instance {
			t.Errorf("%s/laptop is held by %q; want %q", tenant, h.AgentInstance, cfg.Instance)
		}
	}
}

// TestMessagesStayWithinTheirTenant publishes and subscribes through Tenants. Messages must pass
// only between the relay and host-agents of the tenant named in the subject. Other subjects must be
// refused.
func TestMessagesStayWithinTheirTenant(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	tenants := s.Tenants(t)
	natssite.Open(t, tenants, "acme", "umbrella")
	in := make(chan *nats.Msg, 100)
	cancel, err := tenants.Subscribe("ahp.v1.umbrella.laptop.link.>", in)
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	acme, umbrella := natssite.DialAgent(t, s.AgentConfig(t, "acme", "laptop", 0)), natssite.DialAgent(t, s.AgentConfig(t, "umbrella", "laptop", 0))
	say := func(from *broker.Conn, what string) {
		t.Helper()
		if err := from.Publish("ahp.v1.umbrella.laptop.link.x", []byte(what)); err != nil {
			t.Fatal(err)
		}
	}
	natssite.Eventually(t, "the relay hears the host-agent", func() bool { // subscriptions need time
		say(umbrella, "ours")
		return len(in) > 0
	})
	say(acme, "theirs")
	natssite.WantPassage(t, acme, s.Relay(t), "ahp.v1.acme.laptop.x") // after acme's earlier messages
	say(umbrella, "last")
	for said := ""; said != "last"; {
		if said = string(natssite.Next(t, "message", in).Data); said == "theirs" {
			t.Error("a message from a different tenant's host-agent arrived; want none")
		}
	}
	heard := natssite.Subscribe(t, umbrella, "ahp.v1.umbrella.laptop.down")
	natssite.Eventually(t, "the host-agent hears the relay", func() bool {
		return tenants.Publish("ahp.v1.umbrella.laptop.down", nil) == nil && len(heard) > 0
	})
	for _, subject := range []string{"ahp.v1.nobody.x.y", "ahp.v1.", "ahp.v1.acme", "other", "", "ahp.relays.v1.news"} {
		if err := tenants.Publish(subject, nil); err == nil {
			t.Errorf("Publish(%q) succeeded; want an error", subject)
		}
		if _, err := tenants.Subscribe(subject, in); err == nil {
			t.Errorf("Subscribe(%q) succeeded; want an error", subject)
		}
	}
	cancel()
	umbrella.Close()
	natssite.Eventually(t, "the tenant is idle", func() bool { return tenants.DropIdle("umbrella", time.Now()) })
	if err := tenants.Publish("ahp.v1.umbrella.laptop.down", nil); err == nil {
		t.Error("Publish for a dropped tenant succeeded; want an error")
	}
	natssite.Open(t, tenants, "umbrella")
	if err := tenants.Open("*", nil); err == nil {
		t.Error("Open(*) succeeded; want an error")
	}
	tenants.Close()
	if err := errors.Join(tenants.Open("late", nil), tenants.Await(t.Context(), "late")); err == nil {
		t.Error("Open after Close succeeded; want an error")
	}
}

// TestRevokedAgent revokes a host in a cluster. Its host-agent must be disconnected at once,
// whichever relay has issued its credentials, and these must be refused at each relay, also after a
// restart. Other host-agents of the tenant must stay connected. A new token must work.
func TestRevokedAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	members := newCluster(t, 2, registry.Config{})
	for _, m := range members {
		revoked, err := registry.LoadRevocations(filepath.Join(dir, m.name+".revoked"), nil)
		if err != nil {
			t.Fatal(err)
		}
		m.config.Revocations, m.config.File = revoked, filepath.Join(dir, m.name)
		m.serve(t)
	}
	for _, m := range members {
		m.join(t)
	}
	for _, m := range members {
		awaitStore(t, m)
	}
	keys, one, two, first, second := members[0].Keys, members[0].Site, members[1].Site, members[0].Registry, members[1].Registry

	issued := time.Now().Add(-time.Hour)
	laptop := auth.Enrolment{ID: "t1", Tenant: "acme", Host: "laptop", IssuedAt: issued}
	desktop := auth.Enrolment{ID: "t2", Tenant: "acme", Host: "desktop", IssuedAt: issued}
	bad := admitFor(t, two, first, laptop) // one relay admits it, and it connects to the other
	badEvents, bad := natssite.Watched(bad)
	other := admitFor(t, two, second, desktop)
	otherEvents, other := natssite.Watched(other)
	stolen, err := bad.Credentials(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	give := bad.Credentials
	bad.Credentials = func(ctx context.Context) (string, error) {
		if first.Revocations().Revoked(issued, laptop.Keys()...) {
			return "", auth.ErrTokenRevoked // as the relay's HTTP response would be
		}
		return give(ctx)
	}
	holder, err := registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: natssite.DialAgent(t, bad), Tenant: "acme", Host: "laptop", Instance: bad.Instance, Presence: registry.Presence{State: registry.Online},
	})
	if err != nil {
		t.Fatal(err)
	}
	acquire(t, holder)
	natssite.DialAgent(t, other)
	wantHost(t, first, registry.Online, "")

	start := time.Now()
	if err := first.Revocations().Add(auth.Revocation{Tenant: "acme", Host: "laptop", At: time.Now().UTC()}); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "the end of the connection", badEvents.Disconnected)
	t.Logf("cut off after %v", time.Since(start))
	for _, r := range []*registry.Registry{first, second} {
		wantHost(t, r, registry.Offline, "revoked")
	}
	for _, s := range []*natssite.Site{one, two} {
		wantRefused(t, s, stolen, bad.Sign)
	}
	if len(otherEvents.Disconnected) > 0 {
		t.Errorf("a different host-agent of the tenant was disconnected: %v; want it connected", <-otherEvents.Disconnected)
	}

	// After a restart, the revocations must still apply, and a new token must work.
	second.Close()
	two.Server.Close()
	restarted, err := registry.LoadRevocations(filepath.Join(dir, "b.revoked"), nil)
	if err != nil {
		t.Fatal(err)
	}
	server, err := embedded.Start(embedded.Config{Keys: keys, Listen: "127.0.0.1:0", Store: t.TempDir(), Wait: natssite.Patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	alone := &natssite.Site{Keys: keys, Server: server}
	third, err := registry.Start(t.Context(), registry.Config{Conn: alone.Relays(t), Tenants: alone.Tenants(t), File: filepath.Join(dir, "b"), Revocations: restarted})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(third.Close)
	if nc, err := natssite.Connect(alone.URL(), nats.UserJWT(func() (string, error) { return stolen, nil }, bad.Sign)); err == nil {
		nc.Close()
		t.Error("stolen credentials are valid after the relay's restart; want a refusal")
	}
	again := laptop
	again.ID, again.IssuedAt = "t3", time.Now().Add(time.Second)
	natssite.DialAgent(t, admitFor(t, one, first, again))
}

// TestRevokedToken revokes one of two tokens of a host. The host-agent with that token must be
// disconnected, and the other not.
func TestRevokedToken(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	r := startRegistry(t, s, 0)
	enrolment := func(id string) auth.Enrolment {
		return auth.Enrolment{ID: id, Tenant: "acme", Host: "laptop", IssuedAt: time.Now()}
	}
	badEvents, bad := natssite.Watched(admitFor(t, s, r, enrolment("bad")))
	goodEvents, good := natssite.Watched(admitFor(t, s, r, enrolment("good")))
	natssite.DialAgent(t, bad)
	agent := natssite.DialAgent(t, good)
	if err := r.Revocations().Add(auth.Revocation{Token: "bad", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "the end of the connection", badEvents.Disconnected)
	natssite.WantPassage(t, agent, s.Relay(t), "ahp.v1.acme.laptop.x")
	if len(goodEvents.Disconnected) > 0 {
		t.Errorf("the host-agent with a valid token was disconnected: %v; want it connected", <-goodEvents.Disconnected)
	}
}

// TestUserOfADerivedEnrolmentIsCutOff connects host-agents with credentials derived from a grant,
// and revokes the grants: by ID, and by subject. These host-agents must be disconnected. A
// revocation of an ID with Alone must leave derived credentials valid.
func TestUserOfADerivedEnrolmentIsCutOff(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	r := startRegistry(t, s, 0)
	derived := func(id, from, subject string) (*natssite.EventChannels, broker.AgentDialConfig) {
		return natssite.Watched(admitFor(t, s, r, auth.Enrolment{
			ID: id, Tenant: "acme", Host: "laptop", IssuedAt: time.Now(), Origins: []auth.Origin{{ID: from, Subject: subject, Issued: time.Now().Unix()}},
		}))
	}
	byID, one := derived("one", "stolen", "ada")
	bySubject, two := derived("two", "kept", "eve")
	stays, three := derived("three", "spent", "bob")
	natssite.DialAgent(t, one)
	natssite.DialAgent(t, two)
	agent := natssite.DialAgent(t, three)
	for _, rev := range []auth.Revocation{{Token: "spent", At: time.Now(), Alone: true}, {Token: "stolen", At: time.Now()}, {Tenant: "acme", Subject: "eve", At: time.Now()}} {
		if err := r.Revocations().Add(rev); err != nil {
			t.Fatal(err)
		}
	}
	natssite.Next(t, "the end of the first connection", byID.Disconnected)
	natssite.Next(t, "the end of the second connection", bySubject.Disconnected)
	natssite.WantPassage(t, agent, s.Relay(t), "ahp.v1.acme.laptop.x")
	if len(stays.Disconnected) > 0 {
		t.Errorf("the host-agent whose enrolment token was used was disconnected: %v; want it connected", <-stays.Disconnected)
	}
}

// TestRevokedAmongMany connects more host-agents with one token than the registry lists
// individually, and revokes the token. All must be disconnected. A host-agent with another token
// must be connected.
func TestRevokedAmongMany(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	r := startRegistry(t, s, 0)
	enrolment := auth.Enrolment{ID: "flood", Tenant: "acme", Host: "laptop", IssuedAt: time.Now()}
	var all []*natssite.EventChannels
	for range 20 {
		evs, cfg := natssite.Watched(admitFor(t, s, r, enrolment))
		natssite.DialAgent(t, cfg)
		all = append(all, evs)
	}
	bystander := admit(t, s, r, "acme", "desktop")
	agent := natssite.DialAgent(t, bystander)
	if err := r.Revocations().Add(auth.Revocation{Token: "flood", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for i, evs := range all {
		natssite.Next(t, fmt.Sprintf("the end of connection %d", i), evs.Disconnected)
	}
	natssite.Eventually(t, "the other host's agent is connected", agent.Connected)
}

// TestOnlyNeededAccountsAreOpen starts a registry: no account may be open. After a host is
// enrolled, the account of its tenant must be open.
func TestOnlyNeededAccountsAreOpen(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	tenants := s.Tenants(t)
	r, err := registry.Start(t.Context(), registry.Config{Conn: s.Relays(t), Tenants: tenants})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if got := tenants.Names(); len(got) > 0 {
		t.Errorf("accounts of %v are open; want none", got)
	}
	natssite.Enrol(t, r, "umbrella", "laptop")
	if got := strings.Join(tenants.Names(), " "); got != "umbrella" {
		t.Errorf("accounts of %q are open; want umbrella", got)
	}
}
