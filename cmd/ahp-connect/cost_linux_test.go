package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/test/natssite"
	"ahprelay/test/procs"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// startUp starts ahp-connect as a process, with this relay. It returns the URL for
// clients, a local token and the process's id.
func startUp(t testing.TB, relay, tokenFile string) (url, token string, pid int) {
	t.Helper()
	dir, err := procs.BuildConnect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	address, err := procs.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	local := filepath.Join(t.TempDir(), "local")
	program := exec.CommandContext(t.Context(), filepath.Join(dir, procs.ConnectProgram), "--state-dir", t.TempDir(), "--key-file", "up",
		"--relay", relay, "--token-file", tokenFile, "--listen", address+":8486", "--local-token-file", local)
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	})
	var text []byte
	for until := time.Now().Add(natssite.Patience); len(text) == 0; time.Sleep(10 * time.Millisecond) {
		if text, err = os.ReadFile(local); err != nil && time.Now().After(until) {
			t.Fatal(err)
		}
	}
	return "ws://" + address + ":8486/ahp/" + stack.Host, strings.TrimSpace(string(text)), program.Process.Pid
}

// dialInitialized connects a client and initializes it.
func dialInitialized(t testing.TB, url, token, in, name string) *refclient.Client {
	t.Helper()
	options := refclient.Options{Token: token}
	if in != "" {
		options.TokenIn = refclient.InTkn
	}
	c, err := refclient.Dial(t.Context(), url, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Initialize(t.Context(), refclient.InitializeParams{ClientID: name, ProtocolVersions: []string{"0.9.0"}}); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestTenIdleConnectionsTakeAtMost25MB measures the memory of ahp-connect with ten idle
// connections.
func TestTenIdleConnectionsTakeAtMost25MB(t *testing.T) {
	s, tokenFile := newStack(t)
	url, token, pid := startUp(t, s.Relay.URL(), tokenFile)
	for i := range 10 {
		dialInitialized(t, url, token, "tkn", fmt.Sprint("idle", i))
	}
	var size int
	natssite.Eventually(t, "the program takes at most 25 MB", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "VmRSS:")
		if _, err := fmt.Sscan(rest, &size); err != nil {
			t.Fatal(err)
		}
		return size*1024 <= 25e6
	})
	t.Logf("%.1f MB", float64(size)*1024/1e6)
}

// BenchmarkAddedDelay measures how much ahp-connect adds to a ping's round trip. It
// compares both ways in ten rounds with 1500 pings on each way. In every other round,
// the other way is first.
func BenchmarkAddedDelay(b *testing.B) {
	s, tokenFile := newStack(b)
	url, local, _ := startUp(b, s.Relay.URL(), tokenFile)
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		b.Fatal(err)
	}
	ways := []*refclient.Client{dialInitialized(b, s.URL(stack.Host), strings.TrimSpace(string(token)), "", "direct"), dialInitialized(b, url, local, "tkn", "through")}
	median := func(c *refclient.Client) time.Duration {
		delays := make([]time.Duration, 1500)
		for i := range delays {
			began := time.Now()
			if _, err := c.Call(context.Background(), "ping", map[string]any{"channel": "ahp-root://"}); err != nil {
				b.Fatal(err)
			}
			delays[i] = time.Since(began)
		}
		slices.Sort(delays)
		return delays[len(delays)/2]
	}
	for b.Loop() {
		var added []time.Duration
		for round := range 10 {
			var took [2]time.Duration
			for i := range ways {
				at := (i + round) % len(ways)
				took[at] = median(ways[at])
			}
			added = append(added, took[1]-took[0])
		}
		slices.Sort(added)
		b.Logf("added in each round: %v", added)
		b.ReportMetric(float64((added[4]+added[5])/2)/1e6, "ms-added-p50")
	}
}
