package test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/hostagent/remembering"
	"ahprelay/test/eavesdrop"
	"ahprelay/test/stack"
)

// startApart starts a relay in a separate process, and then a sealed or unsealed host
// at this relay. Between the two, it calls before with the relay.
func startApart(t *testing.T, upstream string, seals bool, before func(*relayProcess)) (*relayProcess, *sealedHost, *stack.Tap) {
	t.Helper()
	p := startRelayProcess(t, gateway.RelayConfig{DataDir: t.TempDir(), Listen: "127.0.0.1:0"})
	before(p)
	tap, err := stack.NewTap(upstream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tap.Close)
	token, err := p.keys.Tokens().IssueHost(auth.Enrolment{Tenant: stack.Tenant, Host: stack.Host, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "ahp") // short, because a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := hostagent.Config{
		Relays: []string{p.URL}, Token: func() (string, error) { return token, nil }, Log: slog.New(slog.DiscardHandler),
		StateDir: t.TempDir(), Control: filepath.Join(dir, "control.sock"), Notify: hostagent.NotifyAll, Remember: remembering.Turns,
	}
	cfg.Upstream.URL = tap.URL()
	if seals {
		cfg.Sealed = &hostagent.Sealing{}
	}
	agent, err := hostagent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	life, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = agent.Run(life) })
	t.Cleanup(func() { end(); running.Wait() })
	p.await(t, "online")
	if !seals {
		return p, nil, tap
	}
	h := &sealedHost{t: t, url: p.URL, control: hostagent.Control{Path: cfg.Control}, issue: func(change func(*auth.Client)) (string, error) {
		c := auth.Client{Tenant: stack.Tenant, Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour)}
		if change != nil {
			change(&c)
		}
		return p.keys.Tokens().IssueClient(c)
	}}
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	return p, h.controlled(ctx), tap
}

// TestMemoryOfTheRelayHasNothing dumps the relay's memory before and after clients work
// at a host, and reads the relay's files and log. With a sealed host, these contain no
// 16 bytes from a message's texts. With an unsealed host, the same search finds such
// bytes.
func TestMemoryOfTheRelayHasNothing(t *testing.T) {
	t.Parallel()
	for _, seals := range []bool{true, false} {
		folder, err := os.MkdirTemp("", "folder-of-the-agent")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(folder) })
		host := upstream(t, folder)
		var own eavesdrop.Dump // texts that the relay's memory contains before any message
		p, h, tap := startApart(t, host.url, seals, func(p *relayProcess) { own = eavesdrop.DumpMemory(t, p.cmd.Process.Pid) })
		dial := dialer(p.dial)
		if seals {
			h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
			dial = h.throughConnect(h.relays)
		}
		secrets := secretTurn(t, dial)
		for i, f := range readFlows(t) {
			if f.name == "turns" || f.name == "permission" {
				play(t, f, dial, host.vars(f.name, i))
			}
		}
		for _, conn := range tap.Conns() {
			secrets = append(secrets, eavesdrop.SecretsOf(slices.Concat(conn.ToHost(), conn.ToClient()))...)
		}
		secrets = slices.DeleteFunc(secrets, func(s string) bool { return strings.HasPrefix(s, "2026-") }) // times, which the relay itself also has in memory
		pieces := eavesdrop.PiecesOf(secrets)
		for known := range own.Finds(pieces) {
			delete(pieces, known)
		}
		for _, text := range []string{"A secret title of the session", "gho_a-secret-token-of-the-agent", "a-secret-file-name.txt"} {
			if !pieces[eavesdrop.Piece([]byte(text))] {
				t.Fatalf("the relay had the piece %q before the test; want only secrets", text)
			}
		}
		log, err := os.ReadFile(p.log)
		if err != nil {
			t.Fatal(err)
		}
		now := eavesdrop.DumpMemory(t, p.cmd.Process.Pid)
		for place, data := range map[string]eavesdrop.Dump{"memory": now, "files": {eavesdrop.FilesIn(t, p.dir)}, "log": {log}} {
			list := data.Finds(pieces)
			t.Logf("sealed %v, %s: %d bytes, %d of %d pieces", seals, place, data.Size(), len(list), len(pieces))
			switch {
			case data.Size() < 500 || place == "memory" && data.Size() < 1<<20:
				t.Errorf("sealed %v: the search has %d bytes from the relay's %s; want more", seals, data.Size(), place)
			case seals && len(list) > 0:
				t.Errorf("the %s of a relay with a sealed host contains %q; want none", place, eavesdrop.Some(list))
			case !seals && place == "memory" && len(list) < len(pieces)/2:
				t.Errorf("the dump contains %d of %d pieces of an unsealed host; want at least half", len(list), len(pieces))
			}
		}
	}
}
