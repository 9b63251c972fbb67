package notify

import (
	"context"
	"log/slog"
	"testing"

	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/broker/notice"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// TestHostFromBeforeTheRestartIsMissed starts a Receiver while a host is online, as a relay does
// that restarts. When the host then ends, the Receiver must raise the event that it is offline.
func TestHostFromBeforeTheRestartIsMissed(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	tenants, err := broker.StartTenants(t.Context(), broker.TenantsConfig{Relay: broker.RelayDialConfig{Server: s.Server, Keys: s.Keys, Instance: link.NewInstance()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tenants.Close)
	hosts, err := registry.Start(t.Context(), registry.Config{Conn: s.Relays(t), Tenants: tenants})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hosts.Close)
	if err := hosts.Enrol("acme", "laptop"); err != nil {
		t.Fatal(err)
	}
	natssite.Open(t, tenants, "acme")
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	holder, err := registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: natssite.DialAgent(t, cfg), Tenant: "acme", Host: "laptop", Instance: cfg.Instance, Presence: registry.Presence{State: registry.Online},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
	reported := make(chan registry.Host, 16)
	hosts.Subscribe(func(host registry.Host) { reported <- host })
	if err := holder.Acquire(ctx); err != nil {
		t.Fatal(err)
	}
	for host := range reported { // so that the Receiver does not get this report
		if host.State == registry.Online {
			break
		}
	}
	board := NewBoard()
	r := StartReceiver(ReceiverConfig{
		Board: board, Tenants: tenants, Registry: hosts, Log: slog.New(slog.DiscardHandler), Instance: "relay",
		Sign: func([]byte) (key, signature []byte) { return nil, nil },
	})
	t.Cleanup(r.Close)
	if err := holder.Release(ctx); err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the Receiver waits whether the host returns", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		h := r.hosts[hostKey{"acme", "laptop"}]
		return h != nil && h.timer != nil && h.timer.Reset(0)
	})
	natssite.Eventually(t, "the host is reported offline", func() bool {
		items, _, _, _ := board.After("acme", 1<<63)
		return len(items) == 1 && items[0].Event.Kind == notice.Offline
	})
}
