package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/auth/gate"
)

// TestHostMessagesLeakNothing sends a host's messages about other sessions, in forms from AHP 0.9
// to 1.1 and in odd forms. A limited client must never get the word secret.
func TestHostMessagesLeakNothing(t *testing.T) {
	const root, in, out = `"ahp-root://"`, `"mock:/1"`, `"mock:/2"`
	snap := func(channel, more string) string {
		return fmt.Sprintf(`{"resource":%s,"state":{"x":"secret"},"fromSeq":1%s}`, channel, more)
	}
	frame := func(channel, text string) string {
		return fmt.Sprintf(`{"method":"channel/frame","params":{"channel":%s,"data":%q,"final":true}}`, channel, text)
	}
	for name, note := range map[string]string{
		"frame of another channel":       frame(in, `{"method":"action","params":{"channel":"mock:/2","action":{"x":"secret"},"serverSeq":1}}`),
		"frame of root":                  frame(root, `{"method":"action","params":{"channel":"ahp-root://","action":{"x":"secret"},"serverSeq":1}}`),
		"frame in a frame":               frame(in, frame(in, `{"method":"action","params":{"channel":"mock:/2","action":{"x":"secret"},"serverSeq":1}}`)),
		"frame unknown method":           frame(in, `{"method":"later/x","params":{"channel":"mock:/1","x":"secret"}}`),
		"frame of what is no message":    frame(in, `[{"method":"action","params":{"channel":"mock:/2","x":"secret"}}]`),
		"frame unknown members":          frame(in, `{"method":"action","params":{"channel":"mock:/1","action":{},"serverSeq":1,"x":"secret"}}`),
		"frame snapshot elsewhere":       frame(in, `{"method":"channel/snapshot","params":{"channel":"mock:/1","snapshot":`+snap(out, "")+`}}`),
		"snapshot elsewhere":             `{"method":"channel/snapshot","params":{"channel":"mock:/1","snapshot":` + snap(out, "") + `}}`,
		"snapshot twice resource":        `{"method":"channel/snapshot","params":{"channel":"mock:/1","snapshot":` + snap(in, `,"resource":"mock:/2"`) + `}}`,
		"snapshot no resource":           `{"method":"channel/snapshot","params":{"channel":"mock:/1","snapshot":{"uri":"mock:/2","state":"secret"}}}`,
		"snapshot is array":              `{"method":"channel/snapshot","params":{"channel":"mock:/1","snapshot":[` + snap(out, "") + `]}}`,
		"snapshot of root in it":         `{"method":"channel/snapshot","params":{"channel":"mock:/1","snapshot":` + snap(root, "") + `}}`,
		"root snapshot":                  `{"method":"channel/snapshot","params":{"channel":"ahp-root://","snapshot":` + snap(root, "") + `}}`,
		"snapshots in note":              `{"method":"channel/snapshot","params":{"channel":"mock:/1","snapshots":[` + snap(out, "") + `]}}`,
		"escaped key":                    `{"method":"channel/snapshot","params":{"channel":"mock:/1","sn\u0061pshot":` + snap(out, "") + `}}`,
		"escaped resource":               `{"method":"channel/snapshot","params":{"channel":"mock:/1","snapshot":{"r\u0065source":"mock:/2","state":"secret"}}}`,
		"escaped channel":                `{"method":"action","params":{"ch\u0061nnel":"mock:/2","action":{"x":"secret"}}}`,
		"top channel":                    `{"method":"action","channel":"mock:/1","params":{"action":{"channel":"mock:/2"},"serverSeq":1,"secret":"secret"}}`,
		"action twice":                   `{"method":"action","params":{"channel":"mock:/1","action":{},"\u0061ction":{"x":"secret"}}}`,
		"root agents with more":          `{"method":"action","params":{"channel":"ahp-root://","action":{"type":"root/agentsChanged","agents":[],"sessions":["secret"]}}}`,
		"root type twice":                `{"method":"action","params":{"channel":"ahp-root://","action":{"type":"root/agentsChanged","typ\u0065":"root/x","x":"secret"}}}`,
		"root terminals as object":       `{"method":"action","params":{"channel":"ahp-root://","action":{"type":"root/terminalsChanged","terminals":{"a":{"resource":"term:/1","title":"secret"}}}}}`,
		"root terminals as text":         `{"method":"action","params":{"channel":"ahp-root://","action":{"type":"root/terminalsChanged","terminals":"secret"}}}`,
		"root terminals nested":          `{"method":"action","params":{"channel":"ahp-root://","action":{"type":"root/terminalsChanged","terminals":[[{"resource":"mock:/1","title":"secret"}]]}}}`,
		"added other":                    `{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/2","title":"secret"}}}`,
		"added twice":                    `{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/1","resource":"mock:/2","title":"secret"}}}`,
		"added beside":                   `{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/1"},"summaries":[{"title":"secret"}]}}`,
		"added on its channel":           `{"method":"root/sessionAdded","params":{"channel":"mock:/1","summary":{"resource":"mock:/2","title":"secret"}}}`,
		"changed on a channel in reach":  `{"method":"root/sessionSummaryChanged","params":{"channel":"mock:/1","session":"mock:/2","changes":{"title":"secret"}}}`,
		"progress on a channel in reach": `{"method":"root/progress","params":{"channel":"mock:/1","session":"mock:/2","message":"secret"}}`,
		"progress of another":            `{"method":"root/progress","params":{"channel":"ahp-root://","session":{"uri":"mock:/2"},"message":"secret"}}`,
		"auth/required":                  `{"method":"auth/required","params":{"channel":"ahp-root://","resource":"secret"}}`,
		"logs":                           `{"method":"otlp/exportLogs","params":{"channel":"ahp-otlp://logs","resourceLogs":["secret"]}}`,
		"no channel":                     `{"method":"action","params":{"action":{"x":"secret"}}}`,
		"params array":                   `{"method":"action","params":["mock:/1",{"x":"secret"}]}`,
		"request":                        `{"id":1,"method":"later/ask","params":{"channel":"mock:/1","x":"secret"}}`,
		"tcp":                            `{"method":"tcp/data","params":{"channel":"ahp-tcp:/1","data":"secret"}}`,
	} {
		t.Run("note "+name, func(t *testing.T) {
			c := limited(t, nil, "mock:/1")
			if got := c.host(note); strings.Contains(got, "secret") {
				t.Errorf("the client sees a foreign session's text: %s; want none", got)
			}
		})
	}
	const flat, byChannel = `{"clientId":"c","lastSeenServerSeq":0,"subscriptions":["ahp-root://","mock:/1"]}`, `{"clientId":"c","subscriptions":[{"channel":"ahp-root://","lastSeenServerSeq":0},{"channel":"mock:/1","lastSeenServerSeq":0}]}`
	for name, a := range map[string][3]string{
		"root in B with more":        {"reconnect", byChannel, `{"channels":[{"kind":"replay","channel":"ahp-root://","actions":[],"state":"secret"}]}`},
		"session in B with more":     {"reconnect", byChannel, `{"channels":[{"kind":"replay","channel":"mock:/1","actions":[],"others":["secret"]}]}`},
		"missing in B with more":     {"reconnect", byChannel, `{"channels":[{"kind":"missing","channel":"ahp-root://","why":"secret"}]}`},
		"B twice channel":            {"reconnect", byChannel, `{"channels":[{"kind":"snapshot","channel":"mock:/1","channel":"mock:/2","snapshot":` + snap(in, "") + `}]}`},
		"B snapshot elsewhere":       {"reconnect", byChannel, `{"channels":[{"kind":"snapshot","channel":"mock:/1","snapshot":` + snap(out, "") + `}]}`},
		"B nested":                   {"reconnect", byChannel, `{"channels":[{"kind":"replay","channel":"mock:/1","channels":[{"kind":"snapshot","channel":"mock:/2","snapshot":` + snap(out, "") + `}]}]}`},
		"B of arrays":                {"reconnect", byChannel, `{"channels":[[{"channel":"mock:/2","snapshot":` + snap(out, "") + `}]]}`},
		"B as object":                {"reconnect", byChannel, `{"channels":{"mock:/2":{"kind":"snapshot","snapshot":` + snap(out, "") + `}}}`},
		"B snapshot is array":        {"reconnect", byChannel, `{"channels":[{"kind":"snapshot","channel":"mock:/1","snapshot":[` + snap(out, "") + `]}]}`},
		"B actions as object":        {"reconnect", byChannel, `{"channels":[{"kind":"replay","channel":"mock:/1","actions":{"0":{"channel":"mock:/2","action":"secret"}}}]}`},
		"snapshots as object":        {"reconnect", flat, `{"type":"snapshot","snapshots":{"0":` + snap(out, "") + `}}`},
		"snapshots twice":            {"reconnect", flat, `{"type":"snapshot","snapshots":[],"snapshots":[` + snap(out, "") + `]}`},
		"snapshots escaped twice":    {"reconnect", flat, `{"type":"snapshot","snapshots":[],"snap\u0073hots":[` + snap(out, "") + `]}`},
		"snapshots of arrays":        {"reconnect", flat, `{"type":"snapshot","snapshots":[[` + snap(out, "") + `]]}`},
		"snapshot text":              {"reconnect", flat, `{"type":"snapshot","snapshots":["secret"]}`},
		"actions elsewhere":          {"reconnect", flat, `{"type":"replay","actions":[{"channel":"mock:/2","action":{"x":"secret"}}],"missing":[]}`},
		"actions root":               {"reconnect", flat, `{"type":"replay","actions":[{"channel":"ahp-root://","action":{"type":"root/x","x":"secret"}}],"missing":[]}`},
		"actions of arrays":          {"reconnect", flat, `{"type":"replay","actions":[[{"channel":"mock:/2","action":{"x":"secret"}}]],"missing":[]}`},
		"missing others":             {"reconnect", flat, `{"type":"replay","actions":[],"missing":["mock:/secret"]}`},
		"missing objects":            {"reconnect", flat, `{"type":"replay","actions":[],"missing":[{"channel":"mock:/2","x":"secret"}]}`},
		"type object":                {"reconnect", flat, `{"type":{"x":"secret"},"actions":[]}`},
		"windows with more":          {"reconnect", flat, `{"type":"replay","actions":[],"windows":{"items":[{"channel":"mock:/2","x":"secret"}]}}`},
		"windows unknown":            {"reconnect", flat, `{"type":"replay","actions":[],"windows":{"x":"secret"}}`},
		"initialize top":             {"initialize", `{"clientId":"c"}`, `{"protocolVersion":"1.1.0","sessions":["secret"]}`},
		"initialize serverInfo":      {"initialize", `{"clientId":"c"}`, `{"protocolVersion":"1.1.0","snapshots":{"a":"secret"}}`},
		"initialize channels":        {"initialize", `{"clientId":"c"}`, `{"protocolVersion":"1.1.0","channels":[{"channel":"mock:/1","x":"secret"}]}`},
		"initialize nested snapshot": {"initialize", `{"clientId":"c"}`, `{"protocolVersion":"1.1.0","snapshots":[{"resource":"mock:/1","snapshots":[` + snap(out, "") + `]}]}`},
		"subscribe another":          {"subscribe", `{"channel":"mock:/1"}`, `{"snapshot":` + snap(out, "") + `}`},
		"subscribe root":             {"subscribe", `{"channel":"ahp-root://"}`, `{"snapshot":` + snap(root, "") + `}`},
		"subscribe root more":        {"subscribe", `{"channel":"ahp-root://"}`, `{"snapshot":{"resource":"ahp-root://","state":{"agents":[]},"fromSeq":{"x":"secret"}}}`},
		"subscribe array":            {"subscribe", `{"channel":"mock:/1"}`, `{"snapshot":[` + snap(out, "") + `]}`},
		"subscribe flowControl":      {"subscribe", `{"channel":"mock:/1"}`, `{"flowControl":{"x":"secret"}}`},
		"list":                       {"listSessions", `{}`, `{"items":[{"resource":"mock:/2","title":"secret"}]}`},
		"list twice":                 {"listSessions", `{}`, `{"items":[{"resource":"mock:/1","resource":"mock:/2","title":"secret"}]}`},
		"list object":                {"listSessions", `{}`, `{"items":{"a":{"resource":"mock:/2","title":"secret"}}}`},
		"list array":                 {"listSessions", `{}`, `[{"resource":"mock:/2","title":"secret"}]`},
		"list text":                  {"listSessions", `{}`, `{"items":["secret"]}`},
		"list cursor":                {"listSessions", `{}`, `{"items":[],"nextCursor":{"x":"secret"}}`},
		"fetchTurns more":            {"fetchTurns", `{"channel":"mock:/1"}`, `{"turns":[],"x":"secret"}`},
		"completions more":           {"completions", `{"channel":"mock:/1"}`, `{"items":[],"x":"secret"}`},
	} {
		t.Run("answer "+name, func(t *testing.T) {
			c := limited(t, nil, "mock:/1")
			if got := c.ask(a[0], a[1], a[2]); strings.Contains(got, "secret") {
				t.Errorf("the client sees a foreign session's text: %s; want none", got)
			}
		})
	}
	for name, e := range map[string]string{
		"error beside":    `{"id":1,"error":{"code":-32000,"message":"x"},"other":"secret"}`,
		"error member":    `{"id":1,"error":{"code":-32000,"message":"x","x":"secret"}}`,
		"error data":      `{"id":1,"error":{"code":-32000,"message":"x","data":{"sessions":["secret"]}}}`,
		"error to nobody": `{"id":77,"error":{"code":-32000,"message":"secret"}}`,
		"error null id":   `{"id":null,"error":{"code":-32000,"message":"x","data":"secret"}}`,
		"result to none":  `{"id":78,"result":{"x":"secret"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := limited(t, nil, "mock:/1")
			request := `{"id":1,"method":"subscribe","params":{"channel":"mock:/1"}}`
			c.gate.FromClient([]byte(request), peek(c, request))
			if got := c.host(e); strings.Contains(got, "secret") {
				t.Errorf("the client sees a foreign session's text: %s; want none", got)
			}
		})
	}
}

// TestForeignRequestsReachNoHost sends requests about another session, in odd forms, from a client
// limited to mock:/1 and term:/1. The gate must answer each itself.
func TestForeignRequestsReachNoHost(t *testing.T) {
	for _, message := range []string{
		`{"id":1,"method":"subscribe","params":{"channel":"mock:/1","Channel":"mock:/2"}}`,
		`{"id":1,"method":"subscribe","params":{"channel":"mock:/1","ch\u0041nnel":"mock:/2"}}`,
		`{"id":1,"method":"subscribe","params":{"ch\u0061nnel":"mock:/2"}}`,
		`{"id":1,"method":"subscribe","params":{"channel":"mock:\/\u0032"}}`,
		`{"id":1,"method":"subscribe","params":["mock:/2"]}`,
		`{"id":1,"method":"subscribe","channel":"mock:/2","params":{}}`,
		`{"id":1,"method":"subscribe","params":{"channel":"mock:/1/../2"}}`,
		`{"id":1,"method":"subscribe","params":{"channel":"mock:/1/..%2f2"}}`,
		`{"id":1,"method":"sub\u0073cribe","params":{"channel":"mock:/2"}}`,
		`{"id":1,"method":"initialize","params":{"clientId":"c","initialSubscriptions":[["mock:/2"]]}}`,
		`{"id":1,"method":"initialize","params":{"clientId":"c","initialSubscriptions":"mock:/2"}}`,
		`{"id":1,"method":"initialize","params":{"clientId":"c","initialSubscriptions":{"0":"mock:/2"}}}`,
		`{"id":1,"method":"initialize","params":{"clientId":"c","initialSubscriptions":[{"channel":"mock:/2"}]}}`,
		`{"id":1,"method":"initialize","params":{"clientId":"c","initialSubscriptions":[{"channel":["mock:/2"]}]}}`,
		`{"id":1,"method":"initialize","params":{"clientId":"c","initialSubscriptions":[],"initialSubscription\u0073":["mock:/2"]}}`,
		`{"id":1,"method":"initialize","params":{"clientId":"c","InitialSubscriptions":["mock:/2"]}}`,
		`{"id":1,"method":"reconnect","params":{"clientId":"c","subscriptions":[{"channel":"mock:/2","lastSeenServerSeq":0}]}}`,
		`{"id":1,"method":"reconnect","params":{"clientId":"c","subscriptions":[{"channel":"mock:/1","channel":"mock:/2"}]}}`,
		`{"id":1,"method":"reconnect","params":{"clientId":"c","subscriptions":[{"channel":"mock:/1"},["mock:/2"]]}}`,
		`{"id":1,"method":"reconnect","params":{"clientId":"c","subscriptions":[],"windows":{"items":[{"channel":"mock:/2"}]}}}`,
		`{"id":1,"method":"reconnect","params":{"clientId":"c","subscriptions":[],"windows":[{"channel":"mock:/2"}]}}`,
		`{"id":1,"method":"reconnect","params":{"clientId":"c","subscriptions":[],"windows":{"items":{"0":{"channel":"mock:/2"}}}}}`,
		`{"id":1,"method":"fetchTurns","params":{"channel":"mock:/1","chat":"ahp-chat:/2"}}`,
		`{"id":1,"method":"disposeChat","params":{"channel":"mock:/1","chat":{"resource":"ahp-chat:/2"}}}`,
		`{"id":1,"method":"createTerminal","params":{"channel":"term:/1/a","claim":{"kind":"session","session":"mock:/2"}}}`,
		`{"id":1,"method":"createTerminal","params":{"channel":"term:/1/a","cl\u0061im":{"kind":"session","chat":["ahp-chat:/2"]}}}`,
		`{"id":1,"method":"moveChat","params":{"channel":"mock:/1","chat":"ahp-chat:/2"}}`,
		`{"id":1,"method":"createChat","params":{"channel":"mock:/1","chat":"mock:/2"}}`,
		`{"id":1,"method":"createChat","params":{"channel":"mock:/1","source":[[{"chat":"ahp-chat:/2"}]]}}`,
		`{"id":1,"method":"createChat","params":{"channel":"mock:/1","initialMessage":{"x":[[{"attachments":[[{"resource":"ahp-chat:/2"}]]}]]}}}`,
		`{"method":"dispatchAction","params":{"channel":"mock:/1","action":{"type":"chat/turnStarted","message":{"attachments":[{"resource":{"scheme":"mock","path":"/2"}}]}}}}`,
		`{"method":"dispatchAction","params":{"channel":"mock:/1","action":{"type":"x","message":{"\u0061ttachments":{"a":{"uri":"mock:/2"}}}}}}`,
		`{"method":"channel/frame","params":{"channel":"mock:/1","data":"{}","final":true}}`,
		`{"method":"tcp/data","params":{"channel":"ahp-tcp:/1","data":""}}`,
		`{"id":1,"method":"later/unknown","params":{"channel":"mock:/1"}}`,
		`{"id":1,"method":"tools/call","channel":"MCP://s/1","params":{}}`,
		`{"id":1,"method":"resourceRead","params":{"uri":"file:///etc/passwd"}}`,
		`{"id":1,"method":"resourceRead","params":{"uri":["mock:/2"]}}`,
		`{"id":1,"method":"canvasReadResource","params":{"channel":"mock:/1","uri":"file:///etc/passwd"}}`,
	} {
		c := limited(t, nil, "mock:/1", "term:/1")
		if d := c.gate.FromClient([]byte(message), peek(t, message)); d.Verdict != gate.Answer {
			t.Errorf("the foreign request %s passes; want it answered", message)
		}
	}
}
