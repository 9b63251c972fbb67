package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/ahp"
	"ahprelay/broker/registry"
	"ahprelay/hostagent"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// secondAgent runs a second host-agent for a stack's host, with the same token, until
// the test ends. The returned channel receives the result of the host-agent's Run.
func secondAgent(t *testing.T, s *stack.Stack, takeOver bool) <-chan error {
	t.Helper()
	token, err := s.HostToken(stack.Host)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := hostagent.New(hostagent.Config{
		Relays: []string{s.Relay.URL()}, Token: func() (string, error) { return token, nil },
		Upstream: hostagent.Upstream{URL: s.Tap.URL()}, TakeOver: takeOver,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		ended <- agent.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return ended
}

// wantTaken waits until a host-agent's Run ends. Run must return registry.ErrHostTaken.
func wantTaken(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, registry.ErrHostTaken) {
			t.Errorf("Run = %v; want %v", err, registry.ErrHostTaken)
		}
	case <-time.After(stepTime):
		t.Fatalf("the host-agent runs %v after a rival has taken its host; want ErrHostTaken", stepTime)
	}
}

// TestSecondHostAgentIsRefusedUnnoticed starts a second host-agent with the token of
// the first. The relay refuses the second host-agent. A client of the first host-agent
// keeps its connection.
func TestSecondHostAgentIsRefusedUnnoticed(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	c := join(t, throughRelay(t, s), "a", nil)
	wantTaken(t, secondAgent(t, s, false))
	if got := call(t, c, "ping", `{"channel":"ahp-root://"}`); string(got) != "null" {
		t.Errorf("ping returns %s; want null", got)
	}
	wantAllOf(t, "a", c, s.Tap.Conns()[0])
}

// Twice, a new host-agent takes over the host from the running host-agent. Each time,
// the relay closes the client with the reason "resync". The client reconnects and
// receives every action, those that it missed included.
func TestTakeOverLosesNothing(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	dial := throughRelay(t, s)
	vars := flowVars("demo", "00000000")
	c := join(t, dial, "a", vars)
	create(t, c, vars)
	watch(t, c, vars)
	before := secondAgent(t, s, true) // takes the host over from the stack's own host-agent
	for turn := 1; turn <= 2; turn++ {
		wantClosed(t, c, ahp.CloseResync, "resync")
		var resumed refclient.ReconnectResult
		c, resumed = resume(t, dial, vars, lastSeen(c))
		if resumed.Type != "replay" {
			t.Errorf("host answered reconnect with %q; want what was missed", resumed.Type)
		}
		say(t, c, vars["chat"], turn, "stream 20 2 100")
		awaitDeltas(t, []*refclient.Client{c}, 20)
		conns := s.Tap.Conns()
		wantAllOf(t, "a", c, conns[len(conns)-1])
		if turn == 1 {
			secondAgent(t, s, true)
			wantTaken(t, before)
		}
	}
}

// resume connects a client again, with the same clientId and the given serverSeq. It
// returns the client with the host's answer to reconnect.
func resume(t *testing.T, dial dialer, vars map[string]string, lastSeen int64) (*refclient.Client, refclient.ReconnectResult) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	c, err := dial(ctx, refclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Abort() })
	result, err := c.Reconnect(ctx, refclient.ReconnectParams{
		ClientID: "a", LastSeenServerSeq: lastSeen, Subscriptions: []string{"ahp-root://", vars["session"], vars["chat"]},
	})
	if err != nil {
		t.Fatalf("reconnect: %v; want no error", err)
	}
	return c, result
}

// lastSeen returns the highest serverSeq among a client's actions.
func lastSeen(c *refclient.Client) (n int64) {
	for _, frame := range c.Frames() {
		if a, ok := refclient.ReadAction(frame); ok {
			n = max(n, a.ServerSeq)
		}
	}
	return n
}

// The host process crashes, and its successor starts again with serverSeq 1 and the
// same ids. It sends the same bytes as its predecessor. The relay must still pass all
// bytes to the clients that connect after the crash.
func TestHostCountsFromTheStart(t *testing.T) {
	t.Parallel()
	deterministic := func(cfg *agenthost.Config) {
		ids := 0
		cfg.Now = func() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }
		cfg.NewID = func() string { ids++; return fmt.Sprintf("id-%d", ids) }
	}
	host, server := newRefhost(t, deterministic)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	dial := throughRelay(t, s)
	vars := flowVars("demo", "00000000")
	const viewers = 3
	var first [][]byte // deltas that the first client received before the crash
	for round := range 2 {
		all := joinAll(t, dial, viewers, vars)
		say(t, all[0], vars["chat"], 1, "stream 50 2 100")
		awaitDeltas(t, all, 50)
		conns := s.Tap.Conns() // the host-agent's monitor has a connection, too
		conns = conns[len(conns)-viewers:]
		for i, c := range all {
			wantAllOf(t, fmt.Sprintf("round %d, viewer-%d", round, i), c, conns[i])
		}
		if round == 1 {
			wantSameFrames(t, "first viewer of the second round", deltas(all[0]), first)
			break
		}
		first = deltas(all[0])
		server.Stop()
		if err := host.Close(); err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			wantClosed(t, c, ahp.CloseHostOffline, "host offline")
		}
		awaitState(t, s, "offline") // a relay notes this after it has closed the clients
		cfg := agenthost.Config{}
		deterministic(&cfg)
		startAnew(t, s, server, cfg)
	}
}

// startAnew starts a new host process in place of the ended process, and waits until
// it is online.
func startAnew(t *testing.T, s *stack.Stack, server *stack.Server, cfg agenthost.Config) {
	t.Helper()
	next, err := scripted.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = next.Close() })
	if err := server.Restart(next); err != nil {
		t.Fatal(err)
	}
	awaitState(t, s, "online")
}

// joinAll makes n clients watch one chat, which the first client creates.
func joinAll(t *testing.T, dial dialer, n int, vars map[string]string) (all []*refclient.Client) {
	t.Helper()
	for i := range n {
		c := join(t, dial, fmt.Sprintf("viewer-%d", i), vars)
		if i == 0 {
			create(t, c, vars)
		}
		watch(t, c, vars)
		all = append(all, c)
	}
	return all
}

// deltas returns the chat/delta frames that a client has received.
func deltas(c *refclient.Client) (frames [][]byte) {
	for _, frame := range c.Frames() {
		if isDelta(frame) {
			frames = append(frames, bytes.Clone(frame))
		}
	}
	return frames
}
