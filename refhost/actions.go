package refhost

import "encoding/json"

// actionUsage is the action that only the newest protocol version knows here.
const actionUsage = "chat/usage"

// Actions of the host's own. Fields stand in the order of real hosts.

type plainAction struct {
	Type string `json:"type"`
}

type turnStartedAction struct {
	Type      string          `json:"type"`
	TurnID    string          `json:"turnId"`
	StartedAt string          `json:"startedAt"`
	Message   json.RawMessage `json:"message"`
}

type partAction struct {
	Type   string `json:"type"`
	TurnID string `json:"turnId"`
	Part   any    `json:"part"`
}

type deltaAction struct {
	Type    string `json:"type"`
	TurnID  string `json:"turnId"`
	PartID  string `json:"partId"`
	Content string `json:"content"`
}

type toolStartAction struct {
	Type        string `json:"type"`
	TurnID      string `json:"turnId"`
	ToolCallID  string `json:"toolCallId"`
	ToolName    string `json:"toolName"`
	DisplayName string `json:"displayName"`

	// For tools of MCP servers only.
	Contributor *contributor    `json:"contributor,omitempty"`
	Meta        json.RawMessage `json:"_meta,omitempty"`
}

type toolReadyAction struct {
	Type              string          `json:"type"`
	TurnID            string          `json:"turnId"`
	ToolCallID        string          `json:"toolCallId"`
	InvocationMessage string          `json:"invocationMessage"`
	ToolInput         json.RawMessage `json:"toolInput,omitempty"` // a text, or where it is
	Confirmed         string          `json:"confirmed,omitempty"`
	ConfirmationTitle string          `json:"confirmationTitle,omitempty"`
	Options           []confirmOption `json:"options,omitempty"`
	Risk              json.RawMessage `json:"riskAssessment,omitempty"`
	Edits             json.RawMessage `json:"edits,omitempty"`
	Editable          bool            `json:"editable,omitempty"`
}

type toolContentAction struct {
	Type       string `json:"type"`
	TurnID     string `json:"turnId"`
	ToolCallID string `json:"toolCallId"`
	Content    []any  `json:"content"`
}

type toolCompleteAction struct {
	Type       string     `json:"type"`
	TurnID     string     `json:"turnId"`
	ToolCallID string     `json:"toolCallId"`
	Result     toolResult `json:"result"`
}

type usageAction struct {
	Type   string `json:"type"`
	TurnID string `json:"turnId"`
	Usage  usage  `json:"usage"`
}

type usage struct {
	InputTokens  int `json:"inputTokens"`
	OutputTokens int `json:"outputTokens"`
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

type titleAction struct {
	Type  string `json:"type"`
	Title string `json:"title"`
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
