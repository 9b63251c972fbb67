package notify

import (
	"context"
	"log/slog"
	"testing"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/broker/notice"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// An awaySite is a Receiver that has started while the host acme/laptop was online.
type awaySite struct {
	*Receiver
	t      *testing.T
	hosts  *registry.Registry
	holder *registry.LeaseHolder
	board  *Board
}

func newAwaySite(t *testing.T) *awaySite {
	t.Helper()
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
	natssite.Enrol(t, hosts, "acme", "laptop")
	natssite.Open(t, tenants, "acme")
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	holder, err := registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: natssite.DialAgent(t, cfg), Tenant: "acme", Host: "laptop", Instance: cfg.Instance, Presence: registry.Presence{State: registry.Online},
	})
	if err != nil {
		t.Fatal(err)
	}
	reported := make(chan registry.Host, 16)
	hosts.Subscribe(func(host registry.Host) { reported <- host })
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
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
		Sign: func([]byte) (s auth.Signed) { return s },
	})
	t.Cleanup(r.Close)
	return &awaySite{r, t, hosts, holder, board}
}

// ends ends the host, and returns when the Receiver waits whether the host returns.
func (s *awaySite) ends() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), natssite.Patience)
	defer cancel()
	if err := s.holder.Release(ctx); err != nil {
		s.t.Fatal(err)
	}
	natssite.Eventually(s.t, "the Receiver waits whether the host returns", s.waits)
}

func (s *awaySite) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.Receiver.hosts[hostKey{"acme", "laptop"}]
	return h != nil && h.timer != nil
}

// passes lets the time pass for which the Receiver waits.
func (s *awaySite) passes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Receiver.hosts[hostKey{"acme", "laptop"}].timer.Reset(0)
}

// TestHostFromBeforeTheRestartIsMissed starts a Receiver while a host is online, as a relay does
// that restarts. When the host then ends, the Receiver must raise the event that it is offline.
func TestHostFromBeforeTheRestartIsMissed(t *testing.T) {
	t.Parallel()
	s := newAwaySite(t)
	s.ends()
	s.passes()
	natssite.Eventually(t, "the host is reported offline", func() bool {
		items, _, _, _ := s.board.After("acme", 1<<63)
		return len(items) == 1 && items[0].Event.Kind == notice.Offline
	})
}

// TestRemovedHostIsNotMissed removes a host from the registry soon after its end. The Receiver must
// not raise the event that the host is offline.
func TestRemovedHostIsNotMissed(t *testing.T) {
	t.Parallel()
	s := newAwaySite(t)
	s.ends()
	if err := s.hosts.Forget(t.Context(), "acme", "laptop"); err != nil {
		t.Fatal(err)
	}
	s.passes()
	natssite.Eventually(t, "the Receiver waits no longer", func() bool { return !s.waits() })
	if items, _, _, _ := s.board.After("acme", 1<<63); len(items) != 0 {
		t.Errorf("the events are %+v; want none about the removed host", items)
	}
}
