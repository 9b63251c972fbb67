package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ahprelay/ahp/view"
	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// turn returns a client's message that dispatches a turn with this text.
func turn(text string) string {
	return fmt.Sprintf(`{"method":"dispatchAction","params":{"channel":"mock:/s/chat","clientSeq":1,"action":{"type":"chat/turnStarted","message":{"text":%q}}}}`, text)
}

// TestHostCommandsNeedOperate sends chat messages with the host's prefix for commands at the level
// talk. The gate must refuse them, whether the host has announced the prefix on this connection or
// another.
func TestHostCommandsNeedOperate(t *testing.T) {
	for _, test := range []struct{ announced, text, want string }{
		{`{}`, "# a heading", "pass"},
		{`{}`, "!ls", "echo"},
		{`{"terminalCommandPrefix":"#"}`, "# a heading", "echo"},
		{`{"terminalCommandPrefix":"run:"}`, "\t run:ls", "echo"},
		{`{"terminalCommandPrefix":"run:"}`, "how do I run: it?", "pass"},
		{"", "# a heading", "echo"}, // the host has announced no prefix
		{"", "hello", "pass"},
	} {
		host := view.NewHost(gate.Key)
		if test.announced != "" {
			other := &conn{TB: t, gate: chainOf(gate.NewPolicy(auth.AccessWrite, nil, nil, false), host), id: 1}
			hello := `{"id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"x"}}`
			other.gate.FromClient([]byte(hello), peek(t, hello))
			answer := `{"id":1,"result":` + test.announced + `}`
			fromHost(other.gate, answer, peek(t, answer))
		}
		talker := chainOf(gate.NewPolicy(auth.AccessTalk, nil, nil, false), host)
		if got := fromClient(t, talker, "dispatchAction", turn(test.text)); got != test.want {
			t.Errorf("host announces %s, a talker sends %q: %s; want %s", test.announced, test.text, got, test.want)
		}
	}
}

// TestLevelsIncludeThoseBelow takes random rows from matrix.txt. A message that passes at a level
// must pass at all higher levels, and at the level own.
func TestLevelsIncludeThoseBelow(t *testing.T) {
	rows := readMatrix(t)
	levels := auth.Levels()
	rapid.Check(t, func(rt *rapid.T) {
		row := rapid.SampledFrom(rows).Draw(rt, "row")
		if row.FromHost {
			return
		}
		message := row.Message(0, 7)
		passed := false
		for _, level := range levels {
			g := chainOf(gate.NewPolicy(level, nil, nil, false), nil)
			(&conn{TB: t, gate: g, id: 100}).subscribes("mock:/s")
			got := g.FromClient([]byte(message), peek(t, message)).Verdict == gate.Pass
			if passed && !got {
				rt.Fatalf("%s passes at a level below %s, but not at this level: %s", row.Name(), level.Level(), message)
			}
			passed = got
		}
		if !passed {
			rt.Fatalf("%s does not pass at the level own: %s", row.Name(), message)
		}
	})
}

// TestRefusalsNameTheLevel fails unless a refusal names the level that the request needs, and the
// token's level.
func TestRefusalsNameTheLevel(t *testing.T) {
	for level, message := range map[auth.Access]string{
		auth.AccessTalk:    `{"id":1,"method":"createSession","params":{"channel":"mock:/1"}}`,
		auth.AccessApprove: `{"id":1,"method":"createTerminal","params":{"channel":"t:/1"}}`,
	} {
		d := chainOf(gate.NewPolicy(level, nil, nil, false), nil).FromClient([]byte(message), peek(t, message))
		if want := "this needs the level operate; this token has " + level.Level(); !strings.Contains(string(d.Message), want) {
			t.Errorf("%s: %s; want %q in it", message, d.Message, want)
		}
	}
}
