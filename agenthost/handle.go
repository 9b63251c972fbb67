package agenthost

import (
	"context"
	"time"
)

// A Chat is the host's part in a conversation. Its methods may be called at any time,
// from any goroutine. They do not wait for clients. After the chat's end they do
// nothing.
type Chat struct{ chat *chat }

// URI is the chat's channel.
func (c *Chat) URI() string { return c.chat.uri }

// SetTitle names the session. A title given by a person stays.
func (c *Chat) SetTitle(title string) {}

// SetOptions replaces the conversation's options.
func (c *Chat) SetOptions(options []Option) {}

// SetCommands replaces the conversation's slash commands.
func (c *Chat) SetCommands(commands []Command) {}

// Past adds a turn to the history, during an Open with [Start.Replay]. The caller
// ends it with [Turn.End] before the next.
func (c *Chat) Past(prompt Prompt, at time.Time) *Turn { return nil }

// Begin begins a turn of the agent's own accord, which the caller ends with
// [Turn.End]. It fails during another turn.
func (c *Chat) Begin(prompt Prompt) (*Turn, error) { return nil, ErrEnded }

// Lost reports that the conversation has ended by itself, for example with its
// process. The host opens it again for the next prompt.
func (c *Chat) Lost(err error) {}

// OpenTerminal runs a command in a terminal that clients can see, in the chat's folder
// or below it.
func (c *Chat) OpenTerminal(spec ProcessSpec) (*AgentTerminal, error) { return nil, ErrEnded }

// ReadFile reads a text file below the chat's folders.
func (c *Chat) ReadFile(path string) (string, error) { return "", ErrEnded }

// WriteFile writes a text file below the chat's folders.
func (c *Chat) WriteFile(path, text string) error { return ErrEnded }

// A Turn is the host's part in a turn. Its methods may be called from any goroutine.
// After the turn's end they do nothing, and those with an error return [ErrEnded].
type Turn struct{}

// Text extends the agent's answer. A new id begins a new part; an empty id extends the
// latest text, unless something else has followed it.
func (t *Turn) Text(id, delta string) {}

// Thought extends the agent's reasoning, like Text.
func (t *Turn) Thought(id, delta string) {}

// Tool begins or changes a tool call.
func (t *Turn) Tool(update ToolUpdate) {}

// Ask asks for permission for a tool call, and waits for the first answer of any
// client. It returns the id of an option.
func (t *Turn) Ask(ctx context.Context, update ToolUpdate, options []PermissionOption) (string, error) {
	return "", ErrEnded
}

// Question asks the user, and waits for the first answer of any client.
func (t *Turn) Question(ctx context.Context, q Question) (Answer, error) { return Answer{}, ErrEnded }

// Plan replaces the agent's plan.
func (t *Turn) Plan(entries []PlanEntry) {}

// Usage replaces what is known of the turn's usage.
func (t *Turn) Usage(usage Usage) {}

// Notice shows a message that is not the agent's answer, in Markdown.
func (t *Turn) Notice(markdown string) {}

// End ends a turn of [Chat.Past] or [Chat.Begin]. A turn of [Conversation.Prompt] ends
// when that returns.
func (t *Turn) End(end End, err error) {}

// An AgentTerminal is a terminal that an agent has opened.
type AgentTerminal struct{}

// ID is the terminal's channel.
func (t *AgentTerminal) ID() string { return "" }

// Output returns the output so far, whether its beginning is missing, and the exit
// code once the command has ended.
func (t *AgentTerminal) Output() (text string, truncated bool, exit *int) { return "", false, nil }

// Wait waits for the command's end, and returns its exit code.
func (t *AgentTerminal) Wait(ctx context.Context) (int, error) { return 0, ErrEnded }

// Kill ends the command. The terminal stays.
func (t *AgentTerminal) Kill() {}

// Release ends the command. Clients keep what they have seen in the tool call.
func (t *AgentTerminal) Release() {}
