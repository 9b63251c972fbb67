package mcpgate_test

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
	"ahprelay/auth/mcpgate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A wire is a client's connection to a host through the gate. It keeps the gate's events.
type wire struct {
	testing.TB
	gate   *mcpgate.Gate
	chain  gate.Chain
	events []mcpgate.Event
	ids    int
}

func newWire(t testing.TB, host *view.Host, cfg mcpgate.Config, subject ...string) *wire {
	w := &wire{TB: t}
	cfg.Event = func(e mcpgate.Event) { w.events = append(w.events, e) }
	w.chain.View = host.Conn(strings.Join(subject, ""))
	w.gate = mcpgate.New(w.chain.View, cfg)
	w.chain.Gates = []gate.Gate{w.gate}
	return w
}

// took returns the events since the last call, each as kind:class.
func (w *wire) took() string {
	var list []string
	for _, e := range w.events {
		list = append(list, e.Kind+":"+e.Class)
	}
	w.events = nil
	return strings.Join(list, " ")
}

// client passes a client's message through the gate. It returns "pass", "drop", or the gate's
// answer.
func (w *wire) client(message string) string {
	w.Helper()
	env, err := ahp.Peek([]byte(message))
	if err != nil {
		w.Fatalf("Peek(%s): %v; want no error", message, err)
	}
	return result(w.chain.FromClient([]byte(message), &env))
}

// host passes a host's message through the gate, and returns the same as client.
func (w *wire) host(message string) string {
	w.Helper()
	env, err := ahp.Peek([]byte(message))
	if err != nil {
		w.Fatalf("Peek(%s): %v; want no error", message, err)
	}
	d, _ := w.chain.FromHost([]byte(message), &env)
	return result(d)
}

func result(d gate.Decision) string {
	switch {
	case d.Verdict == gate.Pass:
		return "pass"
	case d.Message == nil:
		return "drop"
	}
	return string(d.Message)
}

// verdict shortens a result of client or host: an error becomes its code.
func verdict(result string) string {
	_, after, ok := strings.Cut(result, `"error":{"code":`)
	if code, _, _ := strings.Cut(after, ","); ok {
		return code
	}
	return result
}

// ask passes a client's request and the host's result through the gate.
func (w *wire) ask(method, params, answer string) {
	w.Helper()
	w.ids++
	if got := w.client(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, w.ids, method, params)); got != "pass" {
		w.Fatalf("calling %s: %s; want pass", method, got)
	}
	w.host(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":%s}`, w.ids, answer))
}

// greet sends initialize. capabilities is JSON, or "" for a client without this member.
func (w *wire) greet(clientID, capabilities string) {
	w.Helper()
	if capabilities != "" {
		capabilities = `,"capabilities":` + capabilities
	}
	w.ask("initialize", fmt.Sprintf(`{"channel":"ahp-root://","clientId":%q%s}`, clientID, capabilities), `{"protocolVersion":"0.9.0","snapshots":[]}`)
}

// subscribe shows the client a session with these customizations.
func (w *wire) subscribe(session, customizations string) {
	w.Helper()
	w.ask("subscribe", fmt.Sprintf(`{"channel":%q}`, session),
		fmt.Sprintf(`{"snapshot":{"resource":%q,"state":{"title":"x","customizations":%s},"fromSeq":1}}`, session, customizations))
}

// action passes a host's action through the gate, and fails unless it passes unchanged.
func (w *wire) action(session, action string) {
	w.Helper()
	if got := w.host(fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":%q,"action":%s,"serverSeq":7}}`, session, action)); got != "pass" {
		w.Fatalf("the host's action: %s; want pass", got)
	}
}

const (
	session = "ahp-session:/1"
	uri     = "mcp://host/1/files"
)

// mcpServer returns a customization for an MCP server. more is added to the object as JSON members.
func mcpServer(id, channel, state, more string) string {
	text := fmt.Sprintf(`{"type":"mcpServer","id":%q,"uri":"file:///x","name":"files","enabled":true`, id)
	if state != "" {
		text += fmt.Sprintf(`,"state":{"kind":%q}`, state)
	}
	if channel != "" {
		text += fmt.Sprintf(`,"channel":%q`, channel)
	}
	return text + more + "}"
}

// adverts lists what an MCP server can declare, and which methods it then serves.
var adverts = []struct {
	name, json string
	served     string // the methods that the gate must permit
	changed    string // the lists whose list_changed must pass
	later      string // "set": an unknown set of capabilities; "flag": an unknown capability in the known set
}{
	{"no sets", ``, "", "", ""},
	{"an empty set", `,"mcpApp":{"capabilities":{}}`, "", "", ""},
	{"a set without capabilities", `,"mcpApp":{}`, "", "", ""},
	{"serverTools", `,"mcpApp":{"capabilities":{"serverTools":{}}}`, "tools/list tools/call", "", ""},
	{"serverTools that change", `,"mcpApp":{"capabilities":{"serverTools":{"listChanged":true}}}`, "tools/list tools/call", "tools", ""},
	{"serverTools that do not change", `,"mcpApp":{"capabilities":{"serverTools":{"listChanged":false}}}`, "tools/list tools/call", "", ""},
	{"serverTools that may change", `,"mcpApp":{"capabilities":{"serverTools":{"listChanged":"true"}}}`, "tools/list tools/call", "", ""},
	{"serverResources", `,"mcpApp":{"capabilities":{"serverResources":{}}}`, "resources/list resources/templates/list resources/read", "", ""},
	{"serverResources that change", `,"mcpApp":{"capabilities":{"serverResources":{"listChanged":true}}}`, "resources/list resources/templates/list resources/read", "resources", ""},
	{"logging", `,"mcpApp":{"capabilities":{"logging":{}}}`, "logging/setLevel notifications/message", "", ""},
	{"sampling", `,"mcpApp":{"capabilities":{"sampling":{"tools":{}}}}`, "sampling/createMessage", "", ""},
	{"null", `,"mcpApp":{"capabilities":{"serverTools":null,"logging":false}}`, "", "", ""},
	{"all", `,"mcpApp":{"capabilities":{"serverTools":{"listChanged":true},"serverResources":{"listChanged":true},"logging":{},"sampling":{}}}`,
		"tools/list tools/call resources/list resources/templates/list resources/read logging/setLevel notifications/message sampling/createMessage", "tools resources", ""},
	{"a later capability", `,"mcpApp":{"capabilities":{"serverTools":{},"serverPrompts":{}}}`, "tools/list tools/call", "", "flag"},
	{"a later set", `,"mcpApp":{"capabilities":{"logging":{}}},"promptKit":{"capabilities":{}}`, "logging/setLevel notifications/message", "", "set"},
	{"another object", `,"vendor":{"x":{}},"icons":[{"capabilities":{}}]`, "", "", ""},
}

// governed lists the methods for which the known capabilities decide.
const governed = "tools/list tools/call resources/list resources/templates/list resources/read logging/setLevel notifications/message sampling/createMessage"

// states lists ways in which the host brings an MCP server into a state. ready is whether its
// channel is available then.
var states = []struct {
	name  string
	apply func(w *wire, advert string)
	ready bool
}{
	{"ready", func(w *wire, a string) { w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]") }, true},
	{"without a state", func(w *wire, a string) { w.subscribe(session, "["+mcpServer("s", uri, "", a)+"]") }, true},
	{"in a container", func(w *wire, a string) {
		w.subscribe(session, `[{"type":"plugin","id":"p","children":[{"type":"skill","id":"k"},`+mcpServer("s", uri, "ready", a)+"]}]")
	}, true},
	{"in initialize", func(w *wire, a string) {
		w.ask("initialize", `{"channel":"ahp-root://","clientId":"c","capabilities":{"mcpApps":{}}}`,
			`{"snapshots":[{"resource":"ahp-root://","state":{}},{"resource":"`+session+`","state":{"customizations":[`+mcpServer("s", uri, "ready", a)+`]}}]}`)
	}, true},
	{"in a snapshot of reconnect", func(w *wire, a string) {
		w.ask("reconnect", `{"channel":"ahp-root://","clientId":"c"}`,
			`{"type":"snapshot","snapshots":[{"resource":"`+session+`","state":{"customizations":[`+mcpServer("s", uri, "ready", a)+`]}}]}`)
	}, true},
	{"in a replay", func(w *wire, a string) {
		w.ask("reconnect", `{"channel":"ahp-root://","clientId":"c"}`,
			`{"type":"replay","missing":[],"actions":[{"channel":"`+session+`","serverSeq":3,"action":{"type":"session/customizationUpdated","customization":`+mcpServer("s", uri, "ready", a)+`}}]}`)
	}, true},
	{"changed", func(w *wire, a string) {
		w.subscribe(session, "[]")
		w.action(session, `{"type":"session/customizationsChanged","customizations":[`+mcpServer("s", uri, "ready", a)+`]}`)
	}, true},
	{"updated", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", "", "starting", "")+"]")
		w.action(session, `{"type":"session/customizationUpdated","customization":`+mcpServer("s", uri, "ready", a)+`}`)
	}, true},
	{"in a frame", func(w *wire, a string) {
		w.host(`{"method":"channel/frame","params":{"channel":"` + session + `","frame":1,"actions":[{"channel":"` + session +
			`","serverSeq":3,"action":{"type":"session/customizationsChanged","customizations":[` + mcpServer("s", uri, "ready", a) + `]}}]}}`)
	}, true},
	{"started", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", "", "starting", a)+"]")
		w.action(session, `{"type":"session/mcpServerStateChanged","id":"s","state":{"kind":"ready"},"channel":"`+uri+`"}`)
	}, true},
	{"with escapes", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", "", "starting", a)+"]")
		w.host(`{"method":"action","params":{"channel":"` + session + `","action":{"type":"session\/\u006dcpServerState\u0043hanged","\u0069d":"s","state":{"kind":"re\u0061dy"},"channel":"mcp:\/\/host\/1/files"}}}`)
	}, true},
	{"toggled off and on", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.action(session, `{"type":"session/customizationToggled","id":"s","enabled":false}`)
		w.action(session, `{"type":"session/customizationToggled","id":"s","enabled":true}`)
	}, true},
	{"disabled, and toggled on", func(w *wire, a string) {
		w.subscribe(session, "["+strings.Replace(mcpServer("s", uri, "ready", a), `"enabled":true`, `"enabled":false`, 1)+"]")
		w.action(session, `{"type":"session/customizationToggled","id":"s","enabled":true}`)
	}, true},
	{"disabled in a container, and toggled on", func(w *wire, a string) {
		w.subscribe(session, `[{"type":"plugin","id":"p","children":[`+strings.Replace(mcpServer("s", uri, "ready", a), `"enabled":true`, `"enabled":false`, 1)+"]}]")
		w.action(session, `{"type":"session/customizationToggled","id":"s","enabled":true}`)
	}, true},
	{"cleared by a rejected action", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.host(`{"method":"action","params":{"channel":"` + session + `","action":{"type":"session/mcpServerStopRequested","id":"s"},"rejectionReason":"no"}}`)
	}, true},
	{"unsubscribed", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.client(`{"method":"unsubscribe","params":{"channel":"` + session + `"}}`)
	}, true},
	{"named by two, of which one is ready", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.subscribe("ahp-session:/2", "["+mcpServer("s", uri, "stopped", `,"mcpApp":{"capabilities":{"serverTools":{},"sampling":{}}}`)+"]")
		w.subscribe("ahp-session:/3", "["+mcpServer("s", uri, "ready", "")+"]")
		w.host(`{"method":"root/sessionRemoved","params":{"channel":"ahp-root://","session":"ahp-session:/3"}}`)
	}, true},
	{"starting", func(w *wire, a string) { w.subscribe(session, "["+mcpServer("s", uri, "starting", a)+"]") }, false},
	{"authRequired", func(w *wire, a string) { w.subscribe(session, "["+mcpServer("s", uri, "authRequired", a)+"]") }, false},
	{"error", func(w *wire, a string) { w.subscribe(session, "["+mcpServer("s", uri, "error", a)+"]") }, false},
	{"stopped", func(w *wire, a string) { w.subscribe(session, "["+mcpServer("s", uri, "stopped", a)+"]") }, false},
	{"in a later state", func(w *wire, a string) { w.subscribe(session, "["+mcpServer("s", uri, "hibernating", a)+"]") }, false},
	{"in a state without a kind", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "", a+`,"state":{}`)+"]")
	}, false},
	{"disabled", func(w *wire, a string) {
		w.subscribe(session, "["+strings.Replace(mcpServer("s", uri, "ready", a), `"enabled":true`, `"enabled":false`, 1)+"]")
	}, false},
	{"in a disabled container", func(w *wire, a string) {
		w.subscribe(session, `[{"type":"plugin","id":"p","enabled":false,"children":[`+mcpServer("s", uri, "ready", a)+"]}]")
	}, false},
	{"toggled off", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.action(session, `{"type":"session/customizationToggled","id":"s","enabled":false}`)
	}, false},
	{"whose container was toggled off", func(w *wire, a string) {
		w.subscribe(session, `[{"type":"plugin","id":"p","children":[`+mcpServer("s", uri, "ready", a)+"]}]")
		w.action(session, `{"type":"session/customizationToggled","id":"p","enabled":false}`)
	}, false},
	{"not ready any more", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.action(session, `{"type":"session/mcpServerStateChanged","id":"s","state":{"kind":"authRequired"},"channel":"`+uri+`"}`)
	}, false},
	{"cleared", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.action(session, `{"type":"session/mcpServerStateChanged","id":"s","state":{"kind":"ready"}}`)
	}, false},
	{"replaced", func(w *wire, a string) {
		w.subscribe(session, `[{"type":"plugin","id":"p","children":[`+mcpServer("s", uri, "ready", a)+"]}]")
		w.action(session, `{"type":"session/mcpServerStateChanged","id":"s","state":{"kind":"ready"},"channel":"mcp://host/other"}`)
	}, false},
	{"updated without a channel", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.action(session, `{"type":"session/customizationUpdated","customization":`+mcpServer("s", "", "ready", a)+`}`)
	}, false},
	{"changed away", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.action(session, `{"type":"session/customizationsChanged","customizations":[]}`)
	}, false},
	{"not in the next snapshot", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.ask("subscribe", `{"channel":"`+session+`"}`, `{"snapshot":{"resource":"`+session+`","state":{}}}`)
	}, false},
	{"removed", func(w *wire, a string) {
		w.subscribe(session, `[{"type":"plugin","id":"p","children":[`+mcpServer("s", uri, "ready", a)+"]}]")
		w.action(session, `{"type":"session/customizationRemoved","id":"s"}`)
	}, false},
	{"whose container was removed", func(w *wire, a string) {
		w.subscribe(session, `[{"type":"plugin","id":"p","children":[`+mcpServer("s", uri, "ready", a)+"]}]")
		w.action(session, `{"type":"session/customizationRemoved","id":"p"}`)
	}, false},
	{"whose session was removed", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.host(`{"method":"root/sessionRemoved","params":{"channel":"ahp-root://","session":"` + session + `"}}`)
	}, false},
	{"asked to stop", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.action(session, `{"type":"session/mcpServerStopRequested","id":"s"}`)
	}, false},
	{"asked to start anew", func(w *wire, a string) {
		w.subscribe(session, "["+mcpServer("s", uri, "ready", a)+"]")
		w.action(session, `{"type":"session/mcpServerStartRequested","id":"s"}`)
	}, false},
}

// clientMethods lists the methods that the tests send from a client, as requests and as
// notifications.
var clientMethods = append(strings.Fields(governed), "initialize", "notifications/initialized", "ping", "prompts/list", "prompts/get",
	"resources/subscribe", "completion/complete", "elicitation/create", "roots/list", "tools/Call", "tools/call ", "later/method",
	"subscribe", "dispatchAction", "notifications/progress", "notifications/cancelled", "notifications/roots/list_changed", "notifications/tools/list_changed")

// placements lists where a message can have its channel.
var placements = []struct{ name, request, notification string }{
	{"in params", `{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"channel":"` + uri + `","name":"x"}}`, `{"jsonrpc":"2.0","method":%q,"params":{"name":"x","channel":"` + uri + `"}}`},
	{"at the top", `{"jsonrpc":"2.0","id":%d,"channel":"` + uri + `","method":%q,"params":{"name":"x"}}`, `{"jsonrpc":"2.0","method":%q,"channel":"` + uri + `"}`},
	{"in both", `{"channel":"` + uri + `","jsonrpc":"2.0","id":%d,"method":%q,"params":{"channel":"` + uri + `"}}`, `{"method":%q,"params":{"channel":"` + uri + `"},"channel":"mcp:\/\/host/1/files"}`},
}

// contains reports whether word is among the words, which spaces separate.
func contains(words, word string) bool {
	for _, w := range strings.Fields(words) {
		if w == word {
			return true
		}
	}
	return false
}

// expected returns the verdict that the gate must give a client's message. used is whether a
// request on this channel has passed before.
func expected(method string, request bool, served, later string, ready, strict, used bool) string {
	handshake := method == "initialize" || method == "notifications/initialized"
	belongs := method == "notifications/progress" || method == "notifications/cancelled"
	open := !strict && !handshake && (later == "set" || later == "flag" && !contains(governed, method))
	switch {
	case belongs && used:
		return "pass"
	case !ready && request:
		return "-32008"
	case ready && (contains(served, method) || open || belongs && served != ""):
		return "pass"
	case request:
		return "-32601"
	}
	return "drop"
}

// An attempt is a message that a test sends from a client.
type attempt struct {
	message []byte
	env     ahp.Envelope
	method  string
	request bool
}

// attempts returns a message for each of clientMethods: first as notifications, then as requests.
func attempts(t *testing.T, request, notification string) (list []attempt) {
	for i, method := range append(clientMethods, clientMethods...) {
		a := attempt{method: method, request: i >= len(clientMethods)}
		a.message = fmt.Appendf(nil, notification, method)
		if a.request {
			a.message = fmt.Appendf(nil, request, i, method)
		}
		var err error
		if a.env, err = ahp.Peek(a.message); err != nil {
			t.Fatal(err)
		}
		list = append(list, a)
	}
	return list
}

// TestClientMethods sends each method, with each placement, to an MCP server with each advert in
// each state. Every verdict must be what expected returns.
func TestClientMethods(t *testing.T) {
	for _, place := range placements {
		tries := attempts(t, place.request, place.notification)
		for _, state := range states {
			for _, advert := range adverts {
				for _, strict := range []bool{false, true} {
					w := newWire(t, view.NewHost(nil), mcpgate.Config{Strict: strict})
					w.greet("c", `{"mcpApps":{}}`)
					state.apply(w, advert.json)
					used := false
					for i, try := range tries {
						want := expected(try.method, try.request, advert.served, advert.later, state.ready, strict, used)
						got := result(w.gate.FromClient(try.message, &try.env))
						if verdict(got) != want {
							t.Errorf("%s on a server with %s that is %s, strict %v: %s; want %s", try.message, advert.name, state.name, strict, got, want)
						}
						if try.request && got != "pass" {
							checkAnswer(t, got, i)
						}
						used = used || try.request && got == "pass"
					}
				}
			}
		}
	}
}

// TestUnnamedChannelsServeNothing sends messages on mcp:// channels that the host has not named.
// The gate must refuse them if strict, or if the host has named any channel to any client.
// Otherwise they pass, because the host may use the scheme in its own way. Messages with other
// schemes always pass.
func TestUnnamedChannelsServeNothing(t *testing.T) {
	try := func(w *wire, channels []string, request, notification string) {
		t.Helper()
		for _, channel := range channels {
			for _, method := range clientMethods {
				want := notification
				if method == "notifications/progress" || method == "notifications/cancelled" {
					want = "pass" // these pass, although no request was sent
				}
				if got := verdict(w.client(fmt.Sprintf(`{"method":%q,"channel":%q}`, method, channel))); got != want {
					t.Errorf("%s on %s: %s; want %s", method, channel, got, want)
				}
				if want == notification {
					want = request
				}
				if got := verdict(w.client(fmt.Sprintf(`{"id":"x","method":%q,"params":{"channel":%q}}`, method, channel))); got != want {
					t.Errorf("request %s on %s: %s; want %s", method, channel, got, want)
				}
			}
		}
	}
	unknown, foreign := []string{"mcp://host/1/other", "mcp://host/1/files/", "MCP://host/1/files"}, []string{"ahp-root://", session, "mcp:", "mcpx://a"}
	for _, strict := range []bool{false, true} {
		host := view.NewHost(nil)
		w := newWire(t, host, mcpgate.Config{Strict: strict})
		w.greet("c", `{"mcpApps":{}}`)
		if try(w, foreign, "pass", "pass"); strict {
			try(w, unknown, "-32008", "drop")
		} else {
			try(w, unknown, "pass", "pass")
		}
		other := newWire(t, host, mcpgate.Config{})
		other.subscribe(session, "["+mcpServer("s", uri, "ready", "")+","+mcpServer("t", "ahp-root://", "ready", "")+"]")
		for _, w := range []*wire{w, other} {
			try(w, foreign, "pass", "pass")
			try(w, unknown, "-32008", "drop")
		}
	}
	w := newWire(t, view.NewHost(nil), mcpgate.Config{Strict: true})
	if got := w.client(`{"id":1,"method":"tools/call","params":{}}`); got != "pass" {
		t.Errorf("a call without a channel: %s; want pass", got)
	}
	if got := w.client(`{"id":1,"result":{},"channel":"` + uri + `"}`); got != "pass" {
		t.Errorf("a response with a channel: %s; want pass", got)
	}
}

// checkAnswer fails unless message is an answer to the request id on the channel uri.
func checkAnswer(t *testing.T, message string, id int) {
	t.Helper()
	env, err := ahp.Peek([]byte(message))
	if err != nil || env.Kind != ahp.Response || string(env.ID) != fmt.Sprint(id) || string(env.Channel) != uri {
		t.Errorf("answer %s: %v; want an answer to the request %d on %s", message, err, id, uri)
	}
}

// TestListChangedNeedsTheCapability has a host send list_changed notifications. The notifications
// must pass only if the server is ready and has declared that the list changes.
func TestListChangedNeedsTheCapability(t *testing.T) {
	for _, strict := range []bool{false, true} {
		for _, state := range states {
			for _, advert := range adverts {
				w := newWire(t, view.NewHost(nil), mcpgate.Config{Strict: strict})
				state.apply(w, advert.json)
				for _, of := range []string{"tools", "resources", "prompts", "later/things"} {
					want := "drop"
					open := !strict && (advert.later == "set" || advert.later == "flag" && of != "tools" && of != "resources")
					if state.ready && (contains(advert.changed, of) || open) {
						want = "pass"
					}
					if got := w.host(`{"jsonrpc":"2.0","method":"notifications/` + of + `/list_changed","channel":"` + uri + `"}`); got != want {
						t.Errorf("%s of a server %s that is %s, strict %v: %s; want %s", of, advert.name, state.name, strict, got, want)
					}
				}
				for _, other := range []string{"notifications/message", "notifications/progress", "notifications/resources/updated", "later"} {
					if got := w.host(`{"method":"` + other + `","params":{"channel":"` + uri + `"}}`); got != "pass" {
						t.Errorf("%s from the host: %s; want it to pass", other, got)
					}
				}
			}
		}
	}
}

// TestTypesAreFound sends an action with its type in different places and spellings. The gate must
// read it each time.
func TestTypesAreFound(t *testing.T) {
	list := `"customizations":[` + mcpServer("s", uri, "stopped", "") + `]`
	for _, action := range []string{
		`{"type":"session/customizationsChanged",` + list + `}`,
		`{` + list + `,"type":"session/customizationsChanged"}`,
		`{"type":"session/customizationsChanged",` + list + `},"serverSeq":6`, // action adds a second serverSeq
		` { "n" : {"type":"chat/delta"}, "t\u0079pe" : "\u0073ession\/customizations\u0043hanged" ,` + list + `}`,
	} {
		w := newWire(t, view.NewHost(nil), mcpgate.Config{})
		w.action(session, action)
		if got := w.client(`{"jsonrpc":"2.0","id":1,"channel":"` + uri + `","method":"resources/list"}`); got == "pass" {
			t.Errorf("after the action %s, a call to the channel passes; want a refusal", action)
		}
	}
}
