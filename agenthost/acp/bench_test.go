package acp

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"ahprelay/internal/acp"
	"ahprelay/test/acpagent"
)

// deltas is the number of chunks of text in a measurement.
const deltas = 200

// BenchmarkDelta measures how long a chunk of text takes from an agent's process: over
// a connection without a host, and through the host to an AHP client.
func BenchmarkDelta(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		command, environment := acpagent.Command(acpagent.Options{})
		ages := make(ageReader, deltas)
		p, err := start(Config{Program: Program{Name: "test", Command: command}, Environment: environment}, b.TempDir(), ages)
		if err != nil {
			b.Fatal(err)
		}
		defer p.end()
		var session acp.NewSessionResponse
		for _, call := range []struct {
			method string
			params any
		}{{"initialize", acp.InitializeRequest{ProtocolVersion: 1}}, {"session/new", acp.NewSessionRequest{Cwd: b.TempDir()}}} {
			if err := p.conn.Call(b.Context(), call.method, call.params, &session); err != nil {
				b.Fatal(err)
			}
		}
		var all []time.Duration
		for b.Loop() {
			prompt := acp.PromptRequest{SessionID: session.SessionID, Prompt: []acp.ContentBlock{{Type: acp.ContentBlockText, Text: fmt.Sprint("clock ", deltas)}}}
			if err := p.conn.Call(b.Context(), "session/prompt", prompt, nil); err != nil {
				b.Fatal(err)
			}
			for range deltas {
				all = append(all, <-ages)
			}
			report(b, all)
		}
	})
	b.Run("host", func(b *testing.B) {
		s := newSite(b, acpagent.Options{}, nil)
		k := s.connect(b).begin(s, "s1", nil)
		var all []time.Duration
		for b.Loop() {
			k.prompt(fmt.Sprint("clock ", deltas))
			for {
				action := k.until("chat/responsePart", "chat/delta", "chat/turnComplete")
				if action["type"] == "chat/turnComplete" {
					break
				}
				if part, ok := action["part"].(map[string]any); ok {
					action = part
				}
				all = append(all, age(fmt.Sprint(action["content"])))
			}
			report(b, all)
		}
	})
}

// report reports the median age of chunks as a result of the benchmark.
func report(b *testing.B, all []time.Duration) {
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "µs-p50")
}

// age returns how long ago an agent wrote a chunk. The chunk's text is the time.
func age(text string) time.Duration {
	var at int64
	_, _ = fmt.Sscan(text, &at)
	return time.Since(time.Unix(0, at))
}

// An ageReader handles an agent's messages, and receives the age of each chunk.
type ageReader chan time.Duration

func (r ageReader) Notify(_ string, params json.RawMessage) {
	var n acp.SessionNotification
	var chunk acp.ContentChunk
	if acp.Decode(params, &n) == nil && acp.UpdateKind(n.Update) == acp.UpdateAgentMessageChunk && acp.Decode(n.Update, &chunk) == nil {
		r <- age(chunk.Content.Text)
	}
}

func (ageReader) Flush()                 {}
func (ageReader) Request(r *acp.Request) { r.Reply(nil, errNotHere) }
