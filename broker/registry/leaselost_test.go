package registry_test

import (
	"context"
	"net"
	"testing"

	"github.com/nats-io/nats.go"

	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// TestLostLeaseRequestIsRepeatedAfterALogin loses a request for a lease together with the
// host-agent's connection. The host-agent must send a second request at the next login,
// and must not wait for the answer until its time is over.
func TestLostLeaseRequestIsRepeatedAfterALogin(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	tenants := s.Tenants(t)
	natssite.Open(t, tenants, "acme")
	requests := make(chan *nats.Msg, 10)
	t.Cleanup(tenants.Serve(func(_ string, c *broker.Conn) (stop func(), err error) {
		return c.Subscribe("ahp.v1.acme.laptop.ctl.lease", requests)
	}))
	agent := s.AgentConfig(t, "acme", "laptop", 0)
	lines := make(chan net.Conn, 10)
	agent.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			lines <- conn
		}
		return conn, err
	}
	troubles := make(chan error, 10)
	h, err := registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: natssite.DialAgent(t, agent), Tenant: "acme", Host: "laptop", Instance: agent.Instance,
		Presence: registry.Presence{State: registry.Online}, Trouble: func(err error) { troubles <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	acquired := make(chan error)
	go func() { acquired <- h.Acquire(ctx) }()
	natssite.Next(t, "lease request", requests)
	_ = natssite.Next(t, "connection", lines).Close()
	natssite.Next(t, "second lease request", requests)
	if len(troubles) != 0 {
		t.Errorf("the second request came after: %v; want a request after the login, and no error", <-troubles)
	}
	cancel()
	<-acquired
}
