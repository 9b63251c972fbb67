package acpdoor

import (
	"encoding/json"
	"testing"
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
