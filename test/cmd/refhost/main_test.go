package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/test/hostrecord"
	"ahprelay/test/refclient"
)

func TestHostServesStandardInput(t *testing.T) {
	var out strings.Builder
	in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n")
	if err := run(t.Context(), []string{"--stdio", "--demo"}, in, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if want := `{"jsonrpc":"2.0","id":1,"result":null}` + "\n"; out.String() != want {
		t.Errorf("run --stdio wrote %q; want %q", out.String(), want)
	}
}

func TestHostServesAUnixSocket(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	path := filepath.Join(t.TempDir(), "s")
	announced, stderr := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"--unix", path, "--token", "secret"}, nil, io.Discard, stderr)
		stderr.Close()
	}()
	if _, err := announced.Read(make([]byte, 100)); err != nil { // returns when the host listens
		t.Fatal(err)
	}
	go io.Copy(io.Discard, announced)
	dialUnix := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	c, err := refclient.Dial(ctx, "ws://host/", refclient.Options{
		Token: "secret", TokenIn: refclient.InTkn,
		HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dialUnix}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(ctx, "ping", nil); err != nil {
		t.Error(err)
	}
	if err := run(ctx, []string{"--unix", path}, nil, io.Discard, io.Discard); err == nil {
		t.Error("a second host has taken the socket; want an error")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run = %v; want no error", err)
	}
	<-c.Done()
	if code, _ := c.CloseStatus(); code != 1001 {
		t.Errorf("close code %d; want 1001", code)
	}
	c.Close()
}

func TestBadFlagsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"--terminals", "vt100"}, {"--root", "/nonexistent"}, {"--listen", "nowhere:-1"}, {"extra"}} {
		if err := run(t.Context(), args, nil, io.Discard, io.Discard); err == nil {
			t.Errorf("run(%q) returns no error; want one", args)
		}
	}
}

// TestRecordingOverwritesNoFile records to a new file. Recording to the same file again
// must fail.
func TestRecordingOverwritesNoFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "record")
	in := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	if err := run(t.Context(), []string{"--stdio", "--record", file}, strings.NewReader(in+"\n"), io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	frames, err := hostrecord.Read(f)
	if err != nil || len(frames) != 2 || string(frames[0].Data) != in || !frames[0].Received || frames[1].Received {
		t.Errorf("the record is %v, %v; want a ping and its answer", frames, err)
	}
	if err := run(t.Context(), []string{"--stdio", "--record", file}, strings.NewReader(""), io.Discard, io.Discard); err == nil {
		t.Error("run overwrites an existing record; want an error")
	}
}

// TestMain runs this program as an MCP server if its argument asks for that.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "--mcp-server" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestMCPOverStdio lets the host start this program as its MCP server.
func TestMCPOverStdio(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	hostIn, toHost := io.Pipe()
	fromHost, hostOut := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"--stdio", "--mcp", "stdio"}, hostIn, hostOut, io.Discard) }()
	c := refclient.NewStream(fromHost, toHost, refclient.Options{})
	if _, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: "a", Capabilities: map[string]any{"mcpApps": map[string]any{}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(ctx, "createSession", map[string]any{"channel": "demo:/s1"}); err != nil {
		t.Fatal(err)
	}
	for {
		got, err := c.Call(ctx, "subscribe", map[string]any{"channel": "demo:/s1"})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(got), `"state":{"kind":"ready"},"channel":"mcp://`) {
			break
		}
	}
	c.Close()
	if err := <-ended; err != nil {
		t.Errorf("run = %v; want no error", err)
	}
}
