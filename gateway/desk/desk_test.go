package desk_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/gateway/desk"
	"ahprelay/test/natssite"
)

// TestNewsReachesHostsOfOtherRelays publishes a message to the host-agents of a tenant whose account the relay has
// not opened, because all host-agents and clients of the tenant are at another relay. The message must arrive.
func TestNewsReachesHostsOfOtherRelays(t *testing.T) {
	site := natssite.New(t)
	natssite.Open(t, site.Tenants(t), "acme")
	subject := func(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.test" }
	agent := natssite.DialAgent(t, site.AgentConfig(t, "acme", "laptop", time.Hour))
	heard := make(chan *nats.Msg, 1)
	cancel, err := agent.Subscribe(subject("acme", "laptop"), heard)
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	if err := agent.Flush(natssite.Patience); err != nil {
		t.Fatal(err)
	}
	tenants := site.Tenants(t)
	tenants.OnDemand(broker.Demand{
		Open: func(tenant string) error { return tenants.Open(tenant, nil) },
		Find: func(string) (string, map[string]time.Time, bool) { return "", nil, false },
	})
	d := desk.New(tenants, subject, nil, slog.New(slog.DiscardHandler))
	defer d.Start()()
	if err := d.Publish(t.Context(), "acme", subject("acme", "laptop"), nil); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "the message to host-agents", heard)
}

// TestUnreadRequestsAreBoundedInBytes has a host-agent send long requests while as many as the desk handles at a time wait
// for the store. The relay must not keep all further ones, and answer again when the store does.
func TestUnreadRequestsAreBoundedInBytes(t *testing.T) {
	site := natssite.New(t)
	tenants := site.Tenants(t)
	subject := func(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.test" }
	const size, busy, long = 900 << 10, 65, 160 // one request more than the desk has in progress waits with its reader
	store := make(chan struct{})
	answers := sync.OnceFunc(func() { close(store) })
	var kept atomic.Int64
	d := desk.New(tenants, subject, func(_ context.Context, _, _ string, data []byte) []byte {
		<-store
		if len(data) == size {
			kept.Add(1)
		}
		return []byte("done")
	}, slog.New(slog.DiscardHandler))
	defer d.Start()()
	defer answers() // also if the test fails: the end of the desk waits for its answers
	natssite.Open(t, tenants, "acme")
	sender := site.Relay(t) // a host-agent would give up its connection, on which no reply comes, when a busy machine needs more than 6.5 s
	send := func(n, size int) {
		t.Helper()
		for i := range n {
			reply := fmt.Sprint(link.HostPrefix("acme", "laptop"), "inbox.", i)
			if err := sender.PublishRequest(subject("acme", "laptop"), reply, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
		if err := sender.Flush(natssite.Patience); err != nil {
			t.Fatal(err)
		}
	}
	send(busy, 1)
	send(long, size)
	answers()
	agent := natssite.DialAgent(t, site.AgentConfig(t, "acme", "laptop", time.Hour))
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
	if answer, err := agent.Request(ctx, subject("acme", "laptop"), []byte("after")); err != nil || string(answer) != "done" {
		t.Fatalf("a request after the others is answered with %q, %v; want done", answer, err)
	}
	if got := kept.Load() * size; got > 2*link.InboxBytes+4*size || got < link.InboxBytes/2 {
		t.Errorf("of %d bytes, the relay keeps %d while the store is slow; want at most %d", long*size, got, 2*link.InboxBytes)
	}
}
