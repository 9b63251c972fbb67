package agenthost

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// An Agent is a coding agent behind the host. Its methods are called without the
// host's lock, and may block until ctx ends. Calls for different chats overlap.
type Agent interface {
	// Info describes the agent. It does not block. After a change, the agent calls
	// [Host.AgentChanged].
	Info() AgentInfo

	// Open begins or continues a conversation. The agent may call the chat's methods
	// from now on. Errors that wrap [ErrSignIn] make the host offer the agent's
	// sign-in methods, then the host calls Open again.
	Open(ctx context.Context, start Start, chat *Chat) (Conversation, error)
}

// A Conversation is the agent's part in a chat.
type Conversation interface {
	// ID is the agent's own name for the conversation, which a later [Start] has. The
	// host stores it. It does not change.
	ID() string

	// Prompt runs one turn and returns at its end. When ctx ends, the turn is
	// cancelled: the agent stops its work and returns. The host continues without it
	// after [CancelGrace]. The host calls Prompt for one turn at a time.
	Prompt(ctx context.Context, prompt Prompt, turn *Turn) (End, error)

	// Close ends the conversation at the agent, and Prompt with it. The agent keeps
	// the conversation's history.
	Close() error
}

// Further capabilities of an [Agent].
type (
	// A Lister knows conversations from elsewhere, for example from the agent's own
	// terminal interface.
	Lister interface {
		// List returns the conversations in a folder; all, if it is empty.
		List(ctx context.Context, folder string) ([]Past, error)
	}

	// A SignerIn has sign-in methods.
	SignerIn interface {
		// SignIn runs a method of [AgentInfo.SignIn] without a Command. For the others,
		// the host runs the command in a terminal.
		SignIn(ctx context.Context, method string) error
	}

	// A Deleter can delete a conversation's history at the agent.
	Deleter interface {
		Delete(ctx context.Context, id string) error
	}
)

// Further capabilities of a [Conversation].
type (
	// A Steerer accepts a message during a turn. Without it, a steering message becomes
	// the next prompt.
	Steerer interface {
		Steer(ctx context.Context, prompt Prompt, turn *Turn) error
	}

	// A Configurable changes its options. The host publishes the options that the agent
	// then reports with [Chat.SetOptions].
	Configurable interface {
		SetOption(ctx context.Context, id string, value any) error
	}
)

var (
	// ErrSignIn reports that the agent needs a sign-in.
	ErrSignIn = errors.New("the agent needs a sign-in")

	// ErrUnknown reports that the agent does not have the conversation any more. The
	// host keeps its transcript and begins a new conversation behind it.
	ErrUnknown = errors.New("the agent does not have this conversation")

	// ErrBusy reports that the conversation is open in a different place. From
	// [Conversation.Prompt] it means that the conversation went on there: the host opens
	// it again, and repeats the prompt.
	ErrBusy = errors.New("the conversation is open in a different place")

	// ErrEnded reports that the turn, the chat or the host has ended.
	ErrEnded = errors.New("the turn has ended")
)

// CancelGrace is how long the host waits for an agent whose turn is cancelled.
const CancelGrace = 10 * time.Second

// AgentInfo describes an [Agent].
type AgentInfo struct {
	// Provider is the agent's id and the scheme of its sessions: a URI scheme in lower
	// case.
	Provider string

	Name        string // for people
	Description string
	Models      []AgentModel
	Options     []Option       // what a new session offers, as far as it is known before
	SignIn      []SignInMethod // what [ErrSignIn] offers

	Continues bool // Open accepts [Start.ID]
	Replays   bool // Open accepts [Start.Replay]
	Forks     bool // Open accepts [Start.ForkOf]
	Images    bool // prompts may have images

	// Scripted is for agents that play AHP itself and keep nothing of a conversation:
	// the host opens it without waiting, and copies chats at any turn. Default: nil.
	Scripted *Script
}

// A Script has facts of an agent's sessions in place of the host's own.
type Script struct {
	Config Schema          // of sessions with a folder
	Tools  json.RawMessage // the session's serverTools
}

// A Schema describes a session's options, and has their values.
type Schema struct {
	Schema json.RawMessage `json:"schema"`
	Values json.RawMessage `json:"values"`
}

// An AgentModel is a model that an agent offers.
type AgentModel struct {
	ID            string
	Name          string
	ContextWindow int // tokens; 0 if not known
	Vision        bool
}

// A SignInMethod is a way to sign in to an agent.
type SignInMethod struct {
	ID          string
	Name        string
	Description string
	Command     []string // to run in a terminal; nil for [SignerIn]
	Env         []string // beside the agent's own, for Command
}

// A Start says where a conversation begins.
type Start struct {
	Folder  string   // absolute path, never empty
	Folders []string // further folders

	ID     string // the earlier conversation to continue; empty for a new one
	Replay bool   // the agent tells the history with [Chat.Past] before Open returns
	ForkOf string // begin with a copy of this conversation; ID is empty

	Options map[string]any // chosen values by option id; the agent ignores unknown ids
	MCP     []MCPEndpoint
}

// An MCPEndpoint is an MCP server for the agent.
type MCPEndpoint struct {
	Name    string
	Command []string // over stdio
	Env     []string
	URL     string // over HTTP, if Command is nil
	Headers map[string]string
}

// A Past is a conversation from elsewhere.
type Past struct {
	ID       string
	Folder   string
	Title    string
	Modified time.Time
}

// A Prompt is a message to the agent.
type Prompt struct {
	Text        string
	Attachments []Attachment
	Model       string // chosen with the message; empty: unchanged
}

// An Attachment goes with a prompt. It has Data, or else names a resource.
type Attachment struct {
	Name     string
	URI      string // file:… or from a client
	MIMEType string
	Data     []byte
	Text     string // a selection or an embedded text
}

// An EndReason is a turn's outcome.
type EndReason string

// The outcomes of turns.
const (
	EndComplete    EndReason = "end_turn"
	EndMaxTokens   EndReason = "max_tokens"
	EndMaxRequests EndReason = "max_turn_requests"
	EndRefusal     EndReason = "refusal"
	EndCancelled   EndReason = "cancelled"
)

// An End is the end of a turn. An error from Prompt takes its place.
type End struct {
	Reason EndReason // empty: EndComplete
	Usage  *Usage    // nil: as last reported
}

// Usage counts tokens. A zero is not shown.
type Usage struct {
	Model         string
	InputTokens   int
	OutputTokens  int
	CachedTokens  int
	ThoughtTokens int
	ContextUsed   int // of the context window
	ContextSize   int
	Cost          float64 // of the conversation so far
	Currency      string  // ISO 4217
	Limits        []Limit // of the person's plan
}

// A Limit is how much of a plan's limit is used.
type Limit struct {
	Name   string
	Used   float64 // 1 is all of it
	Resets time.Time
}

// A ToolKind classifies a tool call.
type ToolKind string

// The kinds of tool calls.
const (
	ToolRead    ToolKind = "read"
	ToolEdit    ToolKind = "edit"
	ToolDelete  ToolKind = "delete"
	ToolMove    ToolKind = "move"
	ToolSearch  ToolKind = "search"
	ToolExecute ToolKind = "execute"
	ToolThink   ToolKind = "think"
	ToolFetch   ToolKind = "fetch"
	ToolSwitch  ToolKind = "switch_mode"
	ToolOther   ToolKind = "other"
)

// A ToolStatus is a tool call's progress.
type ToolStatus string

// The states of tool calls.
const (
	ToolPending   ToolStatus = "pending" // its input may still grow
	ToolRunning   ToolStatus = "in_progress"
	ToolCompleted ToolStatus = "completed"
	ToolFailed    ToolStatus = "failed"
)

// A ToolUpdate begins or changes a tool call. Zero members leave their previous values.
type ToolUpdate struct {
	ID        string // the agent's, unique in a turn
	Name      string // the tool's own name
	Title     string // for people
	Kind      ToolKind
	Status    ToolStatus
	Input     json.RawMessage
	Locations []Location
	Content   []ToolContent   // replaces the previous content; empty but not nil clears it
	Output    json.RawMessage // shown at the end if there is no Content
	Error     string          // for ToolFailed
}

// A Location is a place in a file.
type Location struct {
	Path string
	Line int // from 1; 0: the whole file
}

// ToolContent is one of its members.
type ToolContent struct {
	Text     string
	Diff     *Diff
	Terminal *AgentTerminal
	Embedded *Embedded
}

// A Diff is a change of a file.
type Diff struct {
	Path string
	Old  *string // nil: a new file
	New  *string // nil: a deleted file
}

// Embedded is a picture or other content.
type Embedded struct {
	URI      string // empty for content without an address
	MIMEType string
	Data     []byte
	Text     string
}

// A PermissionOption is an answer that the agent offers, with its own label.
type PermissionOption struct {
	ID    string
	Label string
	Kind  PermissionKind
}

// A PermissionKind classifies a [PermissionOption].
type PermissionKind string

// The kinds of permission options.
const (
	AllowOnce    PermissionKind = "allow_once"
	AllowAlways  PermissionKind = "allow_always"
	RejectOnce   PermissionKind = "reject_once"
	RejectAlways PermissionKind = "reject_always"
)

// A Question is a form, a choice, or the address of a page to visit.
type Question struct {
	Message string
	URL     string
	Fields  []Field
}

// A Field is a value asked for in a [Question].
type Field struct {
	ID       string
	Kind     FieldKind
	Title    string
	Message  string
	Required bool
	Default  any
	Choices  []Choice
	Freeform bool // a select accepts other texts
	Min, Max *float64
}

// A FieldKind is the type of a field's value: string, float64, int64, bool, or for
// FieldMany []string.
type FieldKind string

// The kinds of fields.
const (
	FieldText    FieldKind = "text"
	FieldNumber  FieldKind = "number"
	FieldInteger FieldKind = "integer"
	FieldBoolean FieldKind = "boolean"
	FieldOne     FieldKind = "single-select"
	FieldMany    FieldKind = "multi-select"
)

// A Choice is a value of a [Field] or an [Option].
type Choice struct {
	ID          string
	Label       string
	Description string
	Recommended bool
	Bypass      bool // of a mode: skips permissions
}

// An Answer is the first answer of any client.
type Answer struct {
	Response string // accept, decline or cancel
	Values   map[string]any
}

// A PlanEntry is a step in the agent's plan.
type PlanEntry struct {
	Text     string
	Status   string // pending, in_progress or completed
	Priority string // high, medium, low or empty
}

// An Option is a choice for a conversation: its model, its mode, or another.
type Option struct {
	ID          string
	Name        string
	Description string
	Category    string // model, mode, thought_level or empty
	Value       any    // a choice's id, or bool without choices
	Choices     []Choice
	Bypass      bool // of an option without choices: skips permissions while it is on
}

// A Command is a slash command.
type Command struct {
	Name        string // without the slash
	Description string
	Hint        string // for its argument; empty: it has none
	Bypass      bool   // skips permissions
}

// A ProcessSpec is a command for a terminal.
type ProcessSpec struct {
	Command string
	Args    []string
	Env     []string // beside the host's own
	Folder  string   // empty: the chat's
	Limit   int      // bytes of output kept; 0: the host's bound
}
