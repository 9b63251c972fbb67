package acpdoor

import (
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"testing"

	"ahprelay/internal/acp"
	"ahprelay/internal/connect/client"
)

// FuzzActions gives the door arbitrary actions and an arbitrary chat state from a host. The door
// must not panic.
func FuzzActions(f *testing.F) {
	const turn = `{"type":"chat/turnStarted","turnId":"t","message":{"text":"x","attachments":[{"label":"a","data":"eA=="}]}}`
	f.Add(turn, `{"type":"chat/responsePart","turnId":"t","part":{"kind":"markdown","id":"p","content":"x"}}`, `{"turns":[]}`)
	f.Add(turn, `{"type":"chat/toolCallReady","turnId":"t","toolCallId":"c","toolInput":"{}","edits":{"items":[{"after":{"uri":"file:///x","content":{"uri":"data:,x"}}}]}}`, `{"activeTurn":{"id":"t","responseParts":[{"kind":"toolCall","toolCall":null}]}}`)
	f.Add(turn, `{"type":"chat/toolCallComplete","turnId":"t","toolCallId":"c","result":{"content":[{"type":"text","text":"- [x] a\n"}]}}`, `{"turns":[{"id":"u","state":"error","responseParts":[{"kind":"error","error":7}]}]}`)
	f.Add(`{"type":"session/configChanged","config":{"mode":1}}`, `{"type":"session/inputNeededSet","request":{"id":"q","kind":"chatInput","chat":"c","request":{"id":"r","questions":[{}]}}}`, ``)
	f.Fuzz(func(t *testing.T, first, second, state string) {
		d := &Door{cfg: Config{Log: slog.New(slog.DiscardHandler)}, life: t.Context(), closed: true, sessions: map[string]*session{}, channels: map[string]*session{}}
		d.conn = acp.NewConn(strings.NewReader(""), io.Discard, d, acp.Limits{})
		s := &session{door: d, id: "s", chat: "c", ready: true, asked: map[string]*question{}, terminals: map[string]*terminal{}, files: map[string]string{}, fetching: map[string]bool{}}
		s.options.read(json.RawMessage(state), nil)
		for _, action := range []string{first, second, first} {
			s.take(client.Action{Channel: "c", Raw: []byte(action)})
		}
		if chat, err := client.ReadChat([]byte(state)); err == nil {
			s.mu.Lock()
			s.showChat(chat, showAll)
			s.mu.Unlock()
		}
		s.lose(io.EOF)
	})
}
