package acpdoor

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"ahprelay/internal/acp"
	"ahprelay/internal/connect/client"
)

// TestNumbersInAnyNotation has a host that writes the numbers for an editor as integers and as floating point.
// The editor must get a terminal's exit code, the use of the context window and the tokens of a turn.
func TestNumbersInAnyNotation(t *testing.T) { synctest.Test(t, testNumbers) } // a missing message fails at once

func testNumbers(t *testing.T) {
	for _, point := range []string{"", ".0"} {
		in, typed := io.Pipe()
		shown, out := io.Pipe()
		d := &Door{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
		d.conn = acp.NewConn(in, out, d, acp.Limits{})
		ended := make(chan struct{})
		go func() { defer close(ended); _ = d.conn.Run() }()
		s := &session{door: d, id: "s"}
		terminal := &terminal{session: s, tool: &tool{call: client.ToolCall{ID: "c"}}, uri: "t", member: "terminal_output", ready: true}
		terminal.take(client.Action{Raw: []byte(`{"type":"terminal/exited","exitCode":3` + point + `}`)})
		terminal.show(json.RawMessage(`{"lifecycle":{"status":"exited","exitCode":4`+point+`}}`), 0)
		terminal.take(client.Action{Raw: []byte(`{"type":"terminal/exited"}`)})
		(&turn{session: s}).showUsage(json.RawMessage(`{"_meta":{"contextUsed":5` + point + `,"contextSize":6` + point + `}}`))
		lines := bufio.NewReader(shown)
		for _, want := range []string{`"exit_code":3,`, `"exit_code":4,`, `"exit_code":null,`, `"size":6,"used":5`} {
			if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, want) {
				t.Fatalf("with %q behind the numbers, the editor gets %s, %v; want %s", point, line, err, want)
			}
		}
		p := &prompt{}
		ending{}.usage(json.RawMessage(`{"inputTokens":7`+point+`,"outputTokens":8`+point+`}`), p)
		if p.usage == nil || p.usage.InputTokens != 7 || p.usage.OutputTokens != 8 {
			t.Errorf("with %q behind the numbers, the turn has used %v; want 7 and 8 tokens", point, p.usage)
		}
		_ = typed.Close()
		_ = shown.Close()
		<-ended
	}
}
