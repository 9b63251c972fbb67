package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/test/procs"
	"ahprelay/test/refclient"
)

// startHost starts a host in a separate process, and returns its URL.
func startHost(t *testing.T) (host *os.Process, url string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "serve-host")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the host prints no address; want one line")
	}
	return cmd.Process, lines.Text()
}

// stop suspends a process, and waits until it is suspended.
func stop(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
		if err != nil {
			t.Fatal(err)
		}
		running := slices.ContainsFunc(tasks, func(task string) bool {
			stat, err := os.ReadFile(task)
			return err == nil && !strings.Contains(string(stat), ") T ")
		})
		if !running {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the process runs a while after SIGSTOP; want it suspended")
		}
	}
}

// listed returns the relay's description of the host.
func listed(t *testing.T, relay *gateway.Relay) hostsapi.Info {
	t.Helper()
	token, err := relay.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{"laptop"}, Access: auth.AccessRead, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	info, err := procs.GetJSON[hostsapi.Info](t.Context(), relay.URL()+"/api/hosts/laptop", token)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// TestStoppedHostKeepsItsClients suspends the host's process for longer than the resume
// window. The relay reports the host as silent, not as offline, and its clients stay
// connected. When the host continues, it answers their requests, and those of new
// clients.
func TestStoppedHostKeepsItsClients(t *testing.T) {
	t.Parallel()
	relay, token := newRelay(t)
	host, url := startHost(t)
	start(t, "run", "--relay", relay.URL(), "--token-file", token, "--upstream", url, "--resume", "8s", "--log-level", "error", "--state-dir", t.TempDir())
	awaitOnline(t, relay)
	before := join(t, relay)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()

	earliest := time.Now().Add(-6 * time.Second) // the host may have answered a ping just before
	stop(t, host)
	answers := make(chan error, 3)
	ask := func(what string, call func() error) {
		go func() {
			err := call()
			if err != nil {
				err = fmt.Errorf("%s: %w", what, err)
			}
			answers <- err
		}()
	}
	ask("ping of a client that was there", func() error {
		_, err := before.Call(ctx, "ping", map[string]string{"channel": "ahp-root://"})
		return err
	})
	fresh, resuming := dial(t, relay), dial(t, relay)
	ask("initialize", func() error {
		_, err := fresh.Initialize(ctx, refclient.InitializeParams{ClientID: "b", ProtocolVersions: []string{"0.9.0"}})
		return err
	})
	ask("reconnect", func() error {
		_, err := resuming.Reconnect(ctx, refclient.ReconnectParams{ClientID: "a", Subscriptions: []string{"ahp-root://"}})
		return err
	})
	var info hostsapi.Info
	for info.Silent.IsZero() {
		if info = listed(t, relay); info.State != "online" {
			t.Fatalf("the host is listed as %+v; want online", info)
		}
		select {
		case err := <-answers:
			t.Fatalf("a stopped host has answered: %v; want no answer", err)
		case <-ctx.Done():
			t.Fatal("the relay does not list the host as silent; want it silent")
		case <-time.After(50 * time.Millisecond):
		}
	}
	if now := time.Now(); info.Silent.Before(earliest) || info.Silent.After(now) {
		t.Errorf("the host is listed as silent since %v; want between %v and %v", info.Silent, earliest, now)
	}
	select {
	case err := <-answers:
		t.Fatalf("a stopped host has answered: %v; want no answer", err)
	case <-time.After(6 * time.Second): // with the wait above, longer than the resume window
	}

	if err := host.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	for !listed(t, relay).Silent.IsZero() {
		if ctx.Err() != nil {
			t.Fatal("the continued host is listed as silent; want it answering")
		}
		time.Sleep(10 * time.Millisecond)
	}
}
