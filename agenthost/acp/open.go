package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
)

// A conversation is a session of the agent. It implements [agenthost.Conversation] and
// handles the agent's messages.
type conversation struct {
	// Set by Open, then read-only.
	agent *Agent
	chat  *agenthost.Chat
	start agenthost.Start
	peer  *peer
	id    string

	keeper *geminiKeeper // nil for other agents

	life context.Context // ends with the process
	end  sync.Once       // calls reportLost once

	text collector // owned by the connection's goroutine

	reporting sync.Mutex // held during a report of the options, so that the host gets the latest last

	mu        sync.Mutex        // guards the fields below
	session   string            // the agent's id of the session; "" before it is known
	turn      *agenthost.Turn   // may have ended
	prompting bool              // Prompt runs
	hushed    bool              // text without a prompt is ignored
	quiet     *time.Timer       // ends a turn that began without a prompt; nil in other turns
	past      bool              // the agent replays the history
	heard     time.Time         // the latest update
	rested    time.Time         // the end of the latest prompt; zero before the first
	said      *agenthost.Prompt // a replayed user message whose turn has not begun
	saidID    string            // messageId of said
	closed    bool
	options   options
	usage     agenthost.Usage
	terminals map[string]*agenthost.AgentTerminal // by the agent's id
	released  []*agenthost.AgentTerminal          // the latest, for tool calls; at most maxTerminals
	tools     map[string]*tool                    // of the turn
	asked     []*openRequest
}

// opened is the answer to session/new, load, resume and fork.
type opened struct {
	SessionID     string                    `json:"sessionId"`
	Modes         *acp.SessionModeState     `json:"modes"`
	ConfigOptions []acp.SessionConfigOption `json:"configOptions"`
	Models        *modelState               `json:"models"`
}

// Open implements [agenthost.Agent].
func (a *Agent) Open(ctx context.Context, start agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
	life, stop := context.WithCancel(context.Background())
	c := &conversation{agent: a, chat: chat, start: start, life: life, hushed: true, terminals: map[string]*agenthost.AgentTerminal{}}
	p, started, err := a.startFor(ctx, start, c)
	if err != nil {
		stop()
		return nil, err
	}
	defer started()
	c.mu.Lock()
	c.peer = p
	c.mu.Unlock()
	context.AfterFunc(life, p.end)
	go func() {
		<-p.ended
		stop()
		c.lost()
	}()
	ctx, cancel := within(ctx, startTime)
	defer cancel()
	result, err := c.begin(ctx)
	if method := a.signInFor(err); method != "" {
		if err = p.authenticate(ctx, method); err == nil {
			result, err = c.begin(ctx)
		}
	}
	if err == nil {
		c.mu.Lock()
		c.id, c.session = result.SessionID, result.SessionID
		c.mu.Unlock()
		c.keeper = a.keepGemini(c.id)
		c.keeper.keepBegun()
		err = c.choose(ctx)
	}
	if err != nil {
		err = p.because(err)
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		stop()
		<-p.ended
		return nil, a.openError(err, start)
	}
	c.reportOptions()
	if p.steers {
		return steered{c}, nil
	}
	return c, nil
}

// startFor starts the process for a conversation. The caller calls started after it
// has created or continued the conversation.
func (a *Agent) startFor(ctx context.Context, start agenthost.Start, c *conversation) (p *peer, started func(), err error) {
	if start.ID != "" {
		if err := a.keepGemini(start.ID).awaitMinute(ctx); err != nil {
			return nil, nil, err
		}
	}
	if started, err = a.startAlone(ctx); err != nil {
		return nil, nil, err
	}
	if p, err = a.start(ctx, start.Folder, c); err != nil {
		started()
		return nil, nil, err
	}
	return p, started, nil
}

// signInFor returns the sign-in method that worked before and must be repeated after
// err, or "". With some agents, a sign-in lasts only as long as the process.
func (a *Agent) signInFor(err error) string {
	var refused *acp.Error
	if !errors.As(err, &refused) || refused.Code != acp.CodeAuthRequired {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.signedIn
}

// openError translates an error of Open.
func (a *Agent) openError(err error, start agenthost.Start) error {
	var refused *acp.Error
	switch {
	case errors.As(err, &refused) && refused.Code == acp.CodeAuthRequired:
		return fmt.Errorf("agent %s: %w", a.cfg.Program.Name, agenthost.ErrSignIn)
	case errors.As(err, &refused) && busyPattern.MatchString(err.Error()):
		return fmt.Errorf("agent %s: %w: %w", a.cfg.Program.Name, agenthost.ErrBusy, err)
	case errors.As(err, &refused) && (start.ID != "" || start.ForkOf != "") && !passes(refused):
		a.cfg.Log.Warn("conversation not continued by the agent", "error", err)
		return fmt.Errorf("agent %s: %w: %w", a.cfg.Program.Name, agenthost.ErrUnknown, err)
	}
	return fmt.Errorf("agent %s: %w", a.cfg.Program.Name, err)
}

// begin creates, continues or copies the agent's session.
func (c *conversation) begin(ctx context.Context) (r opened, err error) {
	can, start := c.peer.can, c.start
	servers := mcpServers(start.MCP)
	var folders []string
	if can.SessionCapabilities.AdditionalDirectories != nil {
		folders = start.Folders
	}
	switch {
	case start.ForkOf != "" && can.SessionCapabilities.Fork == nil, start.ID != "" && start.Replay && !can.LoadSession:
		return r, agenthost.ErrUnknown
	case start.ForkOf != "":
		err = openBy(ctx, c, "session/fork", acp.ForkSessionRequest{SessionID: start.ForkOf, Cwd: start.Folder, McpServers: servers, AdditionalDirectories: folders}, &r)
	case start.ID == "":
		err = openBy(ctx, c, "session/new", acp.NewSessionRequest{Cwd: start.Folder, McpServers: servers, AdditionalDirectories: folders}, &r)
	case can.SessionCapabilities.Resume != nil && !start.Replay:
		c.mu.Lock()
		c.session = start.ID
		c.mu.Unlock()
		err = openBy(ctx, c, "session/resume", acp.ResumeSessionRequest{SessionID: start.ID, Cwd: start.Folder, McpServers: servers, AdditionalDirectories: folders}, &r)
		r.SessionID = start.ID
	case can.LoadSession:
		c.mu.Lock()
		c.session, c.past = start.ID, start.Replay
		c.mu.Unlock()
		err = openBy(ctx, c, "session/load", acp.LoadSessionRequest{SessionID: start.ID, Cwd: start.Folder, McpServers: servers, AdditionalDirectories: folders}, &r)
		r.SessionID = start.ID
		if err == nil {
			err = c.settle(ctx)
		}
		c.endPast()
	default:
		return r, agenthost.ErrUnknown
	}
	if err == nil && r.SessionID == "" {
		err = errors.New("the agent's session has no id")
	}
	return r, err
}

// openBy sends a request that opens the session, and sets the options in its answer before
// any later update of the options.
func openBy(ctx context.Context, c *conversation, method string, params any, r *opened) error {
	return c.peer.conn.CallThen(ctx, method, params, r, func(result json.RawMessage) {
		var r opened
		if acp.Decode(result, &r) == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.options.set(r)
		}
	})
}

// settleTime is how long an agent may pause while it replays a history.
const settleTime = 250 * time.Millisecond

// settle waits until the replayed history is complete, because some agents send it
// after their answer.
func (c *conversation) settle(ctx context.Context) error {
	for {
		c.mu.Lock()
		wait := settleTime - time.Since(c.heard)
		c.mu.Unlock()
		if wait <= 0 {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.peer.conn.Done():
			return acp.ErrClosed
		}
	}
}

func (p *peer) call(ctx context.Context, method string, params, result any) error {
	return p.conn.Call(ctx, method, params, result)
}

func mcpServers(endpoints []agenthost.MCPEndpoint) []acp.McpServer {
	servers := []acp.McpServer{}
	for _, e := range endpoints {
		s := acp.McpServer{Name: e.Name}
		if len(e.Command) > 0 {
			s.Command, s.Args, s.Env = e.Command[0], slices.Clone(e.Command[1:]), []acp.EnvVariable{}
			for _, variable := range e.Env {
				name, value, _ := strings.Cut(variable, "=")
				s.Env = append(s.Env, acp.EnvVariable{Name: name, Value: value})
			}
		} else {
			s.Type, s.URL, s.Headers = acp.McpServerHTTP, e.URL, []acp.HttpHeader{}
			for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
				s.Headers = append(s.Headers, acp.HttpHeader{Name: name, Value: e.Headers[name]})
			}
		}
		servers = append(servers, s)
	}
	return servers
}

// ID implements [agenthost.Conversation].
func (c *conversation) ID() string { return c.id }

// Close implements [agenthost.Conversation].
func (c *conversation) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.peer.end()
	return nil
}

// lost reports to the host that the process has ended, unless the host has closed the
// conversation. It returns after the report.
func (c *conversation) lost() { c.end.Do(c.reportLost) }

func (c *conversation) reportLost() {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	terminals := slices.Collect(maps.Values(c.terminals))
	turn, unasked := c.turn, c.quiet != nil
	c.mu.Unlock()
	if unasked {
		turn.End(agenthost.End{}, c.peer.err)
	}
	for _, t := range terminals {
		t.Kill()
	}
	if skipped := c.peer.conn.Skipped(); skipped > 0 {
		c.agent.cfg.Log.Warn("agent output without messages skipped", "lines", skipped)
	}
	if !closed {
		c.agent.cfg.Log.Warn("agent ended", "error", c.peer.err)
		c.chat.Lost(c.peer.err)
	}
}
