package agenthost

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// An Agent is a coding agent that a host serves. The host calls the agent's methods
// without holding its own lock. They may block until ctx ends. Calls for different
// chats may overlap.
type Agent interface {
	// Info describes the agent. It does not block. After a change, the agent calls
	// [Host.AgentChanged].
	Info() AgentInfo

	// Open begins or continues a conversation. The agent may call the chat's methods as
	// soon as Open is called. If the error wraps [ErrSignIn], the host offers the
	// agent's sign-in methods and then calls Open again.
	Open(ctx context.Context, start Start, chat *Chat) (Conversation, error)
}

// A Conversation is the agent's side of a chat.
type Conversation interface {
	// ID returns the agent's own name for the conversation. It never changes. The host
	// stores it, and passes it in [Start] to continue the conversation.
	ID() string

	// Prompt runs one turn and returns at its end. The host calls Prompt for one turn at
	// a time. When ctx ends, the turn is cancelled: the agent must stop and return. If
	// it has not returned after [CancelGrace], the host continues without it.
	Prompt(ctx context.Context, prompt Prompt, turn *Turn) (End, error)

	// Close ends the conversation and a running Prompt. The agent keeps the
	// conversation's history.
	Close() error
}

// An [Agent] may also have these capabilities.
type (
	// A Lister knows conversations that began outside of the host, for example in the
	// agent's own terminal interface.
	Lister interface {
		// List returns the conversations in a folder, or all if folder is empty.
		List(ctx context.Context, folder string) ([]Past, error)
	}

	// A SignerIn has sign-in methods.
	SignerIn interface {
		// SignIn runs a method of [AgentInfo.SignIn] that has no Command. If a method has a
		// Command, the host runs the Command in a terminal.
		SignIn(ctx context.Context, method string) error
	}

	// A Deleter can delete a conversation's history at the agent.
	Deleter interface {
		Delete(ctx context.Context, id string) error
	}
)

// A [Conversation] may also have these capabilities.
type (
	// A Steerer accepts messages during a turn, after it has called [Turn.Prompted]. Without Steer, such a message becomes
	// the conversation's next prompt, also if Steer returns an error.
	Steerer interface {
		Steer(ctx context.Context, prompt Prompt, turn *Turn) error
	}

	// A Configurable lets people change its options. It reports the new options with
	// [Chat.SetOptions], and the host publishes them.
	Configurable interface {
		SetOption(ctx context.Context, id string, value any) error
	}
)

var (
	// ErrSignIn reports that the agent needs a sign-in.
	ErrSignIn = errors.New("the agent needs a sign-in")

	// ErrUnknown reports that the agent no longer has the conversation. The host keeps
	// its transcript and begins a new conversation after it.
	ErrUnknown = errors.New("the agent does not have this conversation")

	// ErrBusy reports that another process has the conversation open. If
	// [Conversation.Prompt] returns ErrBusy, the conversation has continued in that
	// process: the host opens the conversation again and repeats the prompt.
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

	Name        string // name for people
	Description string
	Models      []AgentModel
	Options     []Option       // options of a new session, as far as the agent knows them before it opens a conversation
	SignIn      []SignInMethod // methods that the host offers after [ErrSignIn]

	Continues bool // Open can continue the conversation in [Start.ID]
	Replays   bool // Open can replay a conversation's history: see [Start.Replay]
	Forks     bool // Open can copy a conversation: see [Start.ForkOf]
	Images    bool // prompts may contain images

	// Scripted is set by an agent that publishes AHP's actions itself and stores nothing.
	// The host opens its conversations without waiting, and can copy its chats at any
	// turn. Default: nil.
	Scripted *Script
}

// A Script has parts of the session's state that the host would otherwise make itself.
type Script struct {
	Config Schema          // options of sessions with a folder
	Tools  json.RawMessage // the session's serverTools
}

// A Schema describes a session's options and holds their values.
type Schema struct {
	Schema json.RawMessage `json:"schema"`
	Values json.RawMessage `json:"values"`
}

// An AgentModel is a model that an agent offers.
type AgentModel struct {
	ID            string
	Name          string
	ContextWindow int // number of tokens; 0: unknown
	Vision        bool
}

// A SignInMethod is a way to sign in to an agent.
type SignInMethod struct {
	ID          string
	Name        string
	Description string
	Command     []string // command to run in a terminal; nil: the host calls [SignerIn]
	Env         []string // environment variables for Command, in addition to the agent's
}

// A Start describes how a conversation begins.
type Start struct {
	Folder  string   // absolute path, never empty
	Folders []string // further folders

	ID     string // the earlier conversation to continue; empty for a new one
	Replay bool   // the agent must replay the history with [Chat.Past] before Open returns
	ForkOf string // conversation to copy; ID is then empty

	Options map[string]any // chosen values by option id; the agent ignores unknown ids
	MCP     []MCPEndpoint
}

// An MCPEndpoint is an MCP server for the agent.
type MCPEndpoint struct {
	Name    string
	Command []string // program and arguments of a server that uses stdio
	Env     []string
	URL     string // address of a server that uses HTTP, if Command is nil
	Headers map[string]string
}

// A Past describes a conversation that began outside of the host.
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
	Model       string // model that the user has chosen for this message; empty: unchanged
}

// An Attachment is part of a prompt. It has Data, Text, or the URI of a resource.
type Attachment struct {
	Name     string
	URI      string // a file: URI, or the URI of a resource at a client
	MIMEType string
	Data     []byte
	Text     string // selected or embedded text
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

// An End describes the end of a turn. Reason is ignored if Prompt returns an error.
type End struct {
	Reason EndReason // empty: EndComplete
	Usage  *Usage    // nil: the usage that the agent has reported last
}

// Usage counts tokens. Clients see a 0 only in InputTokens and
// OutputTokens.
type Usage struct {
	Model         string
	InputTokens   int
	OutputTokens  int
	CachedTokens  int
	ThoughtTokens int
	ContextUsed   int // tokens in the context window
	ContextSize   int
	Cost          float64 // cost of the conversation so far
	Currency      string  // ISO 4217
	Limits        []Limit // limits in the user's plan
}

// A Limit is a limit in the user's plan, with the share that is used.
type Limit struct {
	Name   string
	Used   float64 // 1: the limit is reached
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
	ToolPending   ToolStatus = "pending" // the input may still grow
	ToolRunning   ToolStatus = "in_progress"
	ToolCompleted ToolStatus = "completed"
	ToolFailed    ToolStatus = "failed"
)

// A ToolUpdate begins or changes a tool call. Fields with zero values stay unchanged.
type ToolUpdate struct {
	ID        string // id that the agent has given; unique in a turn
	Name      string // the tool's own name
	Title     string // for people
	Kind      ToolKind
	Status    ToolStatus
	Input     json.RawMessage
	Locations []Location
	Content   []ToolContent   // replaces the content so far; a slice that is empty and not nil clears it
	Output    json.RawMessage // shown at the end of the call if Content is empty
	Error     string          // reason, with ToolFailed
}

// A Location is a place in a file.
type Location struct {
	Path string
	Line int // from 1; 0: the whole file
}

// ToolContent is one item of a tool call's content. Exactly one field is set.
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

// A PermissionOption is an answer that the agent offers to a permission request.
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

// A Question asks a person to fill in a form, to choose, or to visit a page.
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
	Freeform bool // a select field also accepts texts that are not in Choices
	Min, Max *float64
}

// A FieldKind is the type of a field. Its values are string, float64, int64, bool, or
// []string for FieldMany.
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
	Bypass      bool // with this choice, the agent asks for no permission
}

// An Answer is the answer to a [Question]. The first client's answer counts.
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

// An Option is a setting of a conversation: its model, its mode or another setting.
type Option struct {
	ID          string
	Name        string
	Description string
	Category    string // model, mode, thought_level or empty
	Value       any    // id of a choice; a bool if the option has no choices
	Choices     []Choice
	Bypass      bool // of an option without choices: while it is on, the agent asks for no permission
}

// A Command is a slash command.
type Command struct {
	Name        string // without the slash
	Description string
	Hint        string // hint for the command's argument; empty: the command has none
	Bypass      bool   // the command makes the agent ask for no permission
}

// A ProcessSpec describes a command to run in a terminal.
type ProcessSpec struct {
	Command string
	Args    []string
	Env     []string // variables to add to the host's environment
	Folder  string   // folder in which the command runs; empty: the chat's
	Limit   int      // bytes of output that the host keeps; 0: the host's own limit
}
