package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/test/refclient"
)

// TestOwnerListsAndKicksClients does what an owner does: enroll, run, clients and kick.
func TestOwnerListsAndKicksClients(t *testing.T) {
	dir, err := os.MkdirTemp("", "o") // short, because a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	relay, tokenFile := newRelay(t)
	host := newHost(t, agenthost.Config{})
	file := filepath.Join(dir, "credential")
	enroll := []string{"enroll", "--relay", relay.URL(), "--token-file", tokenFile, "--credentials-file", file}
	out, err := agent(t.Context(), t, enroll...)
	if err != nil || !strings.Contains(out, "Host laptop of tenant default is enrolled") {
		t.Fatalf("enroll prints %q, %v; want that the laptop is enrolled", out, err)
	}
	if _, err := agent(t.Context(), t, enroll...); err == nil || !strings.Contains(err.Error(), "exists; move it away") {
		t.Errorf("enroll over an existing file: %v; want exists; move it away", err)
	}
	enroll[len(enroll)-1] += "2"
	if _, err := agent(t.Context(), t, enroll...); err == nil || !strings.Contains(err.Error(), "token revoked") {
		t.Errorf("a second enroll with the token: %v; want token revoked", err)
	}
	common := []string{"--relay", relay.URL(), "--credentials-file", file, "--upstream", host}
	if out, err := agent(t.Context(), t, append([]string{"check"}, common...)...); err != nil || strings.Count(out, "ok ") != 4 {
		t.Errorf("check = %q, %v; want four times ok", out, err)
	}
	for _, args := range [][]string{{"clients"}, {"kick", "x"}, {"clients", "--host", "laptop"}, {"clients", "--control", filepath.Join(dir, "none")}} {
		if _, err := agent(t.Context(), t, args...); err == nil || !strings.Contains(err.Error(), hostagent.ErrNoAgent.Error()) {
			t.Errorf("%q without a host-agent: %v; want ErrNoAgent", args, err)
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		_, err := agent(ctx, t, append([]string{"run", "--allow", "read", "--no-sentinel"}, common...)...)
		ended <- err
	}()
	awaitOnline(t, relay)
	token, err := relay.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada\x20l", Hosts: []string{"laptop"}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	client, err := refclient.Dial(t.Context(), "ws"+relay.URL()[len("http"):]+"/ahp/laptop", refclient.Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Abort()
	if _, err := client.Initialize(t.Context(), refclient.InitializeParams{ClientID: "c\x1b[31m", ProtocolVersions: []string{"0.9.0"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Call(t.Context(), "createSession", map[string]any{"channel": "demo:/1", "provider": "demo"}); err == nil {
		t.Error("with --allow read, createSession succeeds; want an error")
	}
	out, err = agent(t.Context(), t, "clients")
	if err != nil || strings.Count(out, "\n") != 2 || !strings.Contains(out, "ada l") || !strings.Contains(out, "read") || !strings.Contains(out, `c\x1b[31m`) {
		t.Errorf("clients prints %q, %v; want ada's connection, with escaped control characters", out, err)
	}
	out, err = agent(t.Context(), t, "clients", "--host", "laptop", "--json")
	var list hostagent.Clients
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list.Clients) != 1 || list.Clients[0].Refused != 1 {
		t.Fatalf("clients --json: %s, %v; want one client, with 1 refused request", out, err)
	}
	for _, args := range [][]string{{"kick"}, {"kick", "x", "--subject", "ada"}, {"kick", "x", "--for", "-1s"}, {"kick", "x"}} {
		if out, err := agent(t.Context(), t, args...); err == nil {
			t.Errorf("%q succeeds with %q; want an error", args, out)
		}
	}
	if out, err := agent(t.Context(), t, "kick", list.Clients[0].ID, "--for", "1h"); err != nil || out != "1 ended\n" {
		t.Errorf("kick prints %q, %v; want 1 ended", out, err)
	}
	select {
	case <-client.Done():
	case <-time.After(time.Minute):
		t.Error("the kicked client is connected after a minute; want it closed")
	}
	if out, err := agent(t.Context(), t, "kick", "--subject", "bob"); err != nil || out != "0 ended\n" {
		t.Errorf("kick of a subject without connections: %q, %v; want 0 ended", out, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the host-agent ended with %v; want no error", err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "ahp-host-agent")); err != nil || len(entries) != 0 {
		t.Errorf("run has left %v in the control directory, %v; want nothing", entries, err)
	}
}
