package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// otherSpellings returns keys that parsers confuse with this key, because they ignore the case.
func otherSpellings(key string) []string {
	list := []string{strings.ToUpper(key), strings.ToUpper(key[:1]) + key[1:], fmt.Sprintf(`\u%04x`, key[0]-32) + key[1:]}
	if strings.Contains(key, "s") {
		list = append(list, strings.Replace(key, "s", "\u017f", 1), strings.Replace(key, "s", `\u017f`, 1))
	}
	if strings.Contains(key, "k") {
		list = append(list, strings.Replace(key, "k", "\u212a", 1), strings.Replace(key, "k", `\u212A`, 1))
	}
	return list
}

// TestOtherSpellingsAreRefused adds a second key in another spelling to each object that a gate
// reads. The gate must refuse the message, because a host may read the second key.
func TestOtherSpellingsAreRefused(t *testing.T) {
	const in, out = `"mock:/1"`, `"mock:/2"`
	file := `"file:///home/ada/x"`
	for _, test := range []struct{ method, params, key, value string }{ // ¶ is where the second key is added
		{"ping", `{"channel":"ahp-root://"}¶`, "method", `"disposeSession"`},
		{"ping", `{"channel":"ahp-root://"}¶`, "params", `{"channel":"mock:/2"}`},
		{"ping", `{"channel":"ahp-root://"}¶`, "id", `1`},
		{"ping", `{"channel":"ahp-root://"}¶`, "result", `{}`},
		{"ping", `{"channel":"ahp-root://"}¶`, "error", `{}`},
		{"disposeSession", `{"channel":` + in + `}¶`, "channel", out},
		{"disposeSession", `{"channel":` + in + `¶}`, "channel", out},
		{"subscribe", `{"channel":` + in + `¶}`, "channel", out},
		{"subscribe", `{"channel":"ahp-root://"¶}`, "flowControl", `{}`},
		{"initialize", `{"channel":"ahp-root://","initialSubscriptions":[` + in + `]¶}`, "initialSubscriptions", `[` + out + `]`},
		{"initialize", `{"channel":"ahp-root://","initialSubscriptions":[{"channel":` + in + `¶}]}`, "channel", out},
		{"reconnect", `{"channel":"ahp-root://","subscriptions":[` + in + `]¶}`, "subscriptions", `[` + out + `]`},
		{"reconnect", `{"channel":"ahp-root://","subscriptions":[{"channel":` + in + `¶}]}`, "channel", out},
		{"reconnect", `{"channel":"ahp-root://","subscriptions":[]¶}`, "windows", `{"items":[{"channel":` + out + `}]}`},
		{"reconnect", `{"channel":"ahp-root://","windows":{"items":[{"channel":` + in + `}]¶}}`, "items", `[{"channel":` + out + `}]`},
		{"resourceRead", `{"uri":` + file + `¶}`, "uri", `"file:///etc/passwd"`},
		{"resourceMove", `{"source":` + file + `,"destination":` + file + `¶}`, "source", `"file:///etc/passwd"`},
		{"resourceMove", `{"source":` + file + `,"destination":` + file + `¶}`, "destination", `"file:///etc/passwd"`},
		{"resourceMove", `{"source":` + file + `,"destination":` + file + `¶}`, "target", `"file:///etc/passwd"`},
		{"createSession", `{"channel":"mock:/1/a","fork":{"session":` + in + `}¶}`, "fork", `{"session":` + out + `}`},
		{"createSession", `{"channel":"mock:/1/a","fork":{"session":` + in + `¶}}`, "session", out},
		{"createChat", `{"channel":` + in + `,"source":{"chat":` + in + `¶}}`, "chat", out},
		{"moveChat", `{"channel":` + in + `,"chat":` + in + `¶}`, "chat", out},
	} {
		message := func(added string) string {
			return strings.Replace(`{"id":7,"method":"`+test.method+`","params":`+test.params+`}`, "¶", added, 1)
		}
		judge := func(policy gate.Policy, text string) gate.Decision {
			return chainOf(policy, nil).FromClient([]byte(text), peek(t, text))
		}
		narrow := gate.NewPolicy(auth.AccessWrite, []string{"mock:/1", "file:///home/ada/*"}, nil, false)
		if d := judge(narrow, message("")); d.Verdict != gate.Pass {
			t.Errorf("%s: %s; want it to pass", message(""), d.Message)
		}
		for _, key := range otherSpellings(test.key) {
			text := message(`,"` + key + `":` + test.value)
			if d := judge(narrow, text); d.Verdict != gate.Answer || !strings.Contains(string(d.Message), "-32009") {
				t.Errorf("%s: verdict %v, %s; want a refusal", text, d.Verdict, d.Message)
			}
			full := gate.NewPolicy(auth.AccessWrite, nil, nil, false)
			if d := judge(full, text); d.Verdict != gate.Pass {
				t.Errorf("%s: %s; want it to pass with a full token", text, d.Message)
			}
		}
	}
}

// TestOtherSpellingsOfMethods adds a second key, in another spelling, to messages of clients that
// are limited by level or methods. The gate must not pass them.
func TestOtherSpellingsOfMethods(t *testing.T) {
	for _, policy := range []gate.Policy{
		gate.NewPolicy(auth.AccessRead, nil, nil, true),
		gate.NewPolicy(auth.AccessWrite, nil, []string{"listSessions"}, true),
	} {
		g := policy.Gate(nil)
		for _, text := range []string{
			`{"id":7,"method":"listSessions","params":{},"Method":"disposeSession"}`,
			`{"id":7,"method":"listSessions","params":{},"\u004dethod":"disposeSession"}`,
			`{"id":7,"method":"ping","param\u017f":{}}`,
		} {
			if d := g.FromClient([]byte(text), peek(t, text)); d.Verdict != gate.Answer || !strings.Contains(string(d.Message), "-32009") {
				t.Errorf("%s: verdict %v, %s; want a refusal", text, d.Verdict, d.Message)
			}
		}
		// Some parsers read this response as a request.
		const answer = `{"id":7,"result":{},"Method":"disposeSession","Params":{}}`
		if d := g.FromClient([]byte(answer), peek(t, answer)); d.Verdict != gate.Replace || strings.Contains(string(d.Message), "disposeSession") {
			t.Errorf("%s: verdict %v, %s; want it replaced", answer, d.Verdict, d.Message)
		}
		// A notification with a second method must be dropped.
		const note = `{"method":"unsubscribe","params":{"channel":"mock:/1"},"METHOD":"dispatchAction"}`
		if d := g.FromClient([]byte(note), peek(t, note)); d.Verdict != gate.Answer || d.Message != nil {
			t.Errorf("%s: verdict %v, %s; want it dropped", note, d.Verdict, d.Message)
		}
	}
}
