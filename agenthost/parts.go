package agenthost

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"ahprelay/ahp"
)

// A markdownPart is a text or reasoning of the agent. chat/delta and chat/reasoning
// extend it.
type markdownPart struct {
	id      string
	thought bool
	content strings.Builder
}

func partID(n int) string { return fmt.Sprintf("md-%d", n) }

func newMarkdown(id, content string) *markdownPart { return newText(id, false, content) }

func newText(id string, thought bool, content string) *markdownPart {
	p := &markdownPart{id: id, thought: thought}
	p.content.WriteString(content)
	return p
}

// MarshalJSON implements [json.Marshaler].
func (p *markdownPart) MarshalJSON() ([]byte, error) {
	return encode(struct {
		Kind    string `json:"kind"`
		ID      string `json:"id"`
		Content string `json:"content"`
	}{p.kind(), p.id, p.content.String()}), nil
}

func (p *markdownPart) kind() string {
	if p.thought {
		return "reasoning"
	}
	return "markdown"
}

// An errorPart reports a turn's failure.
type errorPart struct {
	Kind      string    `json:"kind"`
	Error     TurnError `json:"error"`
	Resumable bool      `json:"resumable"`
}

// A TurnError is the error of a failed turn, with a type chosen by the agent.
type TurnError struct {
	ErrorType string `json:"errorType"`
	Message   string `json:"message"`
}

// Error implements error.
func (e *TurnError) Error() string { return e.Message }

// A toolPart is the agent's use of a tool.
type toolPart struct {
	Kind     string   `json:"kind"`
	ToolCall toolCall `json:"toolCall"`
}

type toolCall struct {
	Status            string          `json:"status"`
	ToolCallID        string          `json:"toolCallId"`
	ToolName          string          `json:"toolName"`
	DisplayName       string          `json:"displayName"`
	InvocationMessage string          `json:"invocationMessage,omitempty"`
	ToolInput         json.RawMessage `json:"toolInput,omitempty"`
	ConfirmationTitle string          `json:"confirmationTitle,omitempty"`
	Options           []ConfirmOption `json:"options,omitempty"`
	Risk              json.RawMessage `json:"riskAssessment,omitempty"`
	Edits             json.RawMessage `json:"edits,omitempty"`
	Editable          bool            `json:"editable,omitempty"`
	Confirmed         string          `json:"confirmed,omitempty"`
	SelectedOption    *ConfirmOption  `json:"selectedOption,omitempty"`
	Reason            string          `json:"reason,omitempty"`
	ReasonMessage     json.RawMessage `json:"reasonMessage,omitempty"`
	UserSuggestion    json.RawMessage `json:"userSuggestion,omitempty"`
	PastTenseMessage  string          `json:"pastTenseMessage,omitempty"`
	Content           []any           `json:"content,omitzero"`
	StructuredContent json.RawMessage `json:"structuredContent,omitempty"`
	Success           *bool           `json:"success,omitempty"`
	Error             *ToolError      `json:"error,omitempty"`
	Contributor       *contributor    `json:"contributor,omitempty"`
	Meta              json.RawMessage `json:"_meta,omitempty"`

	waits bool // the tool call waits for a token
}

// A ToolResult is a tool call's result.
type ToolResult struct {
	PastTenseMessage  string          `json:"pastTenseMessage"`
	Content           []any           `json:"content"`
	Success           bool            `json:"success"`
	StructuredContent json.RawMessage `json:"structuredContent,omitempty"`
	Error             *ToolError      `json:"error,omitempty"`
}

// A ToolError explains why a tool call has no result.
type ToolError struct {
	Message string `json:"message"`
}

// A ConfirmOption is an answer that a confirmation offers.
type ConfirmOption struct {
	ID    string `json:"id"`
	Label string `json:"label"`
	Kind  string `json:"kind"`
	Group int    `json:"group,omitempty"`
}

const (
	toolStreaming = "streaming"
	toolPending   = "pending-confirmation"
	toolRunning   = "running"
	toolCompleted = "completed"
	toolCancelled = "cancelled"
)

// TextContent is a text in a tool call.
type TextContent struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// TerminalContent is a terminal in a tool call.
type TerminalContent struct {
	Type     string `json:"type"`
	Resource string `json:"resource"`
	Title    string `json:"title"`
}

// reduce applies an action to the parts of an active turn.
func (t *turn) reduce(action any) {
	switch a := action.(type) {
	case PartAction:
		if a.TurnID == t.ID {
			t.ResponseParts = append(t.ResponseParts, a.Part)
		}
	case DeltaAction:
		if md := t.text(a.PartID); md != nil && a.TurnID == t.ID && md.thought == (a.Type == actionReasoning) {
			md.content.WriteString(a.Content)
		}
	case usageAction:
		if a.TurnID == t.ID {
			t.Usage = &a.Usage
		}
	case ToolStartAction:
		if a.TurnID == t.ID {
			t.ResponseParts = append(t.ResponseParts, &toolPart{"toolCall", toolCall{
				Status: toolStreaming, ToolCallID: a.ToolCallID, ToolName: a.ToolName, DisplayName: a.DisplayName,
				Contributor: a.Contributor, Meta: a.Meta,
			}})
		}
	case InputRequestedAction, inputCompletedAction, inputAnswerChangedAction:
		t.reduceQuestion(action)
	default:
		t.reduceTool(action)
	}
}

// text returns the text part with an id, or nil. It searches backward, because most
// actions extend the last text.
func (t *turn) text(id string) *markdownPart {
	for _, part := range slices.Backward(t.ResponseParts) {
		if md, ok := part.(*markdownPart); ok && md.id == id {
			return md
		}
	}
	return nil
}

// reduceTool applies an action to a tool call. Each action has its branch, with the
// states in which the action is valid.
func (t *turn) reduceTool(action any) {
	switch a := action.(type) {
	case ToolReadyAction:
		if tc := t.tool(a.TurnID, a.ToolCallID); tc != nil && tc.Status != toolCompleted && tc.Status != toolCancelled {
			tc.ready(a)
		}
	case toolConfirmedAction:
		if tc := t.tool(a.TurnID, a.ToolCallID); tc != nil && tc.Status == toolPending {
			tc.confirm(a)
		}
	case ToolContentAction:
		if tc := t.tool(a.TurnID, a.ToolCallID); tc != nil && tc.Status == toolRunning {
			tc.Content = a.Content
		}
	case ToolCompleteAction:
		if tc := t.tool(a.TurnID, a.ToolCallID); tc != nil && (tc.Status == toolRunning || tc.Status == toolPending) {
			if tc.Status == toolPending {
				tc.Confirmed = "not-needed" // the agent did not wait for an answer
			}
			tc.Status, tc.PastTenseMessage = toolCompleted, a.Result.PastTenseMessage
			tc.Content, tc.Success = a.Result.Content, &a.Result.Success
			tc.StructuredContent, tc.Error = a.Result.StructuredContent, a.Result.Error
			if a.Meta != nil {
				tc.Meta = a.Meta
			}
			tc.settle()
		}
	}
}

// ready applies a ready action. Members of later actions replace those of earlier
// ones.
func (tc *toolCall) ready(a ToolReadyAction) {
	tc.InvocationMessage, tc.Confirmed, tc.Editable = a.InvocationMessage, a.Confirmed, tc.Editable || a.Editable
	tc.SelectedOption, tc.Content = nil, nil
	tc.ConfirmationTitle = cmp.Or(a.ConfirmationTitle, tc.ConfirmationTitle)
	for _, m := range []struct{ to, from *json.RawMessage }{{&tc.ToolInput, &a.ToolInput}, {&tc.Risk, &a.Risk}, {&tc.Edits, &a.Edits}} {
		if *m.from != nil {
			*m.to = *m.from
		}
	}
	if a.Options != nil {
		tc.Options = a.Options
	}
	tc.Status = toolPending
	if a.Confirmed != "" {
		tc.settle()
		tc.Status = toolRunning
	}
}

// confirm applies the first answer to a confirmation.
func (tc *toolCall) confirm(a toolConfirmedAction) {
	if i := slices.IndexFunc(tc.Options, func(o ConfirmOption) bool { return o.ID == a.SelectedOptionID }); i >= 0 {
		tc.SelectedOption = &tc.Options[i]
	}
	tc.settle()
	if a.Meta != nil {
		tc.Meta = a.Meta
	}
	if !*a.Approved {
		tc.Status, tc.Reason, tc.ReasonMessage, tc.UserSuggestion = toolCancelled, a.Reason, a.ReasonMessage, a.UserSuggestion
		return
	}
	tc.Status, tc.Confirmed = toolRunning, a.Confirmed
	if a.EditedToolInput != nil && !ahp.IsObject(tc.ToolInput) { // input that is a reference is edited in the referenced resource
		tc.ToolInput = a.EditedToolInput
	}
}

// settle ends the wait for a confirmation.
func (tc *toolCall) settle() {
	tc.ConfirmationTitle, tc.Options = "", nil
	tc.Risk, tc.Edits, tc.Editable = nil, nil, false
}

func (t *turn) tool(turnID, toolCallID string) *toolCall {
	if turnID != t.ID {
		return nil
	}
	for _, tc := range t.tools() {
		if tc.ToolCallID == toolCallID {
			return tc
		}
	}
	return nil
}

func (t *turn) tools() []*toolCall {
	var tools []*toolCall
	for _, part := range t.ResponseParts {
		if tool, ok := part.(*toolPart); ok {
			tools = append(tools, &tool.ToolCall)
		}
	}
	return tools
}

// pending returns the tool calls waiting for a confirmation.
func (t *turn) pending() []*toolCall {
	return slices.DeleteFunc(t.tools(), func(tc *toolCall) bool { return tc.Status != toolPending })
}

// blocked returns the tool calls waiting for a token.
func (t *turn) blocked() []*toolCall {
	return slices.DeleteFunc(t.tools(), func(tc *toolCall) bool { return tc.Status != toolRunning || !tc.waits })
}

// cancelTools ends a turn's unfinished tool calls.
func (t *turn) cancelTools() {
	for _, tc := range t.tools() {
		if tc.Status != toolCompleted && tc.Status != toolCancelled {
			tc.Status, tc.Reason = toolCancelled, "skipped"
			tc.Confirmed, tc.SelectedOption, tc.Content = "", nil, nil
			tc.settle()
		}
	}
}

// An inputRequest is a confirmation, a token or an answer that a session needs from
// the user.
type inputRequest struct {
	ID       string          `json:"id"`
	Kind     string          `json:"kind"`
	Chat     string          `json:"chat"`
	TurnID   string          `json:"turnId"`
	ToolCall json.RawMessage `json:"toolCall,omitempty"`
	Request  map[string]any  `json:"request,omitempty"` // of a question
}

// updateWaitingLocked publishes changes in the session's input requests.
func (s *session) updateWaitingLocked() {
	var now []inputRequest
	for _, ch := range s.listed {
		t := ch.active
		if t == nil {
			continue
		}
		for _, tc := range t.pending() {
			now = append(now, ch.inputRequest("toolConfirmation", t, tc))
		}
		for _, tc := range t.blocked() {
			now = append(now, ch.inputRequest("toolAuthentication", t, tc))
		}
		for _, q := range t.questions() {
			request := maps.Clone(q.Request)
			delete(request, "answers") // a change of an answer does not ask again
			now = append(now, inputRequest{ID: fmt.Sprint("chatInput:", ch.uri, ":", request["id"]), Kind: "chatInput", Chat: ch.uri, TurnID: t.ID, Request: request})
		}
	}
	before := s.waiting
	s.waiting = now
	for _, r := range before {
		if !slices.ContainsFunc(now, func(n inputRequest) bool { return n.ID == r.ID }) {
			s.host.emitLocked(s.uri, inputRemovedAction{"session/inputNeededRemoved", r.ID})
		}
	}
	for _, r := range now {
		same := func(b inputRequest) bool {
			return b.ID == r.ID && (r.Kind != "toolConfirmation" || bytes.Equal(b.ToolCall, r.ToolCall))
		}
		if !slices.ContainsFunc(before, same) {
			s.host.emitLocked(s.uri, inputNeededAction{"session/inputNeededSet", r})
		}
	}
}

func (ch *chat) inputRequest(kind string, t *turn, tc *toolCall) inputRequest {
	return inputRequest{
		ID:       kind + ":" + ch.uri + ":" + t.ID + ":" + tc.ToolCallID,
		Kind:     kind,
		Chat:     ch.uri,
		TurnID:   t.ID,
		ToolCall: encode(tc),
	}
}
