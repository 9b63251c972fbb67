package registry_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"ahprelay/broker"
	"ahprelay/registry"
	"ahprelay/test/natssite"
)

// TestOwnRelayIsAsked has host-agents come through the /nats of one relay of three that share a NATS
// server. That gives what is asked of any relay to any; so they ask the one that has said, when they
// came, which it is, and all leases are kept there.
func TestOwnRelayIsAsked(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	relays := map[string]*registry.Registry{}
	for _, name := range []string{"one", "two", "three"} {
		relays[name] = registryWith(t, s, registry.Config{Instance: name})
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(broker.RelayHeader, "two")
		natssite.Pipe(w, r, s.Server)
	}))
	t.Cleanup(front.Close)
	const hosts = 8
	for i := range hosts {
		host := fmt.Sprint("host-", i)
		cfg := s.AgentConfigAt(t, "ws"+strings.TrimPrefix(front.URL, "http"), "acme", host, 0)
		h, err := registry.NewLeaseHolder(registry.LeaseConfig{
			Conn: natssite.DialAgent(t, cfg), Tenant: "acme", Host: host, Instance: cfg.Instance,
			Presence: registry.Presence{State: registry.Online},
		})
		if err != nil {
			t.Fatal(err)
		}
		acquire(t, h)
	}
	for name, r := range relays {
		want := 0
		if name == "two" {
			want = hosts
		}
		if kept := r.Stats().Kept; kept != want {
			t.Errorf("relay %s keeps %d leases; want %d", name, kept, want)
		}
	}
}
