package acpagent

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"

	"ahprelay/internal/acp"
)

// A laterWriter adds a member that the client does not know to each object in the
// messages. A later version of the protocol may do the same.
type laterWriter struct{ out io.Writer }

func (w laterWriter) Write(lines []byte) (int, error) {
	for line := range bytes.Lines(lines) {
		var message map[string]any
		if err := json.Unmarshal(line, &message); err != nil {
			return 0, err
		}
		text, err := json.Marshal(later(message))
		if err == nil {
			_, err = w.out.Write(append(text, '\n'))
		}
		if err != nil {
			return 0, err
		}
	}
	return len(lines), nil
}

// free lists members whose content the protocol does not define, so laterWriter leaves
// them as they are.
var free = map[string]bool{"rawInput": true, "rawOutput": true, "properties": true, "env": true, "_meta": true}

func later(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = later(v[i])
		}
	case map[string]any:
		for name := range maps.Clone(v) {
			if !free[name] {
				v[name] = later(v[name])
			}
		}
		v["later"] = map[string]any{"more": []any{1, nil, "text"}}
	}
	return v
}

// later sends updates and requests of kinds that the client does not know. It returns a
// stop reason that the client does not know.
func (s *session) later(ctx context.Context) string {
	s.update(acp.UpdateAgentMessageChunk, acp.ContentChunk{Content: acp.ContentBlock{Type: "hologram", Data: "x"}})
	call := acp.ToolCallUpdate{ToolCallID: s.callID(), Title: "Later tool", Kind: "teleport", Status: "almost", Content: []acp.ToolCallContent{
		{Type: "smell"}, {Type: acp.ToolCallContentContent, Content: acp.ContentBlock{Type: "hologram"}}, {Type: acp.ToolCallContentContent, Content: text("known")},
	}}
	s.update(acp.UpdateToolCall, call)
	var result acp.RequestPermissionResponse
	err := s.agent.conn.Call(ctx, "session/request_permission", acp.RequestPermissionRequest{SessionID: s.id, ToolCall: call, Options: []acp.PermissionOption{
		{OptionID: "later", Name: "Allow later", Kind: "allow_later"}, {OptionID: "once", Name: "Yes, once", Kind: acp.PermissionOptionKindAllowOnce},
		{OptionID: "bypassPermissions", Name: "Yes, and bypass permissions", Kind: acp.PermissionOptionKindAllowAlways},
	}}, &result)
	s.say("%s %v", result.Outcome.OptionID, err)
	s.update(acp.UpdateToolCallUpdate, acp.ToolCallUpdate{ToolCallID: call.ToolCallID, Status: acp.ToolCallStatusCompleted})
	return "tired"
}
