package desk

import (
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"

	"ahprelay/broker/link"
	"ahprelay/test/natssite"
)

// TestReopenedTenantHearsNews serves a tenant on a new connection before the former connection's serving has stopped,
// as when a tenant's account is closed and soon opened again. Messages to the tenant's host-agents
// must be sent on the new connection.
func TestReopenedTenantHearsNews(t *testing.T) {
	site := natssite.New(t)
	tenants := site.Tenants(t)
	natssite.Open(t, tenants, "acme")
	d := New(tenants, func(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.test" }, nil, slog.New(slog.DiscardHandler))
	former, next, listener := site.Relay(t), site.Relay(t), site.Relay(t)
	stopFormer, err := d.serve("acme", former)
	if err != nil {
		t.Fatal(err)
	}
	stop, err := d.serve("acme", next)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	stopFormer()
	heard, news := make(chan *nats.Msg, 1), link.HostPrefix("acme", "laptop")+"ctl.news"
	cancel, err := listener.Subscribe(news, heard)
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	if err := listener.Flush(natssite.Patience); err != nil {
		t.Fatal(err)
	}
	if err := d.Publish(t.Context(), "acme", news, nil); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "the message to host-agents", heard)
}
