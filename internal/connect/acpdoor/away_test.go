package acpdoor_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/gateway"
	"ahprelay/internal/acp"
)

// newImpatientSite returns a site whose relay does not wait for an absent host-agent.
func newImpatientSite(t *testing.T, cfg agenthost.Config) *site {
	t.Helper()
	return newSiteAt(t, cfg, func(host http.Handler) http.Handler { return host }, gateway.RelayConfig{Gateway: gateway.Config{HoldTime: 300 * time.Millisecond}})
}

// lose stops the host-agent, and returns when the door has noticed.
func (s *site) lose(t *testing.T, e *editor) {
	t.Helper()
	if err := s.StopAgent(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); e.conn.Call(t.Context(), "session/list", acp.ListSessionsRequest{}, nil) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the door still lists sessions a minute after the host-agent's end; want an error")
		}
	}
}

// TestAnswerWithoutAHostIsAskedAgain answers a request for permission while the host is away. The answer cannot reach
// the host. When the host is back, the editor must ask again, and the turn must go on.
func TestAnswerWithoutAHostIsAskedAgain(t *testing.T) {
	s := newImpatientSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	id := e.create()
	pending := e.conn.Begin("session/prompt", promptOf(id, "permission"))
	r := e.next("session/request_permission")
	s.lose(t, e)
	r.Reply(selected("allow-once"), nil)
	if err := s.StartAgent(); err != nil {
		t.Fatal(err)
	}
	e.next("session/request_permission").Reply(selected("allow-once"), nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := pending.Wait(ctx, nil); err != nil {
		t.Errorf("the turn ends with %v; want no error", err)
	}
}
