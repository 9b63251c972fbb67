package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/auth"
	"ahprelay/internal/connect"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// TestMain runs the tests. In a process that a test has started with AHP_TEST_PROGRAM,
// it runs the program.
func TestMain(m *testing.M) {
	if os.Getenv("AHP_TEST_PROGRAM") != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// newStack starts a relay with a scripted host. It also returns the name of a file with
// a client token.
func newStack(t testing.TB) (s *stack.Stack, tokenFile string) {
	t.Helper()
	host, err := scripted.New(agenthost.Config{})
	if err != nil {
		t.Fatal(err)
	}
	server, err := stack.Serve(host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return newStackFor(t, server.URL())
}

// newStackFor is newStack with the host at a URL.
func newStackFor(t testing.TB, upstream string) (s *stack.Stack, tokenFile string) {
	t.Helper()
	s, err := stack.Start(t.Context(), stack.Config{DataDir: t.TempDir(), Upstream: upstream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	token, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	tokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return s, tokenFile
}

// command runs a command of the program with a state directory, and returns its output.
func command(ctx context.Context, dir string, stdin io.Reader, args ...string) (string, error) {
	var out bytes.Buffer
	err := new(app).run(ctx, append([]string{"--state-dir", dir, "--key-file", "--log-level", "error"}, args...), stdin, &out, io.Discard)
	return strings.TrimSpace(out.String()), err
}

// TestUpServesScripts runs ahp-connect up without a sign-in. A script reads the local
// token from a file and connects.
func TestUpServesScripts(t *testing.T) {
	s, tokenFile := newStack(t)
	dir := t.TempDir()
	local := filepath.Join(dir, "local")
	socket := filepath.Join(dir, "sock")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := command(ctx, dir, nil, "up", "--relay", s.Relay.URL(), "--token-file", tokenFile, "--listen", "unix:"+socket, "--local-token-file", local)
		ended <- err
	}()
	natssite.Eventually(t, "the local token is written", func() bool { _, err := os.Stat(local); return err == nil })
	token, err := os.ReadFile(local)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(local); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the local token's file: %v, %v; want mode 0600", info.Mode(), err)
	}
	client, err := refclient.Dial(t.Context(), "ws://localhost/ahp/"+stack.Host, refclient.Options{
		Token: strings.TrimSpace(string(token)), TokenIn: refclient.InTkn, HTTPClient: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Initialize(t.Context(), refclient.InitializeParams{ClientID: "script", ProtocolVersions: []string{"0.9.0"}}); err != nil {
		t.Error(err)
	}
	_ = client.Close()
	stop()
	if err := <-ended; err != nil {
		t.Errorf("up ends with %v; want no error", err)
	}
}

// TestStdioSpeaksAHP writes requests to standard input as lines, and reads the
// responses from standard output.
func TestStdioSpeaksAHP(t *testing.T) {
	s, tokenFile := newStack(t)
	in, script := io.Pipe()
	out, replies := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := new(app).run(t.Context(), []string{"--state-dir", t.TempDir(), "--log-level", "error", "stdio", stack.Host, "--relay", s.Relay.URL(), "--token-file", tokenFile}, in, replies, io.Discard)
		_ = replies.Close()
		ended <- err
	}()
	if _, err := io.WriteString(script, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"s","protocolVersions":["0.9.0"]}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	var answer struct {
		ID     int
		Result struct{ ProtocolVersion string }
	}
	if err := json.NewDecoder(out).Decode(&answer); err != nil || answer.ID != 1 || answer.Result.ProtocolVersion != "0.9.0" {
		t.Errorf("the answer to initialize is %+v, %v; want ID 1, version 0.9.0", answer, err)
	}
	_ = script.Close()
	go func() { _, _ = io.Copy(io.Discard, out) }()
	if err := <-ended; err != nil {
		t.Errorf("stdio ends with %v; want no error", err)
	}
}

// TestStdioAwaitsAnswers ends standard input directly after requests. The program must
// still write all responses.
func TestStdioAwaitsAnswers(t *testing.T) {
	s, tokenFile := newStack(t)
	in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"s","protocolVersions":["0.9.0"]}}
{"jsonrpc":"2.0","id":"two","method":"listSessions","params":{"channel":"ahp-root://"}}
`)
	var out bytes.Buffer
	if err := new(app).run(t.Context(), []string{"--state-dir", t.TempDir(), "--log-level", "error", "stdio", stack.Host, "--relay", s.Relay.URL(), "--token-file", tokenFile}, in, &out, io.Discard); err != nil {
		t.Errorf("stdio ends with %v; want no error", err)
	}
	for _, id := range []string{`"id":1,`, `"id":"two",`} {
		if !strings.Contains(out.String(), id) {
			t.Errorf("the output lacks the answer with %s: %q", id, out.String())
		}
	}
}

// TestCommandsNameTheRemedy runs each command with wrong input. Each error must name
// the fault and the remedy.
func TestCommandsNameTheRemedy(t *testing.T) {
	dir := t.TempDir()
	empty, full := filepath.Join(dir, "empty"), filepath.Join(dir, "full")
	for file, text := range map[string]string{empty: "", full: "token"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	taken, err := connect.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, test := range []struct {
		args string
		want string
	}{
		{"hosts", "ahp-connect login"},
		{"up", "ahp-connect login"},
		{"logout", "ahp-connect login"},
		{"up --relay https://relay.example.com", "--token-file"},
		{"up --relay http://relay.example.com --token-file x", "use https://"},
		{"up --listen 0.0.0.0:8486 --relay http://127.0.0.1:1 --token-file x", "only loopback"},
		{"up --listen 127.0.0.1:99999 --relay http://127.0.0.1:1 --token-file x", "want 127.0.0.1:8486"},
		{"up --listen nowhere --relay http://127.0.0.1:1 --token-file x", "127.0.0.1:8486"},
		{"up --listen " + taken.Addr().String() + " --relay http://127.0.0.1:1 --token-file " + full, "another program uses it: stop that program"},
		{"up --allow-origin * --relay http://127.0.0.1:1 --token-file x", "such as https://vscode.dev"},
		{"up --listen 127.0.0.1:0 --relay http://127.0.0.1:1 --token-file /nowhere", "--token-file: open /nowhere"},
		{"up --listen 127.0.0.1:0 --relay http://127.0.0.1:1 --token-file " + empty, "relay token client"},
		{"hosts --relay http://127.0.0.1:1 --token-file /nowhere", "--token-file: open /nowhere"},
		{"hosts --relay http://127.0.0.1:1 --token-file " + empty, "relay token client"},
		{"hosts --relay https://user@relay --token-file x", "want http://host:port or https://host"},
		{"hosts --relay https://example.com/relay --token-file x", "without a path"},
		{"login https://example.com/relay", "without a path"},
		{"hosts --ca-file " + empty, "no certificate in PEM"},
		{"token --revoke", "needs the name"},
		{"token --revoke vscode", "no token for"},
		{"token vscode --host a*a*a*a*a*a*a*a*a*b", "host pattern"},
		{"stdio laptop", "ahp-connect login"},
		{"acp --host laptop", "ahp-connect login"},
		{"mcp", "ahp-connect login"},
		{"vscode", "ahp-connect hosts lists them"},
		{"vscode laptop", "ahp-connect login"},
		{"install", "ahp-connect login"},
		{"install --relay http://relay.example.com --token-file x", "use https://"},
		{"install --relay http://127.0.0.1:1 --token-file /nowhere", "--token-file: open /nowhere"},
		{"install --relay http://127.0.0.1:1 --token-file " + full + " --allow-origin *", "such as https://vscode.dev"},
		{"install --relay http://127.0.0.1:1 --token-file " + full + " --listen 0.0.0.0:8486", "only loopback"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := command(ctx, dir, strings.NewReader(""), strings.Fields(test.args)...)
		cancel()
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("ahp-connect %s: %v; want %q", test.args, err, test.want)
		}
	}
}

// TestMistypedVariableIsReported sets a variable with the program's prefix that is no setting.
func TestMistypedVariableIsReported(t *testing.T) {
	t.Setenv("AHP_CONNECT_LISTN", "127.0.0.1:1")
	var said bytes.Buffer
	if err := new(app).run(t.Context(), []string{"--state-dir", t.TempDir(), "--key-file", "token"}, nil, io.Discard, &said); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "did you mean AHP_CONNECT_LISTEN") {
		t.Errorf("ahp-connect says %q about AHP_CONNECT_LISTN; want the name of the setting", said.String())
	}
}

// TestSecondUpIsRefused runs ahp-connect up while it runs already. The second run must
// end with an error.
func TestSecondUpIsRefused(t *testing.T) {
	_, tokenFile := newStack(t)
	dir := t.TempDir()
	home := &connect.Home{Dir: dir}
	release, err := home.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := command(t.Context(), dir, nil, "up", "--relay", "http://127.0.0.1:1", "--token-file", tokenFile, "--listen", "127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("a second up: %v; want that the first runs", err)
	}
}

// TestTokensAreRenewedWhenThePortIsTaken lets another program listen on the port before
// ahp-connect up starts. This program may have received local tokens, so ahp-connect
// replaces them.
func TestTokensAreRenewedWhenThePortIsTaken(t *testing.T) {
	_, tokenFile := newStack(t)
	dir := t.TempDir()
	before, err := command(t.Context(), dir, nil, "token", "vscode", "--host", "laptop", "--level", "look")
	if err != nil {
		t.Fatal(err)
	}
	holder, err := connect.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if _, err := command(t.Context(), dir, nil, "up", "--relay", "http://127.0.0.1:1", "--token-file", tokenFile, "--listen", holder.Addr().String()); err == nil || !strings.Contains(err.Error(), "all 1 are renewed") {
		t.Errorf("up on a used port: %v; want an error about the port and the renewed tokens", err)
	}
	list, err := (&connect.Home{Dir: dir}).Tokens().List()
	if err != nil || len(list) != 1 || list[0].Token == before || list[0].Name != "vscode" || list[0].Level != auth.AccessRead {
		t.Errorf("the tokens are %+v, %v; want the same with a new secret", list, err)
	}
	shown, err := command(t.Context(), dir, nil, "token")
	if err != nil || !strings.Contains(shown, "vscode") || strings.Contains(shown, list[0].Token) {
		t.Errorf("token lists %q, %v; want names without secrets", shown, err)
	}
	address, err := command(t.Context(), dir, nil, "url", "laptop", "--program", "vscode")
	if err != nil || address != "ws://127.0.0.1:8486/ahp/laptop?tkn="+list[0].Token {
		t.Errorf("url prints %q, %v; want the default port and vscode's token", address, err)
	}
}

// TestURLWithoutUpIsNoted asks for an address while ahp-connect up does not run, and while it runs. Only then does a program
// connect at once.
func TestURLWithoutUpIsNoted(t *testing.T) {
	home := &connect.Home{Dir: t.TempDir()}
	said := func() string {
		t.Helper()
		var note bytes.Buffer
		if err := new(app).run(t.Context(), []string{"--state-dir", home.Dir, "--key-file", "url", "laptop"}, nil, io.Discard, &note); err != nil {
			t.Error(err)
		}
		return note.String()
	}
	if got := said(); !strings.Contains(got, "ahp-connect up does not run") {
		t.Errorf("url without ahp-connect up says %q; want that it does not run", got)
	}
	release, err := home.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if got := said(); got != "" {
		t.Errorf("url beside ahp-connect up says %q; want nothing", got)
	}
}

// TestMCPServesAnAgent runs ahp-connect mcp, and lists the hosts over standard input
// and output.
func TestMCPServesAnAgent(t *testing.T) {
	s, tokenFile := newStack(t)
	in, requests := io.Pipe()
	answers, out := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		err := new(app).run(ctx, []string{"--state-dir", t.TempDir(), "--log-level", "error", "mcp", "--relay", s.Relay.URL(), "--token-file", tokenFile}, in, out, io.Discard)
		_ = out.Close() // as when a process ends
		ended <- err
	}()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "tester", Version: "1"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: answers, Writer: requests}, nil)
	if err != nil {
		t.Fatal(err)
	}
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "list_hosts"})
	if err != nil || result.IsError || !strings.Contains(result.Content[0].(*mcp.TextContent).Text, "/laptop: online") {
		t.Errorf("list_hosts returns %+v, %v; want the laptop online", result, err)
	}
	_ = session.Close()
	stop()
	_ = in.Close()
	<-ended
}

// TestMCPEndsAtAnInterrupt interrupts ahp-connect mcp while the agent sends nothing, as agents stop such programs.
func TestMCPEndsAtAnInterrupt(t *testing.T) {
	_, tokenFile := newStack(t)
	in, requests := io.Pipe()
	defer requests.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if err := new(app).run(ctx, []string{"--state-dir", t.TempDir(), "mcp", "--relay", "http://127.0.0.1:1", "--token-file", tokenFile}, in, io.Discard, io.Discard); err != nil {
		t.Errorf("an interrupted mcp ends with %v; want no error", err)
	}
}

// TestOpenHidesTheToken opens a browser at the console. The token is in a file that
// only the user can read, not in the command line.
func TestOpenHidesTheToken(t *testing.T) {
	dir := t.TempDir()
	was := browse
	defer func() { browse = was }()
	opened := ""
	browse = func(file string) error {
		opened = file
		return nil
	}
	if out, err := command(t.Context(), dir, nil, "open", "laptop"); err == nil || opened != "" || !strings.Contains(err.Error(), "ahp-connect install") {
		t.Errorf("open without ahp-connect up prints %q, %v, and opens %q; want an error that names the remedy", out, err, opened)
	}
	release, err := (&connect.Home{Dir: dir}).Lock() // as ahp-connect up does
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	out, err := command(t.Context(), dir, nil, "open", "laptop")
	if err != nil || strings.Contains(out, "local_") {
		t.Errorf("open prints %q, %v; want no token", out, err)
	}
	text, err := os.ReadFile(opened)
	if err != nil || !strings.Contains(string(text), "http://127.0.0.1:8486/#host=laptop&amp;token=local_") {
		t.Errorf("the browser gets the page %s, %v; want the host, and a local token", text, err)
	}
	if info, err := os.Stat(opened); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the opened page's mode is %v, %v; want 0600", info.Mode(), err)
	}
	if out, err := command(t.Context(), dir, nil, "open", "--print"); err != nil || !strings.HasPrefix(out, "http://127.0.0.1:8486/#token=local_") {
		t.Errorf("open --print prints %q, %v; want the address with a local token", out, err)
	}
}

// TestInstallRefusesUnknownFlags gives flags for the service. Each flag of ahp-connect up is
// accepted, and so is each that the environment sets. A mistyped flag is refused: the service would not start.
func TestInstallRefusesUnknownFlags(t *testing.T) {
	home := &connect.Home{Dir: t.TempDir()}
	t.Chdir(t.TempDir())
	there, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("connect.yaml", []byte("log-format: json\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AHP_CONNECT_LISTEN", "127.0.0.1:2") // the service does not get these variables
	t.Setenv("AHP_CONNECT_ALLOW_ORIGIN", "https://a.example,https://b.example")
	t.Setenv("AHP_CONNECT_LOCAL_TOKEN_FILE", "token")
	t.Setenv("AHP_CONNECT_CONFIG", "connect.yaml")
	args, _, err := (&installCmd{}).arguments(home, "--log-level=DEBUG")
	for _, want := range []string{"--listen=127.0.0.1:2", "--allow-origin=https://a.example,https://b.example", "--local-token-file=" + filepath.Join(there, "token"), "--config=" + filepath.Join(there, "connect.yaml"), "--log-level=DEBUG"} {
		if err != nil || !slices.Contains(args, want) {
			t.Errorf("the service's arguments are %q, %v; want also %s, which the environment sets", args, err, want)
		}
	}
	if args, _, err := (&installCmd{Args: []string{"--listen", "127.0.0.1:1"}}).arguments(home); err != nil || args[len(args)-1] != "127.0.0.1:1" {
		t.Errorf("arguments = %q, %v; want --listen 127.0.0.1:1 at the end", args, err)
	}
	args, _, err = (&installCmd{Args: []string{"--relay", "http://127.0.0.1:1", "--token-file", "mine", "--local-token-file=local", "--listen", "unix:sock"}}).arguments(home)
	for _, want := range []string{filepath.Join(there, "mine"), "--local-token-file=" + filepath.Join(there, "local"), "unix:" + filepath.Join(there, "sock")} {
		if err != nil || !slices.Contains(args, want) {
			t.Errorf("the service's arguments are %q, %v; want the absolute path %s, because the service has a different working directory", args, err, want)
		}
	}
	for _, flag := range []string{"--lisen", "--help", "stray"} {
		if args, _, err := (&installCmd{Args: []string{flag}}).arguments(home); err == nil {
			t.Errorf("arguments with %s = %q; want an error", flag, args)
		}
	}
}
