package mcpgate_test

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth/mcpgate"
)

// busy returns a connection whose client has got a session with two MCP servers.
func busy(t testing.TB) *wire {
	w := newWire(t, view.NewHost(nil), mcpgate.Config{})
	w.greet("c", `{"mcpApps":{}}`)
	w.subscribe(session, "["+mcpServer("s", uri, "ready", adverts[12].json)+","+mcpServer("t", uri+"2", "ready", adverts[3].json)+"]")
	return w
}

// ordinary returns a chat's action, 512 bytes long.
func ordinary() string {
	start := `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/1","action":{"type":"chat/delta","partId":"p","content":"`
	end := `"},"serverSeq":123456}}`
	return start + strings.Repeat("text ", (512-len(start)-len(end))/5+1)[:512-len(start)-len(end)] + end
}

// snapshot returns a host's answer to subscribe, about 1 MiB long.
func snapshot(id int, customizations string) string {
	turn := `{"role":"user","text":"` + strings.Repeat("word ", 200) + `"}`
	turns := strings.TrimSuffix(strings.Repeat(turn+",", 1<<20/len(turn)), ",")
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"snapshot":{"resource":%q,"state":{"turns":[%s]%s},"fromSeq":1}}}`, id, session, turns, customizations)
}

func peek(t testing.TB, message string) ([]byte, *ahp.Envelope) {
	env, err := ahp.Peek([]byte(message))
	if err != nil {
		t.Fatal(err)
	}
	return []byte(message), &env
}

// BenchmarkFrame measures how long the gate takes for a message whose envelope is already parsed.
func BenchmarkFrame(b *testing.B) {
	w := busy(b)
	state := `{"jsonrpc":"2.0","method":"action","params":{"channel":"` + session + `","action":{"type":"session/mcpServerStateChanged","id":"s","state":{"kind":"ready"},"channel":"` + uri + `"},"serverSeq":1}}`
	updated := `{"jsonrpc":"2.0","method":"action","params":{"channel":"` + session + `","action":{"type":"session/customizationUpdated","customization":` + mcpServer("s", uri, "ready", adverts[12].json) + `},"serverSeq":1}}`
	call := `{"jsonrpc":"2.0","id":7,"channel":"` + uri + `","method":"tools/call","params":{"name":"x","arguments":{"text":"` + strings.Repeat("x", 300) + `"}}}`
	for _, bench := range []struct {
		name, message string
		client        bool
	}{
		{"ordinary action 512 B", ordinary(), false},
		{"client's action 512 B", strings.Replace(ordinary(), `"action","params"`, `"dispatchAction","params"`, 1), true},
		{"response 512 B", `{"id":77777,"result":{"x":"` + strings.Repeat("x", 480) + `"}}`, false},
		{"tools call", call, true},
		{"state of a server", state, false},
		{"customization", updated, false},
	} {
		message, env := peek(b, bench.message)
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if bench.client {
					w.chain.FromClient(message, env)
				} else {
					w.chain.FromHost(message, env)
				}
			}
		})
	}
	for name, customizations := range map[string]string{
		"snapshot 1 MiB without servers": "",
		"snapshot 1 MiB with servers":    `,"customizations":[` + mcpServer("s", uri, "ready", adverts[12].json) + `]`,
	} {
		ask, asked := peek(b, `{"id":7,"method":"subscribe","params":{"channel":"ahp-chat:/9"}}`)
		message, env := peek(b, strings.Replace(snapshot(7, customizations), session, "ahp-chat:/9", 1))
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(message)))
			for b.Loop() {
				w.chain.FromClient(ask, asked)
				w.chain.FromHost(message, env)
			}
		})
	}
}

// TestOrdinaryMessagesCostNoMemory fails if the gate allocates memory for the messages of a busy
// host.
func TestOrdinaryMessagesCostNoMemory(t *testing.T) {
	w := busy(t)
	action, actionEnv := peek(t, ordinary())
	call, callEnv := peek(t, `{"jsonrpc":"2.0","id":7,"channel":"`+uri+`","method":"tools/call","params":{}}`)
	n := testing.AllocsPerRun(100, func() {
		w.chain.FromHost(action, actionEnv)
		w.gate.FromClient(action, actionEnv)
		w.gate.FromClient(call, callEnv)
	})
	if n > 0 {
		t.Errorf("%v allocations; want none", n)
	}
}
