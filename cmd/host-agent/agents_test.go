package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/test/acpagent"
	"ahprelay/test/natssite"
)

// TestServiceHasAbsolutePaths checks the arguments with which a service runs agents.
// Each path must be absolute, also each in a list. An empty flag must stay empty.
func TestServiceHasAbsolutePaths(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	t.Chdir(dir)
	path := filepath.Join(dir, "opencode")
	if err := os.WriteFile(path, []byte("\x7fELF"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want []string }{
		{[]string{"up", "http://r", "--agent", "opencode", "--folder", "/f"}, []string{"up", "http://r", "--agent", "opencode=" + path, "--folder", "/f"}},
		{[]string{"up", "http://r", "--agent=opencode"}, []string{"up", "http://r", "--agent=opencode=" + path}},
		{[]string{"up", "http://r"}, []string{"up", "http://r"}},
		{[]string{"run", "--agent", "mine", "--", "opencode", "acp", "--folder", "x"}, []string{"run", "--agent", "mine", "--", path, "acp", "--folder", "x"}},
		{[]string{"up", "http://r", "--", "./opencode"}, []string{"up", "http://r", "--", path}},
		{[]string{"run", "--folder", ".", "--folder=sub", "--state-dir", "off", "--token-file=t"}, []string{"run", "--folder", dir, "--folder=" + filepath.Join(dir, "sub"), "--state-dir", "off", "--token-file=" + filepath.Join(dir, "t")}},
		{[]string{"run", "--folder", "a,b", `--folder=c\,d,e`, "--control="}, []string{"run", "--folder", dir + "/a," + dir + "/b", "--folder=" + dir + `/c\,d,` + dir + "/e", "--control="}},
		{[]string{"run", "--agent", "opencode,opencode=" + path}, []string{"run", "--agent", "opencode=" + path + ",opencode=" + path}},
		{[]string{"up", "http://r?a=b", "--upstream", "ws://h?tkn=x"}, []string{"up", "http://r?a=b", "--upstream", "ws://h?tkn=x"}},
	} {
		got, err := pinPaths(c.args)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("pinPaths(%v) = %v, %v; want %v", c.args, got, err, c.want)
		}
	}
	if _, err := pinPaths([]string{"up", "http://r", "--", "absent"}); err == nil {
		t.Error("pinPaths accepts an absent command; want an error")
	}
	if _, err := pinPaths([]string{"up", "--agent", "gemini"}); err == nil || !strings.Contains(err.Error(), "npm install -g @google/gemini-cli") {
		t.Errorf("pinPaths with an agent that is not installed: %v; want the command that installs it", err)
	}
}

// TestUpChecksAgentsBeforeItJoins runs host-agent up with agents that do not start. It
// must fail before a person has to approve anything: no relay answers at the address.
func TestUpChecksAgentsBeforeItJoins(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	for want, args := range map[string][]string{
		"npm install -g @google/gemini-cli": {"--agent", "gemini", "--folder", t.TempDir()},
		"no git repository found":           {"--agent", "x=" + os.Args[0]},
		"is unknown; want one of claude":    {"--agent", "geminy"},
	} {
		var out bytes.Buffer
		if err := new(app).run(t.Context(), append([]string{"up", "http://127.0.0.1:1"}, args...), &out, &out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("up %v: %v; want %s", args, err, want)
		}
	}
}

// TestAgentsAreListed runs host-agent agents, which must list the installed agents.
func TestAgentsAreListed(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	path := filepath.Join(dir, "opencode")
	if err := os.WriteFile(path, []byte("\x7fELF"), 0o700); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if err := new(app).run(t.Context(), []string{"agents"}, &out, &errs); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{path + " acp", "npm install -g @agentclientprotocol/claude-agent-acp"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the list of agents lacks %q:\n%s", want, &out)
		}
	}
}

// TestAgentHostIsPrivate gives addresses to agent-host. It listens only at a Unix
// socket and at loopback addresses.
func TestAgentHostIsPrivate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for address, ok := range map[string]bool{"unix:" + filepath.Join(t.TempDir(), "s"): true, "127.0.0.1:0": true, "0.0.0.0:0": false, "192.168.1.1:0": false, "localhost": false} {
		l, token, remove, err := (&agentHostCmd{Listen: address, TokenFile: file}).listen()
		if (err == nil) != ok {
			t.Errorf("--listen %s: %v; want ok %v", address, err, ok)
		}
		if err != nil {
			continue
		}
		if kept, _ := os.ReadFile(file); !strings.HasPrefix(address, "unix:") && (token == "" || strings.TrimSpace(string(kept)) != token) {
			t.Errorf("--listen %s: the token is %q, the file contains %q; want the same", address, token, kept)
		}
		l.Close()
		remove()
	}
	if _, _, _, err := (&agentHostCmd{Listen: "127.0.0.1:0"}).listen(); err == nil {
		t.Error("a loopback address without --token-file is accepted; want an error")
	}
}

// TestAgentHostEndsAtAnInterrupt interrupts agent-host while its client sends nothing.
func TestAgentHostEndsAtAnInterrupt(t *testing.T) {
	in, client, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	was := os.Stdin
	os.Stdin = in
	defer func() { os.Stdin = was }()
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"agent-host", "--stdio", "--dir", t.TempDir(), "--folder", t.TempDir(), "--agent", "x", "--", "/bin/cat"}, io.Discard, io.Discard)
	}()
	interrupt()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("an interrupted agent-host ends with %v; want no error", err)
		}
	case <-time.After(natssite.Patience):
		t.Error("an interrupted agent-host waits for its client; want its end")
	}
	_ = client.Close()
}

// TestUpRecognizesAgents gives host-agent up a command without --agent. up must find
// out whether the command is an agent or a host.
func TestUpRecognizesAgents(t *testing.T) {
	agent, environment := acpagent.Command(acpagent.Options{})
	agent = slices.Concat([]string{"/usr/bin/env"}, environment, agent)
	host := slices.Concat([]string{"/usr/bin/env", "AHP_TEST_PROGRAM=1", os.Args[0], "agent-host", "--stdio", "--dir", t.TempDir(), "--folder", t.TempDir(), "--agent", "x", "--"}, agent)
	for _, c := range []struct {
		name    string
		command []string
		want    []string
	}{{"an agent", agent, []string{"acpagent"}}, {"a host", host, nil}, {"neither", []string{"/bin/cat"}, nil}} {
		up := &upCmd{Command: append([]string{"--"}, c.command...)}
		var said bytes.Buffer
		if err := up.recognize(t.Context(), &streams{err: &said}); err != nil || !slices.Equal(up.Agent, c.want) {
			t.Errorf("%s: %q, %v; want %q\n%s", c.name, up.Agent, err, c.want, &said)
		}
	}
	up := &upCmd{Command: []string{"--", filepath.Join(t.TempDir(), "absent")}}
	if err := up.recognize(t.Context(), &streams{err: io.Discard}); err == nil {
		t.Error("up accepts an absent command; want an error")
	}
}
