package registry_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// TestOwnRelayIsAsked connects host-agents through the port of one of three relays that share a
// NATS server. The handshake names that relay. Host-agents must address their requests to it, so
// that it keeps all their leases, although NATS would deliver requests to any relay. On a busy
// machine, another relay may help out for a while.
func TestOwnRelayIsAsked(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	relays := map[string]*registry.Registry{}
	for _, name := range []string{"one", "two", "three"} {
		relays[name] = registryWith(t, s, registry.Config{Instance: name})
	}
	const hosts = 8
	for i := range hosts {
		h := holderThrough(t, s, "two", fmt.Sprint("host-", i))
		acquire(t, h)
		run(t, h)
	}
	natssite.Eventually(t, "the relay where they are connected keeps all leases", func() bool {
		return relays["two"].Stats().Kept == hosts && relays["one"].Stats().Kept+relays["three"].Stats().Kept == 0
	})
}

// TestLeaseReturnsToOwnRelay connects a host-agent to a relay that does not answer, so that another
// relay keeps its lease. When its own relay answers, that relay must keep the lease.
func TestLeaseReturnsToOwnRelay(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	other := registryWith(t, s, registry.Config{Instance: "one"})
	h := holderThrough(t, s, "two", "laptop")
	acquire(t, h)
	run(t, h)
	if kept := other.Stats().Kept; kept != 1 {
		t.Fatalf("the relay that helps out keeps %d leases; want 1", kept)
	}
	home := registryWith(t, s, registry.Config{Instance: "two"})
	natssite.Eventually(t, "the lease is kept where the host-agent is connected", func() bool {
		return home.Stats().Kept == 1 && other.Stats().Kept == 0
	})
}

// holderThrough connects a host-agent through the public port of the named relay, and returns its
// lease holder.
func holderThrough(t *testing.T, s *natssite.Site, relay, host string) *registry.LeaseHolder {
	t.Helper()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(broker.RelayHeader, relay)
		natssite.Pipe(w, r, s.Server)
	}))
	t.Cleanup(front.Close)
	cfg := s.AgentConfigAt(t, "ws"+strings.TrimPrefix(front.URL, "http"), "acme", host, 0)
	h, err := registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: natssite.DialAgent(t, cfg), Tenant: "acme", Host: host, Instance: cfg.Instance, Renew: shortRenew,
		Presence: registry.Presence{State: registry.Online},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}
