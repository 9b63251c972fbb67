package desk_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/broker/link"
	"ahprelay/gateway/desk"
	"ahprelay/test/natssite"
)

// TestUnreadRequestsAreBoundedInBytes has a host-agent send long requests while as many as the desk handles at a time wait
// for the store. The relay must not keep all further ones, and answer again when the store does.
func TestUnreadRequestsAreBoundedInBytes(t *testing.T) {
	site := natssite.New(t)
	tenants := site.Tenants(t)
	subject := func(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.test" }
	const size, busy, long = 900 << 10, 65, 160 // one request more than the desk has in progress waits with its reader
	store := make(chan struct{})
	var kept atomic.Int64
	d := desk.New(tenants, subject, func(_ context.Context, _, _ string, data []byte) []byte {
		<-store
		if len(data) == size {
			kept.Add(1)
		}
		return []byte("done")
	}, slog.New(slog.DiscardHandler))
	defer d.Start()()
	natssite.Open(t, tenants, "acme")
	agent := natssite.DialAgent(t, site.AgentConfig(t, "acme", "laptop", time.Hour))
	send := func(n, size int) {
		t.Helper()
		for i := range n {
			reply := fmt.Sprint(link.HostPrefix("acme", "laptop"), "inbox.", i)
			if err := agent.PublishRequest(subject("acme", "laptop"), reply, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
		if err := agent.Flush(natssite.Patience); err != nil {
			t.Fatal(err)
		}
	}
	send(busy, 1)
	send(long, size)
	close(store)
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
	if answer, err := agent.Request(ctx, subject("acme", "laptop"), []byte("after")); err != nil || string(answer) != "done" {
		t.Fatalf("a request after the others is answered with %q, %v; want done", answer, err)
	}
	if got := kept.Load() * size; got > 2*link.InboxBytes+4*size || got < link.InboxBytes/2 {
		t.Errorf("of %d bytes, the relay keeps %d while the store is slow; want at most %d", long*size, got, 2*link.InboxBytes)
	}
}
