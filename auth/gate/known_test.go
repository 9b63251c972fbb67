package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/auth/gate"
)

// TestOnlyKnownMembersAreSeen has the host answer with members that the gate does not know. A
// client limited to one session must get the answer without them.
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
			`{"channels":[{"kind":"snapshot","channel":"ahp-root://","snapshot":{"resource":"ahp-root://","state":{"agents":[]},"fromSeq":3}},` +
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
		// A client that sees the root gets the answer unchanged.
		c = limited(t, nil, "mock:/1", "ahp-root://")
		if got, want := c.ask(test.method, test.params, test.result), fmt.Sprintf(`{"id":1,"result":%s}`, test.result); got != want {
			t.Errorf("%s, with the root:\n%s; want\n%s", test.method, got, want)
		}
	}
	c := limited(t, nil, "mock:/1")
	if got := c.ask("listSessions", `{}`, `{"items":[],"x":"mock:/2","x":1}`); strings.Contains(got, "mock:/2") {
		t.Errorf("an answer with a duplicate member shows mock:/2: %s", got)
	}
}

// TestUnknownResultsAreNotSeen has the host answer each method with a result in an unknown form. A
// client limited to one session must not see it.
func TestUnknownResultsAreNotSeen(t *testing.T) {
	for _, method := range gate.KnownMethods() {
		for _, result := range []string{`{"other":{"resource":"mock:/2"}}`, `["mock:/2"]`, `"mock:/2"`, `{"x":1,"x":"mock:/2"}`} {
			c := limited(t, nil, "mock:/1")
			if got := c.ask(method, `{"channel":"mock:/1","uri":"mock:/1/x"}`, result); strings.Contains(got, "mock:/2") {
				t.Errorf("the unknown result of %s reaches the client as %s; want nothing of mock:/2", method, got)
			}
		}
	}
	for _, test := range []struct{ method, params, result, want string }{
		{"fetchTurns", `{"channel":"mock:/1"}`, `{"turns":[{"id":"1"}],"others":["mock:/2"]}`, `{"turns":[{"id":"1"}]}`},
		{"completions", `{"channel":"mock:/1"}`, `{ "new":7, "items":[{"insertText":"x"}] }`, `{ "items":[{"insertText":"x"}] }`},
		{"resourceRead", `{"uri":"mock:/1/x"}`, `{"data":"x","encoding":"utf-8","folder":"mock:/2"}`, `{"data":"x","encoding":"utf-8"}`},
		{"disposeChat", `{"channel":"mock:/1/chat"}`, `{"left":["mock:/2"]}`, `{}`},
		{"disposeChat", `{"channel":"mock:/1/chat"}`, `null`, `null`},
	} {
		c := limited(t, nil, "mock:/1")
		if got, want := c.ask(test.method, test.params, test.result), fmt.Sprintf(`{"id":1,"result":%s}`, test.want); got != want {
			t.Errorf("%s: %s; want %s", test.method, got, want)
		}
	}
	c := limited(t, nil, "mcp://s/*") // the gate passes an MCP server's result unchanged
	if got := c.ask("tools/list", `{"channel":"mcp://s/1"}`, `{"tools":[],"new":1}`); got != `{"id":1,"result":{"tools":[],"new":1}}` {
		t.Errorf("the result of tools/list is %s; want it unchanged", got)
	}
	c.host(`{"id":9,"result":{}}`)
	if got := c.ask("subscribe", `{"channel":"mcp://s/1"}`, `{"of":"mock:/2"}`); strings.Contains(got, "mock:/2") {
		t.Errorf("a subscribe to an MCP server shows mock:/2: %s", got)
	}
}

// TestUnknownNotificationsAreHidden sends notifications with unknown methods or members. A client
// limited to one session must get only the known parts. A client that sees the root must get all.
func TestUnknownNotificationsAreHidden(t *testing.T) {
	for _, test := range []struct{ message, want string }{
		{`{"method":"later/unknown","params":{"channel":"mock:/1","other":{"resource":"mock:/2"}}}`, ``},
		{`{"method":"later/unknown","params":{"channel":"ahp-root://"}}`, ``},
		{`{"method":"root/later","params":{"channel":"mock:/1"}}`, ``},
		{
			`{"jsonrpc":"2.0","method":"action","params":{"channel":"mock:/1","action":{"type":"chat/delta","new":1},"serverSeq":5,"x":"mock:/2"}}`,
			`{"jsonrpc":"2.0","method":"action","params":{"channel":"mock:/1","action":{"type":"chat/delta","new":1},"serverSeq":5}}`,
		},
		{
			`{"jsonrpc":"2.0","x":"mock:/2","method":"action","params":{"channel":"mock:/1","action":{"type":"session/x","chat":"ahp-chat:/1"},"serverSeq":5,"origin":{"clientId":"c"}}}`,
			`{"jsonrpc":"2.0","method":"action","params":{"channel":"mock:/1","action":{"type":"session/x","chat":"ahp-chat:/1"},"serverSeq":5,"origin":{"clientId":"c"}}}`,
		},
		{
			`{ "method" : "action", "params" : { "channel":"mock:/1", "x" : "mock:/2" , "action":{}, "serverSeq":5 } }`,
			`{ "method" : "action", "params" : { "channel":"mock:/1", "action":{}, "serverSeq":5 } }`,
		},
		{`{"method":"action","params":{"channel":"mock:/1","action":{},"action":{"of":"mock:/2"}}}`, ``},
		{
			`{"method":"action","params":{"channel":"ahp-root://","action":{"type":"root/agentsChanged","agents":[],"sessions":["mock:/2"]},"all":"mock:/2","serverSeq":5}}`,
			`{"method":"action","params":{"channel":"ahp-root://","action":{"type":"root/agentsChanged","agents":[]},"serverSeq":5}}`,
		},
		{
			`{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/1","title":"x","new":{"of":"mock:/2"}},"next":{"resource":"mock:/2"}}}`,
			`{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/1","title":"x"}}}`,
		},
		{
			`{"method":"root/sessionSummaryChanged","params":{"channel":"ahp-root://","session":"mock:/1","changes":{"status":8,"new":"mock:/2","project":{"uri":"file:///p","displayName":"p"}}}}`,
			`{"method":"root/sessionSummaryChanged","params":{"channel":"ahp-root://","session":"mock:/1","changes":{"status":8,"project":{"uri":"file:///p","displayName":"p"}}}}`,
		},
		{
			`{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/1","chats":[{"resource":"ahp-chat:/1","title":"t","new":"mock:/2"}],"_meta":{"git":{"branch":"main"}},"changes":{"files":1}}}}`,
			`{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/1","chats":[{"resource":"ahp-chat:/1","title":"t"}],"_meta":{"git":{"branch":"main"}},"changes":{"files":1}}}}`,
		},
		{`{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/1","title":{"of":"mock:/2"}}}}`, ``},
		{`{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/1","project":{"of":{"of":"mock:/2"}}}}}`, ``},
		{
			`{"method":"root/progress","params":{"channel":"ahp-root://","progressToken":"t","progress":1,"of":{"x":"mock:/2"}}}`,
			`{"method":"root/progress","params":{"channel":"ahp-root://","progressToken":"t","progress":1}}`,
		},
		{
			`{"method":"root/progress","params":{"channel":"ahp-root://","progressToken":"t","session":"mock:/1"}}`,
			`{"method":"root/progress","params":{"channel":"ahp-root://","progressToken":"t","session":"mock:/1"}}`,
		},
		{`{"method":"root/progress","params":{"channel":"ahp-root://","progressToken":"t","session":"mock:/2"}}`, ``},
		{`{"method":"root/progress","params":{"channel":"ahp-root://","progressToken":"t","resource":{"uri":"mock:/2"}}}`, ``},
		{`{"method":"root/progress","params":["mock:/2"]}`, ``},
		{`{"method":"later/unknown","channel":"mcp://s/1","params":{}}`, ``},
		{`{"method":"notifications/message","channel":"mcp://s/1","params":{"data":1},"of":"mock:/2"}`, `{"method":"notifications/message","channel":"mcp://s/1","params":{"data":1}}`},
	} {
		c := limited(t, nil, "mock:/1", "mcp://s/*")
		c.passes("createSession", `{"channel":"mock:/1","provider":"mock","progressToken":"t"}`)
		if got := c.host(test.message); got != test.want {
			t.Errorf("%s:\n%s; want\n%s", test.message, got, test.want)
		}
		if env := peek(t, test.message); env.Channel != nil {
			if got := limited(t, nil, "mock:/1", "mcp://s/*", "ahp-root://").host(test.message); got != test.message {
				t.Errorf("%s: a client that sees the root receives %s; want it unchanged", test.message, got)
			}
		}
	}
}

// TestUnknownRequestsAreRefused has the host send a request with an unknown method. The gate must
// refuse it in place of a client limited to one session.
func TestUnknownRequestsAreRefused(t *testing.T) {
	for _, params := range []string{`{"channel":"ahp-root://","of":"mock:/2"}`, `{"of":"mock:/2"}`, `{"channel":"mock:/1"}`} {
		message := `{"id":7,"method":"later/ask","params":` + params + `}`
		d := fromHost(limited(t, nil, "mock:/1").gate, message, peek(t, message))
		if env, err := ahp.Peek(d.Message); d.Verdict != gate.Answer || err != nil || string(env.ID) != "7" || !strings.Contains(string(env.Error), "-32009") {
			t.Errorf("%s: %v %s; want it refused", message, d.Verdict, d.Message)
		}
		if limited(t, nil, "mock:/1", "ahp-root://").host(message) != message {
			t.Errorf("%s: a client that sees the root does not receive the request; want it", message)
		}
	}
}

// TestForeignProgressIsHidden has the host report progress with different tokens. A limited client
// must get only the progress of requests that it has sent itself.
func TestForeignProgressIsHidden(t *testing.T) {
	c := limited(t, nil, "mock:/1")
	hears := func(token string) bool {
		return c.host(`{"method":"root/progress","params":{"channel":"ahp-root://","progressToken":`+token+`,"progress":1,"message":"m"}}`) != ""
	}
	create := func(params string) bool { return c.passes("createSession", `{"channel":"mock:/1",`+params+`}`) }
	c.want("a token before it is given", hears(`"mine"`), false)
	c.want("a request with a token", create(`"progressToken":"mine"`), true)
	c.want("a request with a number", create(`"progressToken":7`), true)
	c.want("a refused request with a token", c.passes("createSession", `{"channel":"mock:/2","progressToken":"refused"}`), false)
	c.want("a token in a request that changes nothing", c.passes("ping", `{"channel":"ahp-root://","progressToken":"looked"}`), true)
	c.want("a token in another case", c.passes("createSession", `{"channel":"mock:/1","ProgressToken":"cased"}`), true)
	for token, want := range map[string]bool{
		`"mine"`: true, `"m\u0069ne"`: true, `7`: true, `"7"`: false, `"other"`: false, `"refused"`: false, `"looked"`: false, `"cased"`: false, `null`: false, `{"x":1}`: false, `""`: false,
	} {
		c.want("the progress of "+token, hears(token), want)
	}
	c.want("progress without a token", c.host(`{"method":"root/progress","params":{"channel":"ahp-root://","progress":1}}`) != "", false)
	c.want("progress on a channel in reach", c.host(`{"method":"root/progress","params":{"channel":"mock:/1","progressToken":"other","progress":1}}`) != "", false)
}
