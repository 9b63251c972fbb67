package broker_test

import (
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/embedded"
	"ahprelay/test/natssite"
)

// TestMovedConnectionKeepsItsSubscriptions moves a host-agent's connection between two servers of a
// cluster. After each move it must lead to the new server, and messages for its subscriptions must
// arrive there.
func TestMovedConnectionKeepsItsSubscriptions(t *testing.T) {
	t.Parallel()
	keys := natssite.NewKeys(t)
	serve := func(keys *auth.Keys, routes ...string) *natssite.Site {
		server, err := embedded.Start(embedded.Config{Keys: keys, Listen: "127.0.0.1:0", Tenants: natssite.Acme, Cluster: natssite.Cluster("127.0.0.1:0", routes...)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Close)
		return &natssite.Site{Keys: keys, Server: server}
	}
	first := serve(keys)
	second := serve(keys, first.Server.ClusterAddr())
	cfg := first.AgentConfig(t, "acme", "laptop", time.Hour)
	cfg.URLs = append(cfg.URLs, second.URL())
	agent := natssite.DialAgent(t, cfg)
	in := natssite.Subscribe(t, agent, "ahp.v1.acme.laptop.in")
	for _, at := range []*natssite.Site{second, first, first} {
		agent.Move(at.URL())
		natssite.Eventually(t, "the connection leads to "+at.URL(), func() bool { return agent.Leads(at.URL()) })
		relay := at.Relay(t)
		natssite.WantPassage(t, agent, relay, "ahp.v1.acme.laptop.out")
		natssite.Eventually(t, "what the agent has subscribed to comes there", func() bool {
			if err := relay.Publish("ahp.v1.acme.laptop.in", nil); err != nil {
				t.Fatal(err)
			}
			select {
			case <-in:
				return true
			case <-time.After(10 * time.Millisecond):
				return false
			}
		})
	}
}
