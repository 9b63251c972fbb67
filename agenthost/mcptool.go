package agenthost

import (
	"cmp"
	"encoding/json"
	"fmt"

	"ahprelay/ahp"
)

// A contributor names where a tool comes from.
type contributor struct {
	Kind            string `json:"kind"`
	CustomizationID string `json:"customizationId"`
}

// UseMCP calls a tool of the session's MCP servers as a tool call of this turn. If the
// server requires a token, the call waits until a client has authenticated. UseMCP
// returns false if the turn has ended.
func (t *Turn) UseMCP(name, input string) (ok bool, err error) {
	const id = "tc-mcp"
	input = cmp.Or(input, "{}")
	h := t.host
	h.mu.Lock()
	m, tool, err := t.chat.session.mcpTool(name)
	if err == nil && !ahp.IsObject(json.RawMessage(input)) || !json.Valid([]byte(input)) {
		err = fmt.Errorf("not a JSON object: %s", input)
	}
	h.mu.Unlock()
	if err != nil {
		return true, err
	}
	call := mcpUse{t, id, m, tool}
	t.update(func() {
		t.emitLocked(ToolStartAction{Type: "chat/toolCallStart", TurnID: t.turn.ID, ToolCallID: id, ToolName: tool.Name, DisplayName: tool.display(),
			Contributor: &contributor{"mcp", m.id}, Meta: tool.ui()})
		t.emitLocked(ToolReadyAction{Type: "chat/toolCallReady", TurnID: t.turn.ID, ToolCallID: id,
			InvocationMessage: "Running " + tool.display(), ToolInput: encode(input), Confirmed: "not-needed"})
	})
	return call.awaitScope(tool.scope()) && call.finish(input), nil
}

// An mcpUse is an agent's use of an MCP tool.
type mcpUse struct {
	*Turn
	toolCallID string
	server     *mcpServer
	tool       mcpTool
}

func (t mcpTool) display() string {
	return cmp.Or(t.Title, t.Name)
}

// ui returns the part of the tool's _meta that is for MCP Apps.
func (t mcpTool) ui() json.RawMessage {
	if t.Meta["ui"] == nil {
		return nil
	}
	return encode(message{"ui": t.Meta["ui"]})
}

// awaitScope waits until the server is available and the scope is granted. It returns
// false if the turn has ended. While it waits, the session needs input.
func (u mcpUse) awaitScope(scope string) bool {
	h, m := u.host, u.server
	for {
		h.mu.Lock()
		if m.auth == nil && !m.grants(scope) {
			m.requireScopeLocked(scope)
		}
		resolved := m.resolved
		u.waitForLocked(resolved != nil)
		h.mu.Unlock()
		if resolved == nil {
			return u.ctx.Err() == nil
		}
		select {
		case <-resolved:
		case <-u.ctx.Done():
			return false
		}
	}
}

// waitForLocked records whether the tool call waits for a token.
func (u mcpUse) waitForLocked(waits bool) {
	if u.ended {
		return
	}
	if tc := u.turn.tool(u.turn.ID, u.toolCallID); tc != nil && tc.waits != waits {
		tc.waits = waits
		u.chat.updateStatusLocked()
		u.chat.session.updateWaitingLocked()
	}
}

// finish calls the tool and completes the tool call. It returns false if the turn has
// ended.
func (u mcpUse) finish(input string) bool {
	result, err := u.ask(input)
	end := ToolResult{PastTenseMessage: "Ran " + u.tool.display(), Content: []any{}}
	var answer struct {
		Content           []json.RawMessage `json:"content"`
		StructuredContent json.RawMessage   `json:"structuredContent"`
		IsError           bool              `json:"isError"`
	}
	if err == nil {
		err = json.Unmarshal(result, &answer)
	}
	if err != nil {
		end.Error = &ToolError{err.Error()}
	} else {
		end.Success, end.StructuredContent = !answer.IsError, answer.StructuredContent
		for _, block := range answer.Content {
			end.Content = append(end.Content, block)
		}
	}
	return u.Publish(ToolCompleteAction{Type: "chat/toolCallComplete", TurnID: u.turn.ID, ToolCallID: u.toolCallID, Result: end})
}

// ask calls the tool, publishes its progress and returns the server's result. The end
// of the turn cancels the call.
func (u mcpUse) ask(input string) (json.RawMessage, error) {
	h, m := u.host, u.server
	params := encode(map[string]any{"name": u.tool.Name, "arguments": json.RawMessage(input), "_meta": map[string]int{"progressToken": 0}})
	h.mu.Lock()
	if !m.isReady() {
		h.mu.Unlock()
		return nil, errMCPNotReady
	}
	call, err := m.up.startCallLocked("tools/call", params, func(told message) {
		var text string
		_ = json.Unmarshal(told["message"], &text) // it may be absent
		if !u.ended && !h.closed {
			u.emitLocked(ToolContentAction{"chat/toolCallContentChanged", u.turn.ID, u.toolCallID, []any{TextContent{"text", text}}})
		}
	})
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	result, err := call.wait(u.ctx.Done())
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(m.up.progress, call.id)
	return result, err
}
