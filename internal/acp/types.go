// Code generated from schema/schema.json by go generate; DO NOT EDIT.

package acp

import "encoding/json"

// AuthenticateRequest is the protocol's type of this name.
type AuthenticateRequest struct {
	MethodID string          `json:"methodId"`
	Meta     json.RawMessage `json:"_meta,omitzero"`
}

// AvailableCommandsUpdate is the protocol's type of this name.
type AvailableCommandsUpdate struct {
	AvailableCommands []AvailableCommand `json:"availableCommands"`
	Meta              json.RawMessage    `json:"_meta,omitzero"`
}

// CancelNotification is the protocol's type of this name.
type CancelNotification struct {
	SessionID string          `json:"sessionId"`
	Meta      json.RawMessage `json:"_meta,omitzero"`
}

// CancelRequestNotification is the protocol's type of this name.
type CancelRequestNotification struct {
	RequestID json.RawMessage `json:"requestId"`
	Meta      json.RawMessage `json:"_meta,omitzero"`
}

// CompactionUpdate is the protocol's type of this name.
type CompactionUpdate struct {
	CompactionID string          `json:"compactionId"`
	Error        string          `json:"error,omitzero"`
	Status       string          `json:"status"`
	Summary      []ContentBlock  `json:"summary,omitzero"`
	Meta         json.RawMessage `json:"_meta,omitzero"`
}

// ConfigOptionUpdate is the protocol's type of this name.
type ConfigOptionUpdate struct {
	ConfigOptions []SessionConfigOption `json:"configOptions"`
	Meta          json.RawMessage       `json:"_meta,omitzero"`
}

// ContentChunk is the protocol's type of this name.
type ContentChunk struct {
	Content   ContentBlock    `json:"content"`
	MessageID string          `json:"messageId,omitzero"`
	Meta      json.RawMessage `json:"_meta,omitzero"`
}

// CreateElicitationRequest is the protocol's type of this name.
type CreateElicitationRequest struct {
	ElicitationID   string            `json:"elicitationId,omitzero"`
	Message         string            `json:"message"`
	Mode            string            `json:"mode,omitzero"`
	RequestID       json.RawMessage   `json:"requestId,omitzero"`
	RequestedSchema ElicitationSchema `json:"requestedSchema,omitzero"`
	SessionID       string            `json:"sessionId,omitzero"`
	ToolCallID      string            `json:"toolCallId,omitzero"`
	URL             string            `json:"url,omitzero"`
	Meta            json.RawMessage   `json:"_meta,omitzero"`
}

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

// CreateElicitationResponse is the protocol's type of this name.
type CreateElicitationResponse struct {
	Action  string                     `json:"action,omitzero"`
	Content map[string]json.RawMessage `json:"content,omitzero"`
	Meta    json.RawMessage            `json:"_meta,omitzero"`
}

const (
	CreateElicitationResponseAccept  = "accept"
	CreateElicitationResponseDecline = "decline"
	CreateElicitationResponseCancel  = "cancel"
)

// CreateTerminalRequest is the protocol's type of this name.
type CreateTerminalRequest struct {
	Args            []string        `json:"args,omitzero"`
	Command         string          `json:"command"`
	Cwd             string          `json:"cwd,omitzero"`
	Env             []EnvVariable   `json:"env,omitzero"`
	OutputByteLimit *int64          `json:"outputByteLimit,omitzero"`
	SessionID       string          `json:"sessionId"`
	Meta            json.RawMessage `json:"_meta,omitzero"`
}

// CreateTerminalResponse is the protocol's type of this name.
type CreateTerminalResponse struct {
	TerminalID string          `json:"terminalId"`
	Meta       json.RawMessage `json:"_meta,omitzero"`
}

// CurrentModeUpdate is the protocol's type of this name.
type CurrentModeUpdate struct {
	CurrentModeID string          `json:"currentModeId"`
	Meta          json.RawMessage `json:"_meta,omitzero"`
}

// DeleteSessionRequest is the protocol's type of this name.
type DeleteSessionRequest struct {
	SessionID string          `json:"sessionId"`
	Meta      json.RawMessage `json:"_meta,omitzero"`
}

// ForkSessionRequest is the protocol's type of this name.
type ForkSessionRequest struct {
	AdditionalDirectories []string        `json:"additionalDirectories,omitzero"`
	Cwd                   string          `json:"cwd"`
	McpServers            []McpServer     `json:"mcpServers,omitzero"`
	SessionID             string          `json:"sessionId"`
	SystemPrompt          *SystemPrompt   `json:"systemPrompt,omitzero"`
	Meta                  json.RawMessage `json:"_meta,omitzero"`
}

// InitializeRequest is the protocol's type of this name.
type InitializeRequest struct {
	ClientCapabilities ClientCapabilities `json:"clientCapabilities,omitzero"`
	ClientInfo         *Implementation    `json:"clientInfo,omitzero"`
	ProtocolVersion    int64              `json:"protocolVersion"`
	Meta               json.RawMessage    `json:"_meta,omitzero"`
}

// InitializeResponse is the protocol's type of this name.
type InitializeResponse struct {
	AgentCapabilities AgentCapabilities `json:"agentCapabilities,omitzero"`
	AgentInfo         *Implementation   `json:"agentInfo,omitzero"`
	AuthMethods       []AuthMethod      `json:"authMethods,omitzero"`
	ProtocolVersion   int64             `json:"protocolVersion"`
	Meta              json.RawMessage   `json:"_meta,omitzero"`
}

// ListSessionsRequest is the protocol's type of this name.
type ListSessionsRequest struct {
	Archived string          `json:"archived,omitzero"`
	Cursor   string          `json:"cursor,omitzero"`
	Cwd      string          `json:"cwd,omitzero"`
	Meta     json.RawMessage `json:"_meta,omitzero"`
}

// ListSessionsResponse is the protocol's type of this name.
type ListSessionsResponse struct {
	NextCursor string          `json:"nextCursor,omitzero"`
	Sessions   []SessionInfo   `json:"sessions"`
	Meta       json.RawMessage `json:"_meta,omitzero"`
}

// LoadSessionRequest is the protocol's type of this name.
type LoadSessionRequest struct {
	AdditionalDirectories []string        `json:"additionalDirectories,omitzero"`
	Cwd                   string          `json:"cwd"`
	McpServers            []McpServer     `json:"mcpServers"`
	SessionID             string          `json:"sessionId"`
	SystemPrompt          *SystemPrompt   `json:"systemPrompt,omitzero"`
	Meta                  json.RawMessage `json:"_meta,omitzero"`
}

// LoadSessionResponse is the protocol's type of this name.
type LoadSessionResponse struct {
	ConfigOptions []SessionConfigOption `json:"configOptions,omitzero"`
	Modes         *SessionModeState     `json:"modes,omitzero"`
	Meta          json.RawMessage       `json:"_meta,omitzero"`
}

// NewSessionRequest is the protocol's type of this name.
type NewSessionRequest struct {
	AdditionalDirectories []string        `json:"additionalDirectories,omitzero"`
	Cwd                   string          `json:"cwd"`
	McpServers            []McpServer     `json:"mcpServers"`
	SystemPrompt          *SystemPrompt   `json:"systemPrompt,omitzero"`
	Meta                  json.RawMessage `json:"_meta,omitzero"`
}

// NewSessionResponse is the protocol's type of this name.
type NewSessionResponse struct {
	ConfigOptions []SessionConfigOption `json:"configOptions,omitzero"`
	Modes         *SessionModeState     `json:"modes,omitzero"`
	SessionID     string                `json:"sessionId"`
	Meta          json.RawMessage       `json:"_meta,omitzero"`
}

// Notice is the protocol's type of this name.
type Notice struct {
	Description string          `json:"description,omitzero"`
	Severity    string          `json:"severity"`
	Title       string          `json:"title"`
	Meta        json.RawMessage `json:"_meta,omitzero"`
}

// Plan is the protocol's type of this name.
type Plan struct {
	Entries []PlanEntry     `json:"entries"`
	Meta    json.RawMessage `json:"_meta,omitzero"`
}

// PromptRequest is the protocol's type of this name.
type PromptRequest struct {
	Prompt    []ContentBlock  `json:"prompt"`
	SessionID string          `json:"sessionId"`
	Meta      json.RawMessage `json:"_meta,omitzero"`
}

// PromptResponse is the protocol's type of this name.
type PromptResponse struct {
	StopReason string          `json:"stopReason"`
	Usage      *Usage          `json:"usage,omitzero"`
	Meta       json.RawMessage `json:"_meta,omitzero"`
}

// ReadTextFileRequest is the protocol's type of this name.
type ReadTextFileRequest struct {
	Limit     *int64          `json:"limit,omitzero"`
	Line      *int64          `json:"line,omitzero"`
	Path      string          `json:"path"`
	SessionID string          `json:"sessionId"`
	Meta      json.RawMessage `json:"_meta,omitzero"`
}

// ReadTextFileResponse is the protocol's type of this name.
type ReadTextFileResponse struct {
	Content string          `json:"content"`
	Meta    json.RawMessage `json:"_meta,omitzero"`
}

// RequestPermissionRequest is the protocol's type of this name.
type RequestPermissionRequest struct {
	Options   []PermissionOption `json:"options"`
	SessionID string             `json:"sessionId"`
	ToolCall  ToolCallUpdate     `json:"toolCall"`
	Meta      json.RawMessage    `json:"_meta,omitzero"`
}

// RequestPermissionResponse is the protocol's type of this name.
type RequestPermissionResponse struct {
	Outcome RequestPermissionOutcome `json:"outcome"`
	Meta    json.RawMessage          `json:"_meta,omitzero"`
}

// ResumeSessionRequest is the protocol's type of this name.
type ResumeSessionRequest struct {
	AdditionalDirectories []string        `json:"additionalDirectories,omitzero"`
	Cwd                   string          `json:"cwd"`
	McpServers            []McpServer     `json:"mcpServers,omitzero"`
	SessionID             string          `json:"sessionId"`
	SystemPrompt          *SystemPrompt   `json:"systemPrompt,omitzero"`
	Meta                  json.RawMessage `json:"_meta,omitzero"`
}

// SessionInfoUpdate is the protocol's type of this name.
type SessionInfoUpdate struct {
	Title     string          `json:"title,omitzero"`
	UpdatedAt string          `json:"updatedAt,omitzero"`
	Meta      json.RawMessage `json:"_meta,omitzero"`
}

// SessionNotification is the protocol's type of this name.
type SessionNotification struct {
	SessionID string          `json:"sessionId"`
	Update    json.RawMessage `json:"update"`
	Meta      json.RawMessage `json:"_meta,omitzero"`
}

// SetSessionConfigOptionRequest is the protocol's type of this name.
type SetSessionConfigOptionRequest struct {
	ConfigID  string          `json:"configId"`
	SessionID string          `json:"sessionId"`
	Type      string          `json:"type,omitzero"`
	Value     json.RawMessage `json:"value,omitzero"`
	Meta      json.RawMessage `json:"_meta,omitzero"`
}

const (
	SetSessionConfigOptionRequestBoolean = "boolean"
)

// SetSessionConfigOptionResponse is the protocol's type of this name.
type SetSessionConfigOptionResponse struct {
	ConfigOptions []SessionConfigOption `json:"configOptions"`
	Meta          json.RawMessage       `json:"_meta,omitzero"`
}

// SetSessionModeRequest is the protocol's type of this name.
type SetSessionModeRequest struct {
	ModeID    string          `json:"modeId"`
	SessionID string          `json:"sessionId"`
	Meta      json.RawMessage `json:"_meta,omitzero"`
}

// TerminalOutputRequest is the protocol's type of this name.
type TerminalOutputRequest struct {
	SessionID  string          `json:"sessionId"`
	TerminalID string          `json:"terminalId"`
	Meta       json.RawMessage `json:"_meta,omitzero"`
}

// TerminalOutputResponse is the protocol's type of this name.
type TerminalOutputResponse struct {
	ExitStatus *TerminalExitStatus `json:"exitStatus,omitzero"`
	Output     string              `json:"output"`
	Truncated  bool                `json:"truncated"`
	Meta       json.RawMessage     `json:"_meta,omitzero"`
}

// ToolCall is the protocol's type of this name.
type ToolCall struct {
	Content    []ToolCallContent  `json:"content,omitzero"`
	Kind       string             `json:"kind,omitzero"`
	Locations  []ToolCallLocation `json:"locations,omitzero"`
	Name       string             `json:"name,omitzero"`
	RawInput   json.RawMessage    `json:"rawInput,omitzero"`
	RawOutput  json.RawMessage    `json:"rawOutput,omitzero"`
	Status     string             `json:"status,omitzero"`
	Title      string             `json:"title"`
	ToolCallID string             `json:"toolCallId"`
	Meta       json.RawMessage    `json:"_meta,omitzero"`
}

// ToolCallUpdate is the protocol's type of this name.
type ToolCallUpdate struct {
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

// UsageUpdate is the protocol's type of this name.
type UsageUpdate struct {
	Cost *Cost           `json:"cost,omitzero"`
	Size int64           `json:"size"`
	Used int64           `json:"used"`
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// WaitForTerminalExitResponse is the protocol's type of this name.
type WaitForTerminalExitResponse struct {
	ExitCode *int64          `json:"exitCode,omitzero"`
	Signal   string          `json:"signal,omitzero"`
	Meta     json.RawMessage `json:"_meta,omitzero"`
}

// WriteTextFileRequest is the protocol's type of this name.
type WriteTextFileRequest struct {
	Content   string          `json:"content"`
	Path      string          `json:"path"`
	SessionID string          `json:"sessionId"`
	Meta      json.RawMessage `json:"_meta,omitzero"`
}

// AvailableCommandInput is the protocol's type of this name.
type AvailableCommandInput struct {
	Hint string          `json:"hint,omitzero"`
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// AvailableCommand is the protocol's type of this name.
type AvailableCommand struct {
	Description string                 `json:"description"`
	Input       *AvailableCommandInput `json:"input,omitzero"`
	Name        string                 `json:"name"`
	Meta        json.RawMessage        `json:"_meta,omitzero"`
}

const (
	CompactionStatusInProgress = "in_progress"
	CompactionStatusCompleted  = "completed"
	CompactionStatusFailed     = "failed"
	CompactionStatusCancelled  = "cancelled"
)

const (
	RoleAssistant = "assistant"
	RoleUser      = "user"
)

// Annotations is the protocol's type of this name.
type Annotations struct {
	Audience     []string        `json:"audience,omitzero"`
	LastModified string          `json:"lastModified,omitzero"`
	Priority     *float64        `json:"priority,omitzero"`
	Meta         json.RawMessage `json:"_meta,omitzero"`
}

// EmbeddedResourceResource is the protocol's type of this name.
type EmbeddedResourceResource struct {
	Blob     string          `json:"blob,omitzero"`
	MimeType string          `json:"mimeType,omitzero"`
	Text     string          `json:"text,omitzero"`
	URI      string          `json:"uri,omitzero"`
	Meta     json.RawMessage `json:"_meta,omitzero"`
}

// ContentBlock is the protocol's type of this name.
type ContentBlock struct {
	Annotations *Annotations             `json:"annotations,omitzero"`
	Data        string                   `json:"data,omitzero"`
	Description string                   `json:"description,omitzero"`
	MimeType    string                   `json:"mimeType,omitzero"`
	Name        string                   `json:"name,omitzero"`
	Resource    EmbeddedResourceResource `json:"resource,omitzero"`
	Size        *int64                   `json:"size,omitzero"`
	Text        string                   `json:"text,omitzero"`
	Title       string                   `json:"title,omitzero"`
	Type        string                   `json:"type,omitzero"`
	URI         string                   `json:"uri,omitzero"`
	Meta        json.RawMessage          `json:"_meta,omitzero"`
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
	SessionConfigOptionCategoryMode         = "mode"
	SessionConfigOptionCategoryModel        = "model"
	SessionConfigOptionCategoryModelConfig  = "model_config"
	SessionConfigOptionCategoryThoughtLevel = "thought_level"
)

// SessionConfigSelectOptionsItem is the protocol's type of this name.
type SessionConfigSelectOptionsItem struct {
	Description string                      `json:"description,omitzero"`
	Group       string                      `json:"group,omitzero"`
	Name        string                      `json:"name,omitzero"`
	Options     []SessionConfigSelectOption `json:"options,omitzero"`
	Value       string                      `json:"value,omitzero"`
	Meta        json.RawMessage             `json:"_meta,omitzero"`
}

// SessionConfigOption is the protocol's type of this name.
type SessionConfigOption struct {
	Category     string                           `json:"category,omitzero"`
	CurrentValue json.RawMessage                  `json:"currentValue,omitzero"`
	Description  string                           `json:"description,omitzero"`
	ID           string                           `json:"id"`
	Name         string                           `json:"name"`
	Options      []SessionConfigSelectOptionsItem `json:"options,omitzero"`
	Type         string                           `json:"type,omitzero"`
	Meta         json.RawMessage                  `json:"_meta,omitzero"`
}

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
	StringFormatEmail    = "email"
	StringFormatURI      = "uri"
	StringFormatDate     = "date"
	StringFormatDateTime = "date-time"
)

// EnumOption is the protocol's type of this name.
type EnumOption struct {
	Const       string          `json:"const"`
	Description string          `json:"description,omitzero"`
	Title       string          `json:"title"`
	Meta        json.RawMessage `json:"_meta,omitzero"`
}

// MultiSelectItems is the protocol's type of this name.
type MultiSelectItems struct {
	AnyOf []EnumOption    `json:"anyOf,omitzero"`
	Enum  []string        `json:"enum,omitzero"`
	Type  string          `json:"type,omitzero"`
	Meta  json.RawMessage `json:"_meta,omitzero"`
}

const (
	MultiSelectItemsString = "string"
)

// ElicitationPropertySchema is the protocol's type of this name.
type ElicitationPropertySchema struct {
	Default     json.RawMessage  `json:"default,omitzero"`
	Description string           `json:"description,omitzero"`
	Enum        []string         `json:"enum,omitzero"`
	Format      string           `json:"format,omitzero"`
	Items       MultiSelectItems `json:"items,omitzero"`
	MaxItems    *int64           `json:"maxItems,omitzero"`
	MaxLength   *int64           `json:"maxLength,omitzero"`
	Maximum     json.RawMessage  `json:"maximum,omitzero"`
	MinItems    *int64           `json:"minItems,omitzero"`
	MinLength   *int64           `json:"minLength,omitzero"`
	Minimum     json.RawMessage  `json:"minimum,omitzero"`
	OneOf       []EnumOption     `json:"oneOf,omitzero"`
	Pattern     string           `json:"pattern,omitzero"`
	Title       string           `json:"title,omitzero"`
	Type        string           `json:"type,omitzero"`
	Meta        json.RawMessage  `json:"_meta,omitzero"`
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

// ElicitationSchema is the protocol's type of this name.
type ElicitationSchema struct {
	Description string                               `json:"description,omitzero"`
	Properties  map[string]ElicitationPropertySchema `json:"properties,omitzero"`
	Required    []string                             `json:"required,omitzero"`
	Title       string                               `json:"title,omitzero"`
	Type        string                               `json:"type,omitzero"`
	Meta        json.RawMessage                      `json:"_meta,omitzero"`
}

// EnvVariable is the protocol's type of this name.
type EnvVariable struct {
	Name  string          `json:"name"`
	Value string          `json:"value"`
	Meta  json.RawMessage `json:"_meta,omitzero"`
}

// HttpHeader is the protocol's type of this name.
type HttpHeader struct {
	Name  string          `json:"name"`
	Value string          `json:"value"`
	Meta  json.RawMessage `json:"_meta,omitzero"`
}

// McpServer is the protocol's type of this name.
type McpServer struct {
	Args     []string        `json:"args,omitzero"`
	Command  string          `json:"command,omitzero"`
	Env      []EnvVariable   `json:"env,omitzero"`
	Headers  []HttpHeader    `json:"headers,omitzero"`
	Name     string          `json:"name,omitzero"`
	ServerID string          `json:"serverId,omitzero"`
	Type     string          `json:"type,omitzero"`
	URL      string          `json:"url,omitzero"`
	Meta     json.RawMessage `json:"_meta,omitzero"`
}

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
	SystemPromptModeAppend   = "append"
	SystemPromptModeOverride = "override"
)

// SystemPrompt is the protocol's type of this name.
type SystemPrompt struct {
	Content []ContentBlock  `json:"content"`
	Mode    string          `json:"mode"`
	Meta    json.RawMessage `json:"_meta,omitzero"`
}

// AuthCapabilities is the protocol's type of this name.
type AuthCapabilities struct {
	Terminal bool            `json:"terminal,omitzero"`
	Meta     json.RawMessage `json:"_meta,omitzero"`
}

// ElicitationFormCapabilities is the protocol's type of this name.
type ElicitationFormCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// ElicitationUrlCapabilities is the protocol's type of this name.
type ElicitationUrlCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// ElicitationCapabilities is the protocol's type of this name.
type ElicitationCapabilities struct {
	Form *ElicitationFormCapabilities `json:"form,omitzero"`
	URL  *ElicitationUrlCapabilities  `json:"url,omitzero"`
	Meta json.RawMessage              `json:"_meta,omitzero"`
}

// FileSystemCapabilities is the protocol's type of this name.
type FileSystemCapabilities struct {
	ReadTextFile  bool            `json:"readTextFile,omitzero"`
	WriteTextFile bool            `json:"writeTextFile,omitzero"`
	Meta          json.RawMessage `json:"_meta,omitzero"`
}

// PlanCapabilities is the protocol's type of this name.
type PlanCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// CompactionCapabilities is the protocol's type of this name.
type CompactionCapabilities struct {
}

// BooleanConfigOptionCapabilities is the protocol's type of this name.
type BooleanConfigOptionCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionConfigOptionsCapabilities is the protocol's type of this name.
type SessionConfigOptionsCapabilities struct {
	Boolean *BooleanConfigOptionCapabilities `json:"boolean,omitzero"`
	Meta    json.RawMessage                  `json:"_meta,omitzero"`
}

// NoticeCapabilities is the protocol's type of this name.
type NoticeCapabilities struct {
}

// ClientSessionCapabilities is the protocol's type of this name.
type ClientSessionCapabilities struct {
	Compaction    *CompactionCapabilities           `json:"compaction,omitzero"`
	ConfigOptions *SessionConfigOptionsCapabilities `json:"configOptions,omitzero"`
	Notices       *NoticeCapabilities               `json:"notices,omitzero"`
	Meta          json.RawMessage                   `json:"_meta,omitzero"`
}

// SubagentCapabilities is the protocol's type of this name.
type SubagentCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// ClientCapabilities is the protocol's type of this name.
type ClientCapabilities struct {
	Auth        AuthCapabilities           `json:"auth,omitzero"`
	Elicitation *ElicitationCapabilities   `json:"elicitation,omitzero"`
	Fs          FileSystemCapabilities     `json:"fs,omitzero"`
	Plan        *PlanCapabilities          `json:"plan,omitzero"`
	Session     *ClientSessionCapabilities `json:"session,omitzero"`
	Subagents   *SubagentCapabilities      `json:"subagents,omitzero"`
	Terminal    bool                       `json:"terminal,omitzero"`
	Meta        json.RawMessage            `json:"_meta,omitzero"`
}

// Implementation is the protocol's type of this name.
type Implementation struct {
	Name    string          `json:"name"`
	Title   string          `json:"title,omitzero"`
	Version string          `json:"version"`
	Meta    json.RawMessage `json:"_meta,omitzero"`
}

// LogoutCapabilities is the protocol's type of this name.
type LogoutCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// AuthStatusCapabilities is the protocol's type of this name.
type AuthStatusCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// AgentAuthCapabilities is the protocol's type of this name.
type AgentAuthCapabilities struct {
	Logout *LogoutCapabilities     `json:"logout,omitzero"`
	Status *AuthStatusCapabilities `json:"status,omitzero"`
	Meta   json.RawMessage         `json:"_meta,omitzero"`
}

// McpCapabilities is the protocol's type of this name.
type McpCapabilities struct {
	Acp  bool            `json:"acp,omitzero"`
	HTTP bool            `json:"http,omitzero"`
	Sse  bool            `json:"sse,omitzero"`
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// PromptCapabilities is the protocol's type of this name.
type PromptCapabilities struct {
	Audio           bool            `json:"audio,omitzero"`
	EmbeddedContext bool            `json:"embeddedContext,omitzero"`
	Image           bool            `json:"image,omitzero"`
	Meta            json.RawMessage `json:"_meta,omitzero"`
}

// ProvidersCapabilities is the protocol's type of this name.
type ProvidersCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionAdditionalDirectoriesCapabilities is the protocol's type of this name.
type SessionAdditionalDirectoriesCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionArchiveCapabilities is the protocol's type of this name.
type SessionArchiveCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionCloseCapabilities is the protocol's type of this name.
type SessionCloseCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionDeleteCapabilities is the protocol's type of this name.
type SessionDeleteCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionForkCapabilities is the protocol's type of this name.
type SessionForkCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionListCapabilities is the protocol's type of this name.
type SessionListCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionResumeCapabilities is the protocol's type of this name.
type SessionResumeCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionStatusCapabilities is the protocol's type of this name.
type SessionStatusCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionSystemPromptOverrideCapabilities is the protocol's type of this name.
type SessionSystemPromptOverrideCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionSystemPromptModeCapabilities is the protocol's type of this name.
type SessionSystemPromptModeCapabilities struct {
	Override *SessionSystemPromptOverrideCapabilities `json:"override,omitzero"`
	Meta     json.RawMessage                          `json:"_meta,omitzero"`
}

// SessionSystemPromptCapabilities is the protocol's type of this name.
type SessionSystemPromptCapabilities struct {
	Mode *SessionSystemPromptModeCapabilities `json:"mode,omitzero"`
	Meta json.RawMessage                      `json:"_meta,omitzero"`
}

// SessionTitleCapabilities is the protocol's type of this name.
type SessionTitleCapabilities struct {
	Meta json.RawMessage `json:"_meta,omitzero"`
}

// SessionCapabilities is the protocol's type of this name.
type SessionCapabilities struct {
	AdditionalDirectories *SessionAdditionalDirectoriesCapabilities `json:"additionalDirectories,omitzero"`
	Archive               *SessionArchiveCapabilities               `json:"archive,omitzero"`
	Close                 *SessionCloseCapabilities                 `json:"close,omitzero"`
	Delete                *SessionDeleteCapabilities                `json:"delete,omitzero"`
	Fork                  *SessionForkCapabilities                  `json:"fork,omitzero"`
	List                  *SessionListCapabilities                  `json:"list,omitzero"`
	Resume                *SessionResumeCapabilities                `json:"resume,omitzero"`
	Status                *SessionStatusCapabilities                `json:"status,omitzero"`
	SystemPrompt          *SessionSystemPromptCapabilities          `json:"systemPrompt,omitzero"`
	Title                 *SessionTitleCapabilities                 `json:"title,omitzero"`
	Meta                  json.RawMessage                           `json:"_meta,omitzero"`
}

// AgentCapabilities is the protocol's type of this name.
type AgentCapabilities struct {
	Auth                AgentAuthCapabilities  `json:"auth,omitzero"`
	LoadSession         bool                   `json:"loadSession,omitzero"`
	McpCapabilities     McpCapabilities        `json:"mcpCapabilities,omitzero"`
	PromptCapabilities  PromptCapabilities     `json:"promptCapabilities,omitzero"`
	Providers           *ProvidersCapabilities `json:"providers,omitzero"`
	SessionCapabilities SessionCapabilities    `json:"sessionCapabilities,omitzero"`
	Meta                json.RawMessage        `json:"_meta,omitzero"`
}

// AuthMethod is the protocol's type of this name.
type AuthMethod struct {
	Args        []string          `json:"args,omitzero"`
	Description string            `json:"description,omitzero"`
	Env         map[string]string `json:"env,omitzero"`
	ID          string            `json:"id,omitzero"`
	Name        string            `json:"name,omitzero"`
	Type        string            `json:"type,omitzero"`
	Meta        json.RawMessage   `json:"_meta,omitzero"`
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
	SessionArchiveFilterExclude = "exclude"
	SessionArchiveFilterInclude = "include"
	SessionArchiveFilterOnly    = "only"
)

// SessionInfo is the protocol's type of this name.
type SessionInfo struct {
	AdditionalDirectories []string        `json:"additionalDirectories,omitzero"`
	Archived              bool            `json:"archived,omitzero"`
	Cwd                   string          `json:"cwd"`
	SessionID             string          `json:"sessionId"`
	Title                 string          `json:"title,omitzero"`
	UpdatedAt             string          `json:"updatedAt,omitzero"`
	Meta                  json.RawMessage `json:"_meta,omitzero"`
}

// SessionMode is the protocol's type of this name.
type SessionMode struct {
	Description string          `json:"description,omitzero"`
	ID          string          `json:"id"`
	Name        string          `json:"name"`
	Meta        json.RawMessage `json:"_meta,omitzero"`
}

// SessionModeState is the protocol's type of this name.
type SessionModeState struct {
	AvailableModes []SessionMode   `json:"availableModes"`
	CurrentModeID  string          `json:"currentModeId"`
	Meta           json.RawMessage `json:"_meta,omitzero"`
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

// PlanEntry is the protocol's type of this name.
type PlanEntry struct {
	Content  string          `json:"content"`
	Priority string          `json:"priority"`
	Status   string          `json:"status"`
	Meta     json.RawMessage `json:"_meta,omitzero"`
}

const (
	StopReasonEndTurn         = "end_turn"
	StopReasonMaxTokens       = "max_tokens"
	StopReasonMaxTurnRequests = "max_turn_requests"
	StopReasonRefusal         = "refusal"
	StopReasonCancelled       = "cancelled"
)

// Usage is the protocol's type of this name.
type Usage struct {
	CachedReadTokens  *int64          `json:"cachedReadTokens,omitzero"`
	CachedWriteTokens *int64          `json:"cachedWriteTokens,omitzero"`
	InputTokens       int64           `json:"inputTokens"`
	OutputTokens      int64           `json:"outputTokens"`
	ThoughtTokens     *int64          `json:"thoughtTokens,omitzero"`
	TotalTokens       int64           `json:"totalTokens"`
	Meta              json.RawMessage `json:"_meta,omitzero"`
}

const (
	PermissionOptionKindAllowOnce    = "allow_once"
	PermissionOptionKindAllowAlways  = "allow_always"
	PermissionOptionKindRejectOnce   = "reject_once"
	PermissionOptionKindRejectAlways = "reject_always"
)

// PermissionOption is the protocol's type of this name.
type PermissionOption struct {
	Kind     string          `json:"kind"`
	Name     string          `json:"name"`
	OptionID string          `json:"optionId"`
	Meta     json.RawMessage `json:"_meta,omitzero"`
}

// ToolCallContent is the protocol's type of this name.
type ToolCallContent struct {
	Content    ContentBlock    `json:"content,omitzero"`
	NewText    string          `json:"newText,omitzero"`
	OldText    string          `json:"oldText,omitzero"`
	Path       string          `json:"path,omitzero"`
	TerminalID string          `json:"terminalId,omitzero"`
	Type       string          `json:"type,omitzero"`
	Meta       json.RawMessage `json:"_meta,omitzero"`
}

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

// ToolCallLocation is the protocol's type of this name.
type ToolCallLocation struct {
	Line *int64          `json:"line,omitzero"`
	Path string          `json:"path"`
	Meta json.RawMessage `json:"_meta,omitzero"`
}

const (
	ToolCallStatusPending    = "pending"
	ToolCallStatusInProgress = "in_progress"
	ToolCallStatusCompleted  = "completed"
	ToolCallStatusFailed     = "failed"
)

// RequestPermissionOutcome is the protocol's type of this name.
type RequestPermissionOutcome struct {
	OptionID string          `json:"optionId,omitzero"`
	Outcome  string          `json:"outcome,omitzero"`
	Meta     json.RawMessage `json:"_meta,omitzero"`
}

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

// TerminalExitStatus is the protocol's type of this name.
type TerminalExitStatus struct {
	ExitCode *int64          `json:"exitCode,omitzero"`
	Signal   string          `json:"signal,omitzero"`
	Meta     json.RawMessage `json:"_meta,omitzero"`
}

// Cost is the protocol's type of this name.
type Cost struct {
	Amount   float64         `json:"amount"`
	Currency string          `json:"currency"`
	Meta     json.RawMessage `json:"_meta,omitzero"`
}

// SessionConfigSelectOption is the protocol's type of this name.
type SessionConfigSelectOption struct {
	Description string          `json:"description,omitzero"`
	Name        string          `json:"name"`
	Value       string          `json:"value"`
	Meta        json.RawMessage `json:"_meta,omitzero"`
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
