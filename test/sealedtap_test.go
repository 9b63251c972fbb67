package test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/hostagent/remembering"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// A recording keeps bytes from several writers.
type recording struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *recording) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(p)
}

func (r *recording) bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.b.Bytes())
}

// recordTCP passes connections to a TCP address, and keeps their bytes in both directions.
func recordTCP(t *testing.T, target string, kept io.Writer) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", target)
			if err != nil {
				_ = from.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				running.Go(func() {
					defer pair[1].Close()
					_, _ = io.Copy(io.MultiWriter(pair[1], kept), pair[0])
				})
			}
		}
	})
	return l.Addr().String()
}

// secretsOf returns the texts of at least 16 bytes in messages.
func secretsOf(messages [][]byte) (list []string) {
	var add func(value any)
	add = func(value any) {
		switch value := value.(type) {
		case string:
			if len(value) >= 16 {
				list = append(list, value)
			}
		case []any:
			for _, one := range value {
				add(one)
			}
		case map[string]any:
			for name, one := range value {
				add(name)
				add(one)
			}
		}
	}
	for _, m := range messages {
		var value any
		if json.Unmarshal(m, &value) == nil {
			add(value)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// found returns the secrets of which some bytes have a piece of 16 bytes.
func found(in []byte, secrets []string) (list []string) {
	pieces := map[[16]byte]bool{}
	for i := range len(in) - 15 {
		pieces[[16]byte(in[i:])] = true
	}
	for _, secret := range secrets {
		for i := range len(secret) - 15 {
			if pieces[[16]byte([]byte(secret[i:]))] {
				list = append(list, secret)
				break
			}
		}
	}
	return list
}

// filesIn returns the content of all files in a directory.
func filesIn(t *testing.T, dir string) (all []byte) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // removed meanwhile
		}
		data, err := os.ReadFile(path)
		if err == nil {
			all = append(all, data...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// secretTurn is a conversation with secrets that hold their place.
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
	return append(secretsOf(c.Frames()), session, folder, "gho_a-secret-token-of-the-agent", "A secret title of the session", "a-secret-file-name.txt", "client-of-the-secret-turn")
}

// TestTapFindsNothing taps NATS, and reads the relay's files and log, while clients
// work at a sealed host. No piece of 16 bytes of a message's texts is there. The same tap
// finds them at a host that is not sealed.
func TestTapFindsNothing(t *testing.T) {
	t.Parallel()
	for _, seals := range []bool{true, false} {
		folder, err := os.MkdirTemp("", "folder-of-the-agent") // its name is not like those of the relay's directories
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(folder) })
		host := upstream(t, folder)
		var wire, logs recording
		dir := t.TempDir()
		cfg := stack.Config{Upstream: host.url, DataDir: dir, NATSOverTCP: true, Log: slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))}
		last := func(s *stack.Stack, agent *hostagent.Config) error {
			agent.NATSURLs = []string{"nats://" + recordTCP(t, s.Relay.NATSAddr().String(), &wire)}
			agent.Notify = hostagent.NotifyAll
			agent.Remember, agent.StateDir = remembering.Turns, cmp.Or(agent.StateDir, t.TempDir())
			agent.Log = slog.New(slog.DiscardHandler) // the host-agent's log belongs to the host's owner
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
			secrets = append(secrets, secretsOf(slices.Concat(conn.ToHost(), conn.ToClient()))...)
		}
		slices.Sort(secrets)
		secrets = slices.Compact(secrets)
		// Of the relay's own words, these are also in messages of hosts.
		secrets = slices.DeleteFunc(secrets, func(s string) bool { return strings.HasPrefix(s, "2026-") })
		for place, data := range map[string][]byte{"NATS": wire.bytes(), "files": filesIn(t, dir), "log": logs.bytes()} {
			list := found(data, secrets)
			t.Logf("sealed %v, %s: %d bytes, %d of %d texts", seals, place, len(data), len(list), len(secrets))
			switch {
			case len(data) < 1000:
				t.Errorf("sealed %v: only %d bytes in %s", seals, len(data), place)
			case seals && len(list) > 0:
				t.Errorf("%s of a sealed host: %q", place, list[:min(len(list), 20)])
			case !seals && place == "NATS" && len(list) < len(secrets)*9/10:
				t.Errorf("the tap finds only %d of %d texts of an unsealed host", len(list), len(secrets))
			}
		}
	}
}
