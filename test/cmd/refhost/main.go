// Command refhost runs the reference AHP host: over WebSocket at a TCP address or a
// Unix socket, or over standard input and output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/agenthost/tasks"
	"ahprelay/test/hostrecord"
	"ahprelay/test/hostrpc"
)

// flags are the flags of the command line.
type flags struct {
	Listen    string `default:"127.0.0.1:18990" placeholder:"ADDR" env:"REFHOST_LISTEN" help:"TCP address for WebSocket clients (${default})."`
	Unix      string `placeholder:"PATH" env:"REFHOST_UNIX" help:"Unix socket for WebSocket clients, in place of --listen."`
	Stdio     bool   `help:"One client on standard input and output, one message a line, in place of --listen."`
	Token     string `placeholder:"TOKEN" env:"REFHOST_TOKEN" help:"Connection token, required as ?tkn=. Default: no check."`
	Protocol  string `default:"0.9" enum:"0.8,0.9,0.10,1.0,1.1" env:"REFHOST_PROTOCOL" help:"AHP version: ${enum} (${default})."`
	Demo      bool   `env:"REFHOST_DEMO" help:"Create sessions with a history; one is always active."`
	Root      string `placeholder:"DIR" type:"existingdir" env:"REFHOST_ROOT" help:"Directory for file: URIs. Default: sample files in memory."`
	MaxFrame  int    `env:"REFHOST_MAX_FRAME" placeholder:"BYTES" help:"Longest message, both ways. Default: 32 MiB."`
	Writable  bool   `env:"REFHOST_WRITABLE" help:"Let clients write below --root."`
	Terminals string `default:"echo" enum:"echo,shell" env:"REFHOST_TERMINALS" help:"Kind of terminal: echo, or shell, which gives every client a /bin/sh with this user's rights (${default})."`
	MCP       string `default:"" enum:",memory,stdio" env:"REFHOST_MCP" help:"Add an MCP server to every session, in memory or over stdio. Default: none, or memory with --demo."`
	MCPServer bool   `hidden:"" help:"Run as the MCP server, on standard input and output."`
	Config    string `hidden:"" type:"path" help:"JSON file with a hostrpc.Config."`
	Control   string `hidden:"" help:"TCP address for the tests' calls, see hostrpc."`
	Record    string `placeholder:"FILE" type:"path" env:"REFHOST_RECORD" help:"Write every frame received and sent to a new file, for tests."`
	Verbose   bool   `short:"v" help:"Log more."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "refhost:", err)
		os.Exit(1)
	}
}

// run serves the host until ctx ends or standard input ends.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var f flags
	parser, err := kong.New(&f, kong.Name("refhost"), kong.Description("A reference AHP host."), kong.Writers(stdout, stderr))
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return err
	}
	if f.MCPServer {
		return tasks.Serve(ctx, interruptible(stdin), nopCloser{stdout})
	}
	host, err := newHost(f, stderr)
	if err != nil {
		return err
	}
	defer host.Close()
	if f.Stdio {
		err := host.ServeStdio(ctx, interruptible(stdin), stdout)
		if ctx.Err() != nil {
			return nil // the program was asked to end
		}
		return err
	}
	stopControl, err := control(f.Control, host)
	if err != nil {
		return err
	}
	defer stopControl()
	listener, err := listen(f)
	if err != nil {
		return err
	}
	fmt.Fprintln(stderr, "listening on", listener.Addr())
	return serve(ctx, host, listener)
}

func newHost(f flags, stderr io.Writer) (*agenthost.Host, error) {
	level := slog.LevelInfo
	if f.Verbose {
		level = slog.LevelDebug
	}
	root := f.Root
	if root != "" {
		abs, err := filepath.Abs(root)
		if err != nil {
			return nil, err
		}
		root = abs
	}
	record, err := recorder(f.Record)
	if err != nil {
		return nil, err
	}
	servers, err := mcpServers(f.MCP)
	if err != nil {
		return nil, err
	}
	cfg := agenthost.Config{
		Protocol:        agenthost.Protocol(f.Protocol),
		Recorder:        record,
		Logger:          slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})),
		ConnectionToken: f.Token,
		Root:            root,
		MaxFrame:        f.MaxFrame,
		Writable:        f.Writable,
		Terminals:       agenthost.TerminalMode(f.Terminals),
		MCP:             servers,
	}
	more, err := moreConfig(f.Config)
	if err != nil {
		return nil, err
	}
	more.Apply(&cfg)
	if f.Demo {
		return scripted.New(cfg, scripted.Demo{Still: more.Still})
	}
	return scripted.New(cfg)
}

// moreConfig reads the configuration file that --config names. Without a name, it
// returns an empty configuration.
func moreConfig(file string) (more hostrpc.Config, err error) {
	if file == "" {
		return more, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return more, err
	}
	if err := json.Unmarshal(text, &more); err != nil {
		return more, fmt.Errorf("%s: %w", file, err)
	}
	return more, nil
}

// control answers calls from tests (package hostrpc) at an address. With an empty
// address, it does nothing.
func control(address string, host *agenthost.Host) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = hostrpc.Serve(l, host)
	}()
	return func() {
		_ = l.Close()
		<-ended
	}, nil
}

// mcpServers returns an MCP server that the host reaches by transport. With stdio, the
// server is this program in another process.
func mcpServers(transport string) ([]agenthost.MCPServer, error) {
	server := agenthost.MCPServer{Name: "tasks", Transport: agenthost.MCPTransport(transport)}
	switch server.Transport {
	case "":
		return nil, nil
	case agenthost.MCPStdio:
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		server.Command = []string{self, "--mcp-server"}
	}
	return []agenthost.MCPServer{server}, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// recorder returns a function that appends frames to a new file, or nil if name is
// empty. The file stays open until the process ends.
func recorder(name string) (func(agenthost.Frame), error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return hostrecord.To(f), nil
}

// listen opens the socket that the flags name. It replaces a Unix socket that a dead
// process has left.
func listen(f flags) (net.Listener, error) {
	if f.Unix == "" {
		return net.Listen("tcp", f.Listen)
	}
	listener, err := net.Listen("unix", f.Unix)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return listener, err
	}
	if conn, dialErr := net.Dial("unix", f.Unix); dialErr == nil {
		conn.Close()
		return nil, err // another process listens at the socket
	}
	if err := os.Remove(f.Unix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", f.Unix)
}

// serve serves the host on listener until ctx ends.
func serve(ctx context.Context, host *agenthost.Host, listener net.Listener) error {
	server := &http.Server{Handler: host, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	err := server.Close() // closes the listener; open WebSockets belong to the host
	<-failed
	return errors.Join(err, host.Close())
}

// interruptible returns a reader whose Close ends a pending Read, which is impossible
// on standard input. Its goroutine ends only with the process.
func interruptible(r io.Reader) io.ReadCloser {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, r)
		in.CloseWithError(err)
	}()
	return out
}
