package mcpgate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp/view"
	"ahprelay/auth/mcpgate"
)

// needs lists requests of hosts, each with the capability that the client must have declared, and
// the class of the report without it.
var needs = []struct{ method, capability, class string }{
	{"canvasOpen", "canvas", "canvas_without_client_capability"},
	{"canvasInvokeAction", "canvas", "canvas_without_client_capability"},
	{"canvasInvokeOperation", "canvas", "canvas_without_client_capability"},
	{"canvasClose", "canvas", "canvas_without_client_capability"},
	{"sampling/createMessage", "sampling", "sampling_without_client_capability"},
	{"elicitation/create", "elicitation", "elicitation_without_client_capability"},
	{"roots/list", "roots", "roots_without_client_capability"},
	{"resourceRead", "", ""},
	{"later/request", "", ""},
}

// TestHostRequestsNeedCapabilities has a host send these requests to clients with different
// capabilities. Without the needed capability, strict mode must refuse the request, and soft mode
// must pass it with a warning.
func TestHostRequestsNeedCapabilities(t *testing.T) {
	all := `{"canvas":{},"mcpApps":{},"sampling":{"tools":{}},"elicitation":{},"roots":{"listChanged":true}}`
	for _, strict := range []bool{false, true} {
		for _, declared := range []string{"", "null", "{}", "unknown", `{"canvas":{}}`, `{"sampling":{}}`, `{"sampling":null,"elicitation":true}`, all} {
			for i, need := range needs {
				w := newWire(t, view.NewHost(nil), mcpgate.Config{Strict: strict})
				if declared != "unknown" {
					w.greet("c", declared)
				}
				var has map[string]any
				_ = json.Unmarshal([]byte(declared), &has)
				want, event := "pass", ""
				switch {
				case need.capability == "" || has[need.capability] != nil:
				case declared == "unknown":
					event = "observation:client_capabilities_unknown"
				case strict:
					want, event = "-32601", "rejection:"+need.class
				default:
					event = "warning:" + need.class
				}
				got := w.host(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"channel":%q}}`, i, need.method, uri))
				if seen := w.took(); verdict(got) != want || seen != event {
					t.Errorf("the host's %s to a client that has declared %s, strict %v: the gate returns %s and reports %q; want %s and %q", need.method, declared, strict, got, seen, want, event)
				}
				if got != "pass" {
					checkAnswer(t, got, i)
					if !strings.Contains(got, need.capability) {
						t.Errorf("the answer %s does not name the capability %s", got, need.capability)
					}
				}
				if got := w.host(fmt.Sprintf(`{"method":%q,"params":{"channel":%q}}`, need.method, uri)); got != "pass" {
					t.Errorf("%s as a notification: %s; want pass", need.method, got)
				}
			}
		}
	}
}

// TestProgressNeedsDeclaration has a host report progress. The report must always pass, with a
// warning if the client has neither declared progress nor requested it.
func TestProgressNeedsDeclaration(t *testing.T) {
	const warning = "warning:progress_without_client_capability"
	ask := func(meta string) string {
		return `{"id":7,"method":"tools/call","params":{"channel":"` + uri + `","name":"x"` + meta + `}}`
	}
	for _, strict := range []bool{false, true} {
		for _, test := range []struct{ declared, asked, want string }{
			{"", "", warning},
			{`{"sampling":{}}`, ask(""), warning},
			{`{"sampling":{}}`, ask(`,"_meta":{"progressToken":null}`), warning},
			{`{"sampling":{}}`, ask(`,"arguments":{"progressToken":1}`), warning},
			{`{"progress":{}}`, "", ""},
			{`{"sampling":{}}`, ask(`,"_meta":{"progressToken":1}`), ""},
			{"unknown", "", ""},
		} {
			w := newWire(t, view.NewHost(nil), mcpgate.Config{Strict: strict})
			if test.declared != "unknown" {
				w.greet("c", test.declared)
			}
			if test.asked != "" {
				w.client(test.asked)
			}
			w.took()
			got := w.host(`{"method":"notifications/progress","params":{"channel":"` + uri + `","progressToken":1,"progress":0.5}}`)
			if seen := w.took(); got != "pass" || seen != test.want {
				t.Errorf("strict %v, declared %s, asked %s: %s %q; want %q", strict, test.declared, test.asked, got, seen, test.want)
			}
		}
	}
}

// TestRefusalWithoutChannel refuses a host's request on an AHP channel. The answer must have AHP's
// form, without a channel member.
func TestRefusalWithoutChannel(t *testing.T) {
	w := newWire(t, view.NewHost(nil), mcpgate.Config{Strict: true})
	w.greet("c", "")
	got := w.host(`{"id":"a","method":"canvasOpen","params":{"channel":"ahp-session:/1"}}`)
	if got != `{"jsonrpc":"2.0","id":"a","error":{"code":-32601,"message":"the client has not declared the capability canvas"}}` {
		t.Error(got)
	}
}

// TestRefusedInitializeDeclaresNothing has the host refuse an initialize. The capabilities in it
// must not count; those in the next initialize, which the host accepts, must.
func TestRefusedInitializeDeclaresNothing(t *testing.T) {
	w := newWire(t, view.NewHost(nil), mcpgate.Config{})
	w.client(`{"id":1,"method":"initialize","params":{"clientId":"c","capabilities":{"sampling":{}}}}`)
	w.host(`{"id":1,"error":{"code":-32005,"message":"no"}}`)
	if s := w.gate.State(); s.Initialized || s.From != "" {
		t.Errorf("the state after a refused initialize: %+v; want no capabilities", s)
	}
	w.client(`{"id":1.0,"method":"initialize","params":{"clientId":"c","capabilities":{ "later": 1 }}}`)
	w.host(`{"id":1,"result":{}}`)
	if s := w.gate.State(); !s.Initialized || s.From != "initialize" || string(s.Capabilities) != `{ "later": 1 }` {
		t.Errorf("after initialize: %+v; want capabilities as they came", s)
	}
	w.host(`{"id":1,"method":"sampling/createMessage","params":{"channel":"mcp://x"}}`)
	if got := w.took(); got != "warning:sampling_without_client_capability" {
		t.Errorf("events %q; want a warning: a refused declaration does not count", got)
	}
}

// TestReconnectKeepsCapabilities resumes clients without a new declaration. The capabilities from
// the earlier connection must count for the same subject and clientId, and for no other client.
func TestReconnectKeepsCapabilities(t *testing.T) {
	host := view.NewHost(nil)
	first := newWire(t, host, mcpgate.Config{}, "ada")
	first.greet("phone", `{"sampling":{}}`)
	for _, test := range []struct{ subject, clientID, capabilities, from, events string }{
		{"ada", "phone", "", "earlier connection", ""},
		{"ada", "laptop", "", "", "observation:client_capabilities_unknown"},
		{"eve", "phone", "", "", "observation:client_capabilities_unknown"},
		{"ada", "", "", "", "observation:client_capabilities_unknown"},
		{"ada", "phone", `,"capabilities":{}`, "reconnect", "warning:sampling_without_client_capability"},
		{"ada", "phone", "", "earlier connection", "warning:sampling_without_client_capability"}, // the last declaration
	} {
		w := newWire(t, host, mcpgate.Config{}, test.subject)
		w.ask("reconnect", fmt.Sprintf(`{"channel":"ahp-root://","clientId":%q%s}`, test.clientID, test.capabilities), `{"type":"replay","actions":[],"missing":[]}`)
		w.host(`{"id":1,"method":"sampling/createMessage","params":{"channel":"mcp://x"}}`)
		if s := w.gate.State(); s.From != test.from || !s.Initialized {
			t.Errorf("%+v: the capabilities are known by %q; want %q", test, s.From, test.from)
		}
		if got := w.took(); got != test.events {
			t.Errorf("%+v: the events are %q; want %q", test, got, test.events)
		}
	}
}

// TestAppsNeedTheCapability shows an MCP App to clients. If the client has declared capabilities,
// but not mcpApps, then the gate must warn, and refuse calls in strict mode.
func TestAppsNeedTheCapability(t *testing.T) {
	app := "[" + mcpServer("s", uri, "ready", `,"mcpApp":{"capabilities":{"serverTools":{}}}`) + "]"
	for _, strict := range []bool{false, true} {
		for _, declared := range []string{`{"mcpApps":{}}`, `{}`, "unknown"} {
			w := newWire(t, view.NewHost(nil), mcpgate.Config{Strict: strict})
			if declared != "unknown" {
				w.greet("c", declared)
			}
			want := ""
			if declared == "{}" {
				want = "warning:mcp_apps_without_client_capability"
			}
			w.subscribe(session, app) // fails if the gate changes the snapshot
			if got := w.took(); got != want {
				t.Errorf("snapshot, declared %s, strict %v: %q; want %q", declared, strict, got, want)
			}
			w.action(session, `{"type":"session/customizationsChanged","customizations":`+app+`}`)
			if got := w.took(); got != want {
				t.Errorf("action, declared %s, strict %v: %q; want %q", declared, strict, got, want)
			}
			call := w.client(`{"id":1,"method":"tools/call","channel":"` + uri + `"}`)
			if refused := call != "pass"; refused != (strict && declared == "{}") {
				t.Errorf("a call, declared %s, strict %v: %s; want a refusal only if strict and undeclared", declared, strict, call)
			}
		}
	}
}

// TestLargeCapabilitiesKeepOnlyFlags declares capabilities of more than 4 KiB. The gate must
// remember which are declared, and not their text.
func TestLargeCapabilitiesKeepOnlyFlags(t *testing.T) {
	for _, size := range []int{4 << 10, 4<<10 + 1} {
		w := newWire(t, view.NewHost(nil), mcpgate.Config{})
		raw := `{"sampling":{},"x":"` + strings.Repeat("x", size-len(`{"sampling":{},"x":""}`)) + `"}`
		w.greet("c", raw)
		s := w.gate.State()
		if kept := string(s.Capabilities) == raw; kept != (size <= 4<<10) || s.From != "initialize" {
			t.Errorf("%d bytes of capabilities: kept %v, known by %q; want them kept up to 4096", size, kept, s.From)
		}
		w.host(`{"id":1,"method":"sampling/createMessage"}`)
		w.host(`{"id":1,"method":"roots/list"}`)
		if got := w.took(); got != "warning:roots_without_client_capability" {
			t.Errorf("%d bytes of capabilities: the events are %q; want a warning for roots only", size, got)
		}
	}
}

// TestRememberedClientsAreBounded greets 2,000 clients. The gate must forget those that were away
// longest.
func TestRememberedClientsAreBounded(t *testing.T) {
	host := view.NewHost(nil)
	for i := range 2000 {
		newWire(t, host, mcpgate.Config{}).greet(fmt.Sprint("c", i), "{}")
		if i > 1000 { // the first client returns again and again
			newWire(t, host, mcpgate.Config{}).ask("reconnect", `{"clientId":"c0"}`, `{}`)
		}
	}
	for id, known := range map[string]bool{"c0": true, "c1": false, "c1999": true, "c900": false} {
		w := newWire(t, host, mcpgate.Config{})
		w.ask("reconnect", fmt.Sprintf(`{"clientId":%q}`, id), `{}`)
		if got := w.gate.State().From != ""; got != known {
			t.Errorf("%s is known: %v; want %v", id, got, known)
		}
	}
}

// TestFactsEndWithTheHost ends the host process. The capabilities and channels known from it must
// not count for its successor.
func TestFactsEndWithTheHost(t *testing.T) {
	host := view.NewHost(nil)
	list := "[" + mcpServer("s", uri, "ready", `,"mcpApp":{"capabilities":{"serverTools":{}}}`) + "]"
	for _, ended := range []bool{false, true} {
		w := newWire(t, host, mcpgate.Config{})
		w.greet("phone", `{"sampling":{}}`)
		w.subscribe(session, list)
		w.gate.Leave()
		want, from := "pass", "earlier connection"
		if ended {
			host.Ended()
			want, from = "-32008", ""
		}
		again := newWire(t, host, mcpgate.Config{})
		again.ask("reconnect", fmt.Sprintf(`{"clientId":"phone","subscriptions":[%q]}`, session), `{"type":"replay","actions":[],"missing":[]}`)
		if got := again.gate.State().From; got != from {
			t.Errorf("ended %v: capabilities are known by %q; want %q", ended, got, from)
		}
		other := newWire(t, host, mcpgate.Config{})
		if got := other.call(uri); (got == "pass") != ended {
			t.Errorf("host ended: %v; a call to a channel named to a different client: %s; want it to pass only after the end", ended, got)
		}
		other.subscribe("ahp-session:/other", "["+mcpServer("o", "mcp://other", "ready", "")+"]")
		if got := verdict(again.client(`{"id":9,"method":"tools/call","channel":"` + uri + `"}`)); got != want {
			t.Errorf("ended %v: a call on a channel from the earlier connection is %s; want %s", ended, got, want)
		}
	}
}
