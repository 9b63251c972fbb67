package hostagent

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/broker/notice"
	"ahprelay/hostagent/watch"
)

// A reactiveSocket is a connection to a host that sends the result of react for each message
// written to it.
type reactiveSocket struct {
	react func(message string) []string
	got   []string
	toUs  []string
}

// Read implements hostSocket. It fails with errClosed if the host has nothing more to send.
func (s *reactiveSocket) Read() ([]byte, bool, error) {
	if len(s.toUs) == 0 {
		return nil, false, errClosed
	}
	message := s.toUs[0]
	s.toUs = s.toUs[1:]
	return []byte(message), false, nil
}

// Whole implements hostSocket.
func (s *reactiveSocket) Whole() bool { return len(s.toUs) > 0 }

// Write implements hostSocket.
func (s *reactiveSocket) Write(message []byte, _ bool) error {
	s.got = append(s.got, string(message))
	s.toUs = append(s.toUs, s.react(string(message))...)
	return nil
}

// Close implements hostSocket.
func (s *reactiveSocket) Close(string) {}

// TestFirstAnswerAtTheHostCounts sends a person's answer to a question while another client (the
// page) may answer, too. The first confirmation in the host's order counts, and run returns whether
// it was the person's.
func TestFirstAnswerAtTheHostCounts(t *testing.T) {
	const (
		chat, session = "ahp-chat:/1", "ahp-session:/1"
		action        = `{"type":"chat/toolCallConfirmed","turnId":"t","toolCallId":"c1","approved":true}`
		pending       = `{"inputNeeded":[{"id":"q0"},{"id":"q1"}]}`
		removed       = `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-session:/1","serverSeq":9,"action":{"type":"session/inputNeededRemoved","id":"q1"}}}`
	)
	echo := func(client, action, more string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":%q,"serverSeq":8,"origin":{"clientId":%q,"clientSeq":1},"action":%s%s}}`, chat, client, action, more)
	}
	other := strings.Replace(action, "c1", "c2", 1)
	denied := strings.Replace(action, "true", "false", 1)
	for _, test := range []struct {
		name  string
		state string                       // the session's state when the host-agent subscribes
		after func(client string) []string // returns the host's messages after it got the answer
		want  notice.Result
		sent  bool

		floats bool // the host writes the numbers of requests as floating point
	}{
		{"alone", pending, func(c string) []string { return []string{echo(c, action, ""), removed} }, notice.Given, true, false},
		{"the page is first", pending, func(c string) []string {
			return []string{echo("page", denied, ""), removed, echo(c, action, "")}
		}, notice.Answered, true, false},
		{"the page is first, with the same answer", pending, func(c string) []string {
			return []string{echo("page", action, ""), echo(c, action, ""), removed}
		}, notice.Answered, true, false},
		{"the page answers another question first", pending, func(c string) []string {
			return []string{echo("page", other, ""), echo(c, action, ""), removed}
		}, notice.Given, true, false},
		{"the page is refused", pending, func(c string) []string {
			return []string{echo("page", denied, `,"rejectionReason":"no"`), echo(c, action, ""), removed}
		}, notice.Given, true, false},
		{"refused", pending, func(c string) []string { return []string{echo(c, action, `,"rejectionReason":"no"`)} }, notice.Unknown, true, false},
		{"the turn ends", pending, func(string) []string { return []string{removed} }, notice.Unknown, true, false},
		{"the removal comes first", pending, func(c string) []string { return []string{removed, echo(c, action, "")} }, notice.Given, true, false},
		{"the host says nothing", pending, func(string) []string { return nil }, notice.Given, true, false},
		{"answered before", `{"inputNeeded":[{"id":"q0"}]}`, nil, notice.Unknown, false, false},
		{"no question", `{}`, nil, notice.Unknown, false, false},
		{"the turn ends, and numbers are floating point", pending, func(string) []string { return []string{removed} }, notice.Unknown, true, true},
	} {
		client := ""
		sock := &reactiveSocket{react: func(message string) []string {
			env, err := ahp.Peek([]byte(message))
			if err != nil {
				t.Fatal(err)
			}
			if env.Kind == ahp.Response {
				return nil // ask is the host's own request, and this is its error
			}
			result := "null"
			switch string(env.Method) {
			case "initialize":
				client = ahp.TextOf(env.Params, "clientId")
			case "subscribe":
				result = `{"snapshot":{"state":{}}}`
				if string(env.Channel) == session {
					result = fmt.Sprintf(`{"snapshot":{"state":%s}}`, test.state)
				}
			case "dispatchAction":
				return test.after(client)
			}
			id := string(env.ID)
			if test.floats {
				id += ".0"
			}
			return []string{`{"jsonrpc":"2.0","method":"x","params":{}}`, `{"jsonrpc":"2.0","id":1,"method":"ask","params":{}}`, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)}
		}}
		got, err := newAnswering(sock, &watch.Answer{Chat: chat, Question: "q1", Action: []byte(action), Event: notice.Event{Session: session}}).run()
		sent := strings.Contains(strings.Join(sock.got, "\n"), "dispatchAction")
		if got != test.want || err != nil || sent != test.sent {
			t.Errorf("%s: the answer's result is %s, %v, and the host received it: %v; want %s, and %v", test.name, got, err, sent, test.want, test.sent)
		}
	}
}

// TestErrandReadsAnswersInAnyNotation has a host that writes the number of a request as floating point in its
// answer. The errand must read the answer.
func TestErrandReadsAnswersInAnyNotation(t *testing.T) {
	e := errand{speaker: newSpeaker(&reactiveSocket{react: func(message string) []string {
		env, err := ahp.Peek([]byte(message))
		if err != nil {
			t.Fatal(err)
		}
		return []string{fmt.Sprintf(`{"jsonrpc":"2.0","id":%s.0,"result":{"snapshot":{"state":{}}}}`, env.ID)}
	}}, "test")}
	if state, err := e.state("s:/1", ""); string(state) != "{}" || err != nil {
		t.Errorf("the errand reads the state %s, %v; want {}", state, err)
	}
}
