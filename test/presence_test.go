package test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/ahp"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// wantClosed waits until a client's connection ends. It must end with this code, and
// with a reason that begins with reason.
func wantClosed(t *testing.T, c *refclient.Client, code ahp.CloseCode, reason string) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(stepTime):
		t.Fatalf("connection is still open; want close %d", code)
	}
	gotCode, gotReason := c.CloseStatus()
	if gotCode != int(code) || !strings.HasPrefix(gotReason, reason) {
		t.Errorf("the connection was closed with %d %q; want %d %q…", gotCode, gotReason, code, reason)
	}
}

func awaitState(t *testing.T, s *stack.Stack, state string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if err := s.AwaitState(ctx, state); err != nil {
		t.Fatal(err)
	}
}

// The host dies. The relay closes its clients at once, and holds new clients until the
// host returns. The waiting clients then continue.
func TestClientsLearnThatTheHostDied(t *testing.T) {
	t.Parallel()
	host, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	dial := throughRelay(t, s)
	a, b := join(t, dial, "a", nil), join(t, dial, "b", nil)

	died := time.Now()
	server.Stop()
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, a, ahp.CloseHostOffline, "host offline")
	wantClosed(t, b, ahp.CloseHostOffline, "host offline")
	t.Logf("clients were told %v after the host died", time.Since(died).Round(time.Millisecond))
	awaitState(t, s, "offline")
	info, err := s.API(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Since.Before(died.Add(-time.Second)) || info.Since.After(time.Now()) || info.Reason == "" {
		t.Errorf("the host is offline since %v because of %q; want a reason, and a time after its death at %v", info.Since, info.Reason, died)
	}

	// A client that connects now is held and gets no error, after which common clients
	// would give up.
	late, err := dial(t.Context(), refclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = late.Abort() })
	begun := make(chan error, 1)
	go func() {
		_, err := late.Initialize(t.Context(), refclient.InitializeParams{ClientID: "late", ProtocolVersions: []string{"0.9.0"}})
		begun <- err
	}()

	// The relay also holds a client that wants to resume, and answers its pings.
	held, err := dial(t.Context(), refclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = held.Abort() })
	resumed := make(chan error, 1)
	go func() {
		_, err := held.Reconnect(t.Context(), refclient.ReconnectParams{ClientID: "a", Subscriptions: []string{"ahp-root://"}})
		resumed <- err
	}()
	for range 3 {
		if got := call(t, held, "ping", `{"channel":"ahp-root://"}`); string(got) != "null" {
			t.Errorf("ping of a held client = %s; want null", got)
		}
	}
	select {
	case err := <-resumed:
		t.Fatalf("reconnect was answered without a host: %v; want it to wait", err)
	case err := <-begun:
		t.Fatalf("initialize was answered without a host: %v; want it to wait", err)
	default:
	}

	back, err := scripted.New(agenthost.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = back.Close() })
	if err := server.Restart(back); err != nil {
		t.Fatal(err)
	}
	awaitState(t, s, "online")
	// The restarted host does not know the client. Its own error for reconnect reaches the
	// client.
	var refused *refclient.RPCError
	if err := <-resumed; !errors.As(err, &refused) || refused.Code != ahp.CodeNotFound {
		t.Errorf("reconnect after the host came back: %v; want the host's own %d", err, ahp.CodeNotFound)
	}
	if err := <-begun; err != nil {
		t.Errorf("initialize after the host's return: %v; want no error", err)
	}
	join(t, dial, "a", nil)
}

// TestHostNotUpYet starts a host-agent while its host does not run. The relay reports
// the cause. When the host starts, it is online and serves clients.
func TestHostNotUpYet(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	s := &stack.Stack{}
	s, err := stack.Launch(ctx, stack.Config{DataDir: t.TempDir(), Upstream: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	awaitState(t, s, "offline")
	const why = "the host answers HTTP 502 instead of a WebSocket" // the relay names the cause without the host's address
	eventually(t, "the relay says "+why, func() bool {
		info, err := s.API(ctx)
		return err == nil && info.Reason == why
	})
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	awaitState(t, s, "online")
	info, err := s.API(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(info.HostVersion, "0.9.0") {
		t.Errorf("host's version is %q; want what it says it speaks", info.HostVersion)
	}
}

// TestClientsAreCounted connects and drops clients. The relay's API must report their
// number.
func TestClientsAreCounted(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	dial := throughRelay(t, s)
	a := join(t, dial, "a", nil)
	join(t, dial, "b", nil)
	awaitClients(t, s, 2)
	_ = a.Close()
	awaitClients(t, s, 1)
}

func awaitClients(t *testing.T, s *stack.Stack, n int) {
	t.Helper()
	for deadline := time.Now().Add(stepTime); ; time.Sleep(10 * time.Millisecond) {
		info, err := s.API(t.Context())
		if err == nil && info.Clients == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("relay says that %d clients are connected; want %d (%v)", info.Clients, n, err)
		}
	}
}

// The host-agent is stopped. The relay closes its clients at once, with this reason.
func TestClientsLearnThatTheHostAgentStopped(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	c := join(t, throughRelay(t, s), "a", nil)
	if err := s.StopAgent(); err != nil {
		t.Errorf("host-agent ended with %v; want nil", err)
	}
	wantClosed(t, c, ahp.CloseHostOffline, "host offline: host-agent stopped")
	awaitState(t, s, "offline")
	if err := s.StartAgent(); err != nil {
		t.Fatal(err)
	}
	awaitState(t, s, "online")
	join(t, throughRelay(t, s), "a", nil)
}

// A relay knows from its connection that a host-agent is alive. The host-agent sends no
// requests to renew its lease: a metric counts it while it is connected.
func TestConnectedHostAgentNeedsNoRenewal(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	heard := func(n string) func() bool {
		return func() bool {
			return strings.Contains(fetch(t, s.Relay.AdminURL()+"/metrics", ""), "\nahp_relay_registry_leases_heard "+n+"\n")
		}
	}
	awaitState(t, s, "online")
	eventually(t, "the host-agent is heard", heard("1"))
	if err := s.StopAgent(); err != nil {
		t.Errorf("host-agent ended with %v; want nil", err)
	}
	eventually(t, "it is not heard", heard("0"))
}

// A relay drains while messages for clients are pending. Clients receive these messages
// before they are closed.
func TestDrainFollowsPendingMessages(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	dial := throughRelay(t, s)
	c := join(t, dial, "a", nil)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	answer := make(chan json.RawMessage, 1)
	go func() {
		got, _ := c.Call(ctx, "ping", map[string]string{"channel": "ahp-root://"})
		answer <- got
	}()
	<-answer
	s.Relay.Drain(ctx, 0)
	wantClosed(t, c, ahp.CloseShuttingDown, "relay shutting down")
	if _, err := dial(ctx, refclient.Options{}); err == nil {
		t.Error("a draining relay accepts a new client; want a refusal")
	}
}
