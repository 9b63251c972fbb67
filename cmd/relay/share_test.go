package main

import (
	"context"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ahprelay/auth"
	"ahprelay/hostagent"
)

// TestSharePrintsOneLink runs relay share. It prints a link and nothing else. The link
// permits only the given session.
func TestSharePrintsOneLink(t *testing.T) {
	dir := t.TempDir()
	keys, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	const session = "ahp-session:/a b#&+?=%/ü" // unusual, but a URI may contain this
	for name, test := range map[string]struct {
		args    []string
		base    string
		access  auth.Access
		ttl     time.Duration
		subject string // expected subject; "": the command makes one

		connections int
	}{
		"as is":    {nil, "http://127.0.0.1:1/", auth.AccessRead, time.Hour, "", shareConnections},
		"to read":  {[]string{"--read", "--url", "https://relay.example.com"}, "https://relay.example.com/", auth.AccessRead, time.Hour, "", shareConnections},
		"to talk":  {[]string{"--level", "talk", "--url", "https://relay.example.com"}, "https://relay.example.com/", auth.AccessTalk, time.Hour, "", shareConnections},
		"to write": {[]string{"--write", "--max-connections", "3", "--ttl", "5m", "--subject", "bob", "--url", "https://example.com/"}, "https://example.com/", auth.AccessWrite, 5 * time.Minute, "bob", 3},
	} {
		channel := strings.ReplaceAll(session, " ", "_") // a pattern must not contain spaces
		flag := "--channel"
		if test.access == auth.AccessTalk {
			flag = "--session" // means the same
		}
		args := append([]string{"share", "--data-dir", dir, "--relay", "http://127.0.0.1:1", "--host", "laptop", flag, channel}, test.args...)
		out, said, err := relay(t, args...)
		if err != nil {
			t.Fatalf("share %s: %v; want no error", name, err)
		}
		link, ok := strings.CutSuffix(out, "\n")
		base, fragment, found := strings.Cut(link, "#")
		if !ok || !found || base != test.base || strings.Contains(link, "\n") {
			t.Errorf("%s: printed %q; want one link to %s", name, out, test.base)
		}
		params, err := url.ParseQuery(fragment)
		if err != nil || params.Get("host") != "laptop" || params.Get("session") != channel {
			t.Errorf("%s: the link's fragment is %v, %v; want the host laptop and the session", name, params, err)
		}
		who, err := keys.Tokens().VerifyClient(params.Get("token"))
		if err != nil {
			t.Fatalf("VerifyClient of the link's token, %s: %v; want no error", name, err)
		}
		if left := time.Until(who.Expires); left > test.ttl || left < test.ttl-time.Minute {
			t.Errorf("%s: the link's token is valid for %v; want %v", name, left, test.ttl)
		}
		want := auth.Client{
			ID: who.ID, IssuedAt: who.IssuedAt, Expires: who.Expires, Signer: who.Signer, Tenant: "default",
			Subject: test.subject, Hosts: []string{"laptop"}, Channels: []string{channel}, Access: test.access, MaxConnections: test.connections,
		}
		if test.subject == "" {
			want.Subject = "link-" + strings.ToLower(who.ID[:10])
		}
		if test.access == auth.AccessRead {
			want.Audience = want.Subject
		}
		if diff := cmp.Diff(want, who); diff != "" {
			t.Errorf("%s: token (-want +got):\n%s", name, diff)
		}
		for _, want := range []string{"--token " + who.ID, "missing from its audit"} {
			if !strings.Contains(said, want) {
				t.Errorf("%s: standard error has %q; want %q in it", name, said, want)
			}
		}
		if got := strings.Contains(said, "on this machine only"); got != (name == "as is") {
			t.Errorf("share %s prints %q; want the warning about the address only without a public one", name, said)
		}
		if strings.Contains(said, params.Get("token")) {
			t.Errorf("share %s prints the token to standard error; want it in the link only", name)
		}
	}
}

// servingHost connects the host laptop to a relay until the test ends.
func servingHost(t *testing.T, dir, base, upstream string) {
	t.Helper()
	keys, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	token, err := keys.Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: "laptop", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := hostagent.New(hostagent.Config{
		Relays: []string{base}, Token: func() (string, error) { return token, nil }, Upstream: hostagent.Upstream{URL: upstream},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the host-agent ended with %v; want no error", err)
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		out, _, err := relay(t, "hosts", "--data-dir", dir)
		if err == nil && strings.Contains(out, "laptop") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the relay does not list the host: %s, %v", out, err)
		}
	}
}

// TestRunningRelayAuditsShare runs relay share while the relay runs. The relay's audit
// must contain it.
func TestRunningRelayAuditsShare(t *testing.T) {
	dir := t.TempDir()
	audit := t.TempDir() + "/audit"
	base := serving(t, dir, "--audit-file", audit)
	servingHost(t, dir, base, "ws://127.0.0.1:1") // no host listens there
	out, said, err := relay(t, "share", "--data-dir", dir, "--relay", base, "--host", "laptop", "--channel", "mock:/1", "--subject", "bob")
	if err != nil || strings.Contains(said, "audit") {
		t.Fatalf("share ends with %v and prints %q; want no warning about the audit", err, said)
	}
	lines, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"event":"share"`, `"subject":"bob"`, `"host":"laptop"`, `"tenant":"default"`, "mock:/1", "access read"} {
		if !strings.Contains(string(lines), want) {
			t.Errorf("the audit says\n%s\nwant %s in it", lines, want)
		}
	}
	_, token, _ := strings.Cut(strings.TrimSpace(out), "token=")
	if token == "" || strings.Contains(string(lines), token) {
		t.Error("the audit contains the share's token; want it hidden")
	}
}

// TestShareNeedsASession shares a session that the host does not have. The command
// fails, and its error lists the host's sessions.
func TestShareNeedsASession(t *testing.T) {
	dir := t.TempDir()
	base := serving(t, dir)
	host, err := startDemoHost(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer host.stop()
	servingHost(t, dir, base, host.upstream.URL)
	share := func(session string) (string, error) {
		out, _, err := relay(t, "share", "--data-dir", dir, "--host", "laptop", "--channel", session, "--no-qr")
		return out, err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		out, err := share("demo:/none")
		if err != nil {
			for _, want := range []string{"--channel demo:/none", "laptop", "no such session", `demo:/login ("Fix the flaky login test")`} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want %q in it", err, want)
				}
			}
			break
		}
		if !strings.HasPrefix(out, base) || time.Now().After(deadline) { // repeats until the host is online
			t.Fatalf("share = %q; want an error", out)
		}
	}
	if out, err := share("demo:/login"); err != nil || !strings.HasPrefix(out, base) {
		t.Errorf("share = %q, %v; want a link", out, err)
	}
}

func TestUnclearSharesAreRefused(t *testing.T) {
	dir := t.TempDir()
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	good := map[string]string{"--data-dir": dir, "--host": "laptop", "--channel": "mock:/1", "--ttl": "1h", "--url": "http://relay"}
	for _, test := range []struct{ flag, value, want string }{
		{"--host", "*", "--host"}, {"--channel", "*", "--channel"}, {"--channel", "mock:/*", "--channel"}, {"--channel", "abc", "--channel"},
		{"--ttl", "0s", "--ttl"}, {"--ttl", "900ms", "--ttl is 900ms"}, {"--max-connections", "-1", "connections"}, {"--url", "ftp://relay", "--url"}, {"--url", "relay", "--url"}, {"--url", "http://relay/?x", "--url"}, {"--url", "https://example.com/relay", "--url"},
		{"--data-dir", t.TempDir(), "--data-dir"}, {"--read", "--write", "can't be used together"},
	} {
		args := []string{"share"}
		for flag, value := range good {
			if flag != test.flag {
				args = append(args, flag, value)
			}
		}
		if _, _, err := relay(t, append(args, test.flag, test.value)...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %s: %v; want %q in it", test.flag, test.value, err, test.want)
		}
	}
}
