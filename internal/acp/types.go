// Code generated from schema/schema.json by go generate; DO NOT EDIT.

package acp

import "encoding/json"

// Types with the protocol's names.
type (
	AuthenticateRequest struct {
		MethodID string `json:"methodId"`
	}

	AvailableCommandsUpdate struct {
		AvailableCommands []AvailableCommand `json:"availableCommands"`
	}

	CancelNotification struct {
		SessionID string `json:"sessionId"`
	}

	CancelRequestNotification struct {
		RequestID json.RawMessage `json:"requestId"`
	}

	CompactionUpdate struct {
		CompactionID string `json:"compactionId"`
		Status       string `json:"status"`
	}

	ConfigOptionUpdate struct {
		ConfigOptions []SessionConfigOption `json:"configOptions"`
	}

	ContentChunk struct {
		Content   ContentBlock `json:"content"`
		MessageID string       `json:"messageId,omitzero"`
	}

	CreateElicitationRequest struct {
		ElicitationID   string            `json:"elicitationId,omitzero"`
		Message         string            `json:"message"`
		Mode            string            `json:"mode,omitzero"`
		RequestedSchema ElicitationSchema `json:"requestedSchema,omitzero"`
		SessionID       string            `json:"sessionId,omitzero"`
		URL             string            `json:"url,omitzero"`
	}

	CreateElicitationResponse struct {
		Action  string                     `json:"action,omitzero"`
		Content map[string]json.RawMessage `json:"content,omitzero"`
	}

	CreateTerminalRequest struct {
		Args            []string      `json:"args,omitzero"`
		Command         string        `json:"command"`
		Cwd             string        `json:"cwd,omitzero"`
		Env             []EnvVariable `json:"env,omitzero"`
		OutputByteLimit *int64        `json:"outputByteLimit,omitzero"`
		SessionID       string        `json:"sessionId"`
	}

	CreateTerminalResponse struct {
		TerminalID string `json:"terminalId"`
	}

	CurrentModeUpdate struct {
		CurrentModeID string `json:"currentModeId"`
	}

	DeleteSessionRequest struct {
		SessionID string `json:"sessionId"`
	}

	ForkSessionRequest struct {
		AdditionalDirectories []string    `json:"additionalDirectories,omitzero"`
		Cwd                   string      `json:"cwd"`
		McpServers            []McpServer `json:"mcpServers,omitzero"`
		SessionID             string      `json:"sessionId"`
	}

	InitializeRequest struct {
		ClientCapabilities ClientCapabilities `json:"clientCapabilities,omitzero"`
		ClientInfo         *Implementation    `json:"clientInfo,omitzero"`
		ProtocolVersion    int64              `json:"protocolVersion"`
	}

	InitializeResponse struct {
		AgentCapabilities AgentCapabilities `json:"agentCapabilities,omitzero"`
		AgentInfo         *Implementation   `json:"agentInfo,omitzero"`
		AuthMethods       []AuthMethod      `json:"authMethods,omitzero"`
		ProtocolVersion   int64             `json:"protocolVersion"`
		Meta              json.RawMessage   `json:"_meta,omitzero"`
	}

	ListSessionsRequest struct {
		Cursor string `json:"cursor,omitzero"`
		Cwd    string `json:"cwd,omitzero"`
	}

	ListSessionsResponse struct {
		NextCursor string        `json:"nextCursor,omitzero"`
		Sessions   []SessionInfo `json:"sessions"`
	}

	LoadSessionRequest struct {
		AdditionalDirectories []string    `json:"additionalDirectories,omitzero"`
		Cwd                   string      `json:"cwd"`
		McpServers            []McpServer `json:"mcpServers"`
		SessionID             string      `json:"sessionId"`
	}

	LoadSessionResponse struct {
		ConfigOptions []SessionConfigOption `json:"configOptions,omitzero"`
		Modes         *SessionModeState     `json:"modes,omitzero"`
	}

	NewSessionRequest struct {
		AdditionalDirectories []string    `json:"additionalDirectories,omitzero"`
		Cwd                   string      `json:"cwd"`
		McpServers            []McpServer `json:"mcpServers"`
	}

	NewSessionResponse struct {
		ConfigOptions []SessionConfigOption `json:"configOptions,omitzero"`
		Modes         *SessionModeState     `json:"modes,omitzero"`
		SessionID     string                `json:"sessionId"`
	}

	Notice struct {
		Description string `json:"description,omitzero"`
		Severity    string `json:"severity"`
		Title       string `json:"title"`
	}

	Plan struct {
		Entries []PlanEntry `json:"entries"`
	}

	PromptRequest struct {
		Prompt    []ContentBlock `json:"prompt"`
		SessionID string         `json:"sessionId"`
	}

	PromptResponse struct {
		StopReason string          `json:"stopReason"`
		Usage      *Usage          `json:"usage,omitzero"`
		Meta       json.RawMessage `json:"_meta,omitzero"`
	}

	ReadTextFileRequest struct {
		Path      string `json:"path"`
		SessionID string `json:"sessionId"`
	}

	ReadTextFileResponse struct {
		Content string `json:"content"`
	}

	RequestPermissionRequest struct {
		Options   []PermissionOption `json:"options"`
		SessionID string             `json:"sessionId"`
		ToolCall  ToolCallUpdate     `json:"toolCall"`
	}

	RequestPermissionResponse struct {
		Outcome RequestPermissionOutcome `json:"outcome"`
	}

	ResumeSessionRequest struct {
		AdditionalDirectories []string    `json:"additionalDirectories,omitzero"`
		Cwd                   string      `json:"cwd"`
		McpServers            []McpServer `json:"mcpServers,omitzero"`
		SessionID             string      `json:"sessionId"`
	}

	SessionInfoUpdate struct {
		Title string `json:"title,omitzero"`
	}

	SessionNotification struct {
		SessionID string          `json:"sessionId"`
		Update    json.RawMessage `json:"update"`
	}

	SetSessionConfigOptionRequest struct {
		ConfigID  string          `json:"configId"`
		SessionID string          `json:"sessionId"`
		Type      string          `json:"type,omitzero"`
		Value     json.RawMessage `json:"value,omitzero"`
	}

	SetSessionConfigOptionResponse struct {
		ConfigOptions []SessionConfigOption `json:"configOptions"`
	}

	SetSessionModeRequest struct {
		ModeID    string `json:"modeId"`
		SessionID string `json:"sessionId"`
	}

	TerminalOutputRequest struct {
		SessionID  string `json:"sessionId"`
		TerminalID string `json:"terminalId"`
	}

	TerminalOutputResponse struct {
		ExitStatus *TerminalExitStatus `json:"exitStatus,omitzero"`
		Output     string              `json:"output"`
		Truncated  bool                `json:"truncated"`
	}

	ToolCallUpdate struct {
		Content    []ToolCallContent  `json:"content,omitzero"`
		Kind       string             `json:"kind,omitzero"`
		Locations  []ToolCallLocation `json:"locations,omitzero"`
		Name       string             `json:"name,omitzero"`
		RawInput   json.RawMessage    `json:"rawInput,omitzero"`
		RawOutput  json.RawMessage    `json:"rawOutput,omitzero"`
		Status     string             `json:"status,omitzero"`
		Title      string             `json:"title,omitzero"`
		ToolCallID string             `json:"toolCallId"`
		Meta       json.RawMessage    `json:"_meta,omitzero"`
	}

	UsageUpdate struct {
		Cost *Cost           `json:"cost,omitzero"`
		Size int64           `json:"size"`
		Used int64           `json:"used"`
		Meta json.RawMessage `json:"_meta,omitzero"`
	}

	WaitForTerminalExitResponse struct {
		ExitCode *int64 `json:"exitCode,omitzero"`
	}

	WriteTextFileRequest struct {
		Content   string `json:"content"`
		Path      string `json:"path"`
		SessionID string `json:"sessionId"`
	}

	AvailableCommandInput struct {
		Hint string `json:"hint,omitzero"`
	}

	AvailableCommand struct {
		Description string                 `json:"description"`
		Input       *AvailableCommandInput `json:"input,omitzero"`
		Name        string                 `json:"name"`
	}

	SessionConfigSelectOptionsItem struct {
		Description string                      `json:"description,omitzero"`
		Name        string                      `json:"name,omitzero"`
		Options     []SessionConfigSelectOption `json:"options,omitzero"`
		Value       string                      `json:"value,omitzero"`
	}

	SessionConfigOption struct {
		Category     string                           `json:"category,omitzero"`
		CurrentValue json.RawMessage                  `json:"currentValue,omitzero"`
		Description  string                           `json:"description,omitzero"`
		ID           string                           `json:"id"`
		Name         string                           `json:"name"`
		Options      []SessionConfigSelectOptionsItem `json:"options,omitzero"`
		Type         string                           `json:"type,omitzero"`
	}

	EmbeddedResourceResource struct {
		Blob     string `json:"blob,omitzero"`
		MimeType string `json:"mimeType,omitzero"`
		Text     string `json:"text,omitzero"`
		URI      string `json:"uri,omitzero"`
	}

	ContentBlock struct {
		Data     string                   `json:"data,omitzero"`
		MimeType string                   `json:"mimeType,omitzero"`
		Name     string                   `json:"name,omitzero"`
		Resource EmbeddedResourceResource `json:"resource,omitzero"`
		Text     string                   `json:"text,omitzero"`
		Title    string                   `json:"title,omitzero"`
		Type     string                   `json:"type,omitzero"`
		URI      string                   `json:"uri,omitzero"`
	}

	EnumOption struct {
		Const       string `json:"const"`
		Description string `json:"description,omitzero"`
		Title       string `json:"title"`
	}

	MultiSelectItems struct {
		AnyOf []EnumOption `json:"anyOf,omitzero"`
		Enum  []string     `json:"enum,omitzero"`
	}

	ElicitationPropertySchema struct {
		Default     json.RawMessage  `json:"default,omitzero"`
		Description string           `json:"description,omitzero"`
		Enum        []string         `json:"enum,omitzero"`
		Items       MultiSelectItems `json:"items,omitzero"`
		Maximum     json.RawMessage  `json:"maximum,omitzero"`
		Minimum     json.RawMessage  `json:"minimum,omitzero"`
		OneOf       []EnumOption     `json:"oneOf,omitzero"`
		Title       string           `json:"title,omitzero"`
		Type        string           `json:"type,omitzero"`
	}

	ElicitationSchema struct {
		Properties map[string]ElicitationPropertySchema `json:"properties,omitzero"`
		Required   []string                             `json:"required,omitzero"`
		Type       string                               `json:"type,omitzero"`
	}

	EnvVariable struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}

	HttpHeader struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}

	McpServer struct {
		Args     []string      `json:"args,omitzero"`
		Command  string        `json:"command,omitzero"`
		Env      []EnvVariable `json:"env,omitzero"`
		Headers  []HttpHeader  `json:"headers,omitzero"`
		Name     string        `json:"name,omitzero"`
		ServerID string        `json:"serverId,omitzero"`
		Type     string        `json:"type,omitzero"`
		URL      string        `json:"url,omitzero"`
	}

	AuthCapabilities struct {
		Terminal bool `json:"terminal,omitzero"`
	}

	ElicitationCapabilities struct {
		Form *Capability `json:"form,omitzero"`
		URL  *Capability `json:"url,omitzero"`
	}

	FileSystemCapabilities struct {
		ReadTextFile  bool `json:"readTextFile,omitzero"`
		WriteTextFile bool `json:"writeTextFile,omitzero"`
	}

	SessionConfigOptionsCapabilities struct {
		Boolean *Capability `json:"boolean,omitzero"`
	}

	ClientSessionCapabilities struct {
		Compaction    *Capability                       `json:"compaction,omitzero"`
		ConfigOptions *SessionConfigOptionsCapabilities `json:"configOptions,omitzero"`
		Notices       *Capability                       `json:"notices,omitzero"`
	}

	ClientCapabilities struct {
		Auth        AuthCapabilities           `json:"auth,omitzero"`
		Elicitation *ElicitationCapabilities   `json:"elicitation,omitzero"`
		Fs          FileSystemCapabilities     `json:"fs,omitzero"`
		Session     *ClientSessionCapabilities `json:"session,omitzero"`
		Terminal    bool                       `json:"terminal,omitzero"`
		Meta        json.RawMessage            `json:"_meta,omitzero"`
	}

	Implementation struct {
		Name    string `json:"name"`
		Title   string `json:"title,omitzero"`
		Version string `json:"version"`
	}

	PromptCapabilities struct {
		Audio           bool `json:"audio,omitzero"`
		EmbeddedContext bool `json:"embeddedContext,omitzero"`
		Image           bool `json:"image,omitzero"`
	}

	SessionCapabilities struct {
		AdditionalDirectories *Capability `json:"additionalDirectories,omitzero"`
		Close                 *Capability `json:"close,omitzero"`
		Delete                *Capability `json:"delete,omitzero"`
		Fork                  *Capability `json:"fork,omitzero"`
		List                  *Capability `json:"list,omitzero"`
		Resume                *Capability `json:"resume,omitzero"`
	}

	AgentCapabilities struct {
		LoadSession         bool                `json:"loadSession,omitzero"`
		PromptCapabilities  PromptCapabilities  `json:"promptCapabilities,omitzero"`
		SessionCapabilities SessionCapabilities `json:"sessionCapabilities,omitzero"`
	}

	AuthMethod struct {
		Args        []string          `json:"args,omitzero"`
		Description string            `json:"description,omitzero"`
		Env         map[string]string `json:"env,omitzero"`
		ID          string            `json:"id,omitzero"`
		Name        string            `json:"name,omitzero"`
		Type        string            `json:"type,omitzero"`
		Meta        json.RawMessage   `json:"_meta,omitzero"`
	}

	SessionInfo struct {
		Cwd       string `json:"cwd"`
		SessionID string `json:"sessionId"`
		Title     string `json:"title,omitzero"`
		UpdatedAt string `json:"updatedAt,omitzero"`
	}

	SessionMode struct {
		Description string `json:"description,omitzero"`
		ID          string `json:"id"`
		Name        string `json:"name"`
	}

	SessionModeState struct {
		AvailableModes []SessionMode `json:"availableModes"`
		CurrentModeID  string        `json:"currentModeId"`
	}

	PlanEntry struct {
		Content  string `json:"content"`
		Priority string `json:"priority"`
		Status   string `json:"status"`
	}

	Usage struct {
		CachedReadTokens *int64 `json:"cachedReadTokens,omitzero"`
		InputTokens      int64  `json:"inputTokens"`
		OutputTokens     int64  `json:"outputTokens"`
		ThoughtTokens    *int64 `json:"thoughtTokens,omitzero"`
		TotalTokens      int64  `json:"totalTokens"`
	}

	PermissionOption struct {
		Kind     string `json:"kind"`
		Name     string `json:"name"`
		OptionID string `json:"optionId"`
	}

	ToolCallContent struct {
		Content    ContentBlock `json:"content,omitzero"`
		NewText    string       `json:"newText,omitzero"`
		OldText    string       `json:"oldText,omitzero"`
		Path       string       `json:"path,omitzero"`
		TerminalID string       `json:"terminalId,omitzero"`
		Type       string       `json:"type,omitzero"`
	}

	ToolCallLocation struct {
		Line *int64 `json:"line,omitzero"`
		Path string `json:"path"`
	}

	RequestPermissionOutcome struct {
		OptionID string `json:"optionId,omitzero"`
		Outcome  string `json:"outcome,omitzero"`
	}

	TerminalExitStatus struct {
		ExitCode *int64 `json:"exitCode,omitzero"`
	}

	Cost struct {
		Amount   float64 `json:"amount"`
		Currency string  `json:"currency"`
	}

	SessionConfigSelectOption struct {
		Description string `json:"description,omitzero"`
		Name        string `json:"name"`
		Value       string `json:"value"`
	}
)

const (
	CreateElicitationRequestForm = "form"
	CreateElicitationRequestURL  = "url"
)

// MarshalJSON implements [json.Marshaler].
func (v CreateElicitationRequest) MarshalJSON() ([]byte, error) {
	type plain CreateElicitationRequest
	var required []string
	switch v.Mode {
	case "url":
		required = []string{"elicitationId", "url"}
	}
	return withRequired(plain(v), required)
}

const (
	CreateElicitationResponseAccept  = "accept"
	CreateElicitationResponseDecline = "decline"
	CreateElicitationResponseCancel  = "cancel"
)

const (
	SetSessionConfigOptionRequestBoolean = "boolean"
)

const (
	CompactionStatusInProgress = "in_progress"
	CompactionStatusCompleted  = "completed"
	CompactionStatusFailed     = "failed"
	CompactionStatusCancelled  = "cancelled"
)

const (
	SessionConfigOptionCategoryMode         = "mode"
	SessionConfigOptionCategoryModel        = "model"
	SessionConfigOptionCategoryModelConfig  = "model_config"
	SessionConfigOptionCategoryThoughtLevel = "thought_level"
)

const (
	SessionConfigOptionSelect  = "select"
	SessionConfigOptionBoolean = "boolean"
)

// MarshalJSON implements [json.Marshaler].
func (v SessionConfigOption) MarshalJSON() ([]byte, error) {
	type plain SessionConfigOption
	var required []string
	switch v.Type {
	case "select":
		required = []string{"currentValue"}
	}
	return withRequired(plain(v), required)
}

const (
	ContentBlockText         = "text"
	ContentBlockImage        = "image"
	ContentBlockAudio        = "audio"
	ContentBlockResourceLink = "resource_link"
	ContentBlockResource     = "resource"
)

// MarshalJSON implements [json.Marshaler].
func (v ContentBlock) MarshalJSON() ([]byte, error) {
	type plain ContentBlock
	var required []string
	switch v.Type {
	case "audio":
		required = []string{"data", "mimeType"}
	case "image":
		required = []string{"data", "mimeType"}
	case "resource_link":
		required = []string{"name", "uri"}
	case "text":
		required = []string{"text"}
	}
	return withRequired(plain(v), required)
}

const (
	ElicitationPropertySchemaString  = "string"
	ElicitationPropertySchemaNumber  = "number"
	ElicitationPropertySchemaInteger = "integer"
	ElicitationPropertySchemaBoolean = "boolean"
	ElicitationPropertySchemaArray   = "array"
)

const (
	ElicitationSchemaTypeObject = "object"
)

const (
	McpServerHTTP = "http"
	McpServerSse  = "sse"
	McpServerAcp  = "acp"
)

// MarshalJSON implements [json.Marshaler].
func (v McpServer) MarshalJSON() ([]byte, error) {
	type plain McpServer
	var required []string
	switch v.Type {
	case "acp":
		required = []string{"name", "serverId"}
	case "http":
		required = []string{"name", "url"}
	case "sse":
		required = []string{"name", "url"}
	}
	return withRequired(plain(v), required)
}

const (
	AuthMethodTerminal = "terminal"
)

// MarshalJSON implements [json.Marshaler].
func (v AuthMethod) MarshalJSON() ([]byte, error) {
	type plain AuthMethod
	var required []string
	switch v.Type {
	case "terminal":
		required = []string{"id", "name"}
	}
	return withRequired(plain(v), required)
}

const (
	NoticeSeverityInfo    = "info"
	NoticeSeverityWarning = "warning"
	NoticeSeverityError   = "error"
)

const (
	PlanEntryPriorityHigh   = "high"
	PlanEntryPriorityMedium = "medium"
	PlanEntryPriorityLow    = "low"
)

const (
	PlanEntryStatusPending    = "pending"
	PlanEntryStatusInProgress = "in_progress"
	PlanEntryStatusCompleted  = "completed"
)

const (
	StopReasonEndTurn         = "end_turn"
	StopReasonMaxTokens       = "max_tokens"
	StopReasonMaxTurnRequests = "max_turn_requests"
	StopReasonRefusal         = "refusal"
	StopReasonCancelled       = "cancelled"
)

const (
	PermissionOptionKindAllowOnce    = "allow_once"
	PermissionOptionKindAllowAlways  = "allow_always"
	PermissionOptionKindRejectOnce   = "reject_once"
	PermissionOptionKindRejectAlways = "reject_always"
)

const (
	ToolCallContentContent  = "content"
	ToolCallContentDiff     = "diff"
	ToolCallContentTerminal = "terminal"
)

// MarshalJSON implements [json.Marshaler].
func (v ToolCallContent) MarshalJSON() ([]byte, error) {
	type plain ToolCallContent
	var required []string
	switch v.Type {
	case "diff":
		required = []string{"newText", "path"}
	case "terminal":
		required = []string{"terminalId"}
	}
	return withRequired(plain(v), required)
}

const (
	ToolKindRead       = "read"
	ToolKindEdit       = "edit"
	ToolKindDelete     = "delete"
	ToolKindMove       = "move"
	ToolKindSearch     = "search"
	ToolKindExecute    = "execute"
	ToolKindThink      = "think"
	ToolKindFetch      = "fetch"
	ToolKindSwitchMode = "switch_mode"
	ToolKindOther      = "other"
)

const (
	ToolCallStatusPending    = "pending"
	ToolCallStatusInProgress = "in_progress"
	ToolCallStatusCompleted  = "completed"
	ToolCallStatusFailed     = "failed"
)

const (
	RequestPermissionOutcomeCancelled = "cancelled"
	RequestPermissionOutcomeSelected  = "selected"
)

// MarshalJSON implements [json.Marshaler].
func (v RequestPermissionOutcome) MarshalJSON() ([]byte, error) {
	type plain RequestPermissionOutcome
	var required []string
	switch v.Outcome {
	case "selected":
		required = []string{"optionId"}
	}
	return withRequired(plain(v), required)
}

const (
	UpdateUserMessageChunk        = "user_message_chunk"
	UpdateAgentMessageChunk       = "agent_message_chunk"
	UpdateAgentThoughtChunk       = "agent_thought_chunk"
	UpdateToolCall                = "tool_call"
	UpdateToolCallUpdate          = "tool_call_update"
	UpdatePlan                    = "plan"
	UpdatePlanUpdate              = "plan_update"
	UpdatePlanRemoved             = "plan_removed"
	UpdateAvailableCommandsUpdate = "available_commands_update"
	UpdateCurrentModeUpdate       = "current_mode_update"
	UpdateConfigOptionUpdate      = "config_option_update"
	UpdateSessionInfoUpdate       = "session_info_update"
	UpdateUsageUpdate             = "usage_update"
	UpdateNotice                  = "notice"
	UpdateCompactionUpdate        = "compaction_update"
	UpdateCompactionSummaryChunk  = "compaction_summary_chunk"
	UpdateSubagentUpdate          = "subagent_update"
	UpdateSessionMessage          = "session_message"
	UpdateSessionMessageChunk     = "session_message_chunk"
)
