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
	// On a busy machine, the login may take longer than the request's time. Then the next request counts.
	for tries := 1; ; tries++ {
		natssite.Next(t, "lease request", requests)
		for len(troubles) > 0 {
			<-troubles
		}
		line := natssite.Next(t, "connection", lines)
		for len(lines) > 0 {
			line = <-lines
		}
		_ = line.Close()
		natssite.Next(t, "second lease request", requests)
		if len(troubles) == 0 {
			break
		}
		if err := <-troubles; tries == 10 {
			t.Fatalf("the second request came after: %v, in %d trials; want a request after the login, and no error", err, tries)
		}
		for len(requests) > 0 {
			<-requests
		}
	}
	cancel()
	<-acquired
}
