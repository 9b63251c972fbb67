package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/test/refclient"
)

// TestShareNeedsASession: a link to a session that the host does not have is refused and
// leaves nothing behind. A link to a session of the host is printed.
func TestShareNeedsASession(t *testing.T) {
	t.Parallel()
	relay, token, _, stop := runHostAgent(t)
	grant, err := relay.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{"laptop"}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	client, err := refclient.Dial(t.Context(), "ws"+relay.URL()[len("http"):]+"/ahp/laptop", refclient.Options{Token: grant})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Abort()
	if _, err := client.Initialize(t.Context(), refclient.InitializeParams{ClientID: "c", ProtocolVersions: []string{"0.9.0"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Call(t.Context(), "createSession", map[string]any{"channel": "demo:/1", "provider": "demo"}); err != nil {
		t.Fatal(err)
	}
	at := []string{"--relay", relay.URL(), "--token-file", token}
	out, err := agent(t.Context(), t, append([]string{"share", "demo:/none", "--no-qr"}, at...)...)
	if err == nil || out != "" {
		t.Errorf("share = %q, %v; want an error", out, err)
	} else {
		for _, want := range []string{"demo:/none", "laptop", "no such session"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want %q in it", err, want)
			}
		}
	}
	if out, err := agent(t.Context(), t, append([]string{"shares"}, at...)...); err != nil || out != "" {
		t.Errorf("shares = %q, %v; want none", out, err)
	}
	if out, err := agent(t.Context(), t, append([]string{"share", "demo:/1", "--no-qr"}, at...)...); err != nil || !strings.HasPrefix(out, relay.URL()+"/s#") {
		t.Errorf("share = %q, %v; want a link", out, err)
	}
	stop()
}

// TestShareOfASealedHostNeedsItsHostAgent: without the running host-agent, share makes no
// link to a sealed host, and the relay keeps none.
func TestShareOfASealedHostNeedsItsHostAgent(t *testing.T) {
	t.Parallel()
	relay, token, _, stop := runHostAgent(t, "--sealed", "--state-dir", t.TempDir())
	at := []string{"--relay", relay.URL(), "--token-file", token, "--control", filepath.Join(t.TempDir(), "none")}
	if out, err := agent(t.Context(), t, append([]string{"share", "demo:/1", "--no-qr"}, at...)...); err == nil || out != "" || !strings.Contains(err.Error(), "is sealed") {
		t.Errorf("share = %q, %v; want a refusal that names the sealed host", out, err)
	}
	if out, err := agent(t.Context(), t, append([]string{"shares"}, at...)...); err != nil || out != "" {
		t.Errorf("shares = %q, %v; want none", out, err)
	}
	stop()
}
