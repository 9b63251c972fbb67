// Package agents runs an AHP host with coding agents in the process of a command.
package agents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"ahprelay/agenthost"
	"ahprelay/agenthost/acp"
	"ahprelay/hostagent"
)

// Flags select coding agents, and where they may work.
type Flags struct {
	Agent  []string `help:"Coding agent to serve: claude, codex, copilot, gemini, opencode, pi or qwen, if it is on PATH; NAME=PATH for its program elsewhere; or any name with the agent's command after --. Repeatable. host-agent agents shows which are installed." placeholder:"NAME"`
	Folder []string `help:"Folder in which sessions of --agent may run, with all folders below it. Repeatable. Default: the git repositories up to 4 levels below your home directory." placeholder:"DIR" type:"path"`
	Bypass bool     `help:"With --agent, offer the agents' modes and commands that skip permissions to clients with the level operate. --no-bypass forbids them to all." default:"true" negatable:""`
}

// Behind returns a command without the -- before it.
func Behind(command []string) []string {
	if len(command) > 0 && command[0] == "--" {
		return command[1:]
	}
	return command
}

// Programs returns the agents selected with --agent. The command after -- replaces
// an agent's own command, and is an error unless exactly one agent is selected.
func (f *Flags) Programs(command []string) (list []acp.Program, err error) {
	command = Behind(command)
	if len(command) > 0 && len(f.Agent) != 1 {
		return nil, errors.New("a command after -- belongs to one --agent")
	}
	for _, setting := range f.Agent {
		program, err := acp.Parse(setting, command)
		if err != nil {
			return nil, fmt.Errorf("--agent: %w", err)
		}
		list = append(list, program)
	}
	return list, nil
}

// Check fails if the agents cannot start: a program is missing, or no folder is known.
func (f *Flags) Check(command []string) error {
	if _, err := f.Programs(command); err != nil {
		return err
	}
	_, err := folders(f.Folder)
	return err
}

// Pinned returns the values of --agent with absolute paths, for a service.
func (f *Flags) Pinned() (list []string, err error) {
	for _, setting := range f.Agent {
		program, err := acp.Parse(setting, nil)
		if err != nil {
			return nil, fmt.Errorf("--agent: %w", err)
		}
		list = append(list, program.Name+"="+program.Path())
	}
	return list, nil
}

// Config configures a [Host].
type Config struct {
	Flags
	Programs []acp.Program // required
	Dir      string        // keeps sessions; "": they end with the process

	Environment []string // additions to the agents' environment
	Token       string   // connection token (?tkn=) that clients must have; default: none
	Version     string
	Stderr      io.Writer // receives the agents' standard error; default: discarded
	Log         *slog.Logger
}

// A Host is an AHP host with coding agents.
type Host struct {
	*agenthost.Host
	Local *hostagent.Local // where the host listens in this process

	server *http.Server
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

// Start starts a host, and probes its agents in the background. The caller must Close it.
func Start(cfg Config) (*Host, error) {
	folders, err := folders(cfg.Folder)
	if err != nil {
		return nil, err
	}
	var names []string
	var list []agenthost.Agent
	var agents []*acp.Agent
	var host *agenthost.Host
	ready := make(chan struct{})
	for _, program := range cfg.Programs {
		agent := acp.New(acp.Config{
			Program: program, Environment: cfg.Environment, NoBypass: !cfg.Bypass, Version: cfg.Version, Stderr: cfg.Stderr, Log: cfg.Log,
			Changed: func() {
				<-ready
				host.AgentChanged(program.Name)
			},
		})
		names, list, agents = append(names, program.Name), append(list, agent), append(agents, agent)
	}
	host, err = agenthost.New(agenthost.Config{
		Agents: list, Folders: folders, Storage: cfg.Dir, NoBypass: !cfg.Bypass, Protocol: agenthost.NewestProtocol,
		ConnectionToken: cfg.Token, Terminals: agenthost.ShellTerminals, Writable: true, Logger: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	close(ready)
	h := &Host{Host: host, Local: hostagent.NewLocal("agents " + strings.Join(names, ", "))}
	h.server = &http.Server{Handler: host, ReadHeaderTimeout: 10 * time.Second}
	h.wg.Go(func() { _ = h.server.Serve(h.Local) })
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	for _, agent := range agents {
		h.wg.Go(func() {
			if err := agent.Probe(ctx, folders[0]); err != nil && ctx.Err() == nil {
				cfg.Log.Error("agent not started", "error", err)
			}
		})
	}
	return h, nil
}

// Close stops the host and its agents.
func (h *Host) Close() error {
	h.stop()
	err := errors.Join(h.server.Close(), h.Host.Close())
	h.wg.Wait()
	return err
}
