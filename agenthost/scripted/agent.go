// Package scripted is an agent that follows prompts without a model, for demonstrations and
// tests. It publishes AHP's actions itself: see [agenthost.Script].
//
// # Prompts
//
// The text of a prompt selects what the agent does:
//
//	hello             says "Hello, world!"
//	stream N MS SIZE  N deltas of at least SIZE bytes (8), MS milliseconds apart
//	tool              uses a tool
//	permission        asks before it uses a tool: the first answer counts
//	terminal          uses a tool with a terminal, which stays open; "terminal slow" takes a minute
//	error             fails
//	show everything   adds parts of all kinds, including an unknown kind
//	edit              asks before it changes two files, and adds them to the changeset
//	danger            asks before a command, with a judge's warning
//	approve JSON      asks with these members of a chat/toolCallReady; as a steering message, changes them
//	ask               asks the user; also "ask choice", "ask text", "ask url", "plan"
//	subagent          works in a new chat of the session
//	hostile           sends texts that a malicious host might send
//	history N         puts N turns before the existing turns
//	sessions N        adds N sessions
//	talk N            says N words, 5 ms apart, in all forms of Markdown
//	canvas ID         opens a canvas
//	canvas VERB …     drives the latest canvas: see Canvases in package agenthost
//	mcp VERB …        drives an MCP server: see MCP servers there
//	show me an app    the same as "mcp app"; similar words work too
//	sign-in REASON    counts accepted tokens: see Canvases there
//	anything else     is repeated word by word
package scripted

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"ahprelay/agenthost"
	"ahprelay/agenthost/tasks"
)

// Provider is the agent's id and the scheme of its sessions.
const Provider = "demo"

// New returns a host with the scripted agent, and with the sessions of each demo. New
// replaces cfg.Agents and cfg.ConnectMCP: the MCP servers are those of package tasks.
func New(cfg agenthost.Config, demos ...Demo) (*agenthost.Host, error) {
	a := &scripted{}
	for _, d := range demos {
		d.setUp(&cfg, a)
	}
	cfg.Agents, cfg.ConnectMCP = []agenthost.Agent{a}, tasks.Connect
	a.servers, a.now = cfg.MCP, cfg.Now
	h, err := agenthost.New(cfg)
	a.host = h
	return h, err
}

// A scripted is the agent.
type scripted struct {
	// Set before the host serves.
	host    *agenthost.Host
	servers []agenthost.MCPServer
	now     func() time.Time // nil: time.Now
	demo    *demo            // nil for none
	canvas  string           // the demo's canvas
}

// Info implements [agenthost.Agent].
func (a *scripted) Info() agenthost.AgentInfo {
	return agenthost.AgentInfo{
		Provider: Provider, Name: "Demo Agent", Description: "Scripted agent without a model behind it", Forks: true,
		Models:   []agenthost.AgentModel{{ID: "demo-model", Name: "Demo Model", ContextWindow: 128000}},
		Scripted: &agenthost.Script{Config: sessionConfig, Tools: serverTools},
	}
}

var (
	serverTools = json.RawMessage(`[{"name":"echo_tool","title":"Echo Tool","description":"Answers with what it is given.",` +
		`"inputSchema":{"type":"object","properties":{"text":{"type":"string","description":"What to answer with."}},"required":["text"]},` +
		`"annotations":{"readOnlyHint":true}}]`)

	sessionConfig = agenthost.Schema{
		Schema: json.RawMessage(`{"type":"object","properties":{"isolation":{"type":"string","title":"Isolation",` +
			`"description":"Where the agent should make changes","enum":["folder"],"default":"folder","readOnly":true,"sessionMutable":false}}}`),
		Values: json.RawMessage(`{"isolation":"folder"}`),
	}
)

// Open implements [agenthost.Agent].
func (a *scripted) Open(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
	return &conversation{agent: a, chat: chat}, nil
}

// A conversation has no memory.
type conversation struct {
	agent *scripted
	chat  *agenthost.Chat

	mu     sync.Mutex // guards the field below
	asking bool       // a confirmation is open
}

// ID implements [agenthost.Conversation].
func (c *conversation) ID() string { return "" }

// Close implements [agenthost.Conversation].
func (c *conversation) Close() error { return nil }

// Prompt implements [agenthost.Conversation].
func (c *conversation) Prompt(ctx context.Context, prompt agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
	turn.Prompted()
	text := prompt.Text
	s := &script{Turn: turn, conversation: c, ctx: ctx}
	err := s.play(text)
	return agenthost.End{Usage: &agenthost.Usage{InputTokens: len(strings.Fields(text)), OutputTokens: s.output, Limits: s.limits}}, err
}

// Steer implements [agenthost.Steerer]. A message that begins with [approvePrompt]
// publishes the pending tool call again, with the members in the message.
func (c *conversation) Steer(_ context.Context, prompt agenthost.Prompt, turn *agenthost.Turn) error {
	c.mu.Lock()
	asking := c.asking
	c.mu.Unlock()
	members, ok := strings.CutPrefix(prompt.Text, approvePrompt)
	ready := agenthost.ToolReadyAction{Type: "chat/toolCallReady", TurnID: turn.ID(), ToolCallID: askedFor}
	if ok && asking && json.Unmarshal([]byte(members), &ready) == nil {
		turn.Publish(ready)
		return nil
	}
	turn.PublishText("I have read: " + prompt.Text)
	return nil
}

// askFirst asks for permission, and waits for the first answer of any client.
func (s *script) askFirst(ready agenthost.ToolReadyAction) (approved bool, err error) {
	c := s.conversation
	set := func(asking bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asking = asking
	}
	set(true)
	defer set(false)
	return s.PublishAsk(ready)
}
