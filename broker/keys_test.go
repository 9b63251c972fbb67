package broker_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/test/natssite"
)

// TestServerFollowsKeys adds keys at a running server, and then retires the first keys. Users with
// the added keys must be accepted. Users with retired keys must be disconnected, and refused by a
// new server too. Relays and host-agents must reconnect by themselves.
func TestServerFollowsKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	former, err := auth.ExistingKeys(dir) // as a thief could have copied them
	if err != nil {
		t.Fatal(err)
	}
	server, err := embedded.Start(embedded.Config{Keys: keys, Listen: "127.0.0.1:0", Tenants: natssite.Acme, Store: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	relay := natssite.DialRelay(t, broker.RelayDialConfig{Server: server, Keys: keys, Instance: "relay", Tenant: "acme"})
	connect := func(k *auth.Keys, opts ...nats.Option) (*nats.Conn, error) {
		user, err := k.Authority().RelayUser("acme")
		if err != nil {
			t.Fatal(err)
		}
		return natssite.Connect("nats://"+server.Addr().String(), append(opts, nats.UserJWT(func() (string, error) { return user.JWT, nil }, user.Sign))...)
	}
	closed := make(chan struct{})
	thief, err := connect(former, nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	defer thief.Close()
	follow := func() {
		t.Helper()
		if changed, err := keys.Reload(); !changed || err != nil {
			t.Fatalf("Reload = %v, %v; want true and no error", changed, err)
		}
		if err := server.KeysChanged(); err != nil {
			t.Fatal(err)
		}
		if err := server.SetTenant("acme", nil); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	if _, err := auth.AddKeys(dir, now, now.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	follow()
	agent := natssite.DialAgent(t, (&natssite.Site{Keys: keys, Server: server}).AgentConfig(t, "acme", "laptop", time.Hour))
	natssite.WantPassage(t, agent, relay, "ahp.v1.acme.laptop.x")
	if err := auth.RetireKeys(dir, keys.SetIDs()[0], time.Now(), false); err != nil {
		t.Fatal(err)
	}
	follow()
	natssite.Next(t, "end of a connection with retired keys", closed)
	natssite.Eventually(t, "the relay is connected again", relay.Connected)
	natssite.Eventually(t, "the host-agent is connected again", agent.Connected)
	natssite.WantPassage(t, agent, relay, "ahp.v1.acme.laptop.y")
	again, err := embedded.Start(embedded.Config{Keys: keys, Listen: "127.0.0.1:0", Tenants: natssite.Acme})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	natssite.DialRelay(t, broker.RelayDialConfig{Server: again, Keys: keys, Instance: "relay2", Tenant: "acme"})
	server = again
	if nc, err := connect(former); err == nil {
		nc.Close()
		t.Error("a user made with retired keys connects; want a refusal")
	}
}
