package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"ahprelay/agenthost/acp"
	"ahprelay/auth"
	"ahprelay/cmd/internal/agents"
	"ahprelay/cmd/internal/cli"
	"ahprelay/hostagent"
)

type agentsCmd struct{}

func (c *agentsCmd) Run(s *streams) error {
	out := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "AGENT\tNAME\tCOMMAND")
	for _, kind := range acp.Kinds {
		program, err := kind.Find()
		what := strings.Join(program.Command, " ")
		if err != nil {
			what = err.Error()
		}
		fmt.Fprintf(out, "%s\t%s\t%s\n", kind.Name, kind.Title, what)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.out, "\nServe one with host-agent up RELAY --agent AGENT. Every other agent that speaks the Agent Client Protocol: --agent NAME -- COMMAND.")
	return err
}

// installed returns the agents that are ready to run.
func installed() (list []acp.Program) {
	for _, kind := range acp.Kinds {
		if program, err := kind.Find(); err == nil {
			list = append(list, program)
		}
	}
	return list
}

// serveAgents starts a host with the selected agents. Its sessions are kept in dir.
func serveAgents(f *agents.Flags, command []string, dir string, s *streams) (*agents.Host, error) {
	programs, err := f.Programs(command)
	if err != nil {
		return nil, err
	}
	return agents.Start(agents.Config{Flags: *f, Programs: programs, Dir: dir, Version: cli.BuildVersion(), Stderr: s.err, Log: s.log})
}

func sessionsDir() (string, error) {
	dir, err := stateHome()
	return filepath.Join(dir, "sessions"), err
}

type agentHostCmd struct {
	agents.Flags
	Listen    string   `help:"Address for AHP clients on this machine: unix:PATH, or a loopback address such as 127.0.0.1:8765." xor:"to" placeholder:"ADDRESS"`
	Stdio     bool     `help:"Serve one client on standard input and output, one message per line." xor:"to"`
	TokenFile string   `help:"File with the connection token (?tkn=) for clients on a loopback address. A new token is written to it if it does not exist. Required for loopback addresses, which every user of this machine can reach." type:"path" placeholder:"FILE"`
	Dir       string   `help:"Directory in which sessions are kept. Default: one in your state directory." type:"path" placeholder:"DIR"`
	Command   []string `arg:"" optional:"" passthrough:"partial" help:"The agent's command, after --."`
}

// Run serves agents to AHP clients on this machine until ctx ends.
func (c *agentHostCmd) Run(ctx context.Context, s *streams) (err error) {
	if len(c.Agent) == 0 || c.Stdio == (c.Listen != "") {
		return errors.New("give --agent, and either --listen or --stdio")
	}
	programs, err := c.Programs(c.Command)
	if err != nil {
		return err
	}
	cfg := agents.Config{Flags: c.Flags, Programs: programs, Dir: c.Dir, Version: cli.BuildVersion(), Stderr: s.err, Log: s.log}
	if cfg.Dir == "" {
		if cfg.Dir, err = sessionsDir(); err != nil {
			return err
		}
	}
	var l net.Listener
	if c.Listen != "" {
		var remove func()
		if l, cfg.Token, remove, err = c.listen(); err != nil {
			return err
		}
		defer remove()
		defer l.Close()
	}
	host, err := agents.Start(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	if c.Stdio {
		return ended(ctx, host.ServeStdio(ctx, cli.Stdin(ctx), s.out))
	}
	fmt.Fprintf(s.err, "Serving AHP clients at %s. Ctrl-C stops it.\n", c.Listen)
	server := &http.Server{Handler: host, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	return ended(ctx, server.Serve(l))
}

// ended returns err, or nil if ctx has ended.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// listen opens the listener. It returns the connection token for clients, and a
// function that removes the socket.
func (c *agentHostCmd) listen() (l net.Listener, token string, remove func(), err error) {
	if path, ok := strings.CutPrefix(c.Listen, "unix:"); ok {
		l, remove, err := hostagent.ListenPrivate(path)
		return l, "", remove, err
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		return nil, "", nil, fmt.Errorf("--listen %s: want unix:PATH or a loopback address, such as 127.0.0.1:8765; host-agent up serves other machines", c.Listen)
	}
	if c.TokenFile == "" {
		return nil, "", nil, errors.New("--listen with a loopback address requires --token-file: every user of this machine can connect")
	}
	text, err := os.ReadFile(c.TokenFile)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(rand.Text() + "\n")
		err = os.WriteFile(c.TokenFile, text, 0o600)
	}
	if token = auth.TokenIn(text); err == nil && token == "" {
		err = errors.New("the file is empty")
	}
	if err != nil {
		return nil, "", nil, fmt.Errorf("--token-file %s: %w", c.TokenFile, err)
	}
	l, err = net.Listen("tcp", c.Listen)
	return l, token, func() {}, err
}
