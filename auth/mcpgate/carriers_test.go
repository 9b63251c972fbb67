package mcpgate_test

import (
	"testing"

	"ahprelay/ahp/view"
	"ahprelay/auth/mcpgate"
	"ahprelay/test/carriers"
)

func (w *wire) passes(list []carriers.Message) {
	w.Helper()
	for _, m := range list {
		if m.FromHost {
			w.host(m.Text)
		} else if got := w.client(m.Text); got != "pass" {
			w.Fatalf("the message %s: %s; want pass", m.Text, got)
		}
	}
}

// TestEveryCarrierAddsAndRemovesServers has the host add and remove an MCP server in each form of
// message. The client may call the server only while the session has it. A client's action, or a
// rejected action, must add no server.
func TestEveryCarrierAddsAndRemovesServers(t *testing.T) {
	kit := `{"type":"mcpServer","id":"s","state":{"kind":"ready"},"channel":"` + uri + `","mcpApp":{"capabilities":{"serverTools":{}}}}`
	for _, version := range carriers.Versions {
		for _, carrier := range carriers.Of(version) {
			t.Run(version+" "+carrier.Name, func(t *testing.T) {
				for _, more := range []string{"", `,"origin":{"clientId":"x","clientSeq":1}`, `,"rejectionReason":"no"`} {
					there, gone := `{"customizations":[`+kit+`]}`, `{"customizations":[]}`
					if carrier.Action {
						there, gone = `{"type":"session/customizationsChanged","customizations":[`+kit+`]}`, `{"type":"session/customizationRemoved","id":"s"}`
					} else if more != "" {
						continue
					}
					w := newWire(t, view.NewHost(nil), mcpgate.Config{Strict: true})
					w.passes(carriers.Greeting(version, "c", `{"mcpApps":{}}`))
					want := func(when, method, want string) {
						t.Helper()
						if got := verdict(w.client(`{"id":99,"method":"` + method + `","channel":"` + uri + `"}`)); got != want {
							t.Errorf("%s %s: %s is %s; want %s", when, more, method, got, want)
						}
						w.host(`{"id":99,"result":{},"channel":"` + uri + `"}`)
					}
					want("before", "tools/call", "-32008")
					w.passes(carrier.Wrap(carriers.Part{Channel: session, JSON: there, Seq: 7, More: more, ID: 1}))
					served, other := "pass", "-32601"
					if more != "" {
						served, other = "-32008", "-32008"
					}
					want("when it is there", "tools/call", served)
					want("when it is there", "resources/read", other)
					w.passes(carrier.Wrap(carriers.Part{Channel: session, JSON: gone, Seq: 8, ID: 2}))
					want("when it is gone", "tools/call", "-32008")
				}
			})
		}
	}
}

// TestRemovedSessionServesNothing has the host remove a session. The session's MCP servers must
// then be unavailable.
func TestRemovedSessionServesNothing(t *testing.T) {
	w := newWire(t, view.NewHost(nil), mcpgate.Config{})
	w.subscribe(session, "["+mcpServer("s", uri, "ready", adverts[4].json)+"]")
	w.host(`{"method":"root/sessionRemoved","params":{"channel":"ahp-root://","session":"` + session + `"}}`)
	if got := w.call(uri); got != "-32008" {
		t.Errorf("a call to a removed session's channel: %s; want -32008", got)
	}
}
