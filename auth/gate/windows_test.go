package gate_test

import (
	"testing"

	"ahprelay/auth/gate"
)

// TestWindowsAreDeclined removes requests for flow-control windows from a client's messages. The
// gate must change nothing else.
func TestWindowsAreDeclined(t *testing.T) {
	const control = `"flowControl":{"receive":{"windowBytes":1,"x":"},{"}}`
	for message, want := range map[string]string{
		`{"id":1, "method":"subscribe","params":{"channel":"a:/1" , ` + control + `, "view":{"x":1}}}`:                                     `{"id":1, "method":"subscribe","params":{"channel":"a:/1" , "view":{"x":1}}}`,
		`{"id":1,"method":"subscribe","params":{` + control + `,"channel":"a:/1"}}`:                                                        `{"id":1,"method":"subscribe","params":{"channel":"a:/1"}}`,
		`{"id":1,"method":"subscribe","params":{"channel":"a:/1","flow\u0043ontrol":{}}}`:                                                  `{"id":1,"method":"subscribe","params":{"channel":"a:/1"}}`,
		`{"id":1,"method":"reconnect","params":{"subscriptions":["a:/1"],"windows":{"items":[{"channel":"a:/1"}]},"lastSeenServerSeq":3}}`: `{"id":1,"method":"reconnect","params":{"subscriptions":["a:/1"],"lastSeenServerSeq":3}}`,
		// These messages pass unchanged.
		`{"id":1,"method":"subscribe","params":{"channel":"ahp-tcp:/1",` + control + `}}`:    "",
		`{"id":1,"method":"subscribe","params":{"channel":"a:/1","x":"flowControl"}}`:        "",
		`{"id":1,"method":"subscribe","params":{"channel":"a:/1","x":{` + control + `}}}`:    "",
		`{"id":1,"method":"subscribe","params":{` + control + `,` + control + `}}`:           "",
		`{"id":1,"method":"later","params":{"channel":"a:/1",` + control + `}}`:              "",
		`{"method":"subscribe","params":{"channel":"a:/1",` + control + `}}`:                 "",
		`{"id":1,"method":"subscribe","params":[` + `{` + control + `}` + `]}`:               "",
		`{"id":1,"method":"reconnect","params":{"subscriptions":["a:/1"],"flowControl":{}}}`: "",
		`{"id":1,"result":{"flowControl":{}}}`:                                               "",
	} {
		d := marked(gate.Windows{}).FromClient([]byte(message), peek(t, message))
		switch {
		case want == "" && d.Verdict != gate.Pass, want != "" && (d.Verdict != gate.Replace || string(d.Message) != want):
			t.Errorf("%s: %v %s; want %s", message, d.Verdict, d.Message, want)
		}
	}
}
