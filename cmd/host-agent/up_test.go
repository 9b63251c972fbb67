package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/auth"
	"ahprelay/gateway"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/hostagent"
)

// A screen records the output of a command.
type screen struct {
	mu  sync.Mutex
	all bytes.Buffer
	new chan struct{} // receives a value when there is new output
}

func newScreen() *screen { return &screen{new: make(chan struct{}, 1)} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.new <- struct{}{}:
	default:
	}
	return s.all.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.String()
}

// await waits until the output matches a pattern, and returns the match.
func (s *screen) await(t *testing.T, pattern string) []string {
	t.Helper()
	find := regexp.MustCompile(pattern)
	for {
		if found := find.FindStringSubmatch(s.String()); found != nil {
			return found
		}
		select {
		case <-s.new:
		case <-time.After(time.Minute):
			t.Fatalf("no text like %q within a minute in %q", pattern, s.String())
		}
	}
}

// asOwner sends a request to the relay's API as the owner, and decodes the answer.
func asOwner(t *testing.T, relay *gateway.Relay, method, path string, body, answer any) {
	t.Helper()
	token, err := relay.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{"*"}, Access: auth.AccessAdmin, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, relay.URL()+path, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: HTTP %d %s, %v; want 200", method, path, response.StatusCode, text, err)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		t.Fatal(err)
	}
}

// TestUpJoinsByACodeAndFindsTheHost runs host-agent up. It joins a relay by a code,
// finds the host by VS Code's lock file, and serves it. A second run needs no approval.
func TestUpJoinsByACodeAndFindsTheHost(t *testing.T) {
	relay, _ := newRelay(t)
	host := newHost(t, agenthost.Config{ConnectionToken: "s3cret"})
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	cli := filepath.Join(home, ".vscode", "cli")
	if err := os.MkdirAll(cli, 0o700); err != nil {
		t.Fatal(err)
	}
	lock := fmt.Sprintf(`{"address":%q,"pid":%d,"connection_token":"s3cret"}`, host+"/", os.Getpid())
	if err := os.WriteFile(filepath.Join(cli, "agent-host-stable.lock"), []byte(lock), 0o600); err != nil {
		t.Fatal(err)
	}
	up := func() (show *screen, stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		show = newScreen()
		ended := make(chan error, 1)
		go func() {
			ended <- run(ctx, []string{"up", "--no-qr", "--control", "off", relay.URL()}, io.Discard, show)
		}()
		return show, func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("up ended with %v; want no error", err)
			}
		}
	}
	show, stop := up()
	show.await(t, `Found VS Code's agent host`)
	code := show.await(t, `\n  ([B-Z]{4}-[B-Z]{4})\n`)[1]
	fingerprint := show.await(t, `must show the fingerprint (\S+)\.`)[1]
	if !strings.Contains(show.String(), relay.URL()+"/device") {
		t.Errorf("up does not print where to approve; want the address /device: %q", show.String())
	}
	var waiting peopleapi.Waiting
	asOwner(t, relay, "GET", "/api/requests/"+code, nil, &waiting)
	if waiting.Fingerprint != fingerprint || waiting.Machine == "" {
		t.Errorf("the approving person is shown %+v; want a machine, and the terminal's fingerprint %s", waiting, fingerprint)
	}
	asOwner(t, relay, "POST", "/api/requests/"+waiting.ID, map[string]any{"approve": true, "code": code, "host": "laptop"}, &struct{}{})
	show.await(t, `This machine is now host laptop of tenant default`)
	awaitOnline(t, relay)
	stop()

	show, stop = up()
	show.await(t, `Serving lock:`)
	awaitOnline(t, relay)
	stop()
	if strings.Contains(show.String(), "type the code") {
		t.Errorf("the second start asks for approval: %q; want no code", show.String())
	}
}

// TestRefusedUpGivesReason refuses a host-agent that asks to join. Its error must
// contain the reason.
func TestRefusedUpGivesReason(t *testing.T) {
	relay, _ := newRelay(t)
	show := newScreen()
	ended := make(chan error, 1)
	go func() {
		ended <- run(t.Context(), []string{"up", "--no-qr", "--upstream", "ws://127.0.0.1:1", "--credentials-file", filepath.Join(t.TempDir(), "c"), relay.URL()}, io.Discard, show)
	}()
	code := show.await(t, `\n  ([B-Z]{4}-[B-Z]{4})\n`)[1]
	var waiting peopleapi.Waiting
	asOwner(t, relay, "GET", "/api/requests/"+code, nil, &waiting)
	asOwner(t, relay, "POST", "/api/requests/"+waiting.ID, map[string]any{"approve": false}, &struct{}{})
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "the request was refused") {
		t.Errorf("up ends with %v; want that the request was refused", err)
	}
}

// TestUpChecksTheHostsAddressFirst gives a malformed address of the host. The error must come before host-agent asks a relay, where a
// person would approve a host that cannot be served.
func TestUpChecksTheHostsAddressFirst(t *testing.T) {
	err := run(t.Context(), []string{"up", "--upstream", "127.0.0.1:8090", "--credentials-file", filepath.Join(t.TempDir(), "c"), "http://127.0.0.1:1"}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "want ws://") {
		t.Errorf("up with the host's address 127.0.0.1:8090: %v; want the form of the address", err)
	}
}

// TestOnlyJoinPrintsTheSameFlags parses the command that up --only-join prints. It serves with the
// flags of up, whatever characters their values have.
func TestOnlyJoinPrintsTheSameFlags(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the command is for a POSIX shell")
	}
	credential, folder := write(t, "{}"), filepath.Join(t.TempDir(), "a,b")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	comma := strings.ReplaceAll(folder, ",", `\,`)
	args := []string{
		"--allow", "look", "--approve-only", "ann's*", "--approve-only", "bob,ben", "--allow-channel", "mock:/$HOME/*", "--allow-files", "--no-reverse",
		"--take-over", "--no-sentinel", "--no-canvas-loopback", "--canvas-deny-port", "80,443", "--resume", "7s", "--max-queued", "1000000", "--max-frame", "100000",
		"--remember", "off", "--state-dir", "off", "--folder", t.TempDir(), "--folder", comma, "--no-bypass", "--upstream-token-file", credential, "--upstream", "ws://127.0.0.1:1",
		"--relay-plain", "--credentials-file", credential, "--log-level", "debug", "--log-format", "json",
	}
	var out strings.Builder
	if err := run(t.Context(), append(append([]string{"up", "--only-join"}, args...), "https://relay.example.com"), &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	words, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' `+out.String()).Output()
	if err != nil {
		t.Fatal(err)
	}
	printed := strings.Split(strings.TrimSpace(string(words)), "\n")
	var want, got app
	for a, args := range map[*app][]string{&want: append([]string{"run", "--relay", "https://relay.example.com"}, args...), &got: printed[1:]} {
		if _, err := a.program().Parse(args, t.Output(), t.Output()); err != nil {
			t.Fatalf("%q: %v", args, err)
		}
	}
	if !reflect.DeepEqual(got.Run, want.Run) || got.Common != want.Common {
		t.Errorf("up --only-join prints %s\n which serves with %+v and %+v; want %+v and %+v", out.String(), got.Run, got.Common, want.Run, want.Common)
	}
}

// TestChoiceIsAskedUntilItIsValid enters wrong answers to the question which host to
// serve. The question is repeated until an answer is valid.
func TestChoiceIsAskedUntilItIsValid(t *testing.T) {
	found := []hostagent.Found{{Upstream: "ws://127.0.0.1:1", What: "a"}, {Upstream: "lock:/x", What: "b"}}
	if got, err := choose(t.Context(), strings.NewReader("\n7\nx\n2\n"), io.Discard, true, found); err != nil || got != found[1] {
		t.Errorf("choose = %+v, %v; want the second host", got, err)
	}
	for _, asked := range []bool{true, false} {
		if got, err := choose(t.Context(), strings.NewReader(""), io.Discard, asked, found); err == nil || !strings.Contains(err.Error(), "--upstream") {
			t.Errorf("choose without an answer = %+v, %v; want an error that names --upstream", got, err)
		}
	}
}

// TestInterruptEndsAQuestion interrupts the program while it waits for the answer to a question.
func TestInterruptEndsAQuestion(t *testing.T) {
	in, typed := io.Pipe()
	defer typed.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if got, err := choose(ctx, in, io.Discard, true, []hostagent.Found{{What: "a"}, {What: "b"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted question gives %+v, %v; want the interrupt", got, err)
	}
}

// TestServiceIsInstalledAndRemoved installs and removes the service, with a script in
// place of systemctl. The service must get the flags of the command line, and those that only the environment sets.
// Spaces and characters that systemd replaces in a unit must arrive as they are.
func TestServiceIsInstalledAndRemoved(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("systemd is Linux's")
	}
	home := filepath.Join(t.TempDir(), "ada 100%b")
	bin := filepath.Join(t.TempDir(), "bin")
	state := filepath.Join(home, ".local", "state", "ahp-host-agent")
	for _, dir := range []string{bin, state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	calls := filepath.Join(bin, "calls")
	program := filepath.Join(home, "host-agent")
	if err := os.Link(os.Args[0], program); err != nil {
		t.Logf("the program is not in the home directory: %v", err)
		program = os.Args[0]
	}
	inUnit := strings.NewReplacer("%", "%%")
	scripts := map[string]string{
		"systemctl":  "#!/bin/sh\necho \"$@\" >> " + calls + "\n[ \"$1\" = is-active ] && echo ${STATE:-active}\n[ \"$1\" = --version ] && echo systemd 255\nexit 0\n",
		"rpm-ostree": "#!/bin/sh\n", // makes this machine look like a system with systemd
	}
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	do := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), "HOME="+home, "PATH="+bin+":/usr/bin:/bin:/mnt/c/Program Files/100%", "XDG_STATE_HOME=", "AHP_TEST_PROGRAM=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := do("install", "up", "https://relay.example.com"); err == nil || !strings.Contains(out, "host-agent up https://relay.example.com first") {
		t.Errorf("install before host-agent up has joined: %s, %v; want an error that names up", out, err)
	}
	if out, err := do("uninstall"); err == nil || !strings.Contains(out, "the service is not installed") || !strings.Contains(out, home) {
		t.Errorf("uninstall before install: %s, %v; want that the service is not installed, with its place", out, err)
	}
	if out, err := do("install", "--run-as", "nobody", "up", "https://relay.example.com"); err == nil || !strings.Contains(out, "add --system") {
		t.Errorf("install of a user's service for a different user: %s, %v; want an error that names --system", out, err)
	}
	if out, err := do("install", "rm", "-rf"); err == nil || !strings.Contains(out, "cannot run as a service") {
		t.Errorf("install of rm -rf: %s, %v; want cannot run as a service", out, err)
	}
	key := auth.NewHostKey()
	credential, err := json.Marshal(map[string]any{"credential": "x", "key": key.Seed()})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(state, "relay.example.com.credential")
	if err := os.WriteFile(file, credential, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := do("install", "up", "https://relay.example.com", "--fodler", home); err == nil || !strings.Contains(out, "unknown flag --fodler") {
		t.Errorf("install with a mistyped flag: %s, %v; want unknown flag --fodler", out, err)
	}
	for _, args := range [][]string{{"up", "https://relay.example.com"}, {"run", "--relay", "https://relay.example.com", "--token-file", file}} {
		if out, err := do(append(append([]string{"install"}, args...), "--upstream", "127.0.0.1:8090")...); err == nil || !strings.Contains(out, "want ws://") {
			t.Errorf("install of %s with a malformed address of the host: %s, %v; want an error that names the form", args[0], out, err)
		}
	}
	if out, err := do("install", "run", "--token-file", file); err == nil || !strings.Contains(out, "--relay") {
		t.Errorf("install of run without --relay: %s, %v; want that --relay is missing", out, err)
	}
	if out, err := do("install", "up", "https://elsewhere.example.com", "--credentials-file", file); err != nil {
		t.Errorf("install with the credential file of up: %s, %v; want no error", out, err)
	}
	_, _ = do("uninstall")
	for _, variable := range []string{"AHP_AGENT_SEALED=true", "AHP_AGENT_BYPASS=false", "AHP_AGENT_ALLOW_CHANNEL=a:*", "AHP_AGENT_CANVAS_DENY_PORT=1,2", "AHP_AGENT_CONTROL=control.sock", "AHP_AGENT_NOTIFY=off"} {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value) // the service does not get it
	}
	if out, err := do("install", "up", "https://relay.example.com", "--notify", "needs"); err != nil {
		t.Errorf("install with flags in the environment: %s, %v; want no error", out, err)
	}
	there, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(home, ".config", "systemd", "user", "ahp-host-agent.service")
	said, _ := os.ReadFile(unit)
	for _, want := range []string{"--sealed=true", "--bypass=false", "--allow-channel=a:*", "--canvas-deny-port=1,2", "--control=" + filepath.Join(there, "control.sock"), `"--notify" "needs"`} {
		if !strings.Contains(string(said), want) {
			t.Errorf("the unit lacks %s, which is set in the environment:\n%s", want, said)
		}
	}
	if strings.Contains(string(said), "--notify=off") {
		t.Errorf("the unit has --notify=off of the environment, but the command line has priority:\n%s", said)
	}
	if out, err := do("install", "--service", "../up", "up", "https://relay.example.com"); err == nil || !strings.Contains(out, "--service") {
		t.Errorf("install with a path as the service's name: %s, %v; want an error that names --service", out, err)
	}
	if out, err := do("install", "--service", "second", "up", "https://elsewhere.example.com", "--credentials-file", file); err != nil {
		t.Errorf("install of a second service: %s, %v; want no error", out, err)
	}
	second := filepath.Join(filepath.Dir(unit), "second.service")
	if text, _ := os.ReadFile(second); !strings.Contains(string(text), "elsewhere") {
		t.Errorf("the second unit is %q; want the second relay in it", text)
	}
	if out, err := do("uninstall", "--service", "second"); err != nil {
		t.Errorf("uninstall of the second service: %s, %v; want no error", out, err)
	}
	_, gone := os.Stat(second)
	if _, err := os.Stat(unit); err != nil || !errors.Is(gone, fs.ErrNotExist) {
		t.Errorf("after uninstall of the second service, the first unit is %v, the second %v; want only the first", err, gone)
	}
	for _, name := range []string{"SEALED", "BYPASS", "ALLOW_CHANNEL", "CANVAS_DENY_PORT", "CONTROL", "NOTIFY"} {
		if err := os.Unsetenv("AHP_AGENT_" + name); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = do("uninstall")
	config := write(t, "resume: 7s\n")
	if out, err := do("--config", config, "install", "--log-format", "json", "up", "https://relay.example.com"); err != nil {
		t.Errorf("install with flags of all commands: %s, %v; want no error", out, err)
	}
	said, _ = os.ReadFile(unit)
	for _, want := range []string{`"--config=` + config + `"`, `"--log-format=json"`, "WorkingDirectory=" + there + "\n"} {
		if !strings.Contains(string(said), want) {
			t.Errorf("the unit lacks %s, which is given to install:\n%s", want, said)
		}
	}
	_, _ = do("uninstall")
	var a app
	if _, err := a.program().Parse([]string{"up", "--credentials-file", file, "https://elsewhere.example.com", "--credentials-file", file}, io.Discard, io.Discard); err != nil || a.Up.CredentialsFile != file {
		t.Errorf("the service's command line, with the file twice, gives %q, %v; want %s", a.Up.CredentialsFile, err, file)
	}
	_, _ = do("uninstall")
	t.Setenv("AHP_AGENT_CREDENTIALS_FILE", file) // the service does not get the variable
	if out, err := do("install", "up", "https://elsewhere.example.com"); err != nil {
		t.Errorf("install with the credential file in the environment: %s, %v; want no error", out, err)
	}
	if text, _ := os.ReadFile(unit); !strings.Contains(string(text), inUnit.Replace(file)) {
		t.Errorf("the unit lacks the credential file %s of the environment:\n%s", file, text)
	}
	_, _ = do("uninstall")
	if out, err := do("install", "up", "https://elsewhere.example.com", "--", "true", "--credentials-file", "its-own", `$HOME\ 100% "`, "a\nb"); err != nil {
		t.Errorf("install with a command that has a flag of the same name: %s, %v; want no error", out, err)
	}
	said, _ = os.ReadFile(unit)
	for _, want := range []string{`"its-own" "$$HOME\\ 100%% \"" "a\nb"`, `:/mnt/c/Program\x20Files/100%%` + "\n"} {
		if !strings.Contains(string(said), want) {
			t.Errorf("the unit lacks %s, which systemd reads as it was given:\n%s", want, said)
		}
	}
	if text, _ := os.ReadFile(unit); !strings.Contains(string(text), inUnit.Replace(file)) {
		t.Errorf("the unit lacks the credential file %s, because the agent's command has a flag of this name:\n%s", file, text)
	}
	_, _ = do("uninstall")
	if out, err := do("install", "up", "https://elsewhere.example.com", "true", "--config", "its-own"); err != nil {
		t.Errorf("install with a command without --: %s, %v; want no error", out, err)
	}
	said, _ = os.ReadFile(unit)
	if want := `/true" "--config" "its-own"`; !strings.Contains(string(said), want) {
		t.Errorf("the unit lacks %s, the path and the arguments of a command:\n%s", want, said)
	}
	if err := os.Unsetenv("AHP_AGENT_CREDENTIALS_FILE"); err != nil {
		t.Fatal(err)
	}
	_, _ = do("uninstall")
	for name, value := range map[string]string{"HTTPS_PROXY": "http://proxy:1", "http_proxy": "http://ada:pass%21word@proxy:1", "SSL_CERT_FILE": "/etc/ca@home.pem", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_EXPORTER_OTLP_HEADERS": "api-key=pass%21word@proxy"} {
		t.Setenv(name, value)
	}
	out, err := do("install", "up", "https://relay.example.com")
	for _, want := range []string{"journalctl --user", "does not get http_proxy, because it contains a password", "does not get OTEL_EXPORTER_OTLP_HEADERS, because it may contain a password"} {
		if err != nil || !strings.Contains(out, want) {
			t.Fatalf("install prints %s, %v; want %q in it", out, err, want)
		}
	}
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"ExecStart=" + strings.NewReplacer("%", "%%", " ", `\x20`).Replace(program) + " ", "https://relay.example.com", inUnit.Replace(file), "WorkingDirectory=" + inUnit.Replace(home) + "\n", "Environment=PATH=" + bin + ":", "Environment=HTTPS_PROXY=http://proxy:1\n", "Environment=SSL_CERT_FILE=/etc/ca@home.pem\n", "Environment=OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318\n", "Type=exec\n", "Restart=always", "RestartSec=2\n", "RestartPreventExitStatus=77\n", "TimerSlackNSec=1ms\n", "WantedBy=default.target\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the unit lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "word@proxy") {
		t.Errorf("the unit has the proxy's password, and others can read it:\n%s", text)
	}
	if out, err := do("install", "up", "https://relay.example.com"); err == nil || !strings.Contains(out, "uninstall removes it") {
		t.Errorf("a second install: %s, %v; want uninstall removes it", out, err)
	}
	if out, err := do("status"); err != nil || !strings.Contains(out, "running") {
		t.Errorf("status prints %s, %v; want running", out, err)
	}
	t.Setenv("STATE", "activating")
	if out, err := do("status"); err == nil || !strings.Contains(out, "starts it again. Its log: journalctl") {
		t.Errorf("status of a service that waits for its next start prints %s, %v; want an error that names the log", out, err)
	}
	if out, err := do("uninstall"); err != nil {
		t.Errorf("uninstall prints %s, %v; want no error", out, err)
	}
	if _, err := os.Stat(unit); !os.IsNotExist(err) {
		t.Errorf("after uninstall, Stat of the unit = %v; want it removed", err)
	}
	link := filepath.Join(bin, "linked") // as Homebrew makes it, and changes it with the next version
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	was := program
	program = link
	if out, err := do("install", "up", "https://relay.example.com"); err != nil {
		t.Errorf("install of a linked program: %s, %v; want no error", out, err)
	}
	if text, _ := os.ReadFile(unit); !strings.Contains(string(text), "ExecStart="+link+" ") {
		t.Errorf("the unit of a linked program is\n%s\nwant the link %s in it", text, link)
	}
	_, _ = do("uninstall")
	program = was
	failing := "#!/bin/sh\n[ \"$1\" = $FAIL ] && { echo Failed to connect to bus >&2; exit 1; }\nexit 0\n"
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(failing), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAIL", "enable")
	if out, err := do("install", "up", "https://relay.example.com"); err == nil {
		t.Errorf("install when the unit cannot be enabled: %s, %v; want an error", out, err)
	}
	t.Setenv("FAIL", "daemon-reload")
	if out, err := do("install", "up", "https://relay.example.com"); err == nil || !strings.Contains(out, "connect to bus") || !strings.Contains(out, "--system --run-as") {
		t.Errorf("install without the user's manager: %s, %v; want an error with the remedy", out, err)
	}
	if _, err := os.Stat(unit); !os.IsNotExist(err) {
		t.Errorf("after a failed install, Stat of the unit = %v; want it removed", err)
	}
	if err := os.Remove(filepath.Join(bin, "rpm-ostree")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/run/systemd/system"); os.IsNotExist(err) {
		if out, err := do("install", "up", "https://relay.example.com"); err == nil || !strings.Contains(out, "systemd does not run") || !strings.Contains(out, " up --no-qr --credentials-file '"+file+"' https://") {
			t.Errorf("install without systemd: %s, %v; want an error with the command to run", out, err)
		}
		for _, command := range []string{"status", "uninstall"} {
			if out, err := do(command); err == nil || !strings.Contains(out, "systemd does not run") {
				t.Errorf("%s without systemd: %s, %v; want systemd does not run", command, out, err)
			}
		}
	}
	asked, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"enable --user", "start --user", "disable --user"} {
		if !strings.Contains(string(asked), want) {
			t.Errorf("systemctl was asked %q; want %q in it", asked, want)
		}
	}
}

// TestMachineServiceHasItsUsersCredential installs a machine service for a different user, as root does who has a credential for
// the same relay. The service cannot read root's credential, so it must get that of its user.
func TestMachineServiceHasItsUsersCredential(t *testing.T) {
	other, err := user.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	state, err := stateHome()
	if err == nil {
		err = os.Mkdir(state, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	credential, err := json.Marshal(map[string]any{"credential": "x", "key": auth.NewHostKey().Seed()})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "relay.example.com.credential"), credential, 0o600); err != nil {
		t.Fatal(err)
	}
	install := installCmd{Args: []string{"up", "https://relay.example.com"}}
	if args, err := install.arguments(); err != nil {
		t.Errorf("arguments of a user's service = %q, %v; want no error", args, err)
	}
	install.System, install.RunAs = true, "nobody"
	install.RunAs = "of-a-directory-service"
	if args, err := install.arguments(); err == nil || !strings.Contains(err.Error(), "give --credentials-file") {
		t.Errorf("arguments of a service of a user without an entry in /etc/passwd = %q, %v; want an error that names --credentials-file", args, err)
	}
	install.RunAs = "nobody"
	args, err := install.arguments()
	if err == nil || !strings.Contains(err.Error(), "as the user nobody") || !strings.Contains(err.Error(), other.HomeDir+"/.local/state/ahp-host-agent/") {
		t.Errorf("arguments of a service of nobody = %q, %v; want that nobody has no credential", args, err)
	}
}
