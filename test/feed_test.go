package test

import (
	"bufio"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/test/procs"
	"ahprelay/test/stack"
)

// A client watches a host while relay nats-tail runs. nats-tail must print each
// notification as the host sent it, and no response. The test runs at both NATS servers
// to which an operator can connect: the relay's own and an external server.
func TestTailPrintsASingleViewersNotifications(t *testing.T) {
	t.Parallel()
	t.Run("at the relay's own NATS listener", func(t *testing.T) {
		t.Parallel()
		host, dir := newScriptedHost(t), t.TempDir()
		s := startStackWith(t, stack.Config{DataDir: dir, Upstream: host.server.URL(), NATSOverTCP: true}, nil)
		checkTail(t, s, host, dir, s.Relay.NATSAddr().String())
	})
	t.Run("at the operator's NATS server", func(t *testing.T) {
		t.Parallel()
		host, dir := newScriptedHost(t), t.TempDir()
		keys, err := auth.LoadKeys(dir)
		must(t, err)
		must(t, keys.Authority().WriteTrustConfig(filepath.Join(dir, gateway.TrustFile)))
		at := startNATS(t, dir, "")
		relay := gateway.RelayConfig{DataDir: dir, NATSURL: "nats://" + at}
		s := startStackWith(t, stack.Config{DataDir: dir, Upstream: host.server.URL(), Relay: relay}, func(_ *stack.Stack, cfg *hostagent.Config) error {
			cfg.NATSURLs = []string{relay.NATSURL}
			return nil
		})
		checkTail(t, s, host, dir, at)
	})
}

func checkTail(t *testing.T, s *stack.Stack, host *scriptedHost, dir, server string) {
	t.Helper()
	programs, err := procs.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	greet(t, s, stack.Host, "only", nil, nil)
	conn := host.conn("only", 0)

	ctx, cancel := context.WithTimeout(t.Context(), 2*stepTime)
	defer cancel()
	tail := exec.CommandContext(ctx, filepath.Join(programs, procs.RelayProgram), "nats-tail",
		"--data-dir", dir, "--host", stack.Host, "--channel", "ahp-session:/1", "--server", "nats://"+server)
	out, err := tail.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints strings.Builder
	tail.Stderr = &complaints
	if err := tail.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		scan := bufio.NewScanner(out)
		scan.Buffer(nil, 4<<20)
		for scan.Scan() {
			lines <- scan.Text()
		}
	}()
	next := func() string {
		select {
		case line, open := <-lines:
			if !open {
				t.Fatal("nats-tail has ended; want it running: ", complaints.String())
			}
			return line
		case <-time.After(stepTime):
			t.Fatal("nats-tail prints no line in time: ", complaints.String())
		}
		return ""
	}
	say := func(channel string, n, size int) {
		if err := conn.say(note(channel, n, size)); err != nil {
			t.Fatal(err)
		}
	}
	for begun := false; !begun; { // repeats until nats-tail prints a notification
		say("ahp-session:/1", 0, 10)
		select {
		case line, open := <-lines:
			if !open || line != note("ahp-session:/1", 0, 10) {
				t.Fatalf("nats-tail prints %.300s; want the notification; %s", line, complaints.String())
			}
			begun = true
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("nats-tail prints no line in time: ", complaints.String())
		}
	}
	sizes := []int{20, 5000, 600_000, 1 << 20, 30}
	for i, size := range sizes {
		say("ahp-session:/2", i, size) // a channel to which the client is not subscribed
		say("ahp-session:/1", i+1, size)
	}
	for i, size := range sizes {
		line := next()
		for i == 0 && line == note("ahp-session:/1", 0, 10) {
			line = next()
		}
		if line != note("ahp-session:/1", i+1, size) {
			t.Fatalf("line %d has %d bytes: %.100s; want notification %d", i, len(line), line, i+1)
		}
	}
	cancel()
	_ = tail.Wait() // the process was killed, so it returns an error
}
