package loadgen

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"ahprelay/hostagent"
)

// Agents runs many host-agents in one process, because a process for each would need
// too much memory. They cost the relay the same.
type Agents struct {
	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

func newAgents() *Agents {
	a := &Agents{}
	a.life, a.end = context.WithCancel(context.Background())
	return a
}

func (a *Agents) close() {
	a.end()
	a.running.Wait()
}

// AgentArgs describes a host-agent.
type AgentArgs struct {
	Relay    string // base URL
	Token    string
	Upstream string
	Compress string
}

// Run starts a host-agent and returns. The host-agent runs until Agents is closed.
func (a *Agents) Run(args AgentArgs, _ *None) error {
	agent, err := hostagent.New(hostagent.Config{
		Relays: []string{args.Relay}, Token: func() (string, error) { return args.Token, nil },
		Upstream: hostagent.Upstream{URL: args.Upstream}, Compress: args.Compress,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	a.running.Go(func() {
		if err := agent.Run(a.life); err != nil && a.life.Err() == nil {
			fmt.Fprintln(os.Stderr, "a host-agent has ended:", err)
		}
	})
	return nil
}
