package registry_test

import (
	"fmt"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// TestExternalRegions runs two regions, each with an operator's NATS cluster and a relay, joined by
// gateways as docs/operating.md describes. Each relay must see the other region's hosts, and
// host-agents must be able to hold a host of the other region. Revocations must apply in both.
func TestExternalRegions(t *testing.T) {
	t.Parallel()
	keys := natssite.NewKeys(t)
	names := []string{"east", "west"}
	gateways := map[string]string{}
	list := ""
	for _, name := range names {
		gateways[name] = natssite.FreePort(t)
		list += fmt.Sprintf("{name: %q, url: \"nats://%s\"}, ", name, gateways[name])
	}
	relays, urls := map[string]*registry.Registry{}, map[string]string{}
	for _, name := range names {
		// NATS requires a route for JetStream, even if it leads to the server itself.
		more := fmt.Sprintf("server_name: %[1]q\ncluster {name: %[1]q, listen: %[2]q, routes: [\"nats://%[2]s\"]}\ngateway {name: %[1]q, listen: %[3]q, gateways: [%[4]s]}\nresolver: {type: full, dir: %[5]q}",
			name, natssite.FreePort(t), gateways[name], list, t.TempDir())
		urls[name] = "nats://" + startNATS(t, keys, "127.0.0.1:-1", more).Addr().String()
	}
	for _, name := range names {
		dial := broker.RelayDialConfig{Keys: keys, Instance: "relay-" + name, URL: urls[name]}
		tenants, err := broker.StartTenants(t.Context(), broker.TenantsConfig{Relay: dial})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(tenants.Close)
		r, err := registry.Start(t.Context(), registry.Config{Conn: natssite.DialRelay(t, dial), Tenants: tenants, Cluster: true, Region: name, LeaseTTL: regionTTL})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		relays[name] = r
	}
	for name, r := range relays {
		natssite.Eventually(t, name+" is ready", func() bool { return r.Degraded() == "" })
	}
	s := &natssite.Site{Keys: keys}
	sees := func(who, what string, holds func(registry.Host) bool) {
		t.Helper()
		natssite.Eventually(t, who+" sees "+what, func() bool {
			h, _ := relays[who].Lookup("acme", "laptop")
			return holds(h)
		})
	}
	natssite.Eventually(t, "the host is enrolled", func() bool { return relays["east"].Enrol("acme", "laptop") == nil })
	sees("west", "the host of east", func(h registry.Host) bool { return h.Region == "east" })

	enrolment := auth.Enrolment{ID: "t1", Tenant: "acme", Host: "laptop", IssuedAt: time.Now().Add(-time.Hour)}
	events, agent := natssite.Watched(admitForAt(t, s, relays["west"], enrolment, urls["west"]))
	holder := holderAt(t, agent)
	acquire(t, holder)
	run(t, holder)
	for _, name := range names {
		sees(name, "the host-agent that is connected in the west", func(h registry.Host) bool { return online(h) && h.Region == "east" && h.AgentInstance != "" })
	}

	// Messages must pass between a relay in the east and the host-agent in the west.
	far, near := natssite.DialRelay(t, broker.RelayDialConfig{Keys: keys, Instance: "link", Tenant: "acme", URL: urls["east"]}), natssite.DialAgent(t, agent)
	natssite.WantPassage(t, near, far, "ahp.v1.acme.laptop.x")
	natssite.WantPassage(t, far, near, "ahp.v1.acme.laptop.y")

	ada := auth.Revocation{Tenant: "acme", Subject: "ada", At: time.Now().UTC()}
	laptop := auth.Revocation{Tenant: "acme", Host: "laptop", At: time.Now().UTC()}
	for from, revoked := range map[string]auth.Revocation{"west": ada, "east": laptop} {
		began := time.Now()
		if err := relays[from].Revocations().Add(revoked); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			natssite.Eventually(t, fmt.Sprintf("%s knows what %s has revoked", name, from), func() bool {
				return relays[name].Revocations().Revoked(revoked.At.Add(-time.Minute), revoked.Key())
			})
		}
		t.Logf("what %s revokes counts in both after %v", from, time.Since(began))
	}
	natssite.Next(t, "the end of the host-agent, in the west, that east has revoked", events.Disconnected)
	for _, name := range names {
		sees(name, "that it was revoked", func(h registry.Host) bool { return h.State == registry.Offline })
	}
}
