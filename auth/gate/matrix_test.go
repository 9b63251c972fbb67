package gate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/auth/gate"
	"ahprelay/test/matrix"
)

// known lists all methods in AHP up to 0.9 and its drafts, in MCP on mcp:// channels, and in
// messages of real hosts: "c" from clients, "h" from hosts.
var known = map[string]string{
	"c": "initialize ping reconnect subscribe createSession disposeSession createChat createTcpConnection moveChat disposeChat createTerminal " +
		"disposeTerminal createResourceWatch listSessions resourceRead resourceWrite resourceList resourceCopy resourceDelete resourceMove " +
		"resourceResolve resourceMkdir resourceRequest fetchTurns authenticate resolveSessionConfig sessionConfigCompletions completions " +
		"invokeChangesetOperation listAutomationTriggerDefinitions runAutomation fetchAutomationRuns canvasReadResource canvasOpen " +
		"canvasInvokeAction canvasInvokeOperation canvasClose unsubscribe dispatchAction channel/ack channel/frame channel/credit channel/reset " +
		"tcp/data tcp/eof vscode/devContainers/connect tools/list tools/call resources/list resources/templates/list resources/read " +
		"logging/setLevel sampling/createMessage notifications/message",
	"h": "action root/sessionAdded root/sessionRemoved root/sessionSummaryChanged root/progress auth/required otlp/exportLogs otlp/exportTraces " +
		"otlp/exportMetrics channel/frame channel/credit channel/ready channel/reset channel/snapshot tcp/data tcp/eof resourceRead " +
		"resourceWrite resourceList resourceCopy resourceDelete resourceMove resourceResolve resourceMkdir resourceRequest createResourceWatch " +
		"canvasOpen canvasInvokeAction canvasInvokeOperation canvasClose vscode/requestWorkspaceTrust notifications/tools/list_changed " +
		"notifications/resources/list_changed notifications/message",
}

func readMatrix(t *testing.T) []matrix.Row {
	t.Helper()
	rows, err := matrix.Read("testdata/matrix.txt")
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestMatrixHasAllMethods fails unless matrix.txt has a row for every known method, and for every
// method in package ahp's tables.
func TestMatrixHasAllMethods(t *testing.T) {
	rows := readMatrix(t)
	has := func(fromHost bool, method string) bool {
		return slices.ContainsFunc(rows, func(r matrix.Row) bool { return r.FromHost == fromHost && r.Method == method })
	}
	for from, list := range known {
		for _, method := range strings.Fields(list) {
			if !has(from == "h", method) {
				t.Errorf("the matrix lacks the method %s %s", from, method)
			}
		}
	}
	for fromHost, list := range map[bool][]string{false: gate.KnownMethods(), true: gate.KnownOfHosts()} {
		for _, method := range list {
			if !has(fromHost, method) {
				t.Errorf("the matrix lacks %s, which the gate knows", method)
			}
		}
	}
}

func peek(t testing.TB, message string) *ahp.Envelope {
	t.Helper()
	env, err := ahp.Peek([]byte(message))
	if err != nil {
		t.Fatalf("Peek(%s): %v; want no error", message, err)
	}
	return &env
}

// TestEachMethodHasItsLevel sends the message of every row in matrix.txt with every token. The
// gate's result must be what the row says.
func TestEachMethodHasItsLevel(t *testing.T) {
	for _, row := range readMatrix(t) {
		for token, want := range row.Verdicts {
			if want == "-" {
				continue
			}
			allow := matrix.Tokens[token].Allow
			g := chainOf(gate.NewPolicy(allow.Access, allow.Channels, allow.Methods, allow.Reverse), nil)
			(&conn{TB: t, gate: g, id: 100}).subscribes("mock:/s")
			message := row.Message(token, 7)
			verdict := fromClient
			if row.FromHost {
				verdict = hostSays
			}
			if got := verdict(t, g, row.Method, message); got != want {
				t.Errorf("%s: %s token: %s; want %s\n%s", row.Name(), matrix.Tokens[token].Name, got, want, message)
			}
		}
	}
}

// answers are results of a host that a gate shortens for a limited client.
var answers = map[string]string{
	"initialize":   `{"snapshots":[{"resource":"ahp-root://","state":{"agents":[],"config":{}}},{"resource":"mock:/s","state":{}},{"resource":"mock:/t","state":{}}]}`,
	"reconnect":    `{"type":"replay","actions":[{"channel":"mock:/t","action":{"type":"x"}}]}`,
	"subscribe":    `{"snapshot":{"resource":"$","state":{"agents":[],"config":{}},"fromSeq":3}}`, // $: the requested channel
	"listSessions": `{"items":[{"resource":"mock:/s"},{"resource":"mock:/t"}]}`,
}

// fromClient passes a client's message through the gate, and the host's answer if it passes. It
// returns the result in the words of matrix.txt.
func fromClient(t *testing.T, g *gate.Chain, method, message string) string {
	env := peek(t, message)
	d := g.FromClient([]byte(message), env)
	switch {
	case d.Verdict == gate.Pass && env.Kind == ahp.Request && len(g.Gates) > 0:
		return fitted(t, g, method, string(env.Channel))
	case d.Verdict == gate.Pass:
		return "pass"
	case d.Verdict == gate.Replace:
		return "replace"
	}
	return answerOf(t, d.Message)
}

// answerOf returns the word of matrix.txt for the gate's answer.
func answerOf(t *testing.T, answer []byte) string {
	switch {
	case answer == nil:
		return "drop"
	case strings.Contains(string(answer), `"code":-32009`):
		return "refuse"
	case strings.Contains(string(answer), `"code":-32008`):
		return "lost"
	case strings.Contains(string(answer), `"rejectionReason"`):
		return "echo"
	case strings.Contains(string(answer), `"method":"action"`):
		return "settle"
	}
	t.Errorf("the answer is %s; want an error or a rejection", answer)
	return "?"
}

// fitted passes the host's answer to a request through the gate. It returns the word of matrix.txt
// for the result.
func fitted(t *testing.T, g *gate.Chain, method, channel string) string {
	result := strings.ReplaceAll(answers[method], "$", channel)
	if result == "" {
		result = "{}"
	}
	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"result":%s}`, result)
	switch d := fromHost(g, answer, peek(t, answer)); d.Verdict {
	case gate.Pass:
		return "pass"
	case gate.Replace:
		if strings.Contains(string(d.Message), "mock:/t") || strings.Contains(string(d.Message), "config") {
			t.Errorf("%s: the fitted answer is %s; want it without mock:/t and config", method, d.Message)
		}
		if strings.Contains(string(d.Message), `"error"`) {
			return "refuse later"
		}
		return "fit"
	}
	return "answer dropped"
}

// hostSays passes a host's message through the gate, and the client's answer if it passes. It
// returns the result in the words of matrix.txt.
func hostSays(t *testing.T, g *gate.Chain, _, message string) string {
	env := peek(t, message)
	d := fromHost(g, message, env)
	switch {
	case d.Verdict == gate.Replace:
		if strings.Contains(string(d.Message), "agenthost-terminal") {
			t.Errorf("a replaced message contains the scheme of terminals: %s; want none", d.Message)
		}
		return "fit"
	case d.Verdict == gate.Answer:
		return answerOf(t, d.Message)
	case env.Kind != ahp.Request || len(g.Gates) == 0:
		return "pass"
	}
	answer := `{"jsonrpc":"2.0","id":7,"result":{}}`
	switch d := g.FromClient([]byte(answer), peek(t, answer)); {
	case d.Verdict == gate.Pass:
		return "pass"
	case d.Verdict == gate.Replace && answerOf(t, d.Message) == "refuse":
		return "ask"
	}
	return "answer lost"
}
