package agenthost

import "encoding/json"

// actionUsage reports a turn's use of tokens. Clients of AHP 0.8 do not receive it.
const actionUsage = "chat/usage"

// actionReasoning adds text to the agent's reasoning.
const actionReasoning = "chat/reasoning"

// The host's actions. Their fields stand in the order of VS Code's host.

type plainAction struct {
	Type string `json:"type"`
}

type turnStartedAction struct {
	Type            string          `json:"type"`
	TurnID          string          `json:"turnId"`
	StartedAt       string          `json:"startedAt"`
	Message         json.RawMessage `json:"message"`
	QueuedMessageID string          `json:"queuedMessageId,omitempty"` // a waiting message that the turn takes
}

// turnStarted returns the beginning of a turn with a message. queued is the ID of the waiting message that the turn takes, or "".
func turnStarted(h *Host, message json.RawMessage, queued string) turnStartedAction {
	return turnStartedAction{"chat/turnStarted", h.cfg.NewID(), timestamp(h.cfg.Now()), message, queued}
}

// A PartAction adds a part. Part is JSON, or a part type of this package.
type PartAction struct {
	Type   string `json:"type"`
	TurnID string `json:"turnId"`
	Part   any    `json:"part"`
}

// A DeltaAction extends a text.
type DeltaAction struct {
	Type    string `json:"type"`
	TurnID  string `json:"turnId"`
	PartID  string `json:"partId"`
	Content string `json:"content"`
}

// A ToolStartAction begins a tool call.
type ToolStartAction struct {
	Type        string `json:"type"`
	TurnID      string `json:"turnId"`
	ToolCallID  string `json:"toolCallId"`
	ToolName    string `json:"toolName"`
	DisplayName string `json:"displayName"`

	// Set only for tools from MCP servers.
	Contributor *contributor    `json:"contributor,omitempty"`
	Meta        json.RawMessage `json:"_meta,omitempty"`
}

// A ToolReadyAction marks a tool call as running, or asks for its confirmation.
type ToolReadyAction struct {
	Type              string          `json:"type"`
	TurnID            string          `json:"turnId"`
	ToolCallID        string          `json:"toolCallId"`
	InvocationMessage string          `json:"invocationMessage"`
	ToolInput         json.RawMessage `json:"toolInput,omitempty"` // a text, or a reference to one
	Confirmed         string          `json:"confirmed,omitempty"`
	ConfirmationTitle string          `json:"confirmationTitle,omitempty"`
	Options           []ConfirmOption `json:"options,omitempty"`
	Risk              json.RawMessage `json:"riskAssessment,omitempty"`
	Edits             json.RawMessage `json:"edits,omitempty"`
	Editable          bool            `json:"editable,omitempty"`
}

// A ToolContentAction replaces the content of a running tool call.
type ToolContentAction struct {
	Type       string `json:"type"`
	TurnID     string `json:"turnId"`
	ToolCallID string `json:"toolCallId"`
	Content    []any  `json:"content"`
}

// A ToolCompleteAction ends a tool call.
type ToolCompleteAction struct {
	Type       string     `json:"type"`
	TurnID     string     `json:"turnId"`
	ToolCallID string     `json:"toolCallId"`
	Result     ToolResult `json:"result"`

	Meta json.RawMessage `json:"_meta,omitempty"` // replaces the call's _meta, if it is not empty
}

type usageAction struct {
	Type   string `json:"type"`
	TurnID string `json:"turnId"`
	Usage  usage  `json:"usage"`
}

type usage struct {
	InputTokens  int             `json:"inputTokens"`
	OutputTokens int             `json:"outputTokens"`
	Model        string          `json:"model,omitempty"`
	CacheTokens  int             `json:"cacheReadTokens,omitempty"`
	Meta         json.RawMessage `json:"_meta,omitempty"`
}

type turnEndAction struct {
	Type     string     `json:"type"`
	TurnID   string     `json:"turnId"`
	Duration int64      `json:"duration"`
	Part     *errorPart `json:"part,omitempty"`
}

type chatUpdatedAction struct {
	Type    string `json:"type"`
	Chat    string `json:"chat"`
	Changes struct {
		Status int `json:"status"`
	} `json:"changes"`
}

type chatTitleAction struct {
	Type    string `json:"type"`
	Chat    string `json:"chat"`
	Changes struct {
		Title string `json:"title"`
	} `json:"changes"`
}

type titleAction struct {
	Type  string `json:"type"`
	Title string `json:"title"`
}

type readAction struct {
	Type   string `json:"type"`
	IsRead bool   `json:"isRead"`
}

type inputNeededAction struct {
	Type    string       `json:"type"`
	Request inputRequest `json:"request"`
}

type inputRemovedAction struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

type turnsLoadedAction struct {
	Type            string  `json:"type"`
	Turns           []*turn `json:"turns"`
	TurnsNextCursor string  `json:"turnsNextCursor,omitempty"`
}
