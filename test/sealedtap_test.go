package test

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/hostagent/remembering"
	"ahprelay/test/eavesdrop"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// secretTurn runs a client in a session whose names and texts are secrets. It returns
// all secrets.
func secretTurn(t *testing.T, dial dialer) (secrets []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	c, err := dial(ctx, refclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: "client-of-the-secret-turn", ProtocolVersions: []string{"0.9.0"}}); err != nil {
		t.Fatal(err)
	}
	const session, folder = "demo:/a-secret-session-name", "file:///home/ada/a-secret-folder"
	_, _ = c.Call(ctx, "authenticate", map[string]any{"channel": "ahp-root://", "resource": "https://api.example.com", "token": "gho_a-secret-token-of-the-agent"})
	if _, err := c.Call(ctx, "createSession", map[string]any{"channel": session, "provider": "demo"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(ctx, session); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Dispatch(session, map[string]any{"type": "session/titleChanged", "title": "A secret title of the session"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitFor(ctx, refclient.IsAction(session, "session/titleChanged")); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Call(ctx, "resourceRead", map[string]any{"channel": "ahp-root://", "uri": folder + "/a-secret-file-name.txt"})
	return append(eavesdrop.SecretsOf(c.Frames()), session, folder, "gho_a-secret-token-of-the-agent", "A secret title of the session", "a-secret-file-name.txt", "client-of-the-secret-turn")
}

// TestTapFindsNothing records all NATS traffic, and reads the relay's files and log,
// while clients work at a sealed host. None contains 16 bytes from a message's texts.
// With an unsealed host, the same search finds such bytes.
func TestTapFindsNothing(t *testing.T) {
	t.Parallel()
	for _, seals := range []bool{true, false} {
		folder, err := os.MkdirTemp("", "folder-of-the-agent") // no file name of the relay contains this name
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(folder) })
		host := upstream(t, folder)
		var wire, logs eavesdrop.Recording
		dir := t.TempDir()
		cfg := stack.Config{Upstream: host.url, DataDir: dir, NATSOverTCP: true, Log: slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))}
		last := func(s *stack.Stack, agent *hostagent.Config) error {
			agent.NATSURLs = []string{"nats://" + eavesdrop.RecordTCP(t, s.Relay.NATSAddr().String(), &wire)}
			agent.Notify = hostagent.NotifyAll
			agent.Remember, agent.StateDir = remembering.Turns, cmp.Or(agent.StateDir, t.TempDir())
			agent.Log = slog.New(slog.DiscardHandler) // the host-agent's log belongs to the host's owner, so it may contain secrets
			return nil
		}
		var dial dialer
		var at *stack.Stack
		if seals {
			h := startSealed(t, host.url, func(c *stack.Config) { *c = cfg }, last)
			h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
			dial, at = h.throughConnect(h.relays), h.Stack
		} else {
			ctx, cancel := context.WithTimeout(t.Context(), stepTime)
			s, err := stack.StartWith(ctx, cfg, last)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			dial, at = throughRelay(t, s), s
		}
		secrets := secretTurn(t, dial)
		for i, f := range readFlows(t) {
			if f.name == "turns" || f.name == "permission" {
				play(t, f, dial, host.vars(f.name, i))
			}
		}
		natssite.Eventually(t, "the relay has the last state", func() bool {
			all, err := rememberedAt(t, at, nil)
			return err == nil && all.List != nil && len(all.Sessions) > 1
		})
		for _, conn := range at.Tap.Conns() {
			secrets = append(secrets, eavesdrop.SecretsOf(slices.Concat(conn.ToHost(), conn.ToClient()))...)
		}
		slices.Sort(secrets)
		secrets = slices.Compact(secrets)
		// Texts that begin with 2026- are times, which the relay also writes by itself.
		secrets = slices.DeleteFunc(secrets, func(s string) bool { return strings.HasPrefix(s, "2026-") })
		for place, data := range map[string][]byte{"NATS": wire.Bytes(), "files": eavesdrop.FilesIn(t, dir), "log": logs.Bytes()} {
			list := eavesdrop.Found(data, secrets)
			t.Logf("sealed %v, %s: %d bytes, %d of %d texts", seals, place, len(data), len(list), len(secrets))
			switch {
			case len(data) < 1000:
				t.Errorf("sealed %v: the search has %d bytes from %s; want at least 1000", seals, len(data), place)
			case seals && len(list) > 0:
				t.Errorf("the %s of a sealed host contains %q; want none", place, list[:min(len(list), 20)])
			case !seals && place == "NATS" && len(list) < len(secrets)*9/10:
				t.Errorf("the tap contains %d of %d texts of an unsealed host; want at least nine tenths", len(list), len(secrets))
			}
		}
	}
}
