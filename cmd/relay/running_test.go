package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/test/testca"
)

// withTLS makes a certificate that this machine does not trust, and returns the relay's
// flags for it.
func withTLS(t *testing.T) []string {
	t.Helper()
	cert, key, err := testca.WriteFilesFor(net.IPv4(127, 0, 0, 1), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--tls-cert", cert, "--tls-key", key}
}

// TestCommandsFindTheirRelay runs commands with only --data-dir. They must find the
// relay of this directory, although its port is random and its certificate is not
// trusted, and not the relay of another directory on the same machine.
func TestCommandsFindTheirRelay(t *testing.T) {
	dir, beside := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, beside} {
		if _, err := auth.LoadKeys(d); err != nil {
			t.Fatal(err)
		}
	}
	servingWith(t, beside, "127.0.0.1:0", "--hold", "9m")
	url, _ := servingWith(t, dir, "127.0.0.1:0", append(withTLS(t), "--hold", "7m")...)
	if !strings.HasPrefix(url, "https://127.0.0.1:") {
		t.Fatalf("the relay is at %s; want https", url)
	}
	file := filepath.Join(t.TempDir(), "diag.tar.gz")
	for _, test := range []struct {
		want string
		args []string
	}{
		{`"hosts":[]`, []string{"hosts", "--json"}},
		{"relay at " + url, []string{"check"}},
		{"at the relay at " + url, []string{"revoke", "--token", "SPELT"}},
		{"SPELT", []string{"revocations"}},
		{url + "/setup#", []string{"setup-link", "--no-qr"}},
		{"the operator", []string{"invitations"}},
		{file, []string{"diag", file}},
	} {
		args := append(test.args, "--data-dir", dir)
		if out, said, err := relay(t, args...); err != nil || !strings.Contains(out, test.want) || strings.Contains(said, "missing") || strings.Contains(said, "not there") {
			t.Errorf("%v = %q, %q, %v; want %s", args, out, said, err, test.want)
		}
	}
	if _, _, err := relay(t, "forget", "--data-dir", dir, "laptop"); err == nil || !strings.Contains(err.Error(), "no such host; relay hosts lists") {
		t.Errorf("forget: %v; want the relay's answer, and the command that lists the hosts", err)
	}
	if out, _, err := relay(t, "share", "--data-dir", dir, "--host", "laptop", "--channel", "ahp-session:/a", "--no-qr"); err == nil || !strings.Contains(err.Error(), "no such host") || out != "" {
		t.Errorf("share of an unknown host = %q, %v; want no such host", out, err)
	}
	plain := strings.Replace(url, "https", "http", 1)
	for at, want := range map[string]string{plain: "use " + url, url: "--ca-file"} {
		if _, _, err := relay(t, "hosts", "--data-dir", dir, "--relay", at); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("hosts --relay %s: %v; want %q", at, err, want)
		}
	}
	if _, said, err := relay(t, "revoke", "--data-dir", dir, "--token", "SPELT"); err != nil || !strings.Contains(said, "no token with an ID like SPELT") {
		t.Errorf("revoke of an ID that relays do not issue: %q, %v; want a note about it", said, err)
	}
	parts := opened(t, file)
	if !strings.Contains(parts["settings.json"], `"hold":"7m0s"`) || !strings.Contains(parts["check.txt"], url) {
		t.Errorf("diag has the settings %s and the check %s; want those of the relay at %s", parts["settings.json"], parts["check.txt"], url)
	}
	if out, _, err := relay(t, "revoke", "--data-dir", beside, "--relay", url, "--token", "OTHER"); err == nil || !strings.Contains(err.Error(), "nothing is revoked") || out != "" {
		t.Errorf("revoke at a relay with an untrusted certificate = %q, %v; want nothing is revoked", out, err)
	}
	if _, _, err := relay(t, "diag", "--data-dir", dir, "--relay", url, filepath.Join(t.TempDir(), "x")); err != nil {
		t.Errorf("diag with --relay: %v; want no error", err)
	}
}

// TestAddressesOfNoRelay stops a relay, which removes its addresses, and kills a relay,
// which leaves them. Another server at the address of the killed relay must get no
// request.
func TestAddressesOfNoRelay(t *testing.T) {
	dir, beside := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, beside} {
		if _, err := auth.LoadKeys(d); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	logs := newSyncBuffer()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, append([]string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--admin-listen", "none", "--drain", "1s"}, withTLS(t)...), os.Stdout, logs)
	}()
	logs.await(t, "relay ready")
	left, err := os.ReadFile(filepath.Join(dir, "addresses.json"))
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if _, _, err := relay(t, "hosts", "--data-dir", dir); !errors.Is(err, errNoRelay) || !strings.Contains(err.Error(), "--relay") {
		t.Errorf("hosts after the relay's end: %v; want errNoRelay and the flag --relay", err)
	}
	url := serving(t, beside, withTLS(t)...)
	var at struct {
		URL         string `json:"url"`
		Certificate []byte `json:"certificate"`
	}
	if err := json.Unmarshal(left, &at); err != nil {
		t.Fatal(err)
	}
	at.URL = url
	if left, err = json.Marshal(at); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "addresses.json"), left, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := relay(t, "hosts", "--data-dir", dir); err == nil || !strings.Contains(err.Error(), "different server") {
		t.Errorf("hosts with a different server at the stored address: %v; want different server", err)
	}
}

// TestUnreceivedRevocationIsAnError revokes while no relay can receive the revocation.
// The command must fail.
func TestUnreceivedRevocationIsAnError(t *testing.T) {
	dir := t.TempDir()
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	_, _, err := relay(t, "revoke", "--data-dir", dir, "--host", "laptop")
	if !errors.Is(err, errNotReceived) || !strings.Contains(err.Error(), "host laptop of tenant default") || !strings.Contains(err.Error(), "--relay") {
		t.Fatalf("revoke without a relay: %v; want errNotReceived, the host and the flag --relay", err)
	}
	serving(t, dir)
	if out, _, err := relay(t, "revocations", "--data-dir", dir); err != nil || !strings.Contains(out, "laptop") {
		t.Errorf("after the start: %q, %v; want the stored revocation", out, err)
	}
}

// TestSetupLinkOpens reads the link for the first owner. It leads to the relay's public
// URL, to a name in its certificate, or to the listener's address. If none of these is
// known, the relay prints no link.
func TestSetupLinkOpens(t *testing.T) {
	certificate := withTLS(t)
	for _, test := range []struct {
		name  string
		flags []string
		want  string // pattern for the output at the start
	}{
		{"wildcard", []string{"--listen", ":0", "--listen-plain"}, `without an owner.*--public-url.*relay setup-link --url`},
		{"wildcard with certificate", append([]string{"--listen", ":0"}, certificate...), `https://127\.0\.0\.1:\d+/setup#`},
		{"wildcard with public URL", []string{"--listen", ":0", "--listen-plain", "--public-url", "https://relay.example.com/"}, `https://relay\.example\.com/setup#`},
		{"wildcard with plain public URL", []string{"--listen", ":0", "--listen-plain", "--public-url", "http://laptop.test:8484"}, `http://laptop\.test:8484/setup#(\w+)\n\nBrowsers sign in .*http://127\.0\.0\.1:\d+/setup#\w+\n`},
		{"loopback", []string{"--listen", "127.0.0.1:0"}, `http://127\.0\.0\.1:\d+/setup#`},
		{"JSON", []string{"--listen", "127.0.0.1:0", "--log-format", "json"}, `\{"time":.*"link":"http://127\.0\.0\.1:\d+/setup#[^"]+"\}\n`},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			logs := newSyncBuffer()
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- run(ctx, append([]string{"serve", "--data-dir", dir, "--admin-listen", "none", "--drain", "1s"}, test.flags...), os.Stdout, logs)
			}()
			if seen := logs.match(t, `(?s)`+test.want); strings.Contains(seen, "[::]:") {
				t.Errorf("the start shows %s; want no wildcard address", seen)
			}
			if test.name == "wildcard" {
				if out, _, err := relay(t, "setup-link", "--data-dir", dir, "--no-qr"); err == nil || !strings.Contains(err.Error(), "--url") || out != "" {
					t.Errorf("setup-link = %q, %v; want to hear that it needs an address", out, err)
				}
				if out, said, err := relay(t, "setup-link", "--data-dir", dir, "--no-qr", "--url", "http://relay.test"); err != nil || !strings.HasPrefix(out, "http://relay.test/setup#") || !strings.Contains(said, "https:// only") {
					t.Errorf("setup-link --url = %q, %q, %v; want a link with that address, and that browsers need https://", out, said, err)
				}
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAbsentNATSServers starts a relay whose external NATS servers do not run. It soon
// reports this, with the file that the servers need. If it is stopped while it waits,
// it ends without an error.
func TestAbsentNATSServers(t *testing.T) {
	dir := t.TempDir()
	logs := newSyncBuffer()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--admin-listen", "none", "--nats-url", "nats://127.0.0.1:1"}, os.Stdout, logs)
	}()
	logs.match(t, `level=WARN msg="NATS servers unreachable[^\n]*nats-trust.conf[^\n]*refused`)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("serve ended with %v; want no error", err)
	}
}
