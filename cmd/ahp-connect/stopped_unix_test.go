//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// TestStoppedProcessLosesNothing suspends ahp-connect for 2 s while the host sends 500
// actions a second, as a laptop that sleeps would. With AHP_ABSENCE (make absence), the
// suspension takes that time, and the host sends 15 actions a second. The client must
// then receive every frame.
func TestStoppedProcessLosesNothing(t *testing.T) {
	s, tokenFile := newStack(t)
	away, n, pause := 2*time.Second, 2000, 2
	if long, err := time.ParseDuration(os.Getenv("AHP_ABSENCE")); err == nil {
		t.Parallel()
		away, pause = long, 66
		n = int((long + 20*time.Second) / (66 * time.Millisecond))
	}
	r := startRunning(t, s, nil, s.Relay.URL(), tokenFile, n, pause)
	if err := r.program.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(away)
	if err := r.program.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.wantAll()
}

// A running is ahp-connect as a process, with a client that watches a turn.
type running struct {
	t       *testing.T
	stack   *stack.Stack
	program *exec.Cmd
	client  *refclient.Client
}

// startRunning starts ahp-connect behind the command around, connects a client, and
// starts a turn with n deltas. The pause between deltas is in milliseconds.
func startRunning(t *testing.T, s *stack.Stack, around []string, relay, tokenFile string, n, pause int, more ...string) *running {
	t.Helper()
	dir := t.TempDir()
	local, socket := filepath.Join(dir, "local"), filepath.Join(dir, "sock")
	args := slices.Concat(around, []string{os.Args[0], "--state-dir", dir, "--key-file", "up", "--relay", relay, "--token-file", tokenFile, "--listen", "unix:" + socket, "--local-token-file", local}, more)
	program := exec.CommandContext(t.Context(), args[0], args[1:]...)
	program.Env = append(os.Environ(), "AHP_TEST_PROGRAM=1")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Signal(syscall.SIGCONT)
		_ = program.Process.Kill()
		_ = program.Wait()
	})
	natssite.Eventually(t, "the local token is written", func() bool { _, err := os.Stat(local); return err == nil })
	token, err := os.ReadFile(local)
	if err != nil {
		t.Fatal(err)
	}
	client, err := refclient.Dial(t.Context(), "ws://localhost/ahp/"+stack.Host, refclient.Options{
		Token: strings.TrimSpace(string(token)), TokenIn: refclient.InTkn, HTTPClient: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if _, err := client.Initialize(t.Context(), refclient.InitializeParams{ClientID: "sleeper", ProtocolVersions: []string{"0.9.0"}}); err != nil {
		t.Fatal(err)
	}
	const session, chat = "demo:/sleep", "ahp-chat:/sleep"
	if _, err := client.Call(t.Context(), "createSession", map[string]any{"channel": session, "provider": "demo"}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Call(t.Context(), "createChat", map[string]any{"channel": session, "chat": chat}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Subscribe(t.Context(), chat); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Dispatch(chat, map[string]any{
		"type": "chat/turnStarted", "turnId": "t1", "startedAt": "2026-01-01T00:00:00Z",
		"message": map[string]any{"text": fmt.Sprintf("stream %d %d 512", n, pause), "origin": map[string]any{"kind": "user"}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.WaitFor(t.Context(), func(frame []byte) bool { return bytes.Contains(frame, []byte(`"chat/delta"`)) }); err != nil {
		t.Fatal(err)
	}
	return &running{t, s, program, client}
}

// wantAll waits until the client has received the whole turn. It fails the test unless
// the client received exactly the frames that the host sent on one connection.
func (r *running) wantAll() {
	t, client := r.t, r.client
	t.Helper()
	if _, err := client.WaitFor(t.Context(), func(frame []byte) bool { return bytes.Contains(frame, []byte(`"chat/turnComplete"`)) }); err != nil {
		t.Fatal(err)
	}
	conns := r.stack.Tap.Conns()
	if len(conns) != 1 {
		t.Errorf("the host has seen %d connections; want one", len(conns))
	}
	sent := conns[0]
	want := sent.ToClient() // the host may send more, about the end of the turn
	natssite.Eventually(t, "the client has all frames", func() bool { return len(client.Frames()) >= len(want) })
	if got := client.Frames()[:len(want)]; !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("the client received %d bytes, and the host sent %d; want the same frames", len(bytes.Join(got, nil)), len(bytes.Join(want, nil)))
	}
}
