package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"ahprelay/auth"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// relay runs a command of the program and returns its output.
func relay(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err = run(ctx, args, &out, &errs)
	return out.String(), errs.String(), err
}

// TestTokenCommandPrintsOnlyTheToken runs relay token. Its output must be the token
// alone, so that a script can use it.
func TestTokenCommandPrintsOnlyTheToken(t *testing.T) {
	dir := t.TempDir()
	keys, err := auth.LoadKeys(dir) // relay serve does the same
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := relay(t, "token", "client", "--data-dir", dir, "--host", "laptop", "--subject", "ada", "--ttl", "1h", "--access", "read", "--files")
	if err != nil {
		t.Fatal(err)
	}
	client, err := keys.Tokens().VerifyClient(strings.TrimSuffix(out, "\n"))
	if err != nil || client.Subject != "ada" || client.Access != auth.AccessRead || client.Tenant != "default" || !client.Files {
		t.Errorf("the client token has %+v, %v; want ada, level look, with files", client, err)
	}
	for level, want := range map[string]auth.Access{"look": auth.AccessRead, "talk": auth.AccessTalk, "approve": auth.AccessApprove, "operate": auth.AccessWrite, "own": auth.AccessAdmin} {
		out, _, err := relay(t, "token", "client", "--data-dir", dir, "--host", "laptop", "--subject", "ada", "--level", level)
		if err != nil {
			t.Fatal(err)
		}
		if client, err := keys.Tokens().VerifyClient(strings.TrimSuffix(out, "\n")); err != nil || client.Access != want {
			t.Errorf("--level %s: the token says %+v, %v; want access %s", level, client, err, want)
		}
	}
	if left := time.Until(client.Expires); left > time.Hour || left < 59*time.Minute {
		t.Errorf("client token is good for %v; want 1h", left)
	}
	out, _, err = relay(t, "token", "host", "--data-dir", dir, "--host", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	if host, err := keys.Tokens().VerifyHost(strings.TrimSuffix(out, "\n")); err != nil || host.Host != "laptop" {
		t.Errorf("the host token has %+v, %v; want laptop", host, err)
	}
}

// TestEveryTokenFlagSetsItsField sets every flag of relay token client. Each must set
// its field in the token.
func TestEveryTokenFlagSetsItsField(t *testing.T) {
	dir := t.TempDir()
	keys, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := relay(t, "token", "client", "--data-dir", dir, "--subject", "ada", "--host", "laptop", "--host", "build-*", "--channel", "mock:/1,2", "--channel", "ahp-chat:/*",
		"--method", "resource*", "--method", "listSessions", "--reverse", "--max-connections", "2")
	if err != nil {
		t.Fatal(err)
	}
	got, err := keys.Tokens().VerifyClient(strings.TrimSuffix(out, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := auth.Client{
		ID: got.ID, IssuedAt: got.IssuedAt, Expires: got.Expires, Signer: got.Signer, // these differ in each token
		Tenant: "default", Subject: "ada", Access: auth.AccessWrite, Hosts: []string{"laptop", "build-*"},
		Channels: []string{"mock:/1,2", "ahp-chat:/*"}, Methods: []string{"resource*", "listSessions"}, Reverse: true, MaxConnections: 2,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("client (-want +got):\n%s", diff)
	}
}

// TestOnlyServeCreatesKeys runs every other command with a directory that has no keys.
// Each must fail, and leave the directory unchanged.
func TestOnlyServeCreatesKeys(t *testing.T) {
	empty := t.TempDir()
	for _, dir := range []string{empty, filepath.Join(empty, "typo")} {
		for _, args := range [][]string{
			{"token", "client", "--host", "laptop", "--subject", "ada"}, {"token", "host", "--host", "laptop"},
			{"share", "--host", "laptop", "--channel", "mock:/1"}, {"revoke", "--subject", "ada"}, {"revocations"}, {"hosts"}, {"check"},
		} {
			out, _, err := relay(t, append(args, "--data-dir", dir)...)
			if err == nil || !strings.Contains(err.Error(), "relay serve --data-dir "+dir) || out != "" {
				t.Errorf("%v in %s: printed %q, %v; want an error that relay serve makes the keys", args, dir, out, err)
			}
		}
	}
	if entries, err := os.ReadDir(empty); err != nil || len(entries) > 0 {
		t.Errorf("the directory has %v, %v; want nothing", entries, err)
	}
}

// copied returns a new data directory with keys.
func copied(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestErrorsNameFaultAndPlace runs commands with wrong input. Each error must name the
// fault and its place, such as a file or a flag.
func TestErrorsNameFaultAndPlace(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := func(text string) string {
		path := filepath.Join(t.TempDir(), "relay.yml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := taken.Addr().String()
	for _, test := range []struct {
		name string
		args []string
		want []string // texts that the error must contain
	}{
		{"no command", nil, []string{"expected", "serve", "demo", "relay --help"}},
		{"unknown command", []string{"server"}, []string{"server"}},
		{"unknown flag", []string{"serve", "--data-dir", dir, "--liste", "x"}, []string{"--liste"}},
		{"no data directory", []string{"serve"}, []string{"--data-dir"}},
		{"data directory is a file", []string{"serve", "--data-dir", file, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, []string{file}},
		{"data directory cannot be made", []string{"serve", "--data-dir", "/proc/ahp-relay/x", "--listen", "127.0.0.1:0", "--admin-listen", "none"}, []string{"/proc/ahp-relay/x", "can write"}},
		{"data directory is one of keys", []string{"serve", "--data-dir", filepath.Join(copied(t), "keys"), "--listen", "127.0.0.1:0", "--admin-listen", "none"}, []string{"not in its directory keys", "move them into"}},
		{"no authority in file", []string{"hosts", "--data-dir", dir, "--ca-file", file}, []string{"--ca-file", file, "PEM"}},
		{"bad duration", []string{"serve", "--data-dir", dir, "--resume", "soon"}, []string{"--resume", "soon"}},
		{"bad size", []string{"serve", "--data-dir", dir, "--max-frame", "1000"}, []string{"--max-frame", "1000", "65536"}},
		{"bad address", []string{"serve", "--data-dir", dir, "--listen", "nowhere"}, []string{"--listen", "nowhere"}},
		{"address in use", []string{"serve", "--data-dir", dir, "--listen", busy}, []string{"--listen", busy, "in use"}},
		{"admin address in use", []string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--admin-listen", busy}, []string{"--admin-listen", busy, "in use"}},
		{"NATS address in use", []string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--admin-listen", "none", "--nats-listen", busy}, []string{"--nats-listen", busy, "in use"}},
		{"NATS not there", []string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--admin-listen", "none", "--nats-url", "http://x"}, []string{"http", "nats://"}},
		{"no such configuration", []string{"serve", "--data-dir", dir, "--config", "/no/such/file"}, []string{"/no/such/file"}},
		{"configuration is no YAML", []string{"serve", "--data-dir", dir, "--config", config("listen: x\na: [")}, []string{"YAML", "/relay.yml", "line 2"}},
		{"configuration is no mapping", []string{"serve", "--data-dir", dir, "--config", config("listen")}, []string{"YAML", "/relay.yml", "line 1"}},
		{"configuration has an unknown key", []string{"serve", "--data-dir", dir, "--config", config("hold: 1m\nlisen: x")}, []string{"/relay.yml, line 2", "lisen", "did you mean listen?"}},
		{"bad limit", []string{"serve", "--data-dir", dir, "--limit-subject", "conections=1"}, []string{"--limit-subject", "conections", "connections, frames"}},
		{"negative limit", []string{"serve", "--data-dir", dir, "--limit-tenant", "frames=-1"}, []string{"--limit-tenant", "frames=-1"}},
		{"limit of no tenant", []string{"serve", "--data-dir", dir, "--limit-hosts", "läptop=3"}, []string{"--limit-hosts", "läptop", "a-z"}},
		{"bad proxy", []string{"serve", "--data-dir", dir, "--trust-proxy", "10.0.0.0/33"}, []string{"--trust-proxy", "10.0.0.0/33"}},
		{"plain off loopback", []string{"serve", "--data-dir", dir, "--listen", "0.0.0.0:0"}, []string{"--listen 0.0.0.0:0", "--tls-cert", "--listen-plain"}},
		{"public URL without scheme", []string{"serve", "--data-dir", dir, "--public-url", "relay.example.com"}, []string{"--public-url", "relay.example.com", "https://host"}},
		{"audit file in no directory", []string{"serve", "--data-dir", dir, "--audit-file", filepath.Join(dir, "mistyped", "audit")}, []string{"--audit-file", "mistyped"}},
		{"resume too short", []string{"serve", "--data-dir", dir, "--resume", "1ms"}, []string{"--resume is 1ms", "at least 1s"}},
		{"ping without a pause", []string{"serve", "--data-dir", dir, "--ping", "0s"}, []string{"--ping is 0s", "at least 1s"}},
		{"ACME address without ACME", []string{"serve", "--data-dir", dir, "--acme-email", "a@b.example"}, []string{"--acme-email", "--acme-domain or --acme-dns"}},
		{"sender without a mail server", []string{"serve", "--data-dir", dir, "--notify-mail-from", "a@b.example"}, []string{"--notify-mail-from", "--notify-smtp"}},
		{"contact that is none", []string{"serve", "--data-dir", dir, "--notify-contact", "foo"}, []string{"--notify-contact", "foo", "mail address"}},
		{"bad audit file", []string{"serve", "--data-dir", dir, "--audit-file", dir}, []string{"--audit-file", dir}},
		{"bad host name", []string{"token", "host", "--data-dir", dir, "--host", "My Laptop"}, []string{"--host", "My Laptop"}},
		{"bad access", []string{"token", "client", "--data-dir", dir, "--host", "laptop", "--subject", "ada", "--access", "root"}, []string{"--access", "root"}},
		{"bad ttl", []string{"token", "client", "--data-dir", dir, "--host", "laptop", "--subject", "ada", "--ttl", "-1h"}, []string{"--ttl"}},
		{"short ttl", []string{"token", "client", "--data-dir", dir, "--host", "laptop", "--subject", "ada", "--ttl", "900ms"}, []string{"--ttl is 900ms"}},
		{"short ttl of a host", []string{"token", "host", "--data-dir", dir, "--host", "laptop", "--ttl", "900ms"}, []string{"--ttl is 900ms"}},
		{"no subject", []string{"token", "client", "--data-dir", dir, "--host", "laptop"}, []string{"--subject"}},
		{"empty subject", []string{"token", "client", "--data-dir", dir, "--host", "laptop", "--subject", ""}, []string{"subject"}},
		{"hosts without a relay", []string{"hosts", "--data-dir", dir, "--relay", "http://127.0.0.1:1"}, []string{"127.0.0.1:1", "relay serve"}},
		{"revocations of a tenant", []string{"revocations", "--data-dir", dir, "--tenant", "acme"}, []string{"unknown flag --tenant"}},
		{"no file with the mail server's password", []string{"serve", "--data-dir", dir, "--notify-smtp", "smtp://a@b:587", "--notify-mail-from", "a@b.example", "--notify-smtp-password-file", "/no/such"}, []string{"--notify-smtp-password-file", "/no/such"}},
		{"nats-tail without NATS", []string{"nats-tail", "--data-dir", dir, "--host", "laptop", "--server", "nats://127.0.0.1:1"}, []string{"127.0.0.1:1", "--nats-listen", "--server"}},
		{"check without keys", []string{"check", "--data-dir", t.TempDir()}, []string{"no keys", "relay serve"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := relay(t, test.args...)
			if err == nil {
				t.Fatal("the command returns no error; want one")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error %q lacks %q", err, want)
				}
			}
		})
	}
}

// syncBuffer is a buffer that one goroutine writes while another reads it.
type syncBuffer struct {
	text chan string
	all  string
}

func newSyncBuffer() *syncBuffer { return &syncBuffer{text: make(chan string, 1000)} }

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.text <- string(p)
	return len(p), nil
}

// await waits until the output contains a text, and returns the output.
func (b *syncBuffer) await(t *testing.T, want string) string {
	t.Helper()
	return b.match(t, regexp.QuoteMeta(want))
}

// match waits until the output matches a pattern, and returns the output.
func (b *syncBuffer) match(t *testing.T, pattern string) string {
	t.Helper()
	deadline := time.After(natssite.Patience)
	for !regexp.MustCompile(pattern).MatchString(b.all) {
		select {
		case text := <-b.text:
			b.all += text
		case <-deadline:
			t.Fatalf("no output matches %s; the output is %s", pattern, b.all)
		}
	}
	return b.all
}

// TestServeRunsUntilItIsStopped starts a relay with settings from flags, environment
// and file. It sends requests to the relay, and stops it as an operator would.
func TestServeRunsUntilItIsStopped(t *testing.T) {
	dir, strangers := t.TempDir(), t.TempDir()
	if _, err := auth.LoadKeys(strangers); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "relay.yml")
	if err := os.WriteFile(config, []byte("listen: 127.0.0.1:0\nadmin-listen: 127.0.0.1:1\nallow-origin:\n  - '*.example.com'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AHP_RELAY_ADMIN_LISTEN", "none") // counts more than the file's setting
	t.Setenv("AHP_RELAY_DATA_DIR", dir)
	ctx, stop := context.WithCancel(t.Context())
	logs := newSyncBuffer()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"serve", "--config", config, "--drain", "1s"}, os.Stdout, logs) }()
	line := logs.await(t, "relay ready")
	_, rest, _ := strings.Cut(line, "url=")
	url, _, _ := strings.Cut(rest, " ")

	if out, _, err := relay(t, "check", "--relay", url); err != nil || strings.Count(out, "ok ") != 3 {
		t.Errorf("check = %q, %v; want three times ok", out, err)
	}
	if out, _, _ := relay(t, "check", "--relay", "http://relay.canvas.invalid", "--canvas-domain", "canvas.invalid"); !strings.Contains(out, "warn the canvas domain canvas.invalid shares its registrable domain") {
		t.Errorf("check = %q; want a warning of the canvas domain", out)
	}
	if out, _, err := relay(t, "hosts", "--relay", url, "--json"); err != nil || !strings.Contains(out, `"hosts":[]`) {
		t.Errorf("hosts = %q, %v; want none", out, err)
	}
	if first := logs.await(t, "/setup#"); !strings.Contains(first, url+"/setup#") {
		t.Errorf("the first start shows %q; want a link to %s", first, url)
	}
	out, said, err := relay(t, "setup-link", "--relay", url, "--no-qr")
	if err != nil || !strings.HasPrefix(out, url+"/setup#") || strings.Count(out, "\n") != 1 || !strings.Contains(said, "an owner of the relay") {
		t.Errorf("setup-link = %q, %q, %v; want one link to /setup, and an owner of the relay", out, said, err)
	}
	t.Setenv("AHP_RELAY_DATA_DIR", strangers)
	if _, _, err := relay(t, "hosts", "--relay", url); err == nil || !strings.Contains(err.Error(), "different keys") {
		t.Errorf("hosts with keys from a different relay: %v; want an error about different keys", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("serve ended with %v; want no error", err)
	}
}

// TestCheckWarnsOfADegradedRelay checks a relay that serves and lacks something. The line must not begin with ok. The status stays
// 0, because containers end a relay whose check fails.
func TestCheckWarnsOfADegradedRelay(t *testing.T) {
	dir := t.TempDir()
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			fmt.Fprintln(w, "ready, but degraded: the data directory cannot be written")
			return
		}
		fmt.Fprintln(w, `{"hosts":[]}`)
	}))
	defer server.Close()
	out, _, err := relay(t, "check", "--data-dir", dir, "--relay", server.URL)
	if err != nil || !strings.Contains(out, "warn relay at") {
		t.Errorf("check = %q, %v; want a warning and status 0", out, err)
	}
}

// TestDemoShowsItsURL starts the demo. It prints the console's URL, and stops when
// asked to.
func TestDemoShowsItsURL(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	out := newSyncBuffer()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"demo", "--listen", "127.0.0.1:0"}, out, os.Stderr) }()
	text := out.await(t, "Ctrl-C ends the demo")
	_, rest, _ := strings.Cut(text, "/#")
	fragment, _, _ := strings.Cut(rest, "\n")
	place, err := url.ParseQuery(fragment)
	if err != nil || place.Get("host") != "demo" || place.Get("session") != "demo:/live" || place.Get("side") != "canvas" {
		t.Errorf("the console opens at %v, %v; want the live session and a canvas", place, err)
	}
	_, rest, _ = strings.Cut(text, "ws://")
	address, _, _ := strings.Cut(rest, "\n")
	checkDemo(t, "ws://"+address, place.Get("of"))
	stop()
	if err := <-ended; err != nil {
		t.Errorf("demo ended with %v; want no error", err)
	}
}

// TestDemoNeedsATemporaryDirectory starts the demo without a temporary directory. The
// error must name the variable TMPDIR.
func TestDemoNeedsATemporaryDirectory(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	t.Setenv("TMPDIR", missing)
	if _, _, err := relay(t, "demo", "--listen", "127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "set TMPDIR") {
		t.Errorf("demo without a temporary directory: %v; want its path, and set TMPDIR", err)
	}
}

// checkDemo checks the demo's sessions: the live session has a canvas that is open and
// an MCP server with an icon, and another session waits for an answer.
func checkDemo(t *testing.T, address, canvas string) {
	t.Helper()
	c, err := refclient.Dial(t.Context(), address, refclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Abort()
	if _, err := c.Initialize(t.Context(), refclient.InitializeParams{ClientID: "visitor", ProtocolVersions: []string{"1.1.0"}, Capabilities: map[string]any{"canvas": map[string]any{}}}); err != nil {
		t.Fatal(err)
	}
	live, err := c.Subscribe(t.Context(), "demo:/live")
	if err != nil {
		t.Fatal(err)
	}
	type customization struct {
		Type  string
		Icons []struct{ Src string }
	}
	var session struct {
		DefaultChat    string
		Customizations []customization
	}
	if err := json.Unmarshal(live.State, &session); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(session.Customizations, func(c customization) bool { return c.Type == "mcpServer" && len(c.Icons) == 1 }) {
		t.Errorf("the live session has %+v; want an MCP server with an icon", session.Customizations)
	}
	chat, err := c.Call(t.Context(), "subscribe", map[string]string{"channel": session.DefaultChat})
	if err != nil || canvas == "" || !strings.Contains(string(chat), canvas) {
		t.Errorf("the live chat is %s, %v; want the canvas %q in it", chat, err, canvas)
	}
	const inputNeeded = 16
	var asking []string
	for deadline := time.Now().Add(time.Minute); len(asking) == 0 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		text, err := c.Call(t.Context(), "listSessions", map[string]string{"channel": "ahp-root://"})
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Items []struct {
				Resource string
				Status   int
			}
		}
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		for _, s := range list.Items {
			if s.Status&inputNeeded != 0 {
				asking = append(asking, s.Resource)
			}
		}
	}
	if !slices.Equal(asking, []string{"demo:/login"}) {
		t.Errorf("the sessions %q wait for an answer; want demo:/login", asking)
	}
}

// run runs a command of the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return new(app).run(ctx, args, stdout, stderr)
}
