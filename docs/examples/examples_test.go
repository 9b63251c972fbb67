// Package examples_test runs the examples.
package examples_test

import (
	"bufio"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evanw/esbuild/pkg/api"

	"ahprelay/test/faultproxy"
)

// TestExamplesFollowTheHostAcrossADrop runs the example with an embedded relay and host-agent
// before the example host. Each example client must initialize, and follow the host again after its
// connection was cut.
func TestExamplesFollowTheHostAcrossADrop(t *testing.T) {
	python := program(t, "python3", "-c", "pass")
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", dir+string(filepath.Separator), "./...").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	served := start(t, filepath.Join(dir, "embed"), python, "stdio-host/host.py")
	at, err := url.Parse(next(t, served, "ws://"))
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(dir, "client.js")
	built := api.Build(api.BuildOptions{EntryPoints: []string{"typescript-client/client.ts"}, Outfile: bundle, Write: true, LogLevel: api.LogLevelWarning})
	if len(built.Errors) > 0 {
		t.Fatal(built.Errors)
	}
	for name, command := range map[string]func(t *testing.T) []string{
		"Go": func(*testing.T) []string { return []string{filepath.Join(dir, "go-client")} },
		"Python": func(t *testing.T) []string {
			return []string{program(t, "python3", "-c", "import websockets"), "python-client/client.py"}
		},
		"TypeScript": func(t *testing.T) []string { return append(nodeWithWebSocket(t), bundle) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy, err := faultproxy.New("127.0.0.1:0", at.Host)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(proxy.Close)
			through := *at
			through.Host = proxy.Addr()
			says := start(t, append(command(t), through.String())...)
			next(t, says, `"protocolVersion"`)
			next(t, says, `"activeSessions"`)
			proxy.Cut()
			if err := proxy.Heal(); err != nil {
				t.Fatal(err)
			}
			next(t, says, `"type":"snapshot"`)
			next(t, says, `"activeSessions"`)
		})
	}
}

// program returns name. It skips the test unless that program succeeds with the given arguments.
func program(t *testing.T, name string, args ...string) string {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Skipf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return name
}

// nodeWithWebSocket returns the command of a Node.js with a built-in WebSocket: version 22, or 20
// with a flag. Without it, the test is skipped.
func nodeWithWebSocket(t *testing.T) []string {
	t.Helper()
	for _, command := range [][]string{{"node"}, {"node", "--experimental-websocket"}} {
		if exec.CommandContext(t.Context(), command[0], append(command[1:], "-e", "WebSocket")...).Run() == nil {
			return command
		}
	}
	t.Skip("node has no WebSocket")
	return nil
}

// start starts a command, which is interrupted when the test ends, and returns its standard output.
func start(t *testing.T, command ...string) *bufio.Reader {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var failed strings.Builder
	cmd.Stderr = &failed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", command[0], failed.String())
		}
	})
	return bufio.NewReader(out)
}

// next waits until the command prints a line that contains text, spaces ignored, and returns the
// line.
func next(t *testing.T, lines *bufio.Reader, text string) string {
	t.Helper()
	found := make(chan string, 1)
	go func() {
		for {
			line, err := lines.ReadString('\n')
			if err != nil || strings.Contains(strings.ReplaceAll(line, " ", ""), text) {
				found <- strings.TrimSpace(line)
				return
			}
		}
	}()
	select {
	case line := <-found:
		if line == "" {
			t.Fatalf("nothing more is printed; want %s", text)
		}
		return line
	case <-time.After(time.Minute):
		t.Fatalf("no line %s in a minute; want it printed", text)
		return ""
	}
}
