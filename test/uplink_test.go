package test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"ahprelay/broker"
	"ahprelay/hostagent"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// Fifty clients watch a chat in which the host sends 200 actions with 1 KB each. The
// host-agent sends each action to NATS once.
func TestSharedBytesCrossOnce(t *testing.T) {
	t.Parallel()
	const clients, actions = 50, 200
	const limit = actions * 1024 * 3 / 2 // a slow machine needs several messages for the references to one action
	_, server := newRefhost(t, nil)
	s := &stack.Stack{}
	meter := meteredStack(t, server.URL(), &s)
	dial := throughRelay(t, s)
	vars := flowVars("demo", "00000000")

	all := joinAll(t, dial, clients, vars)
	// The first actions teach the host-agent which clients share the chat.
	say(t, all[0], vars["chat"], 1, "stream 20 2 100")
	awaitDeltas(t, all, 20)
	before, messages := meter.Bytes(), meter.Messages()
	size := deltaSize(t, all[0])
	say(t, all[0], vars["chat"], 2, fmt.Sprintf("stream %d 2 %d", actions, 1024-size))
	awaitDeltas(t, all, 20+actions)
	got, sent := meter.Bytes()-before, meter.Messages()-messages
	t.Logf("%d clients × %d actions of 1 KB: %d bytes in %d messages from the host-agent to NATS", clients, actions, got, sent)
	if got > limit {
		t.Errorf("host-agent sent %d bytes; want at most %d", got, limit)
	}
	for i, c := range all {
		wantAllOf(t, fmt.Sprintf("viewer-%d", i), c, s.Tap.Conns()[i])
	}
}

// wantAllOf waits until a client has received all that the host has sent on the
// client's connection so far. It fails the test if the bytes differ.
func wantAllOf(t *testing.T, name string, c *refclient.Client, conn *stack.TapConn) {
	t.Helper()
	want := conn.ToClient()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	n := 0
	_, err := c.WaitFor(ctx, func([]byte) bool { n++; return n == len(want) })
	if err != nil {
		t.Errorf("%s received %d of %d frames: %v; want all", name, n, len(want), err)
		return
	}
	wantSameFrames(t, name, c.Frames()[:len(want)], want)
}

// meteredStack starts a stack with a host-agent that reaches NATS through a meter. It stores
// the stack in s and returns the meter.
func meteredStack(t *testing.T, upstream string, s **stack.Stack) *stack.Meter {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	var meter *stack.Meter
	started, err := stack.StartWith(ctx, stack.Config{DataDir: t.TempDir(), Upstream: upstream, NATSOverTCP: true},
		func(relay *stack.Stack, cfg *hostagent.Config) error {
			var err error
			meter, err = stack.NewMeter(relay.Relay.NATSAddr().String())
			cfg.NATSURLs = []string{"nats://" + meter.Addr()}
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(meter.Close)
	t.Cleanup(started.Close)
	*s = started
	return meter
}

// join connects a client, initializes it with the clientId, and returns it.
func join(t *testing.T, dial dialer, clientID string, vars map[string]string) *refclient.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	c, err := dial(ctx, refclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Abort() })
	if _, err := c.Initialize(ctx, refclient.InitializeParams{
		ClientID: clientID, ProtocolVersions: []string{"0.9.0"}, InitialSubscriptions: []string{"ahp-root://"},
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

func create(t *testing.T, c *refclient.Client, vars map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if _, err := c.Call(ctx, "createSession", map[string]any{"channel": vars["session"], "provider": vars["provider"]}); err != nil {
		t.Fatal(err)
	}
}

// watch subscribes a client to the session and chat in vars.
func watch(t *testing.T, c *refclient.Client, vars map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	for _, channel := range []string{vars["session"], vars["chat"]} {
		if _, err := c.Subscribe(ctx, channel); err != nil {
			t.Fatal(err)
		}
	}
}

// say starts a turn in a chat. The text tells the host's scripted agent what to do.
func say(t *testing.T, c *refclient.Client, chat string, turn int, text string) {
	t.Helper()
	_, err := c.Dispatch(chat, map[string]any{
		"type": "chat/turnStarted", "turnId": fmt.Sprintf("turn-%d", turn), "startedAt": "2026-11-21T12:00:00.000Z",
		"message": map[string]any{"text": text, "origin": map[string]any{"kind": "user"}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitDeltas waits until each client has received n chat/delta actions.
func awaitDeltas(t *testing.T, clients []*refclient.Client, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			seen := 0
			_, err := c.WaitFor(ctx, func(frame []byte) bool {
				if isDelta(frame) {
					seen++
				}
				return seen == n
			})
			if err != nil {
				code, reason := c.CloseStatus()
				t.Errorf("client %d received %d of %d deltas: %v (close %d %s); want all", i, seen, n, err, code, reason)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func isDelta(frame []byte) bool { return strings.Contains(string(frame), `"type":"chat/delta"`) }

// deltaSize returns the length of a chat/delta frame without its content.
func deltaSize(t *testing.T, c *refclient.Client) (size int) {
	t.Helper()
	for _, frame := range c.Frames() {
		if !isDelta(frame) {
			continue
		}
		var m struct {
			Params struct{ Action struct{ Content string } }
		}
		if err := json.Unmarshal(frame, &m); err != nil {
			t.Fatal(err)
		}
		size = len(frame) - len(m.Params.Action.Content)
	}
	return size
}

// The host-agent compresses its traffic through the relay's port. Clients receive the
// same bytes as without compression, and less than half as many bytes cross.
func TestUplinkIsCompressed(t *testing.T) {
	t.Parallel()
	const clients, actions = 5, 200
	_, server := newRefhost(t, nil)
	bytes := map[string]int64{}
	for _, method := range []string{"", broker.Zstandard} {
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		var meter *stack.Meter
		s, err := stack.StartWith(ctx, stack.Config{DataDir: t.TempDir(), Upstream: server.URL()}, func(relay *stack.Stack, cfg *hostagent.Config) (err error) {
			meter, err = stack.NewMeter(strings.TrimPrefix(relay.Relay.URL(), "http://"))
			cfg.Relays, cfg.Compress = []string{"http://" + meter.Addr()}, method
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(meter.Close)
		t.Cleanup(s.Close)
		vars := flowVars("demo", fmt.Sprintf("%08d", len(method)))
		var all []*refclient.Client
		for i := range clients {
			c := join(t, throughRelay(t, s), fmt.Sprintf("viewer-%d", i), vars)
			if i == 0 {
				create(t, c, vars)
			}
			watch(t, c, vars)
			all = append(all, c)
		}
		before := meter.Bytes()
		say(t, all[0], vars["chat"], 1, fmt.Sprintf("stream %d 1 600", actions))
		awaitDeltas(t, all, actions)
		bytes[method] = int64(meter.Bytes() - before)
		for i, c := range all {
			wantAllOf(t, fmt.Sprintf("viewer-%d", i), c, s.Tap.Conns()[i])
		}
	}
	t.Logf("%d actions to %d clients: %d bytes, %d compressed", actions, clients, bytes[""], bytes[broker.Zstandard])
	if bytes[broker.Zstandard] > bytes[""]/2 {
		t.Errorf("compression makes %d bytes of %d; want at most half", bytes[broker.Zstandard], bytes[""])
	}
}
