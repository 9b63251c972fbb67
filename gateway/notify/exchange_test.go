package notify_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/broker/notice"
	"ahprelay/broker/registry"
	"ahprelay/gateway/notify"
	"ahprelay/test/natssite"
)

// A hearing has the components that a relay needs for events.
type hearing struct {
	tenants  *broker.Tenants
	registry *registry.Registry
	board    *notify.Board
	exchange *notify.Exchange
}

func newHearing(t *testing.T, s *natssite.Site, server broker.Server) *hearing {
	t.Helper()
	tenants, err := broker.StartTenants(t.Context(), broker.TenantsConfig{Relay: broker.RelayDialConfig{Server: server, Keys: s.Keys, Instance: link.NewInstance()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tenants.Close)
	h := &hearing{tenants: tenants, board: notify.NewBoard()}
	conn, log := s.Relays(t), slog.New(slog.DiscardHandler)
	if h.registry, err = registry.Start(t.Context(), registry.Config{Conn: conn, Tenants: h.tenants}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.registry.Close)
	if h.exchange, err = notify.StartExchange(notify.ExchangeConfig{Board: h.board, Conn: conn, Tenants: h.tenants, Registry: h.registry, Log: log}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.exchange.Close)
	receiver := notify.StartReceiver(notify.ReceiverConfig{
		Board: h.board, Tenants: h.tenants, Registry: h.registry, Log: log, Instance: "relay", Lacks: h.exchange.AskAgain,
		Sign: func([]byte) (s auth.Signed) { return s },
	})
	t.Cleanup(receiver.Close)
	return h
}

// A serverWithoutAgents is a relay's server to which no host-agent is connected.
type serverWithoutAgents struct{ broker.Server }

func (serverWithoutAgents) Connections(string) int { return 0 }

// TestFollowAtAnotherRelay: a host-agent reports its events to the near relay. When a
// viewer follows the tenant at the far relay, the far relay gets all open events and
// later changes. After a pause, the next viewer there gets all open events too. When the far relay
// has missed a report that the near relay has confirmed, it gets the event after a later report.
func TestFollowAtAnotherRelay(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	near, far := newHearing(t, s, s.Server), newHearing(t, s, serverWithoutAgents{s.Server})
	natssite.Eventually(t, "the relays know each other", func() bool { return far.registry.Stats().Relays == 2 && near.registry.Stats().Relays == 2 })
	natssite.Enrol(t, near.registry, "acme", "laptop")
	natssite.Open(t, near.tenants, "acme")
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	conn := natssite.DialAgent(t, cfg)
	holder, err := registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: conn, Tenant: "acme", Host: "laptop", Instance: cfg.Instance, Presence: registry.Presence{State: registry.Online},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
	if err := holder.Acquire(ctx); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*hearing{near, far} {
		natssite.Eventually(t, "the host is known", func() bool {
			known, _ := h.registry.Lookup("acme", "laptop")
			return known.AgentInstance == cfg.Instance
		})
	}
	var open []notice.Event
	seq := uint64(0)
	tell := func(events ...notice.Event) {
		t.Helper()
		seq++
		r := notice.Report{Instance: cfg.Instance, Seq: seq, Open: []string{}, Events: events}
		for _, e := range open {
			r.Open = append(r.Open, e.ID)
		}
		body, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Request(ctx, notice.Subject("acme", "laptop"), body); err != nil {
			t.Fatal(err)
		}
	}
	knows := func(h *hearing) int {
		items, _, _, _ := h.board.After("acme", 1<<63)
		return len(items)
	}
	for i := range 40 { // more events than fit into a reply between relays
		open = append(open, event(i, notice.Approval))
	}
	tell(open...)
	if n := knows(near); n != 40 {
		t.Fatalf("the relay that serves the tenant knows %d open events; want 40", n)
	}
	if n := knows(far); n != 0 {
		t.Fatalf("the relay without followers has %d events; want none", n)
	}
	release := far.exchange.Follow(ctx, "acme")
	if n := knows(far); n != 40 || !far.board.Heard("acme", "laptop") {
		t.Errorf("a follower at the other relay receives %d open events; want 40", n)
	}
	open = open[1:]
	tell()
	natssite.Eventually(t, "both hear what is withdrawn", func() bool { return knows(near) == 39 && knows(far) == 39 })
	release()
	natssite.Eventually(t, "the other relay does not use the tenant", func() bool { return far.tenants.DropIdle("acme", time.Now()) })
	natssite.Eventually(t, "the other relay hears nothing more", func() bool {
		if len(open) > 1 {
			open = open[1:]
		}
		tell()
		return knows(far) > len(open)
	})
	defer far.exchange.Follow(ctx, "acme")()
	if n := knows(far); n != len(open) {
		t.Errorf("a second follower receives %d open events; want %d", n, len(open))
	}
	missed := event(40, notice.Approval)
	open = append(open, missed)
	seq++
	r := notice.Report{Instance: cfg.Instance, Seq: seq, Events: []notice.Event{missed}}
	for _, e := range open {
		r.Open = append(r.Open, e.ID)
	}
	near.board.Take("acme", "laptop", r) // the far relay does not get this report
	natssite.Eventually(t, "the far relay gets the missed event", func() bool {
		tell()
		_, knows := far.board.Open("acme", "laptop", missed.ID)
		return knows
	})
	if items, _, _, _ := near.board.After("nobody", 0); len(items) > 0 {
		t.Errorf("a different tenant is shown %v; want no items", items)
	}
	far.exchange.Follow(ctx, "nobody")()
}
