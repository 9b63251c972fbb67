package gate_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// A conn is a client's connection to a host, with the gates for a policy.
type conn struct {
	testing.TB
	gate *gate.Chain
	id   int
}

func limited(t testing.TB, h *view.Host, channels ...string) *conn {
	return &conn{TB: t, gate: chainOf(gate.NewPolicy(auth.AccessWrite, channels, nil, false), h)}
}

// chainOf returns the gates of a connection with this policy. A nil host stands for a new host.
func chainOf(policy gate.Policy, h *view.Host) *gate.Chain {
	if h == nil {
		h = view.NewHost(gate.Key)
	}
	chain := &gate.Chain{View: h.Conn("")}
	if g := policy.Gate(chain.View); g != nil {
		chain.Gates = []gate.Gate{g}
	}
	return chain
}

// fromHost passes a host's message through the gates, and returns their decision.
func fromHost(chain *gate.Chain, message string, env *ahp.Envelope) gate.Decision {
	d, _ := chain.FromHost([]byte(message), env)
	return d
}

// ask sends a client's request, and the host's result if the request passes. It returns the answer
// that the client gets.
func (c *conn) ask(method, params, result string) string {
	c.Helper()
	c.id++
	request := fmt.Sprintf(`{"id":%d,"method":%q,"params":%s}`, c.id, method, params)
	if d := c.gate.FromClient([]byte(request), peek(c, request)); d.Verdict != gate.Pass {
		return string(d.Message)
	}
	return c.host(fmt.Sprintf(`{"id":%d,"result":%s}`, c.id, result))
}

// passes reports whether a request reaches the host, instead of being refused.
func (c *conn) passes(method, params string) bool {
	c.Helper()
	return !strings.Contains(c.ask(method, params, "null"), `"error"`)
}

// host sends a host's message through the gates. It returns what the client gets, or "".
func (c *conn) host(message string) string {
	c.Helper()
	switch d := fromHost(c.gate, message, peek(c, message)); d.Verdict {
	case gate.Pass:
		return message
	case gate.Replace:
		return string(d.Message)
	}
	return ""
}

func (c *conn) want(what string, got, want bool) {
	c.Helper()
	if got != want {
		c.Errorf("%s: the message passes the gate: %v; want %v", what, got, want)
	}
}

// subscribes reports whether the client may subscribe to a channel.
func (c *conn) subscribes(channel string) bool {
	c.Helper()
	return c.passes("subscribe", fmt.Sprintf(`{"channel":%q}`, channel))
}

// hears reports whether the client gets a notification on a channel.
func (c *conn) hears(channel string) bool {
	c.Helper()
	return c.host(fmt.Sprintf(`{"method":"action","params":{"channel":%q,"action":{"type":"x"},"serverSeq":5}}`, channel)) != ""
}

const sessionState = `{"chats":[{"resource":"ahp-chat://default/bW9jaw"}],"defaultChat":"ahp-chat:/main",
	"changesets":[{"uriTemplate":"mock:/1/changeset/turn/{turnId}"},{"uriTemplate":"ahp-changeset:/one/{turnId}"},{"uriTemplate":"ahp-changeset:/{id}"}],
	"openCanvases":[{"channel":"ahp-canvas:/7"}],"annotations":{"resource":"ahp-notes:/1"},
	"customizations":[{"type":"mcpServer","channel":"mcp://one"},{"type":"plugin","uri":"file:///plugin","channel":"file:///trick","children":[{"type":"mcpServer","channel":"mcp://two"}]}],
	"activeClients":[{"clientId":"x","chats":[{"resource":"mock:/2"}],"channel":"mcp://three"}],
	"inputNeeded":[{"id":"1","chat":"ahp-chat:/sub"}],
	"resource":"mock:/3","session":"mock:/3"}`

// TestSessionStateDefinesReach shows a client the state of its session. After that, the client may
// use the channels that the state names, and no others.
func TestSessionStateDefinesReach(t *testing.T) {
	c := limited(t, nil, "mock:/1")
	belongs := []string{
		"ahp-chat://default/bW9jaw", "ahp-chat:/main", "ahp-changeset:/one/t1", "ahp-canvas:/7", "ahp-notes:/1", "mcp://one", "mcp://two", "ahp-chat:/sub",
	}
	for _, channel := range belongs {
		c.want(channel+" before the state", c.subscribes(channel), false)
		c.want("notification of "+channel+" before the state", c.hears(channel), false)
	}
	if got := c.ask("subscribe", `{"channel":"mock:/1"}`, `{"snapshot":{"resource":"mock:/1","state":`+sessionState+`,"fromSeq":4}}`); !strings.Contains(got, "defaultChat") {
		t.Fatalf("subscribing to the session: %s; want its state", got)
	}
	for _, channel := range append(belongs, "mock:/1/changeset/turn/1", "mock:/1") {
		c.want(channel, c.subscribes(channel), true)
		c.want("notification of "+channel, c.hears(channel), true)
	}
	for _, channel := range []string{
		"mock:/2", "mock:/3", "mock:/10", "mock:/1/../2", "mock:/1/%2e%2e/2", "mock:/1/%252e%252e/2", `mock:/1/..\2`, "mock:/1/..%2f2", "MOCK:/1", "mock:/1%2f",
		"ahp-changeset:/two/t1", "mcp://three", "file:///trick", "file:///plugin", "ahp-root://", "ahp-chat:/main2", "",
	} {
		c.want(channel, c.subscribes(channel) && channel != "ahp-root://", false)
		c.want("notification of "+channel, c.hears(channel), false)
	}
	// Later actions of the host add channels.
	c.host(`{"method":"action","params":{"channel":"mock:/1","action":{"type":"session/chatAdded","chat":{"resource":"ahp-chat:/new"}},"serverSeq":6}}`)
	c.host(`{"method":"action","params":{"channel":"mock:/1","action":{"type":"session/openCanvasesChanged","openCanvases":[{"channel":"ahp-canvas:/8"}]},"serverSeq":7}}`)
	c.host(`{"method":"channel/frame","params":{"channel":"mock:/1","frame":1,"actions":[{"channel":"mock:/1","action":{"type":"session/mcpServerStateChanged","channel":"mcp://late"},"serverSeq":8}]}}`)
	for _, channel := range []string{"ahp-chat:/new", "ahp-canvas:/8", "mcp://late"} {
		c.want(channel, c.subscribes(channel), true)
	}
}

// namesOf maps chats' URIs to whether they name no session but mock:/1. Some hosts take the session
// from the base64 in the path: of the whole path, or of a part, in either alphabet, and without the
// query and fragment.
var namesOf = func() map[string]bool {
	mine, theirs, odd := base64.RawURLEncoding.EncodeToString([]byte("mock:/1")), base64.RawURLEncoding.EncodeToString([]byte("mock:/2")), base64.StdEncoding.EncodeToString([]byte("mock:/a\u00bfb"))
	return map[string]bool{
		"ahp-chat:/new": true, "ahp-chat://new/" + mine: true, "ahp-chat://subagent/" + mine + "/call": true,
		"ahp-chat:/a2860000-0000-4000-8000-000000000000": true, // decodes to "ko:" and bytes that are no text
		"ahp-chat://new/" + theirs:                       false, "ahp-chat:/" + theirs: false, "ahp-chat://" + theirs: false, "ahp-chat://new/" + theirs + "=": false,
		"ahp-chat://new/" + theirs + "?x": false, "ahp-chat://new/" + theirs + "?/x": false, "ahp-chat://new/" + theirs + "#x": false, "ahp-chat://new/" + theirs + "?/" + mine: false,
		"ahp-chat://subagent/" + theirs + "/call": false, "ahp-chat://subagent/" + mine + "/" + theirs: false, "ahp-chat://new/" + odd: false,
	}
}()

// TestNewChatsNameNoOtherSession creates chats with URIs that some hosts read as a chat of another
// session. The gate must refuse them.
func TestNewChatsNameNoOtherSession(t *testing.T) {
	c := limited(t, nil, "mock:/1")
	c.host(`{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/2","chats":[{"resource":"ahp-chat:/its-own"}]}}}`)
	create := func(chat string) bool {
		return c.passes("createChat", fmt.Sprintf(`{"channel":"mock:/1","chat":%q}`, chat))
	}
	for chat, want := range namesOf {
		c.want("a new chat "+chat, create(chat), want)
	}
	for _, chat := range []string{
		"ahp-chat:/its-own", "ahp-chat:/its%2Down", "ahp-chat:/its-own?x", "ahp-chat:/its-own#x", "ahp-chat:/its-own?", "ahp-chat:/x/../its-own", "ahp-chat:/x\n", "AHP-CHAT:/x",
	} {
		c.want("a new chat "+chat, create(chat), false)
	}
}

// TestChatsOfForgottenSessionsAreHidden: a host names more chats than are remembered, or shows more
// chats' states, after those of a private session and of a visible one. A client that may not see the
// private session must not get its chat, nor its MCP server. It gets the visible session's chat when it has read that
// session's state, and goes on to get messages of a chat in use.
func TestChatsOfForgottenSessionsAreHidden(t *testing.T) {
	for name, more := range map[string]func(all *conn, add func(session, chat string), chat string){
		"chats": func(_ *conn, add func(session, chat string), chat string) { add("mock:/3", chat) },
		"states": func(all *conn, _ func(session, chat string), chat string) {
			all.ask("subscribe", fmt.Sprintf(`{"channel":%q}`, chat), fmt.Sprintf(`{"snapshot":{"resource":%q,"state":{"turns":[]},"fromSeq":10}}`, chat))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := view.NewHost(gate.Key)
			all := &conn{TB: t, gate: chainOf(gate.NewPolicy(auth.AccessWrite, nil, nil, false), h)}
			seq := 0
			add := func(session, chat string) {
				seq++
				all.host(fmt.Sprintf(`{"method":"action","params":{"channel":%q,"action":{"type":"session/chatAdded","chat":{"resource":%q}},"serverSeq":%d}}`, session, chat, seq))
			}
			policy := gate.NewPolicy(auth.AccessWrite, nil, nil, false)
			policy.Hidden = []string{"mock:/2"}
			c := &conn{TB: t, gate: chainOf(policy, h)}
			add("mock:/1", "ahp-chat:/visible")
			add("mock:/2", "ahp-chat:/private")
			c.want("a chat of a visible session", c.subscribes("ahp-chat:/visible"), true)
			c.want("a chat of a private session", c.subscribes("ahp-chat:/private"), false)
			server := func(session, channel string) {
				seq++
				all.host(fmt.Sprintf(`{"method":"action","params":{"channel":%q,"action":{"type":"session/mcpServerStateChanged","channel":%q},"serverSeq":%d}}`, session, channel, seq))
			}
			server("mock:/1", "mcp://visible")
			server("mock:/2", "mcp://private")
			c.want("a server of a visible session", c.passes("tools/call", `{"channel":"mcp://visible"}`), true)
			c.want("a server of a private session", c.passes("tools/call", `{"channel":"mcp://private"}`), false)
			c.ask("subscribe", `{"channel":"mock:/5"}`, `{"snapshot":{"resource":"mock:/5","state":{"chats":[{"resource":"ahp-chat:/used"}]},"fromSeq":5}}`)
			for i := range 18 << 10 {
				more(all, add, fmt.Sprint("ahp-chat:/", i))
				if i%1000 == 0 {
					c.want("a message of a visible chat in use", c.hears("ahp-chat:/used"), true)
				}
			}
			c.want("the private session's chat, forgotten", c.subscribes("ahp-chat:/private"), false)
			c.want("the private session's server, forgotten", c.passes("tools/call", `{"channel":"mcp://private"}`), false)
			seq = 20000
			server("mock:/1", "mcp://visible")
			c.want("the visible session's server, named again", c.passes("tools/call", `{"channel":"mcp://visible"}`), true)
			state := c.ask("subscribe", `{"channel":"mock:/1"}`, `{"snapshot":{"resource":"mock:/1","state":{"chats":[{"resource":"ahp-chat:/visible"}]},"fromSeq":20000}}`)
			c.want("the visible session's chat in its state", strings.Contains(state, "ahp-chat:/visible"), true)
			c.want("the visible session's chat, named again", c.subscribes("ahp-chat:/visible"), true)
			c.want("a session", c.subscribes("mock:/4"), true)
		})
	}
}

// TestContentOfForgottenCanvasesIsHidden: a host names the content of more canvases than are remembered,
// after canvases of a private session and of a visible one. A client that may not see the private session
// must not get its content. It gets the visible canvas's content when it has read that canvas's state.
func TestContentOfForgottenCanvasesIsHidden(t *testing.T) {
	for _, state := range []string{`{"instanceId":%q}`, `{"extensionId":"x","identity":{"instanceId":%q}}`} {
		t.Run(state, func(t *testing.T) {
			h := view.NewHost(gate.Key)
			all := &conn{TB: t, gate: chainOf(gate.NewPolicy(auth.AccessWrite, nil, nil, false), h)}
			policy := gate.NewPolicy(auth.AccessWrite, nil, nil, false)
			policy.Hidden = []string{"mock:/2"}
			c := &conn{TB: t, gate: chainOf(policy, h)}
			show := func(c *conn, name string) {
				canvas := "ahp-canvas:/" + name
				c.ask("subscribe", fmt.Sprintf(`{"channel":%q}`, canvas), fmt.Sprintf(`{"snapshot":{"resource":%q,"state":`+state+`,"fromSeq":5}}`, canvas, name))
			}
			want := func(when, name string, want bool) {
				t.Helper()
				uri := "ahp-canvas-content:/" + name + "/index.html"
				c.want(when+", content of "+name, c.passes("resourceRead", fmt.Sprintf(`{"channel":"ahp-root://","uri":%q}`, uri)), want)
				c.want(when+", content of "+name+" at a canvas", c.passes("canvasReadResource", fmt.Sprintf(`{"channel":"ahp-canvas:/visible","uri":%q}`, uri)), want)
			}
			for session, canvas := range map[string]string{"mock:/1": "visible", "mock:/2": "private"} {
				all.host(fmt.Sprintf(`{"method":"action","params":{"channel":%q,"action":{"type":"session/openCanvasesChanged","openCanvases":[{"channel":"ahp-canvas:/%s"}]},"serverSeq":4}}`, session, canvas))
				show(all, canvas)
			}
			want("at first", "visible", true)
			want("at first", "private", false)
			want("at first", "unknown", true)
			for i := range 16 << 10 {
				show(all, fmt.Sprint(i))
			}
			want("forgotten", "private", false)
			show(c, "visible")
			want("named again", "visible", true)
		})
	}
}

// TestChatsOfPrivateSessionsAreHidden subscribes to chats with URIs that some hosts read as a chat of
// a session. If this session is private, the gate must refuse them.
func TestChatsOfPrivateSessionsAreHidden(t *testing.T) {
	policy := gate.NewPolicy(auth.AccessWrite, nil, nil, false)
	policy.Hidden = []string{"mock:/2", "mock:/a\u00bfb"}
	c := of(t, policy)
	for chat, want := range namesOf {
		c.want("the chat "+chat, c.subscribes(chat), want)
	}
}

// TestToolsDisplaceNoOwner has a private session with a template of changesets and a terminal. Tools
// in other sessions name these channels as terminals, and many further URIs. The channels must stay
// out of reach, and stay in reach for a token for the session.
func TestToolsDisplaceNoOwner(t *testing.T) {
	const private = `{"changesets":[{"uriTemplate":"ahp-changeset:/one/{turnId}"}],"openCanvases":[{"channel":"ahp-canvas:/7"}]}`
	channels := []string{"ahp-changeset:/one/5", "ahp-canvas:/7"}
	families := view.NewHost(gate.Key)
	all := &conn{TB: t, gate: chainOf(gate.NewPolicy(auth.AccessWrite, nil, nil, false), families)}
	all.ask("subscribe", `{"channel":"mock:/1"}`, `{"snapshot":{"resource":"mock:/1","state":`+private+`,"fromSeq":5}}`)
	policy := gate.NewPolicy(auth.AccessWrite, nil, nil, false)
	policy.Hidden = []string{"mock:/1"}
	other := &conn{TB: t, gate: chainOf(policy, families)}
	own := limited(t, families, "mock:/1")
	check := func(when string) {
		t.Helper()
		for _, channel := range channels {
			other.want(when+": the private session's "+channel+" for another subject", other.subscribes(channel), false)
			own.want(when+": the private session's "+channel+" for its own token", own.subscribes(channel), true)
		}
	}
	check("before")
	for i := range 9 {
		for n := range 2000 {
			channels := channels
			if n > 0 {
				channels = []string{fmt.Sprintf("term:/%d/%d", i, n)}
			}
			for _, channel := range channels {
				all.host(fmt.Sprintf(`{"method":"action","params":{"channel":"ahp-chat:/%d","serverSeq":%d,"action":{"type":"chat/toolCallContentChanged","content":[{"type":"terminal","resource":%q}]}}}`,
					i, 6+i, channel))
			}
		}
		check(fmt.Sprintf("after the tools of %d chats", i+1))
	}
}

// TestCanvasReadsNameNoOtherCanvas reads content at a canvas in reach. The gate must refuse a URI of
// another session's canvas, or of a private one's, because a host may serve it.
func TestCanvasReadsNameNoOtherCanvas(t *testing.T) {
	private := gate.NewPolicy(auth.AccessWrite, nil, nil, false)
	private.Hidden = []string{"mock:/2"}
	for name, policy := range map[string]gate.Policy{
		"operates one session": gate.NewPolicy(auth.AccessWrite, []string{"mock:/1"}, nil, false),
		"looks at one session": gate.NewPolicy(auth.AccessRead, []string{"mock:/1"}, nil, false),
		"beside a private one": private,
	} {
		h := view.NewHost(gate.Key)
		full := &conn{TB: t, gate: chainOf(gate.NewPolicy(auth.AccessWrite, nil, nil, false), h)}
		for i := 1; i <= 2; i++ {
			full.ask("subscribe", fmt.Sprintf(`{"channel":"mock:/%d"}`, i), fmt.Sprintf(`{"snapshot":{"resource":"mock:/%d","fromSeq":1,"state":{"openCanvases":[{"channel":"ahp-canvas:/%d"}]}}}`, i, i))
			full.ask("subscribe", fmt.Sprintf(`{"channel":"ahp-canvas:/%d"}`, i), fmt.Sprintf(`{"snapshot":{"resource":"ahp-canvas:/%d","fromSeq":1,"state":{"instanceId":"i%d","extensionId":"x"}}}`, i, i))
		}
		c := &conn{TB: t, gate: chainOf(policy, h)}
		for uri, want := range map[string]bool{
			"ahp-canvas-content:/i1/index.html": true, "ahp-canvas-content:/i1": true, "ahp-canvas-content:/i2/index.html": false, "ahp-canvas-content:/i2": false,
			"ahp-canvas-content:/i1/../i2/x": false, "ahp-canvas-content:/i1/%2e%2e/i2/x": false, "AHP-canvas-content:/i2/x": false, "ahp-canvas-content:/%69%32/x": false,
		} {
			c.want(name+": a read of "+uri, c.passes("canvasReadResource", fmt.Sprintf(`{"channel":"ahp-canvas:/1","uri":%q}`, uri)), want)
			c.want(name+": resourceRead of "+uri, c.reads(uri), want)
		}
	}
}

// TestClientsDoNotExtendReach has the host repeat clients' actions that name another session. The
// client must not get access to this session.
func TestClientsDoNotExtendReach(t *testing.T) {
	c := limited(t, nil, "mock:/1")
	for _, origin := range []string{`{"clientId":"me","clientSeq":1}`, `"x"`, `[]`} {
		c.host(`{"method":"action","params":{"channel":"mock:/1","origin":` + origin + `,"action":{"type":"session/chatAdded","chat":{"resource":"mock:/2"}},"serverSeq":6}}`)
	}
	const added = `"action":{"type":"session/chatAdded","chat":{"resource":"mock:/2"}}`
	for _, unclear := range []string{ // parsers read these in different ways
		`{"method":"action","params":{"channel":"mock:/1","origin":null,` + added + `,"origin":{"clientId":"me"}}}`,
		`{"method":"action","params":{"channel":"mock:/1","origin":{"clientId":"me"},` + added + `,"origin":null}}`,
		`{"method":"action","params":{"channel":"mock:/1",` + added + `,"action":{}}}`,
		`{"method":"action","params":{"channel":"mock:/1",` + added + `,` + added + `}}`,
		`{"method":"action","channel":"mock:/1","params":{` + added + `}}`,
	} {
		c.host(unclear)
	}
	c.want("mock:/2", c.subscribes("mock:/2"), false)
	// Actions on a channel outside the reach add no channel either.
	c.host(`{"method":"action","params":{"channel":"mock:/3","action":{"type":"session/chatAdded","chat":{"resource":"mock:/2"}},"serverSeq":6}}`)
	c.want("mock:/2", c.subscribes("mock:/2"), false)
}

// TestTerminalsNeedTheirOwnClaim has a tool's output name a terminal. The client may use the
// terminal only after the host has answered its subscription with a claim by the client's session,
// and only until a different client takes the terminal from the session.
func TestTerminalsNeedTheirOwnClaim(t *testing.T) {
	c := limited(t, nil, "mock:/1", "ahp-chat:/1")
	const mine, other = "agenthost-terminal://bang/1", "mock:/2"
	content := `{"type":"chat/toolCallContentChanged","content":[{"type":"text","text":"x"},{"type":"terminal","resource":"` + mine + `"},{"type":"terminal","resource":"` + other + `"}]}`
	c.want("a terminal before it is named", c.subscribes(mine), false)
	c.host(`{"method":"action","params":{"channel":"ahp-chat:/1","action":` + content + `,"serverSeq":6}}`)
	c.want("a notification of a terminal that is only named", c.hears(mine), false)

	snapshot := `{"snapshot":{"resource":%q,"state":{"content":[],"claim":{"kind":"session","session":%q}},"fromSeq":4}}`
	ask := func(channel, resource, session string) bool {
		got := c.ask("subscribe", fmt.Sprintf(`{"channel":%q}`, channel), fmt.Sprintf(snapshot, resource, session))
		return !strings.Contains(got, `"error"`) && strings.Contains(got, "snapshot")
	}
	c.want("a session for a terminal", ask(other, other, "mock:/2"), false)
	c.want("notification of it", c.hears(other), false)
	c.want("another terminal's state", ask(mine, "agenthost-terminal:/2", "mock:/1"), false)
	c.want("a terminal of another session", ask(mine, mine, "mock:/2"), false)
	c.want("input for it", c.passes("dispatchAction", `{"channel":"`+mine+`","clientSeq":1,"action":{}}`), false)
	c.want("a terminal of the session", ask(mine, mine, "mock:/1"), true)
	c.want("notification of a terminal", c.hears(mine), true)
	c.want("input", c.passes("dispatchAction", `{"channel":"`+mine+`","clientSeq":1,"action":{}}`), true)
	c.host(`{"method":"action","params":{"channel":"` + mine + `","action":{"type":"terminal/claimed","claim":{"kind":"client","clientId":"window"}},"serverSeq":7,"origin":{"clientId":"window","clientSeq":1}}}`)
	c.want("notification of a terminal that a client has taken from the session", c.hears(mine), false)
}

// TestTakenTerminalsStayHidden has a client take a private session's terminal, and then the host itself give it away. A client
// that may not see the session must not see the terminal, which has the session's output.
func TestTakenTerminalsStayHidden(t *testing.T) {
	policy := gate.NewPolicy(auth.AccessWrite, nil, nil, false)
	policy.Hidden = []string{"mock:/2"}
	c := of(t, policy)
	says := func(claim string, seq int, more string) {
		c.host(fmt.Sprintf(`{"method":"action","params":{"channel":"term:/1","action":{"type":"terminal/claimed","claim":%s},"serverSeq":%d%s}}`, claim, seq, more))
	}
	says(`{"kind":"session","session":"mock:/2"}`, 5, "")
	c.want("a private session's terminal", c.subscribes("term:/1"), false)
	says(`{"kind":"client","clientId":"window"}`, 6, `,"origin":{"clientId":"window","clientSeq":1}`)
	c.want("its terminal that a client has taken", c.subscribes("term:/1"), false)
	c.want("output of this terminal", c.hears("term:/1"), false)
	says(`{"kind":"client","clientId":"window"}`, 7, "")
	c.want("its terminal that the host has given away", c.subscribes("term:/1"), false)
	c.want("another terminal", c.subscribes("term:/2"), true)
}

// TestRootShowsOnlyTheReach has the host send the root's state, lists and actions. A client limited
// to one session must see only this session's parts.
func TestRootShowsOnlyTheReach(t *testing.T) {
	c := limited(t, nil, "mock:/1")
	const root = `{"resource":"ahp-root://","state":{"agents":[{"provider":"mock"}],"activeSessions":3,"config":{"values":{"secret":1}},
		"terminals":[{"resource":"agenthost-terminal:/1","claim":{"kind":"session","session":"mock:/1"}},{"resource":"agenthost-terminal:/2","claim":{"kind":"session","session":"mock:/2"}}],"_meta":{"x":1}},"fromSeq":9}`
	const fit = `{"resource":"ahp-root://","state":{"agents":[{"provider":"mock"}],"activeSessions":0,
		"terminals":[{"resource":"agenthost-terminal:/1","claim":{"kind":"session","session":"mock:/1"}}]},"fromSeq":9}`
	if got, want := c.ask("initialize", `{"channel":"ahp-root://","initialSubscriptions":["ahp-root://"]}`, `{"protocolVersion":"0.9.0","snapshots":[`+root+`],"serverSeq":9}`),
		`{"id":1,"result":{"protocolVersion":"0.9.0","snapshots":[`+fit+`],"serverSeq":9}}`; got != want {
		t.Errorf("initialize:\n%s; want\n%s", got, want)
	}
	if got, want := c.ask("subscribe", `{"channel":"ahp-root://"}`, `{"snapshot":`+root+`}`), `{"id":2,"result":{"snapshot":`+fit+`}}`; got != want {
		t.Errorf("subscribe:\n%s; want\n%s", got, want)
	}
	c.want("a terminal of the session", c.subscribes("agenthost-terminal:/1"), true)
	c.want("another terminal", c.subscribes("agenthost-terminal:/2"), false)
	c.want("the root with flow control", c.passes("subscribe", `{"channel":"ahp-root://","flowControl":{}}`), false)
	got := c.ask("listSessions", `{"channel":"ahp-root://"}`, `{"items":[{"resource":"mock:/2"},{"resource":"mock:/1","title":"x"},{"resource":7},8],"nextCursor":"n"}`)
	if want := fmt.Sprintf(`{"id":%d,"result":{"items":[{"resource":"mock:/1","title":"x"}],"nextCursor":"n"}}`, c.id); got != want {
		t.Errorf("listSessions: %s; want %s", got, want)
	}
	if got := c.ask("listSessions", `{}`, `{"sessions":[{"resource":"mock:/2"}]}`); strings.Contains(got, "mock:/2") {
		t.Errorf("listSessions with an unknown form shows mock:/2: %s", got)
	}
	got = c.host(`{"method":"action","params":{"channel":"ahp-root://","action":{"type":"root/terminalsChanged","terminals":[{"resource":"agenthost-terminal:/2"},{"resource":"agenthost-terminal:/9","claim":{"kind":"session","session":"mock:/1"}}]},"serverSeq":10}}`)
	if want := `{"method":"action","params":{"channel":"ahp-root://","action":{"type":"root/terminalsChanged","terminals":[{"resource":"agenthost-terminal:/9","claim":{"kind":"session","session":"mock:/1"}}]},"serverSeq":10}}`; got != want {
		t.Errorf("terminals: %s; want %s", got, want)
	}
	// A token that names the root itself shows everything.
	c = limited(t, nil, "ahp-root://", "mock:/1")
	if got := c.ask("listSessions", `{}`, `{"items":[{"resource":"mock:/2"}]}`); !strings.Contains(got, "mock:/2") {
		t.Errorf("listSessions with a token for the root: %s; want mock:/2", got)
	}
	c.want("config of the root", c.passes("resolveSessionConfig", `{"channel":"ahp-root://"}`), true)
}

// TestReconnectKeepsTheReach resumes a client on a new connection. The client may use the channels
// that the host has named on its first connection. Without that knowledge, the gate must refuse the
// resumption.
func TestReconnectKeepsTheReach(t *testing.T) {
	families := view.NewHost(gate.Key)
	before := limited(t, families, "mock:/1")
	before.ask("subscribe", `{"channel":"mock:/1"}`, `{"snapshot":{"resource":"mock:/1","state":`+sessionState+`}}`)

	const resume = `{"channel":"ahp-root://","clientId":"c","subscriptions":["ahp-root://","mock:/1","ahp-chat:/main"]}`
	const replay = `{"type":"replay","actions":[{"channel":"ahp-root://","action":{"type":"root/activeSessionsChanged"},"serverSeq":1},` +
		`{"channel":"ahp-chat:/main","action":{"type":"x"},"serverSeq":2},{"channel":"mock:/2","action":{"type":"x"},"serverSeq":3}],"missing":[]}`
	c := limited(t, families, "mock:/1")
	got := c.ask("reconnect", resume, replay)
	if want := `{"id":1,"result":{"type":"replay","actions":[{"channel":"ahp-chat:/main","action":{"type":"x"},"serverSeq":2}],"missing":[]}}`; got != want {
		t.Errorf("reconnect: %s; want %s", got, want)
	}
	c.want("notification of the chat", c.hears("ahp-chat:/main"), true)

	for name, c := range map[string]*conn{
		"another session's token":        limited(t, families, "mock:/2"),
		"a host-agent that knows nobody": limited(t, view.NewHost(gate.Key), "mock:/1"),
	} {
		if got := c.ask("reconnect", resume, replay); !strings.Contains(got, `"code":-32008`) {
			t.Errorf("%s: reconnect: %s; want -32008", name, got)
		}
	}
}

// TestResumptionNamesItsMissingChannels resumes a chat that its session has lost meanwhile, in both
// forms of reconnect. The client must learn that the chat is missing, although the chat is no longer
// in its reach.
func TestResumptionNamesItsMissingChannels(t *testing.T) {
	const removed = `{"channel":"mock:/1","action":{"type":"session/chatRemoved","chat":"ahp-chat:/main"},"serverSeq":9}`
	for subscriptions, result := range map[string]string{
		`["ahp-chat:/main","mock:/1"]`: `{"type":"replay","actions":[` + removed + `],"missing":["ahp-chat:/main"]}`,
		`[{"channel":"ahp-chat:/main","lastSeenServerSeq":5},{"channel":"mock:/1","lastSeenServerSeq":5}]`: `{"channels":[{"kind":"missing","channel":"ahp-chat:/main"},` +
			`{"kind":"replay","channel":"mock:/1","actions":[` + removed + `]}]}`,
	} {
		families := view.NewHost(gate.Key)
		limited(t, families, "mock:/1").ask("subscribe", `{"channel":"mock:/1"}`, `{"snapshot":{"resource":"mock:/1","state":`+sessionState+`,"fromSeq":5}}`)
		c := limited(t, families, "mock:/1")
		got := c.ask("reconnect", `{"channel":"ahp-root://","clientId":"c","subscriptions":`+subscriptions+`}`, result)
		if want := `{"id":1,"result":` + result + `}`; got != want {
			t.Errorf("reconnect to %s: %s; want %s", subscriptions, got, want)
		}
		c.want("notification of the lost chat", c.hears("ahp-chat:/main"), false)
	}
}

// TestOwnersAreBounded names more channels than the host-agent remembers. The last session's chats
// must still be known, and the first session's must be forgotten.
func TestOwnersAreBounded(t *testing.T) {
	families := view.NewHost(gate.Key)
	for i := range 5 {
		c := limited(t, families, fmt.Sprintf("mock:/%d", i))
		var chats []string
		for j := range 4000 {
			chats = append(chats, fmt.Sprintf(`{"resource":"ahp-chat:/%d-%d"}`, i, j))
		}
		c.ask("subscribe", fmt.Sprintf(`{"channel":"mock:/%d"}`, i), fmt.Sprintf(`{"snapshot":{"resource":"mock:/%d","state":{"chats":[%s]}}}`, i, strings.Join(chats, ",")))
	}
	for session, want := range map[string]bool{"0": false, "4": true} {
		c := limited(t, families, "mock:/"+session)
		c.want("reconnect", c.passes("reconnect", fmt.Sprintf(`{"subscriptions":["ahp-chat:/%s-0"]}`, session)), want)
	}
}

// TestAmbiguousParamsAreRefused sends params that parsers may read in different ways, or that hide
// a URI. The gate must refuse them.
func TestAmbiguousParamsAreRefused(t *testing.T) {
	c := limited(t, nil, "mock:/1", "file:///home/ada/*")
	for _, test := range []struct{ method, params string }{
		{"resourceRead", `{"uri":"file:///home/ada/x","uri":"file:///etc/passwd"}`},
		{"resourceRead", `{"uri":"file:///home/ada/x","\u0075ri":"file:///etc/passwd"}`},
		{"resourceRead", `{"uri":["file:///home/ada/x","file:///etc/passwd"]}`},
		{"resourceRead", `{"uri":{"uri":"file:///etc/passwd"}}`},
		{"resourceRead", `{"uri":7}`},
		{"resourceRead", `{"uri":null}`},
		{"resourceRead", `{}`},
		{"resourceRead", `["file:///home/ada/x"]`},
		{"resourceRead", `{"channel":"mock:/2","uri":"file:///home/ada/x"}`},
		{"resourceRead", `{"uri":"file:///home/ada/../bob/x"}`},
		{"resourceRead", `{"uri":"file:///home/ada/%2e%2E/bob/x"}`},
		{"resourceRead", `{"uri":"file:///home/ada/..%2Fbob"}`},
		{"resourceRead", `{"uri":"file:///home/ada/..%5cbob"}`},
		{"resourceRead", `{"uri":"file:///home/ada"}`},
		{"resourceRead", `{"uri":"file:///home/adam/x"}`},
		{"resourceRead", `{"uri":"file://elsewhere/home/ada/x"}`},
		{"resourceRead", `{"uri":"vscode-agent-client://other/file/-/x"}`},
		{"resourceRead", `{"uri":"file:///home/ada/` + strings.Repeat("x", 5000) + `"}`},
		{"resourceCopy", `{"source":"file:///home/ada/x","destination":"file:///etc/x"}`},
		{"resourceMove", `{"source":"file:///etc/x","destination":"file:///home/ada/x"}`},
		{"initialize", `{"initialSubscriptions":["mock:/1"],"initialSubscriptions":["mock:/2"]}`},
		{"initialize", `{"initialSubscriptions":"mock:/2"}`},
		{"initialize", `{"initialSubscriptions":{"0":"mock:/2"}}`},
		{"initialize", `{"subscriptions":["mock:/2"]}`},
		{"initialize", `{"initialSubscriptions":[{"channel":"mock:/2"}]}`},
		{"initialize", `{"initialSubscriptions":[null]}`},
		{"initialize", `["mock:/2"]`},
		{"createSession", `{"channel":"mock:/1/a","fork":{"session":"mock:/2"}}`},
		{"createSession", `{"channel":"mock:/1/a","fork":{"fork":1,"source":{"source":{"source":{"source":{"source":{"session":"mock:/1"}}}}}}}`},
		{"createChat", `{"channel":"mock:/1","source":[{"chat":"mock:/1/c"},{"chat":"ahp-chat:/2"}]}`},
		{"subscribe", `{}`},
		{"subscribe", `[]`},
		{"dispatchAction", `{"clientSeq":1,"action":{}}`},
	} {
		c.want(test.method+" "+test.params, c.passes(test.method, test.params), false)
	}
	for _, test := range []struct{ method, params string }{
		{"resourceRead", `{"uri":"file:///home/ada/x"}`},
		{"resourceRead", `{"channel":"ahp-root://","uri":"file:///home/ada/a..b/.c/100%25"}`},
		{"initialize", `{"initialSubscriptions":[{"channel":"mock:/1"}]}`},
		{"initialize", `{"initialSubscriptions":null}`},
		{"createSession", `{"channel":"mock:/1/a","workingDirectories":["file:///elsewhere"]}`},
	} {
		c.want(test.method+" "+test.params, c.passes(test.method, test.params), true)
	}
}

// TestForeignChatsAreNotCreated has a client create chats. The gate must refuse a URI that belongs
// to a chat in another session, or that could.
func TestForeignChatsAreNotCreated(t *testing.T) {
	h := view.NewHost(gate.Key)
	limited(t, h, "mock:/2").ask("subscribe", `{"channel":"mock:/2"}`, `{"snapshot":{"resource":"mock:/2","state":{"chats":[{"resource":"ahp-chat:/of-2"}]}}}`)
	c := limited(t, h, "mock:/1")
	c.want("a chat of its own", c.passes("createChat", `{"channel":"mock:/1","chat":"ahp-chat:/new"}`), true)
	c.host(`{"method":"action","params":{"channel":"mock:/1","serverSeq":2,"action":{"type":"session/chatAdded","summary":{"resource":"ahp-chat:/new"}}}}`)
	c.want("that once more", c.passes("createChat", `{"channel":"mock:/1","chat":"ahp-chat:/new"}`), true)
	c.want("another's", c.passes("createChat", `{"channel":"mock:/1","chat":"ahp-chat:/of-2"}`), false)
	c.want("it in two ways", c.passes("createChat", `{"channel":"mock:/1","chat":"ahp-chat:/x","Chat":"ahp-chat:/of-2"}`), false)
	for chat, want := range map[string]bool{
		`"mock:/1/chat"`: true, // a URI below the session
		// VS Code's form has base64 of mock:/1, or of mock:/2.
		`"ahp-chat://new/bW9jazovMQ"`: true, `"ahp-chat://new/bW9jazovMg"`: false, `"ahp-chat://default/bW9jazovMg=="`: false,
		`"ahp-chat:/0d0f3c6e-4f9a-4a52-9d1c-6a3d35a8f0b1"`: true,
		`"mock:/2"`: false, `"mock:/2/chat"`: false, `"other-provider:/2"`: false, `"AHP-CHAT:/2"`: false, `"ahp-root://"`: false, `""`: false,
		`{"uri":"mock:/2"}`: false, `["mock:/2"]`: false, `null`: false, `7`: false,
	} {
		c.want("createChat "+chat, c.passes("createChat", `{"channel":"mock:/1","chat":`+chat+`}`), want)
	}
	c.want("a chat that the host names", c.passes("createChat", `{"channel":"mock:/1"}`), true)
}

// TestFramesHideNothing puts a message that the gate refuses into a frame. The gate must refuse the
// frame, too.
func TestFramesHideNothing(t *testing.T) {
	const inner = `{\"method\":\"dispatchAction\",\"params\":{\"channel\":\"mock:/2\",\"clientSeq\":1,\"action\":{\"type\":\"x\"}}}`
	for name, policy := range map[string]gate.Policy{
		"channels": gate.NewPolicy(auth.AccessWrite, []string{"mock:/1", "ahp-tcp:/*"}, nil, false),
		"methods":  gate.NewPolicy(auth.AccessWrite, nil, []string{"channel/*", "subscribe"}, false),
		"read":     gate.NewPolicy(auth.AccessRead, nil, nil, false),
	} {
		frame := func(channel string) gate.Verdict {
			text := `{"method":"channel/frame","params":{"channel":"` + channel + `","data":"` + inner + `","final":true}}`
			return chainOf(policy, nil).FromClient([]byte(text), peek(t, text)).Verdict
		}
		if frame("mock:/1") != gate.Answer {
			t.Errorf("a channel/frame passes a token limited by %s; want a refusal", name)
		}
		if got, want := frame("ahp-tcp:/1") == gate.Pass, name != "read"; got != want {
			t.Errorf("a channel/frame for a TCP channel passes a token limited by %s: %v; want %v", name, got, want)
		}
	}
}

// TestRequestsWithEqualIDsAreRefused sends a second request with an id that is in use, in another
// spelling. The gate must refuse it, because the host's answers could be confused.
func TestRequestsWithEqualIDsAreRefused(t *testing.T) {
	for _, ids := range [][2]string{{"1", "1"}, {"1", "1.0"}, {`"a"`, `"\u0061"`}, {"null", "null"}, {"null", "1e999"}, {"1e999", "-1e999"}} {
		c := limited(t, nil, "mock:/1")
		first := `{"id":` + ids[0] + `,"method":"ping"}`
		second := `{"id":` + ids[1] + `,"method":"listSessions"}`
		if d := c.gate.FromClient([]byte(first), peek(t, first)); d.Verdict != gate.Pass {
			t.Errorf("the first request %s is answered %s; want it to pass", first, d.Message)
		}
		if d := c.gate.FromClient([]byte(second), peek(t, second)); !strings.Contains(string(d.Message), "-32600") {
			t.Errorf("the request %s after %s: %v %s; want error -32600", second, first, d.Verdict, d.Message)
		}
	}
	c := limited(t, nil, "mock:/1")
	if got := c.host(`{"id":9,"result":{"items":[{"resource":"mock:/2"}]}}`); got != "" {
		t.Errorf("an answer without a request passes: %s; want it dropped", got)
	}
	if got := c.host(`{"id":null,"error":{"code":-32700,"message":"Parse error"}}`); got == "" {
		t.Error("the error for an unreadable request is dropped; want it to pass")
	}
	if d := fromHost(c.gate, "\xff", nil); d.Verdict != gate.Answer || d.Message != nil {
		t.Errorf("an unreadable response: %v; want it dropped", d)
	}
}

// TestOpenRequestsAreBounded sends 1,001 requests without answers. The gate must refuse the last
// request, and accept requests again after an answer.
func TestOpenRequestsAreBounded(t *testing.T) {
	c := limited(t, nil, "mock:/1")
	for i := range 1001 {
		request := fmt.Sprintf(`{"id":%d,"method":"ping"}`, i)
		d := c.gate.FromClient([]byte(request), peek(t, request))
		if i < 1000 != (d.Verdict == gate.Pass) || i == 1000 && !strings.Contains(string(d.Message), "4290") {
			t.Fatalf("request %d: %v %s; want 1,000 to pass and then error 4290", i, d.Verdict, d.Message)
		}
	}
	c.host(`{"id":7,"result":null}`)
	c.id = 2000
	c.want("a request after an answer", c.passes("ping", "{}"), true)
}

// TestNarrowedPolicyNeedsBoth narrows a token's policy by an owner's. A message must pass only if
// both permit it.
func TestNarrowedPolicyNeedsBoth(t *testing.T) {
	token := gate.NewPolicy(auth.AccessWrite, []string{"mock:/*"}, nil, false)
	owner := gate.NewPolicy(auth.AccessWrite, []string{"mock:/1"}, []string{"listSessions", "dispatchAction"}, false)
	c := &conn{TB: t, gate: chainOf(token.Narrow(owner), nil)}
	c.want("mock:/1", c.subscribes("mock:/1"), true)
	c.want("mock:/2", c.subscribes("mock:/2"), false)
	c.want("disposeSession", c.passes("disposeSession", `{"channel":"mock:/1"}`), false)
	c.want("dispatchAction", c.passes("dispatchAction", `{"channel":"mock:/1"}`), true)
}

// echo dispatches an action that the gate refuses, and returns the gate's rejection.
func echo(t *testing.T, c *conn) string {
	t.Helper()
	const action = `{"method":"dispatchAction","params":{"channel":"mock:/1","clientSeq":17,"action":{"type":"x","text":"<é>"}}}`
	return string(c.gate.FromClient([]byte(action), peek(t, action)).Message)
}

// TestRejectionHasTheClientsServerSeq has the host send a serverSeq in each kind of message. The
// gate's next rejection must have the highest serverSeq that the client has got.
func TestRejectionHasTheClientsServerSeq(t *testing.T) {
	c := &conn{TB: t, gate: chainOf(gate.NewPolicy(auth.AccessRead, nil, nil, false), nil)}
	want := func(seq int) {
		t.Helper()
		got := echo(t, c)
		if !strings.Contains(got, fmt.Sprintf(`"serverSeq":%d,"origin":{"clientId":"ann","clientSeq":17},"rejectionReason":"`, seq)) {
			t.Errorf("the echo of the refused action is %s; want serverSeq %d", got, seq)
		}
		if said, err := peek(t, got).Said.Seq(); err != nil || said != int64(seq) {
			t.Errorf("the echo has serverSeq %d, %v; want %d", said, err, seq)
		}
	}
	c.ask("reconnect", `{"clientId":"ann","lastSeenServerSeq":3,"subscriptions":[]}`, `{"type":"replay","actions":[]}`)
	want(3)
	c.ask("initialize", `{"clientId":"ann"}`, `{"serverSeq":4,"snapshots":[]}`)
	want(4)
	c.ask("initialize", `{"clientId":"ann"}`, `{"serverSeq":4,"snapshots":[{"fromSeq":5}]}`)
	want(5)
	c.ask("subscribe", `{"channel":"mock:/1"}`, `{"snapshot":{"resource":"mock:/1","fromSeq":7}}`)
	want(7)
	c.hears("mock:/1") // sends serverSeq 5
	want(7)
	c.host(`{"method":"action","params":{"channel":"mock:/1","serverSeq":8}}`)
	want(8)
	c.host(`{"method":"channel/frame","params":{"channel":"mock:/1","actions":[{"serverSeq":9},{"serverSeq":11}]}}`)
	want(11)
	if got := c.gate.FromClient([]byte(`{}`), peek(t, `{"method":"dispatchAction","params":[]}`)); got.Verdict != gate.Answer || got.Message != nil {
		t.Errorf("the verdict on a malformed action is %v %s; want Answer without a message", got.Verdict, got.Message)
	}
}
