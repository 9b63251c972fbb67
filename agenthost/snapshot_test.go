package agenthost

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// longChat returns the state of a chat with a number of stored turns.
func longChat(turns int) chatState {
	state := chatState{chatSummary: chatSummary{Resource: "ahp-chat:/1", Title: `"turns":[] <&>`}, Draft: json.RawMessage(`{"turns":[]}`)}
	for i := range turns {
		t := &turn{ID: fmt.Sprint("t", i), Message: userMessage("go", "user"), ResponseParts: []any{newMarkdown("md-1", strings.Repeat("An answer of ordinary length. ", 30))}, State: "complete"}
		state.Turns = append(state.Turns, &turn{ID: t.ID, raw: encode(t)})
	}
	return state
}

// TestJoinedStateIsTheEncodedState compares the state that is joined from stored turns
// with the encoder's output. Both must have the same bytes.
func TestJoinedStateIsTheEncodedState(t *testing.T) {
	for turns := range 3 {
		state := longChat(turns)
		if turns == 2 {
			state.Turns[1] = &turn{ID: "not stored", Message: userMessage("<go>", "user"), ResponseParts: []any{}}
		}
		got := &snapshot{Resource: "ahp-chat:/1", State: encodeState(state), FromSeq: 7}
		want := subscribeResult{Snapshot: &snapshot{Resource: "ahp-chat:/1", State: encode(state), FromSeq: 7}}
		if joined, encoded := resultFrame(json.RawMessage("1"), got.result()), resultFrame(json.RawMessage("1"), want); string(joined) != string(encoded) {
			t.Errorf("a chat with %d turns is\n%s\nwant\n%s", turns, joined, encoded)
		}
	}
}

// BenchmarkSnapshotOfStoredTurns measures the answer to a subscribe for a chat with
// 5,000 stored turns: joined as the host does it, and for comparison with the encoder.
func BenchmarkSnapshotOfStoredTurns(b *testing.B) {
	state := longChat(5000)
	b.Run("joined", func(b *testing.B) {
		for b.Loop() {
			resultFrame(json.RawMessage("1"), (&snapshot{Resource: "ahp-chat:/1", State: encodeState(state)}).result())
		}
	})
	b.Run("encoded", func(b *testing.B) {
		for b.Loop() {
			resultFrame(json.RawMessage("1"), subscribeResult{Snapshot: &snapshot{Resource: "ahp-chat:/1", State: encode(state)}})
		}
	})
}
