package view_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/test/carriers"
)

// The channels in the statements.
const (
	session = "mock:/s"
	chat    = "ahp-chat:/c"
	canvas  = "ahp-canvas:/k"
	root    = "ahp-root://"
)

var kinds = map[view.Kind]string{
	view.Has: "has", view.HasNot: "has not", view.Lists: "lists", view.Claims: "claims", view.Keeps: "keeps",
	view.CanvasIs: "canvas is", view.CanvasChanges: "canvas changes", view.CanvasSource: "canvas source",
	view.Customizations: "customizations", view.Customization: "customization", view.CustomizationGone: "customization gone",
	view.CustomizationToggled: "toggled", view.ServerIs: "server is", view.ServerStarts: "server starts", view.ServerStops: "server stops",
	view.SessionGone: "session gone", view.Offers: "offers",
}

var whats = map[view.Thing]string{
	view.Channel: "", view.Chat: " chat", view.CanvasRef: " canvas", view.Terminal: " terminal", view.Changeset: " changeset",
	view.Server: " server", view.Content: " content", view.Watch: " watch", view.Hint: " hint", view.Folder: " folder", view.FileText: " file text",
}

// text returns a fact in the form that statements use.
func text(f *view.Fact) string {
	s := kinds[f.Kind] + whats[f.Thing] + " " + f.Of
	for _, more := range append([]string{f.URI}, f.List...) {
		if more != "" {
			s += " " + more
		}
	}
	if f.Raw != nil {
		s += " " + string(f.Raw)
	}
	return s
}

// texts returns the facts of a reading. It omits the fact that a state has no customizations.
func texts(r *view.Reading) (list []string) {
	if r == nil {
		return nil
	}
	for i := range r.Facts {
		if f := &r.Facts[i]; f.Kind != view.Customizations || f.Raw != nil {
			list = append(list, text(f))
		}
	}
	return list
}

// A statement is a member in a state or an action, with the facts that the view must read from it.
type statement struct {
	channel string
	state   string // members of a state; "" if actions only have it
	action  string // members of an action; "" if states only have it
	kind    string // the action's type
	want    []string
}

const server = `{"type":"mcpServer","id":"m","channel":"mcp://h/1","children":[{"id":"n","channel":"MCP://h/2"},{"id":"o","channel":"other:/1"}]}`

var statements = []statement{
	{channel: session, state: `"chats":[{"resource":"ahp-chat:/1"},{"resource":"ahp-chat:/2"},{"resource":7}]`, want: []string{
		"lists chat mock:/s ahp-chat:/1 ahp-chat:/2", "has chat mock:/s ahp-chat:/1", "has chat mock:/s ahp-chat:/2"}},
	{channel: session, action: `"chats":["ahp-chat:/1"]`, kind: "session/chatsReordered", want: []string{"has chat mock:/s ahp-chat:/1"}},
	{channel: session, state: `"defaultChat":"ahp-chat:/1"`, action: `"defaultChat":"ahp-chat:/1"`, kind: "session/defaultChatChanged", want: []string{"has chat mock:/s ahp-chat:/1"}},
	{channel: session, action: `"summary":{"resource":"ahp-chat:/1"}`, kind: "session/chatAdded", want: []string{"has chat mock:/s ahp-chat:/1"}},
	{channel: session, action: `"chat":{"resource":"ahp-chat:/1"}`, kind: "session/chatAdded", want: []string{"has chat mock:/s ahp-chat:/1"}},
	{channel: session, action: `"chat":"ahp-chat:/1","changes":{}`, kind: "session/chatUpdated", want: []string{"has chat mock:/s ahp-chat:/1"}},
	{channel: session, action: `"chat":"ahp-chat:/1"`, kind: "session/chatRemoved", want: []string{"has not chat mock:/s ahp-chat:/1"}},
	{channel: session, state: `"inputNeeded":[{"id":"1","chat":"ahp-chat:/1"}]`, want: []string{"has chat mock:/s ahp-chat:/1"}},
	{channel: session, action: `"request":{"id":"1","chat":"ahp-chat:/1"}`, kind: "session/inputNeededSet", want: []string{"has chat mock:/s ahp-chat:/1"}},

	{channel: session, state: `"changesets":[{"uriTemplate":"mock:/cs/{turn}"}]`, action: `"changesets":[{"uriTemplate":"mock:/cs/{turn}"}]`, kind: "session/changesetsChanged", want: []string{"has changeset mock:/s mock:/cs/{turn}"}},
	{channel: chat, state: `"changesets":[{"uriTemplate":"mock:/cs"}]`, action: `"changesets":[{"uriTemplate":"mock:/cs"}]`, kind: "chat/changesetsChanged", want: []string{"has changeset ahp-chat:/c mock:/cs"}},
	{channel: session, state: `"annotations":{"resource":"mock:/notes"}`, want: []string{"has mock:/s mock:/notes"}},

	{channel: session, state: `"openCanvases":[{"channel":"ahp-canvas:/1"}]`, action: `"openCanvases":[{"channel":"ahp-canvas:/1"}]`, kind: "session/openCanvasesChanged", want: []string{"lists canvas mock:/s ahp-canvas:/1"}},
	{channel: session, state: `"canvases":[{"canvasId":"diff"},{"resource":"ahp-canvas:/1"}]`, action: `"canvases":[{"canvasId":"diff"},{"resource":"ahp-canvas:/1"}]`, kind: "session/canvasesChanged", want: []string{"has canvas mock:/s ahp-canvas:/1"}},
	{channel: chat, state: `"turns":[],"canvases":[{"resource":"ahp-canvas:/1"}]`, action: `"canvases":[{"resource":"ahp-canvas:/1"}]`, kind: "chat/canvasesChanged", want: []string{"lists canvas ahp-chat:/c ahp-canvas:/1"}},
	{channel: chat, state: `"turns":[]`, action: `"x":1`, kind: "chat/canvasesChanged", want: []string{"lists canvas ahp-chat:/c"}},
	{channel: canvas, state: `"instanceId":"i","provider":{"kind":"server"},"url":"http://localhost:1/"`, want: []string{
		`canvas is ahp-canvas:/k {"instanceId":"i","provider":{"kind":"server"},"url":"http://localhost:1/"}`, "has content ahp-canvas:/k ahp-canvas-content:/i"}},
	{channel: canvas, action: `"canvas":{"instanceId":"i","extensionId":"e"}`, kind: "canvas/stateChanged", want: []string{
		`canvas is ahp-canvas:/k {"instanceId":"i","extensionId":"e"}`, "has content ahp-canvas:/k ahp-canvas-content:/i"}},
	{channel: canvas, action: `"url":null`, kind: "canvas/updated", want: []string{`canvas changes ahp-canvas:/k {"type":"canvas/updated","url":null}`}},

	{channel: session, state: `"customizations":[` + server + `]`, action: `"customizations":[` + server + `]`, kind: "session/customizationsChanged", want: []string{
		"customizations mock:/s [" + server + "]", "has server mock:/s mcp://h/1", "has server mock:/s MCP://h/2"}},
	{channel: session, action: `"customization":` + server, kind: "session/customizationUpdated", want: []string{
		"customization mock:/s " + server, "has server mock:/s mcp://h/1", "has server mock:/s MCP://h/2"}},
	{channel: session, action: `"id":"m"`, kind: "session/customizationRemoved", want: []string{"customization gone mock:/s m"}},
	{channel: session, action: `"id":"m","enabled":false`, kind: "session/customizationToggled", want: []string{
		`toggled mock:/s m {"type":"session/customizationToggled","id":"m","enabled":false}`}},
	{channel: session, action: `"id":"m","state":{"kind":"ready"},"channel":"mcp://h/1"`, kind: "session/mcpServerStateChanged", want: []string{
		`server is mock:/s m {"type":"session/mcpServerStateChanged","id":"m","state":{"kind":"ready"},"channel":"mcp://h/1"}`, "has server mock:/s mcp://h/1"}},
	{channel: session, action: `"id":"m"`, kind: "session/mcpServerStartRequested", want: []string{"server starts mock:/s m"}},
	{channel: session, action: `"id":"m"`, kind: "session/mcpServerStopRequested", want: []string{"server stops mock:/s m"}},

	{channel: "term:/1", state: `"claim":{"kind":"session","session":"mock:/s","chat":"ahp-chat:/c"}`, action: `"claim":{"kind":"session","session":"mock:/s","chat":"ahp-chat:/c"}`, kind: "terminal/claimed", want: []string{
		"claims terminal term:/1 term:/1 mock:/s ahp-chat:/c"}},
	{channel: "term:/1", state: `"claim":{"kind":"client","clientId":"mock:/s"}`, action: `"claim":{"kind":"client"}`, kind: "terminal/claimed", want: []string{"claims terminal term:/1 term:/1"}},
	{channel: root, state: `"terminals":[{"resource":"term:/1","claim":{"kind":"session","session":"mock:/s"}}]`, action: `"terminals":[{"resource":"term:/1","claim":{"kind":"session","session":"mock:/s"}}]`, kind: "root/terminalsChanged", want: []string{
		"claims terminal ahp-root:// term:/1 mock:/s"}},

	{channel: chat, action: `"content":[{"type":"terminal","resource":"term:/1","result":{"fullOutput":{"uri":"out:/1"}}}]`, kind: "chat/toolCallContentChanged", want: []string{
		"has hint ahp-chat:/c term:/1", "has content ahp-chat:/c out:/1"}},
	{channel: chat, action: `"result":{"content":[{"type":"terminal","resource":"term:/1"},{"type":"resource","uri":"file:///etc/passwd"}]}`, kind: "chat/toolCallComplete", want: []string{"has hint ahp-chat:/c term:/1"}},
	{channel: chat, action: `"toolInput":{"uri":"in:/1"}`, kind: "chat/toolCallReady", want: []string{"has content ahp-chat:/c in:/1"}},
	{channel: chat, action: `"toolInput":"in:/1"`, kind: "chat/toolCallReady"},
	{channel: chat, action: `"part":` + tool(`"toolInput":{"uri":"in:/1"}`), kind: "chat/responsePart", want: []string{
		"has hint ahp-chat:/c term:/1", "has content ahp-chat:/c out:/1", "has content ahp-chat:/c in:/1"}},
	// Content that a client's tool names gives no fact.
	{channel: chat, state: `"turns":[{"responseParts":[` + tool(`"contributor":{"kind":"client"},"toolInput":{"uri":"in:/1"}`) + `]}]`, want: []string{
		"lists canvas ahp-chat:/c", "has hint ahp-chat:/c term:/1"}},
	{channel: chat, state: `"activeTurn":{"responseParts":[` + tool(`"toolInput":{"uri":"in:/1"}`) + `]}`, want: []string{
		"has hint ahp-chat:/c term:/1", "has content ahp-chat:/c out:/1", "has content ahp-chat:/c in:/1"}},
	{channel: chat, action: `"turns":[{"responseParts":[` + tool(``) + `]}]`, kind: "chat/turnsLoaded", want: []string{
		"has hint ahp-chat:/c term:/1", "has content ahp-chat:/c out:/1"}},
	// The host's own edits and changesets name file contents.
	{channel: chat, action: `"content":[` + edit("1") + `,{"type":"terminal","resource":"term:/1"},{"type":"resource","before":{"content":{"uri":"git-blob:/x?2"}}}]`, kind: "chat/toolCallContentChanged", want: []string{
		"has file text ahp-chat:/c git-blob:/x?1", "has file text ahp-chat:/c session-db:/x?1", "has hint ahp-chat:/c term:/1"}},
	{channel: chat, action: `"toolCallId":"t","edits":{"items":[` + edit("1") + `]},"options":[{"id":"a"},{"id":"b"}]`, kind: "chat/toolCallReady", want: []string{
		"offers ahp-chat:/c t a b", "has file text ahp-chat:/c git-blob:/x?1", "has file text ahp-chat:/c session-db:/x?1"}},
	{channel: chat, state: `"activeTurn":{"responseParts":[{"toolCall":{"toolCallId":"t","options":[{"id":"a"}]}}]}`, want: []string{"offers ahp-chat:/c t a"}},
	{channel: session, action: `"request":{"chat":"ahp-chat:/1","toolCall":{"toolCallId":"t","options":[{"id":"a"}],"edits":{"items":[` + edit("1") + `]}}}`, kind: "session/inputNeededSet", want: []string{
		"has chat mock:/s ahp-chat:/1", "offers mock:/s t a", "has file text mock:/s git-blob:/x?1", "has file text mock:/s session-db:/x?1"}},
	{channel: session, state: `"inputNeeded":[{"chat":"ahp-chat:/1","toolCall":{"toolCallId":"t","options":[{"id":"a"}]}}]`, want: []string{
		"has chat mock:/s ahp-chat:/1", "offers mock:/s t a"}},
	{channel: "mock:/cs", state: `"files":[{"id":"x","edit":` + edit("1") + `}]`, action: `"files":[{"id":"x","edit":` + edit("1") + `}]`, kind: "changeset/contentChanged", want: []string{
		"has file text mock:/cs git-blob:/x?1", "has file text mock:/cs session-db:/x?1"}},
	{channel: "mock:/cs", action: `"file":{"id":"x","edit":` + edit("1") + `}`, kind: "changeset/fileSet", want: []string{
		"has file text mock:/cs git-blob:/x?1", "has file text mock:/cs session-db:/x?1"}},
	{channel: chat, state: `"activeTurn":{"responseParts":[{"toolCall":{"contributor":{"kind":"mcp"},"content":[` + edit("1") + `],"edits":{"items":[` + edit("1") + `]}}}]}`},
	{channel: chat, state: `"turns":[{"message":{"attachments":[` + edit("1") + `]},"edits":{"items":[` + edit("1") + `]}}]`, want: []string{"lists canvas ahp-chat:/c"}},

	{channel: chat, state: `"backgroundWork":[{"id":"1","kind":"shell","terminal":"term:/1"}]`, want: []string{"has hint ahp-chat:/c term:/1"}},
	{channel: chat, action: `"work":{"id":"1","kind":"shell","terminal":"term:/1"}`, kind: "chat/backgroundWorkSet", want: []string{"has hint ahp-chat:/c term:/1"}},

	{channel: chat, action: `"turnId":"1","content":"\"chat\":{\"resource\":\"u:/1\"} mcp://1"`, kind: "chat/delta"},
	{channel: session, state: `"workingDirectories":["file:///a"],"workingDirectory":"file:///b","summary":{"workingDirectories":["file:///c"]}`, want: []string{
		"has folder mock:/s file:///a", "has folder mock:/s file:///b", "has folder mock:/s file:///c"}},
	// Clients may set a session's working directories, so these actions give no fact.
	{channel: session, action: `"workingDirectories":["file:///a"],"workingDirectory":"file:///b"`, kind: "session/workingDirectorySet"},
	{channel: session, state: `"title":"x","later":{"chat":"u:/1"}`, action: `"later":{"chat":"u:/1"}`, kind: "session/later"},
	{channel: session, state: `"chats":[{"resource":"ahp-root://"},{"resource":"plain"},{"resource":""}]`, want: []string{"lists chat mock:/s"}},
}

// edit returns a file edit whose contents have URIs with this query.
func edit(query string) string {
	return fmt.Sprintf(`{"type":"fileEdit","before":{"uri":"file:///x","content":{"uri":"git-blob:/x?%[1]s"}},"after":{"uri":"file:///x","content":{"uri":"session-db:/x?%[1]s"}}}`, query)
}

// tool returns a part of a turn with a tool call. more is added to the call as JSON members.
func tool(more string) string {
	call := `"content":[{"type":"terminal","resource":"term:/1","result":{"fullOutput":{"uri":"out:/1"}}}]`
	if more != "" {
		call += "," + more
	}
	return `{"kind":"toolCall","toolCall":{` + call + `}}`
}

// part returns the statement as a state or an action in JSON, or "" if it has none.
func (l *statement) part(action bool) string {
	switch {
	case !action && l.state != "":
		return "{" + l.state + "}"
	case action && l.action != "":
		return fmt.Sprintf(`{"type":%q,%s}`, l.kind, l.action)
	}
	return ""
}

// A wire is a connection with its view.
type wire struct {
	testing.TB
	*view.Conn
}

// shows passes messages through the view. It returns the reading of the last message, and its text.
func (w wire) shows(list []carriers.Message) (r *view.Reading, last []byte) {
	w.Helper()
	for _, m := range list {
		last = []byte(m.Text)
		before := bytes.Clone(last)
		env, err := ahp.Peek(last)
		if err != nil {
			w.Fatalf("Peek: %v in the message %s", err, last)
		}
		switch {
		case !m.FromHost:
			w.Sent(&env)
		case env.Kind == ahp.Request:
			w.Asked(&env)
		default:
			r = w.FromHost(last, &env)
		}
		if !bytes.Equal(last, before) {
			w.Fatalf("FromHost changed the message %s; want it as it was", before)
		}
	}
	return r, last
}

// TestEachCarrierGivesItsFact passes each statement in each form of message, in each version. The
// view must read the same facts.
func TestEachCarrierGivesItsFact(t *testing.T) {
	for _, version := range carriers.Versions {
		for _, carrier := range carriers.Of(version) {
			t.Run(version+" "+carrier.Name, func(t *testing.T) {
				for i := range statements {
					if part := statements[i].part(carrier.Action); part != "" {
						checkStatement(t, version, carrier, &statements[i], part)
					}
				}
			})
		}
	}
}

func checkStatement(t *testing.T, version string, carrier carriers.Carrier, l *statement, part string) {
	t.Helper()
	w := wire{t, view.NewHost(nil).Conn("ada")}
	w.shows(carriers.Greeting(version, "c", "{}"))
	r, message := w.shows(carrier.Wrap(carriers.Part{Channel: l.channel, JSON: part, Seq: 7, ID: 1}))
	if got := texts(r); !cmp.Equal(got, l.want) {
		t.Errorf("%s has the facts\n%s\nwant\n%s", message, strings.Join(got, "\n"), strings.Join(l.want, "\n"))
	}
	if w.Seq() != 7 {
		t.Errorf("%s: the view's last serverSeq is %d; want 7", message, w.Seq())
	}
	if r == nil {
		return
	}
	if r.Lost {
		t.Errorf("%s: the reading is marked Lost; want the whole message read", message)
	}
	checkPlaces(t, r, message, carrier.Pieces)
}

// checkPlaces fails unless each fact's place is where its text is in the message.
func checkPlaces(t *testing.T, r *view.Reading, message []byte, pieces bool) {
	t.Helper()
	for i := range r.Facts {
		f := &r.Facts[i]
		if f.Raw == nil || f.At < 0 {
			continue
		}
		if pieces || string(message[f.At:f.At+len(f.Raw)]) != string(f.Raw) {
			t.Errorf("the message %s: the value %s is not at its place %d", message, f.Raw, f.At)
		}
	}
}

// TestClientActionsHaveFewFacts reads each statement of the tables as an action that a client has
// caused, and as an action that the host has rejected. A rejected action must prove nothing. A client's
// action must prove only the facts that clients may cause.
func TestClientActionsHaveFewFacts(t *testing.T) {
	const origin, rejected, null = `,"origin":{"clientId":"c","clientSeq":1}`, `,"rejectionReason":"no"`, `,"origin":null,"rejectionReason":null`
	for _, carrier := range carriers.All {
		if !carrier.Action {
			continue
		}
		for i := range statements {
			l := &statements[i]
			part := l.part(true)
			if part == "" {
				continue
			}
			var mine []string
			if l.kind == "session/customizationToggled" || l.kind == "session/mcpServerStartRequested" || l.kind == "session/mcpServerStopRequested" {
				mine = l.want
			}
			if l.kind == "terminal/claimed" {
				mine = []string{strings.Replace(l.want[0], "claims", "keeps", 1)}
			}
			for more, want := range map[string][]string{origin: mine, rejected: nil, origin + rejected: nil, null: l.want} {
				w := wire{t, view.NewHost(nil).Conn("ada")}
				r, message := w.shows(carrier.Wrap(carriers.Part{Channel: l.channel, JSON: part, Seq: 7, More: more, ID: 1}))
				if got := texts(r); !cmp.Equal(got, want) {
					t.Errorf("%s: %s has the facts\n%s\nwant\n%s", carrier.Name, message, strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			}
		}
	}
}

// sayNothing lists methods without facts: their messages have no state of a channel.
var sayNothing = []string{
	"root/progress", "auth/required", "otlp/exportLogs", "otlp/exportTraces", "otlp/exportMetrics", "channel/credit", "channel/ready", "tcp/data", "tcp/eof",
	"ping", "authenticate", "createTcpConnection", "createSession", "disposeSession", "createChat", "disposeChat", "completions",
	"invokeChangesetOperation", "resolveSessionConfig", "sessionConfigCompletions", "createTerminal", "disposeTerminal",
	"listAutomationTriggerDefinitions", "runAutomation", "fetchAutomationRuns",
	"resourceRead", "resourceList", "resourceResolve", "resourceWrite", "resourceCopy", "resourceMove", "resourceDelete", "resourceMkdir", "resourceRequest",
	"resources/read", "no/such", "vscode/devContainers/connect", // of other protocols, or unknown
	"canvasReadResource", "canvasOpen", "canvasInvokeAction", "canvasInvokeOperation", "canvasClose",
}

// TestEveryMethodIsCovered fails unless each method in matrix.txt has a carrier, is tested in this
// package, or is in sayNothing.
func TestEveryMethodIsCovered(t *testing.T) {
	known := slices.Concat(sayNothing, []string{
		"listSessions", "fetchTurns", "moveChat", "createResourceWatch", // TestResponsesHaveFacts
		"root/sessionAdded", "root/sessionRemoved", "root/sessionSummaryChanged", "channel/reset", // TestNotificationsOfTheRootGiveFacts
	})
	for _, carrier := range carriers.All {
		known = append(known, carrier.Method)
	}
	matrix, err := os.ReadFile("../../auth/gate/testdata/matrix.txt")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(matrix)) {
		words := strings.Fields(line)
		if len(words) < 3 || !(words[0] == "c" && words[1] == "req" || words[0] == "h" && words[1] == "note") || strings.Contains(line, `"mcp:`) {
			continue
		}
		found++
		if !slices.Contains(known, words[2]) {
			t.Errorf("the method %s has no test: want a carrier, a test, or an entry in sayNothing", words[2])
		}
	}
	if found < 50 {
		t.Errorf("%d methods are known; want all", found)
	}
}
