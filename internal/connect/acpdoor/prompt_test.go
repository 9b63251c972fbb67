package acpdoor

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"ahprelay/internal/acp"
	"ahprelay/internal/connect/client"
)

// TestPromptAfterACancelGoesOn cancels a prompt, and sends a further one. Only the first must be cancelled, also if its
// cancellation reaches the host later.
func TestPromptAfterACancelGoesOn(t *testing.T) {
	d := &Door{closed: true, life: t.Context()}
	first, second := &prompt{turn: "1", sent: true}, &prompt{turn: "2", sent: true}
	s := &session{door: d, id: "s", prompts: []*prompt{first}}
	d.sessions = map[string]*session{"s": s}
	d.Notify("session/cancel", json.RawMessage(`{"sessionId":"s"}`))
	s.prompts = append(s.prompts, second)
	sendCancels(s)
	if !first.cancelled || second.cancelled {
		t.Errorf("the first prompt is cancelled: %v, the second: %v; want only the first", first.cancelled, second.cancelled)
	}
}

// TestCancelledPromptKeepsTheModelChoice prepares a message, and cancels its prompt before the message is sent. The history of the
// session, with another model in its last message, must not replace the user's choice then.
func TestCancelledPromptKeepsTheModelChoice(t *testing.T) {
	s := &session{door: &Door{life: t.Context()}}
	s.options.chooseModel("large")
	s.message(t.Context(), []acp.ContentBlock{{Type: acp.ContentBlockText, Text: "go on"}})
	s.options.read(nil, []client.Turn{{Message: client.Message{Model: &client.ModelChoice{ID: "small"}}}})
	if m := s.options.takeModel(); m == nil || m.ID != "large" {
		t.Errorf("the next message has the model %v; want large", m)
	}
}

// TestPromptBeforeTheHistoryGoesOn has the history of a session arrive after its editor has sent two prompts, and before their turns
// begin. The second prompt repeats a message of the history. Both prompts must stay open.
func TestPromptBeforeTheHistoryGoesOn(t *testing.T) {
	d := &Door{life: t.Context()}
	d.conn = acp.NewConn(strings.NewReader(""), io.Discard, d, acp.Limits{})
	s := &session{door: d, chat: "c", ready: true, prompts: []*prompt{{turn: "1", sent: true}, {queued: "2", text: "go on", sent: true}}}
	defer func() {
		if r := recover(); r != nil || len(s.prompts) != 2 {
			t.Errorf("after the history, %d prompts are open, and a prompt is answered: %v; want both open", len(s.prompts), r)
		}
	}()
	s.take(client.Action{Channel: "c", Raw: []byte(`{"type":"chat/turnsLoaded","turns":[{"id":"0","message":{"text":"go on"},"state":"complete","responseParts":[]}]}`)})
}
