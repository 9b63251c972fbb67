package gate_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestOnlyKnownMembersAreSeen has hosts add members to their answers that
// nobody has heard of: who may see one session gets none of them.
func TestOnlyKnownMembersAreSeen(t *testing.T) {
	const snapshot = `{"resource":"mock:/1","state":{"new":{"of":"it"}},"fromSeq":1}`
	for _, test := range []struct{ method, params, result, want string }{
		{
			"initialize", `{"clientId":"c","initialSubscriptions":["mock:/1"]}`,
			`{ "sessions":["mock:/2"], "protocolVersion":"1.1.0" ,"defaultDirectory":"file:///home/mock:/2","snapshots":[` + snapshot + `],"_meta":{"x":"mock:/2"}}`,
			`{ "protocolVersion":"1.1.0" ,"snapshots":[` + snapshot + `]}`,
		},
		{
			"reconnect", `{"clientId":"c","subscriptions":[{"channel":"ahp-root://","lastSeenServerSeq":0},{"channel":"mock:/1","lastSeenServerSeq":0}]}`,
			`{"channels":[{"kind":"snapshot","channel":"ahp-root://","snapshot":{"resource":"ahp-root://","state":{"agents":[],"config":"mock:/2"},"fromSeq":3}},` +
				`{"kind":"replay","channel":"mock:/2","actions":[]},{"kind":"snapshot","channel":"mock:/1","snapshot":` + snapshot + `}],"others":["mock:/2"]}`,
			`{"channels":[{"kind":"snapshot","channel":"ahp-root://","snapshot":{"resource":"ahp-root://","state":{"agents":[],"activeSessions":0},"fromSeq":3}},` +
				`{"kind":"snapshot","channel":"mock:/1","snapshot":` + snapshot + `}]}`,
		},
		{"subscribe", `{"channel":"ahp-root://"}`, `{"sessions":["mock:/2"]}`, `{}`},
		{"subscribe", `{"channel":"mock:/1"}`, `{"snapshot":` + snapshot + `,"of":"mock:/2"}`, `{"snapshot":` + snapshot + `}`},
		{"subscribe", `{"channel":"mock:/1"}`, `null`, `null`},
		{"listSessions", `{}`, `{"total":"mock:/2","items":[],"nextCursor":"n"}`, `{"items":[],"nextCursor":"n"}`},
	} {
		c := limited(t, nil, "mock:/1")
		if got, want := c.ask(test.method, test.params, test.result), fmt.Sprintf(`{"id":1,"result":%s}`, test.want); got != want {
			t.Errorf("%s:\n%s; want\n%s", test.method, got, want)
		}
		if strings.Contains(test.params, "subscriptions\":[{") {
			continue
		}
		// Who may see the root sees all of it, byte for byte.
		c = limited(t, nil, "mock:/1", "ahp-root://")
		if got, want := c.ask(test.method, test.params, test.result), fmt.Sprintf(`{"id":1,"result":%s}`, test.result); got != want {
			t.Errorf("%s, with the root:\n%s; want\n%s", test.method, got, want)
		}
	}
	c := limited(t, nil, "mock:/1")
	if got := c.ask("listSessions", `{}`, `{"items":[],"x":"mock:/2","x":1}`); strings.Contains(got, "mock:/2") {
		t.Errorf("members that stand there twice: %s", got)
	}
}
