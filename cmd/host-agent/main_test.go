package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/test/acpagent"
	"ahprelay/test/natssite"
	"ahprelay/test/stack"
)

// TestMain runs the tests. In a process that a test has started, it runs the program:
// with AHP_TEST_PROGRAM, or with the command run, which starts the program again as its
// sentinel.
func TestMain(m *testing.M) {
	acpagent.RunIfAsked()
	if os.Getenv("AHP_TEST_PROGRAM") != "" || len(os.Args) > 1 && (os.Args[1] == "run" || os.Args[1] == "sentinel") {
		main()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "serve-host" {
		serveHost()
		return
	}
	runtime, err := os.MkdirTemp("", "run")
	if err != nil {
		panic(err)
	}
	_ = os.Setenv("XDG_STATE_HOME", runtime)
	_ = os.Setenv("XDG_RUNTIME_DIR", runtime) // keeps control sockets out of the user's own directory
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(runtime)
		os.Exit(code)
	}))
}

// serveHost runs a host in a process that a test has started. It prints the host's URL,
// and serves until the process gets an interrupt.
func serveHost() {
	host, err := scripted.New(agenthost.Config{})
	if err != nil {
		panic(err)
	}
	server, err := stack.Serve(host)
	if err != nil {
		panic(err)
	}
	fmt.Println(server.URL())
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt)
	<-end
}

// agent runs a command of the program and returns its output.
func agent(ctx context.Context, t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(ctx, natssite.Patience)
	defer cancel()
	err = run(ctx, args, &out, io.Discard)
	return out.String(), err
}

// newRelay starts a relay. It also returns the name of a file with a host's token.
func newRelay(t *testing.T) (relay *gateway.Relay, tokenFile string) {
	t.Helper()
	relay, err := gateway.StartRelay(t.Context(), gateway.RelayConfig{
		DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: gateway.NoListener,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	return relay, hostToken(t, relay.Keys())
}

func hostToken(t *testing.T, keys *auth.Keys) (file string) {
	t.Helper()
	token, err := keys.Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: "laptop", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return write(t, token+"\n")
}

func write(t *testing.T, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// newHost starts a scripted host and returns its URL.
func newHost(t *testing.T, cfg agenthost.Config) string {
	t.Helper()
	host, err := scripted.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(host)
	t.Cleanup(func() {
		_ = host.Close()
		server.Close()
	})
	return "ws" + strings.TrimPrefix(server.URL, "http")
}

// TestCorrectSetupPassesTheCheck runs host-agent check with a correct setup. It must
// report no fault.
func TestCorrectSetupPassesTheCheck(t *testing.T) {
	t.Parallel()
	relay, token := newRelay(t)
	host := newHost(t, agenthost.Config{ConnectionToken: "s3cret"})
	out, err := agent(t.Context(), t, "check", "--relay", relay.URL(), "--token-file", token,
		"--upstream", host, "--upstream-token-file", write(t, "s3cret\n"))
	if err != nil || strings.Count(out, "ok ") != 4 {
		t.Errorf("check = %q, %v; want four times ok", out, err)
	}
	if strings.Contains(out, "s3cret") {
		t.Error("check prints the host's token; want it hidden")
	}
}

// TestCheckWithoutFlags runs host-agent check without flags, as the documents advise after
// host-agent up. It takes the credential that host-agent up has written, and the host on this
// machine. Without a credential, the error names the remedy.
func TestCheckWithoutFlags(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	if _, err := agent(t.Context(), t, "check"); err == nil || !strings.Contains(err.Error(), "run host-agent up first") {
		t.Errorf("check without a credential: %v; want run host-agent up first", err)
	}
	relay, token := newRelay(t)
	state, err := stateHome()
	if err == nil {
		err = os.MkdirAll(state, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	enroll := []string{"enroll", "--relay", relay.URL(), "--token-file", token, "--credentials-file", filepath.Join(state, "relay.credential")}
	if _, err := agent(t.Context(), t, enroll...); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(home, ".vscode", "cli", "agent-host.lock")
	if err := os.MkdirAll(filepath.Dir(lock), 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"address":%q,"pid":%d}`, newHost(t, agenthost.Config{}), os.Getpid())
	if err := os.WriteFile(lock, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := agent(t.Context(), t, "check")
	if err != nil || strings.Count(out, "ok ") != 4 || !strings.Contains(out, relay.URL()) {
		t.Errorf("check = %q, %v; want four times ok", out, err)
	}
	out, err = agent(t.Context(), t, "check", "--agent", "echo", "--folder", home, "--", "cat")
	if err != nil || strings.Count(out, "ok ") != 4 {
		t.Errorf("check --agent = %q, %v; want four times ok", out, err)
	}
}

// TestRelaysFromFlagsEnvironmentAndFile names two relays by flags, by the environment,
// and in a configuration file. Each way must give the same relays.
func TestRelaysFromFlagsEnvironmentAndFile(t *testing.T) {
	relay, token := newRelay(t)
	host := newHost(t, agenthost.Config{})
	one, two := relay.URL(), strings.Replace(relay.URL(), "127.0.0.1", "localhost", 1)
	check := func(args ...string) {
		t.Helper()
		out, err := agent(t.Context(), t, append([]string{"check", "--token-file", token, "--upstream", host}, args...)...)
		if err != nil || strings.Count(out, "relay: "+one) != 1 || strings.Count(out, "relay: "+two) != 1 || strings.Count(out, "ok  NATS") != 2 {
			t.Errorf("check %q = %q, %v; want both relays", args, out, err)
		}
	}
	check("--relay", one, "--relay", two)
	check("--config", write(t, "relay:\n  - "+one+"\n  - "+two+"\n"))
	t.Setenv("AHP_AGENT_RELAY", one+","+two)
	check()
}

// TestRemoteRelayNeedsTLS gives relays without TLS. Without --relay-plain, the
// host-agent accepts only a relay on this machine.
func TestRemoteRelayNeedsTLS(t *testing.T) {
	_, token := newRelay(t)
	nobody := httptest.NewServer(nil)
	nobody.Close()
	elsewhere := strings.Replace(nobody.URL, "127.0.0.1", "0.0.0.0", 1) // nothing listens at this address either
	for command, args := range map[string][]string{
		"run":    {"--upstream", "ws://127.0.0.1:1"},
		"check":  {"--upstream", "ws://127.0.0.1:1"},
		"enroll": {"--credentials-file", filepath.Join(t.TempDir(), "credential")},
	} {
		args = append([]string{command, "--relay", elsewhere, "--token-file", token}, args...)
		_, err := agent(t.Context(), t, args...)
		if err == nil || !strings.Contains(err.Error(), elsewhere) || !strings.Contains(err.Error(), "--relay-plain") {
			t.Errorf("%s: %v; want an error that names the relay and the remedy", command, err)
		}
		if command == "run" {
			continue // with this flag, the host-agent would try without end
		}
		if _, err = agent(t.Context(), t, append(args, "--relay-plain")...); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
			t.Errorf("%s --relay-plain: %v; want an error that the relay cannot be reached", command, err)
		}
	}
}

// TestURLWithPath gives a relay's URL with a path. The error must show the right form.
func TestURLWithPath(t *testing.T) {
	relay, _ := newRelay(t)
	_, err := agent(t.Context(), t, "up", "--no-qr", "--upstream", "ws://127.0.0.1:1", "--credentials-file", filepath.Join(t.TempDir(), "c"), relay.URL()+"/foo")
	if err == nil || !strings.Contains(err.Error(), "without a path") {
		t.Errorf("up with a path in the URL: %v; want that a URL has no path", err)
	}
}

// TestErrorsNameFaultAndRemedy runs commands with wrong input. Each error must name the
// fault and the remedy.
func TestErrorsNameFaultAndRemedy(t *testing.T) {
	t.Parallel()
	relay, token := newRelay(t)
	host := newHost(t, agenthost.Config{ConnectionToken: "s3cret"})
	page := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(page.Close)
	nobody := httptest.NewServer(nil)
	nobody.Close()
	strangers, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	clientToken, err := relay.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{"laptop"}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	with := func(args ...string) []string { return append([]string{"check"}, args...) }
	for _, test := range []struct {
		name string
		args []string
		want []string // texts that the error must contain
	}{
		{"no relay", with("--token-file", token), []string{"--relay"}},
		{"no upstream", with("--relay", relay.URL(), "--token-file", token), []string{"upstream", "ws://", "--"}},
		{"two upstreams", with("--relay", relay.URL(), "--token-file", token, "--upstream", host, "--", "cat"), []string{"upstream", "either"}},
		{"unknown flag", with("--relay", relay.URL(), "--token-file", token, "--host", "x"), []string{"unknown flag --host"}},
		{"unknown flag of up", []string{"up", relay.URL(), "--host", "x"}, []string{"unknown flag --host"}},
		{"relay with a path", with("--relay", relay.URL()+"/relay", "--token-file", token, "--upstream", host), []string{"relay", "/relay", "without a path"}},
		{"relay of up with a path", []string{"up", relay.URL() + "/device", "--upstream", host}, []string{"/device", "without a path"}},
		{"name of up", []string{"up", relay.URL(), "--upstream", host, "--credentials-file", t.TempDir() + "/x", "--name", "a b"}, []string{"--name", "a b", "a-z"}},
		{"state directory of up", []string{"up", relay.URL(), "--upstream", host, "--upstream-token-file", token, "--credentials-file", t.TempDir() + "/x", "--state-dir", token}, []string{"--state-dir: mkdir " + token}},
		{"state directory", []string{"run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--state-dir", token + "/x"}, []string{"--state-dir: mkdir " + token}},
		{"resume", []string{"run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--resume", "1ms"}, []string{"--resume is 1ms", "1s"}},
		{"pin alone", []string{"run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--canvas-pin", "00"}, []string{"--canvas-pin", "without --canvas-allow"}},
		{"port out of range", with("--relay", relay.URL(), "--token-file", token, "--upstream", "ws://127.0.0.1:99999"), []string{"upstream", "99999", "host:port"}},
		{"IPv6 without brackets", with("--relay", relay.URL(), "--token-file", token, "--upstream", "ws://::1:8080"), []string{"upstream", "::1:8080", "host:port"}},
		{"denied ports", []string{"run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--upstream-token-file", token, "--canvas-deny-port", "3000-4000"}, []string{"--canvas-deny-port", "3000-4000", "a port such as"}},
		{"metrics address", []string{"run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--upstream-token-file", token, "--metrics-listen", "8487"}, []string{"--metrics-listen", "8487"}},
		{"waking host", []string{"run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--upstream-token-file", token, "--wake-by", "A B"}, []string{"--wake-by", "A B"}},
		{"no room for a message", []string{"run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--upstream-token-file", token, "--max-queued", "5"}, []string{"--max-queued is 5", "at least"}},
		{"bad upstream", with("--relay", relay.URL(), "--token-file", token, "--upstream", "http://x"), []string{"upstream", "http", "ws://"}},
		{"no such command", with("--relay", relay.URL(), "--token-file", token, "--", "no-such-program"), []string{"no-such-program"}},
		{"plain relay", with("--relay", "http://192.0.2.1", "--token-file", token, "--upstream", host), []string{"http://192.0.2.1", "https://", "--relay-plain"}},
		{"bad relay", with("--relay", "ftp://x", "--token-file", token, "--upstream", host), []string{"relay", "ftp", "http://"}},
		{"no token file", with("--relay", relay.URL(), "--token-file", "/no/such", "--upstream", host), []string{"--token-file", "/no/such"}},
		{"empty token file", with("--relay", relay.URL(), "--token-file", write(t, ""), "--upstream", host), []string{"empty", "relay token host"}},
		{"token is none", with("--relay", relay.URL(), "--token-file", write(t, "hello"), "--upstream", host), []string{"not a JWT", "relay token host"}},
		{"token is a client's", with("--relay", relay.URL(), "--token-file", write(t, clientToken), "--upstream", host), []string{"client token", "relay token host"}},
		{"token of another relay", with("--relay", relay.URL(), "--token-file", hostToken(t, strangers), "--upstream", host), []string{"refuses the enrolment token", "relay token host"}},
		{"relay is not there", with("--relay", nobody.URL, "--token-file", token, "--upstream", host), []string{nobody.URL, "cannot be reached", "refused"}},
		{"relay is none", with("--relay", page.URL, "--token-file", token, "--upstream", host), []string{"no relay at that URL"}},
		{"host wants a token", with("--relay", relay.URL(), "--token-file", token, "--upstream", host), []string{"403", "--upstream-token-file"}},
		{"host token file is missing", with("--relay", relay.URL(), "--token-file", token, "--upstream", host, "--upstream-token-file", "/no/such"), []string{"upstream token file", "/no/such"}},
		{"host is not there", with("--relay", relay.URL(), "--token-file", token, "--upstream", "ws"+strings.TrimPrefix(nobody.URL, "http")), []string{"upstream", "refused", "start the host"}},
		{"host has no socket", with("--relay", relay.URL(), "--token-file", token, "--upstream", "unix:/no/such"), []string{"upstream", "/no/such", "start the host"}},
		{"host is a web server", with("--relay", relay.URL(), "--token-file", token, "--upstream", "ws"+strings.TrimPrefix(page.URL, "http")), []string{"upstream", "404", "AHP host"}},
		{"host says nothing", with("--relay", relay.URL(), "--token-file", token, "--upstream", "ws://"+silent.Addr().String()), []string{"upstream"}},
		{"host is no AHP host", with("--relay", relay.URL(), "--token-file", token, "--", "cat"), []string{"upstream", "AHP"}},
		{"command ends at once", with("--relay", relay.URL(), "--token-file", token, "--", "true"), []string{"upstream", "AHP"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := agent(t.Context(), t, test.args...)
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

// TestSecondHostAgentIsRefused runs a host-agent, and a second host-agent with the same
// token. The relay refuses the second.
func TestSecondHostAgentIsRefused(t *testing.T) {
	t.Parallel()
	relay, token, host, stop := runHostAgent(t)
	_, err := agent(t.Context(), t, "run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--control", "off", "--state-dir", t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "another host-agent") || !strings.Contains(err.Error(), "--take-over") {
		t.Errorf("second host-agent: %v; want a refusal that names --take-over", err)
	}
	stop()
}

// runHostAgent starts a relay, a host and a host-agent, and waits until the host is
// online. It returns the name of the token's file, the host's URL, and a function that
// stops the host-agent.
func runHostAgent(t *testing.T, more ...string) (relay *gateway.Relay, token, host string, stop func()) {
	t.Helper()
	relay, token = newRelay(t)
	host = newHost(t, agenthost.Config{})
	state := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, append([]string{"run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--control", "off", "--state-dir", state}, more...), io.Discard, io.Discard)
	}()
	awaitOnline(t, relay)
	return relay, token, host, func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the host-agent ended with %v; want no error", err)
		}
	}
}

func awaitOnline(t *testing.T, relay *gateway.Relay) {
	t.Helper()
	token, err := relay.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{"laptop"}, Access: auth.AccessRead, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, relay.URL()+"/api/hosts/laptop", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if strings.Contains(string(body), `"online"`) {
			return
		}
	}
	t.Fatal("the host is not online in time; want it online")
}

// run runs a command.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return new(app).run(ctx, args, stdout, stderr)
}

// TestRevokedToken revokes the token of a running host-agent. The host-agent logs the
// refusal and the remedy. Another start with this token ends with the exit status at
// which units do not restart.
func TestRevokedToken(t *testing.T) {
	relay, token := newRelay(t)
	host := newHost(t, agenthost.Config{})
	args := []string{"run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--no-sentinel", "--state-dir", "off", "--control", "off"}
	ctx, stop := context.WithCancel(t.Context())
	show := newScreen()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, args, io.Discard, show) }()
	show.await(t, "(lease acquired)")
	rev := auth.Revocation{Tenant: "default", Host: "laptop", At: time.Now().Add(time.Second).UTC()}.Spanning()
	if err := relay.Revocations().Add(rev); err != nil {
		t.Fatal(err)
	}
	show.await(t, `(level=ERROR msg="token refused.*relay token host)`)
	stop()
	<-ended // the host-agent may end with the relay's refusal
	again := exec.CommandContext(t.Context(), os.Args[0], args...)
	out, err := again.CombinedOutput()
	if again.ProcessState.ExitCode() != statusRefused || !strings.Contains(string(out), "relay token host") {
		t.Errorf("a start with the revoked token ends with %v: %s; want statusRefused, and relay token host", err, out)
	}
}
