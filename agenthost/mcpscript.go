package agenthost

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"ahprelay/ahp"
)

// A contributor names a tool's origin.
type contributor struct {
	Kind            string `json:"kind"`
	CustomizationID string `json:"customizationId"`
}

// appPattern matches other wordings of a request for an app.
var appPattern = regexp.MustCompile(`(?i)^\s*(please )?((show|open|give) )?(me )?(an? |the )?app\b.{0,20}$`)

// An mcpScript drives MCP servers in a turn.
type mcpScript struct{ *script }

// driveMCP runs the prompt "mcp …".
func (s mcpScript) driveMCP(words string) {
	verb, rest, _ := strings.Cut(strings.TrimSpace(words), " ")
	rest = strings.TrimSpace(rest)
	switch verb {
	case "tool":
		name, input, _ := strings.Cut(rest, " ")
		s.callMCP(name, input)
	case "app":
		s.callMCP("show_board", rest)
	default:
		s.steerMCP(verb, strings.Fields(rest))
	}
}

// steerMCP changes the named server, or the first.
func (s mcpScript) steerMCP(verb string, args []string) {
	h, session := s.chat.session.host, s.chat.session.uri
	reason := ""
	if verb == "auth" && len(args) > 0 {
		reason, args = args[0], args[1:]
	}
	server := s.firstMCP()
	if len(args) > 0 {
		server = args[0]
	}
	var err error
	switch verb {
	case "auth":
		err = h.RequireMCPAuth(session, server, reason)
	case "restart":
		err = h.RestartMCP(session, server)
	case "hide", "show":
		err = h.HideMCP(session, server, verb == "hide")
	case "remove", "add":
		err = h.RemoveMCP(session, server, verb == "remove")
	default:
		err = fmt.Errorf("not a word about MCP: %s", verb)
	}
	if err != nil {
		s.failTurn(turnError{"mcp", err.Error()})
		return
	}
	s.say("Done: mcp " + verb + ".")
	s.complete()
}

func (s mcpScript) firstMCP() string {
	if len(s.chat.session.host.cfg.MCP) == 0 {
		return ""
	}
	return s.chat.session.host.cfg.MCP[0].Name
}

// callMCP makes the agent use an MCP tool. If the server needs a new token for it, the
// call waits until a client has authenticated.
func (s mcpScript) callMCP(name, input string) {
	const id = "tc-mcp"
	if input == "" {
		input = "{}"
	}
	h := s.chat.session.host
	h.mu.Lock()
	m, tool, err := s.chat.session.mcpTool(name)
	if err == nil && !ahp.IsObject(json.RawMessage(input)) || !json.Valid([]byte(input)) {
		err = fmt.Errorf("not a JSON object: %s", input)
	}
	if err != nil {
		h.mu.Unlock()
		s.failTurn(turnError{"mcp", err.Error()})
		return
	}
	s.emitLocked(toolStartAction{Type: "chat/toolCallStart", TurnID: s.turnID, ToolCallID: id, ToolName: tool.Name, DisplayName: tool.display(),
		Contributor: &contributor{"mcp", m.id}, Meta: tool.ui()})
	s.emitLocked(toolReadyAction{Type: "chat/toolCallReady", TurnID: s.turnID, ToolCallID: id,
		InvocationMessage: "Running " + tool.display(), ToolInput: inputText(input), Confirmed: "not-needed"})
	h.mu.Unlock()
	if !s.sleep(thinking) || !s.awaitScope(m, id, tool.scope()) {
		return
	}
	s.finishMCP(id, tool, m, input)
}

func (t mcpTool) display() string {
	if t.Title != "" {
		return t.Title
	}
	return t.Name
}

// ui returns the tool's _meta part for MCP Apps.
func (t mcpTool) ui() json.RawMessage {
	if t.Meta["ui"] == nil {
		return nil
	}
	return encode(message{"ui": t.Meta["ui"]})
}

// awaitScope returns true when the server is present and the scope is granted. The
// session needs input while it waits.
func (s mcpScript) awaitScope(m *mcpServer, toolCallID, scope string) bool {
	h := s.chat.session.host
	for {
		h.mu.Lock()
		if m.auth == nil && !m.grants(scope) {
			m.requireScopeLocked(scope)
		}
		resolved := m.resolved
		s.waitForLocked(toolCallID, resolved != nil)
		h.mu.Unlock()
		if resolved == nil {
			return true
		}
		select {
		case <-resolved:
		case <-s.stop:
			return false
		case <-h.done:
			return false
		}
	}
}

// waitForLocked records whether a tool call waits for a token.
func (s mcpScript) waitForLocked(toolCallID string, waits bool) {
	if s.chat.script != s.script || s.chat.active == nil {
		return
	}
	if tc := s.chat.active.tool(s.turnID, toolCallID); tc != nil && tc.waits != waits {
		tc.waits = waits
		s.chat.updateStatusLocked()
		s.chat.session.updateWaitingLocked()
	}
}

// finishMCP calls the tool and ends the turn.
func (s mcpScript) finishMCP(toolCallID string, tool mcpTool, m *mcpServer, input string) {
	result, err := s.askMCP(toolCallID, tool, m, input)
	end := toolResult{PastTenseMessage: "Ran " + tool.display(), Content: []any{}}
	var answer struct {
		Content           []json.RawMessage `json:"content"`
		StructuredContent json.RawMessage   `json:"structuredContent"`
		IsError           bool              `json:"isError"`
	}
	if err == nil {
		err = json.Unmarshal(result, &answer)
	}
	if err != nil {
		end.Error = &toolError{err.Error()}
	} else {
		end.Success, end.StructuredContent = !answer.IsError, answer.StructuredContent
		for _, block := range answer.Content {
			end.Content = append(end.Content, block)
		}
	}
	if !s.emit(toolCompleteAction{"chat/toolCallComplete", s.turnID, toolCallID, end}) {
		return
	}
	s.say("Done.")
	s.complete()
}

// askMCP calls the tool, publishes its progress and returns the server's result. The
// end of the turn cancels the call.
func (s mcpScript) askMCP(toolCallID string, tool mcpTool, m *mcpServer, input string) (json.RawMessage, error) {
	h := s.chat.session.host
	params := encode(map[string]any{"name": tool.Name, "arguments": json.RawMessage(input), "_meta": map[string]int{"progressToken": 0}})
	h.mu.Lock()
	if !m.isReady() {
		h.mu.Unlock()
		return nil, errMCPNotReady
	}
	call, err := m.up.startCallLocked("tools/call", params, func(told message) {
		var text string
		_ = json.Unmarshal(told["message"], &text) // it may be absent
		s.emitLocked(toolContentAction{"chat/toolCallContentChanged", s.turnID, toolCallID, []any{textContent{"text", text}}})
	})
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	stop := make(chan struct{})
	ended := make(chan struct{})
	defer close(ended)
	h.mu.Lock()
	h.goLocked(func() {
		defer close(stop)
		select {
		case <-s.stop:
		case <-h.done:
		case <-ended:
		}
	})
	h.mu.Unlock()
	result, err := call.wait(stop)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(m.up.progress, call.id)
	return result, err
}
