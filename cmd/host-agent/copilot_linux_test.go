package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/hostagent"
)

// TestUpFindsCopilotsHost runs a process with the arguments of Copilot's host. up must
// find it, with its connection token.
func TestUpFindsCopilotsHost(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	if found := hostagent.FindHosts(home); len(found) > 0 {
		t.Skipf("there is a host on this machine: %s", found[0].What)
	}
	at := strings.TrimPrefix(newHost(t, agenthost.Config{ConnectionToken: "s3cret"}), "ws://")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Args = []string{"/usr/bin/copilot", "serve-host", "--experimental", "--ahp-host", "--ahp-host-token", "s3cret", "--listen", at}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("the process has not started; want its first line")
	}
	show := newScreen()
	upstream, file, err := new(upCmd).find(t.Context(), &streams{out: io.Discard, err: show})
	if err != nil || upstream != "ws://"+at {
		t.Fatalf("find: %s, %v; want ws://%s", upstream, err, at)
	}
	if (hostagent.Upstream{URL: upstream, TokenFile: file}).WantsToken(t.Context()) {
		t.Error("the host refuses the token that was found; want it accepted")
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file is %v, %v; want it readable by its owner alone", info.Mode(), err)
	}
	if said := show.String(); !strings.Contains(said, "Found GitHub Copilot CLI's AHP host") || strings.Contains(said, "s3cret") {
		t.Errorf("up says %q; want Copilot's host, without its token", said)
	}
}

// TestUpAsksForTheToken runs a host with a token that is in no process's arguments and in no
// file. up asks for the token once, and stores it.
func TestUpAsksForTheToken(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	wants := hostagent.Found{Upstream: newHost(t, agenthost.Config{ConnectionToken: "s3cret"}), What: "a host"}
	open := hostagent.Found{Upstream: newHost(t, agenthost.Config{}), What: "a host"}
	c, asked := new(upCmd), 0
	ask := func() (string, error) { asked++; return "s3cret", nil }
	if file, err := c.tokenFile(t.Context(), open, ask); file != "" || err != nil || asked > 0 {
		t.Errorf("a host without a token: file %q, %v, asked %d times; want no file, and 0", file, err, asked)
	}
	if _, err := c.tokenFile(t.Context(), wants, func() (string, error) { return "", errors.New("nobody there") }); err == nil {
		t.Error("tokenFile without an answer returns a token; want an error")
	}
	for range 2 {
		file, err := c.tokenFile(t.Context(), wants, ask)
		if err != nil || (hostagent.Upstream{URL: wants.Upstream, TokenFile: file}).WantsToken(t.Context()) {
			t.Errorf("with an answer: %q, %v; want a file whose token the host accepts", file, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times; want once", asked)
	}
	if _, err := askToken(t.Context(), io.Discard, false, wants); err == nil || !strings.Contains(err.Error(), "--upstream-token-file") {
		t.Errorf("askToken without a terminal: %v; want the flag --upstream-token-file", err)
	}
	if file, err := c.tokenFile(t.Context(), hostagent.Found{Upstream: "lock:/x"}, ask); file != "" || err != nil {
		t.Errorf("a host with a lock file: %q, %v; want no token file", file, err)
	}
}
