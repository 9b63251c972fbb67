package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway"
	"ahprelay/test/refclient"
)

// patience limits each wait in the tests.
const patience = time.Minute

// A process is a host-agent in a separate process.
type process struct {
	cmd  *exec.Cmd
	said bytes.Buffer // output of the host-agent and its sentinel; complete when both have ended
}

// start runs a command of the program in a separate process and process group.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], args...)}
	p.cmd.Stderr = &p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	return p
}

// sentinel returns the id of the host-agent's sentinel, or 0 if there is none.
func (p *process) sentinel(t *testing.T) int {
	t.Helper()
	pid := strconv.Itoa(p.cmd.Process.Pid)
	tasks, err := os.ReadDir("/proc/" + pid + "/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		children, err := os.ReadFile("/proc/" + pid + "/task/" + task.Name() + "/children")
		if err != nil {
			continue // this thread has ended
		}
		for child := range strings.FieldsSeq(string(children)) {
			command, _ := os.ReadFile("/proc/" + child + "/cmdline")
			if strings.Contains(string(command), "\x00sentinel\x00") {
				n, _ := strconv.Atoi(child)
				return n
			}
		}
	}
	return 0
}

// dial connects a client to the host through the relay.
func dial(t *testing.T, relay *gateway.Relay) *refclient.Client {
	t.Helper()
	token, err := relay.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{"laptop"}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := refclient.Dial(ctx, "ws"+strings.TrimPrefix(relay.URL(), "http")+"/ahp/laptop", refclient.Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Abort() })
	return c
}

// join connects a client and initializes it.
func join(t *testing.T, relay *gateway.Relay) *refclient.Client {
	t.Helper()
	c := dial(t, relay)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := c.Initialize(ctx, refclient.InitializeParams{
		ClientID: "a", ProtocolVersions: []string{"0.9.0"}, InitialSubscriptions: []string{"ahp-root://"},
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

// wantClosed waits until a client's connection ends, and checks the reason.
func wantClosed(t *testing.T, c *refclient.Client, reason string) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		t.Fatal("the client's connection is open; want it closed")
	}
	if code, got := c.CloseStatus(); code != int(ahp.CloseHostOffline) || got != reason {
		t.Errorf("client was closed with %d %q; want %d %q", code, got, ahp.CloseHostOffline, reason)
	}
}

// TestClientsLearnOfCrashBeforeLeaseEnds ends host-agents in several ways. The sentinel
// reports each end, so clients are closed before the lease ends. They resume with the
// next host-agent.
func TestClientsLearnOfCrashBeforeLeaseEnds(t *testing.T) {
	t.Parallel()
	relay, token := newRelay(t)
	host := newHost(t, agenthost.Config{})
	args := []string{"run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--state-dir", t.TempDir()}
	for _, death := range []struct {
		name string
		kill func(p *process) error
	}{
		{"killed", func(p *process) error { return p.cmd.Process.Kill() }},
		{"its process group killed", func(p *process) error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }},
		{"panic", func(p *process) error { return p.cmd.Process.Signal(syscall.SIGABRT) }},
	} {
		t.Run(death.name, func(t *testing.T) {
			agent := start(t, args...)
			awaitOnline(t, relay)
			c := join(t, relay)
			died := time.Now()
			if err := death.kill(agent); err != nil {
				t.Fatal(err)
			}
			wantClosed(t, c, "host offline: host-agent crashed")
			t.Logf("clients were told after %v", time.Since(died).Round(time.Millisecond)) // without the sentinel's report, the lease would have to end first
			held := dial(t, relay)
			resumed := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			go func() {
				_, err := held.Reconnect(ctx, refclient.ReconnectParams{ClientID: "a", Subscriptions: []string{"ahp-root://"}})
				resumed <- err
			}()
			if _, err := held.Call(ctx, "ping", map[string]string{"channel": "ahp-root://"}); err != nil {
				t.Errorf("ping by a client that is held: %v; want an answer", err)
			}
			again := time.Now()
			next := start(t, args...)
			if err := <-resumed; err != nil {
				t.Errorf("reconnect: %v; want no error", err)
			}
			t.Logf("resumed %v after the next host-agent was started", time.Since(again).Round(time.Millisecond))
			stopped(t, next, held)
			_ = agent.cmd.Wait()
			if !strings.Contains(agent.said.String(), "host of a crashed host-agent released") {
				t.Errorf("the sentinel's log lacks the crash; want host of a crashed host-agent released:\n%s", agent.said.String())
			}
		})
	}
}

// stopped stops a host-agent in order, and checks that its sentinel ends, too.
func stopped(t *testing.T, p *process, c *refclient.Client) {
	t.Helper()
	sentinel := p.sentinel(t)
	for deadline := time.Now().Add(patience); sentinel == 0; sentinel = p.sentinel(t) {
		if time.Now().After(deadline) {
			t.Fatal("the host-agent has no sentinel in time; want one")
		}
		time.Sleep(5 * time.Millisecond) // the sentinel is still starting
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, c, "host offline: host-agent stopped")
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the host-agent ended with %v; want no error", err)
	}
	if err := syscall.Kill(sentinel, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the sentinel's process: %v; want it ended", err)
	}
	if said := p.said.String(); strings.Contains(said, "crashed") || strings.Contains(said, "WARN") {
		t.Errorf("the log after a clean end must have neither a crash nor a warning:\n%s", said)
	}
}

// TestSuccessorReportsContainerDeath kills host-agent and sentinel at the same time, as
// the end of a container does. A new host-agent starts with the same state directory,
// and reports the end of the former. Clients are closed and resume before the lease has
// ended.
func TestSuccessorReportsContainerDeath(t *testing.T) {
	t.Parallel()
	relay, token := newRelay(t)
	state := t.TempDir()
	args := []string{"run", "--relay", relay.URL(), "--token-file", token, "--upstream", newHost(t, agenthost.Config{}), "--state-dir", state}
	agent := start(t, args...)
	awaitOnline(t, relay)
	c := join(t, relay)

	// While the host-agent runs, a second host-agent with the same state directory is
	// refused.
	rival := start(t, args...)
	if err := rival.cmd.Wait(); err == nil || !strings.Contains(rival.said.String(), "served by another host-agent") {
		t.Fatalf("a second host-agent ended with %v; want served by another host-agent:\n%s", err, rival.said.String())
	}

	sentinel := agent.sentinel(t)
	for deadline := time.Now().Add(patience); sentinel == 0; sentinel = agent.sentinel(t) {
		if time.Now().After(deadline) {
			t.Fatal("the host-agent has no sentinel in time; want one")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := errors.Join(syscall.Kill(sentinel, syscall.SIGKILL), agent.cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = agent.cmd.Wait()
	died := time.Now()
	next := start(t, args...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-c.Done():
	case <-ctx.Done():
		t.Fatal("the client's connection is open; want it closed")
	}
	// The relay may learn of the former host-agent's end only with the new host-agent.
	if code, reason := c.CloseStatus(); code != int(ahp.CloseHostOffline) && code != int(ahp.CloseResync) {
		t.Errorf("client was closed with %d %q; want a code after which clients reconnect", code, reason)
	}
	again := dial(t, relay)
	if _, err := again.Reconnect(ctx, refclient.ReconnectParams{ClientID: "a", Subscriptions: []string{"ahp-root://"}}); err != nil {
		t.Errorf("reconnect: %v; want no error", err)
	}
	took := time.Since(died)
	t.Logf("whole after %v", took.Round(time.Millisecond))
	if took > registry.DefaultLeaseTTL { // docs promise 2 s
		t.Errorf("the client was connected again %v after the crash; want about 2 s, and less than a lease", took)
	}
	stopped(t, next, again) // its log must contain no warning
}

// TestHostAgentServesWithoutSentinel runs a host-agent that cannot start a sentinel. It
// serves clients and stops as usual.
func TestHostAgentServesWithoutSentinel(t *testing.T) {
	t.Parallel()
	relay, token := newRelay(t)
	host := newHost(t, agenthost.Config{})
	agent := start(t, "run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--no-sentinel", "--control", "off", "--state-dir", t.TempDir())
	awaitOnline(t, relay)
	if pid := agent.sentinel(t); pid != 0 {
		t.Errorf("the sentinel %d runs in spite of --no-sentinel; want none", pid)
	}
	if err := agent.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := agent.cmd.Wait(); err != nil {
		t.Errorf("the host-agent ended with %v; want no error", err)
	}
}

// TestSentinelIsSmall compares the memory of a sentinel with that of its host-agent.
// The sentinel waits before the program's libraries are initialized, so it has less
// than half.
func TestSentinelIsSmall(t *testing.T) {
	t.Parallel()
	relay, token := newRelay(t)
	host := newHost(t, agenthost.Config{})
	agent := start(t, "run", "--relay", relay.URL(), "--token-file", token, "--upstream", host, "--control", "off", "--state-dir", t.TempDir())
	awaitOnline(t, relay)
	sentinel := agent.sentinel(t)
	if sentinel == 0 {
		t.Fatal("the host-agent has no sentinel; want one")
	}
	own := func(pid int) (kB int) {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			t.Fatal(err)
		}
		_, field, _ := strings.Cut(string(status), "RssAnon:")
		if kB, err = strconv.Atoi(strings.Fields(field)[0]); err != nil {
			t.Fatal(err)
		}
		return kB
	}
	small, large := 0, own(agent.cmd.Process.Pid)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		small = max(small, own(sentinel)) // the sentinel may still be starting
	}
	t.Logf("sentinel %d kB, host-agent %d kB", small, large)
	if 2*small > large {
		t.Errorf("the sentinel takes %d kB, and the host-agent %d kB; want at most half", small, large)
	}
	if err := agent.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := agent.cmd.Wait(); err != nil {
		t.Errorf("the host-agent ended with %v; want no error", err)
	}
}
