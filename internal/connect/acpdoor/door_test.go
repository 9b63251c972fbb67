package acpdoor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/hostagent/watch"
	"ahprelay/internal/acp"
	"ahprelay/internal/connect"
	"ahprelay/internal/connect/acpdoor"
	"ahprelay/internal/connect/client"
	"ahprelay/test/acpagent"
	"ahprelay/test/stack"
)

// Environment variables. With them, the test binary runs as a door on standard input and output.
const (
	relayVariable  = "ACPDOOR_RELAY"
	tokenVariable  = "ACPDOOR_TOKEN"
	folderVariable = "ACPDOOR_FOLDER"
)

func TestMain(m *testing.M) {
	if relay := os.Getenv(relayVariable); relay != "" {
		relays := connect.NewRelays(connect.NewRelay(relay, connect.FileTokens(os.Getenv(tokenVariable))))
		if err := acpdoor.Serve(context.Background(), acpdoor.Config{Relays: relays, Host: stack.Host, Folder: os.Getenv(folderVariable), Log: slog.New(slog.DiscardHandler)}, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	acpagent.RunIfAsked()
	goleak.VerifyTestMain(m)
}

// A site is a relay with a host, and a token for its clients.
type site struct {
	*stack.Stack
	relay *connect.Relay
	token string // file with the token
}

func newSite(t *testing.T, cfg agenthost.Config) *site {
	t.Helper()
	return newSiteBehind(t, cfg, func(host http.Handler) http.Handler { return host })
}

// newSiteBehind returns a site with a host that cfg describes, or the demo host if cfg has no
// agents. The function front returns the handler that
// is served: the host, or a handler in front of it.
func newSiteBehind(t *testing.T, cfg agenthost.Config, front func(http.Handler) http.Handler) *site {
	t.Helper()
	return newSiteAt(t, cfg, front, gateway.RelayConfig{})
}

func newSiteAt(t *testing.T, cfg agenthost.Config, front func(http.Handler) http.Handler, relay gateway.RelayConfig) *site {
	t.Helper()
	host, err := agenthost.New(cfg)
	if len(cfg.Agents) == 0 {
		host, err = scripted.New(cfg, scripted.Demo{Still: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	server, err := stack.Serve(front(host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	s := &site{token: filepath.Join(t.TempDir(), "token")}
	if s.Stack, err = stack.Start(t.Context(), stack.Config{DataDir: t.TempDir(), Upstream: server.URL(), Relay: relay}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stack.Close)
	token, err := s.Token(nil)
	if err == nil {
		err = os.WriteFile(s.token, []byte(token), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.relay = connect.NewRelay(s.Relay.URL(), connect.FileTokens(s.token))
	return s
}

// An editor is an ACP client at a door. It records the messages of the door.
type editor struct {
	t    *testing.T
	conn *acp.Conn

	mu      sync.Mutex // guards the fields below
	changed chan struct{}
	updates []update
	asked   []*acp.Request // requests from the door that the test has not taken
	ended   []string       // parameters of the door's $/cancel_request
}

// An update is a session/update from the door, with the members that tests read.
type update struct {
	kind string
	acp.ToolCallUpdate
	text    string
	block   acp.ContentBlock
	id      string // messageId
	entries []acp.PlanEntry
	raw     string
}

func (e *editor) Notify(method string, params json.RawMessage) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.signal()
	if method == "$/cancel_request" {
		e.ended = append(e.ended, string(params))
		return
	}
	var n acp.SessionNotification
	_ = acp.Decode(params, &n)
	u := update{kind: acp.UpdateKind(n.Update), raw: string(n.Update)}
	var chunk acp.ContentChunk
	var plan acp.Plan
	_ = acp.Decode(n.Update, &plan)
	u.entries = plan.Entries
	if strings.HasSuffix(u.kind, "_chunk") {
		_ = acp.Decode(n.Update, &chunk)
		u.block, u.id, u.text = chunk.Content, chunk.MessageID, chunk.Content.Text
	} else {
		_ = acp.Decode(n.Update, &u.ToolCallUpdate)
	}
	e.updates = append(e.updates, u)
}

func (e *editor) Request(r *acp.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.signal()
	if r.Method == "fs/read_text_file" {
		var p acp.ReadTextFileRequest
		_ = acp.Decode(r.Params, &p)
		r.Reply(acp.ReadTextFileResponse{Content: "unsaved content of " + p.Path}, nil)
		return
	}
	e.asked = append(e.asked, r)
}

func (e *editor) Flush() {}

// seen returns the updates received so far.
func (e *editor) seen() []update {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.updates)
}

// withdrawn returns the parameters of each $/cancel_request from the door.
func (e *editor) withdrawn() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.ended)
}

func (e *editor) signal() {
	close(e.changed)
	e.changed = make(chan struct{})
}

func selected(option string) acp.RequestPermissionResponse {
	return acp.RequestPermissionResponse{Outcome: acp.RequestPermissionOutcome{Outcome: acp.RequestPermissionOutcomeSelected, OptionID: option}}
}

// await waits until holds returns true, and calls it after each message to the editor. It fails
// after two minutes.
func (e *editor) await(what string, holds func() bool) {
	e.t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		e.mu.Lock()
		changed := e.changed
		e.mu.Unlock()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			for _, u := range e.seen() {
				e.t.Log(u.raw)
			}
			e.t.Fatalf("the condition is not true after two minutes: %s", what)
		}
	}
}

// everything is an editor with all capabilities that the door uses.
var everything = acp.ClientCapabilities{
	Fs:          acp.FileSystemCapabilities{ReadTextFile: true},
	Elicitation: &acp.ElicitationCapabilities{Form: &acp.Capability{}, URL: &acp.Capability{}},
	Session:     &acp.ClientSessionCapabilities{Notices: &acp.Capability{}, ConfigOptions: &acp.SessionConfigOptionsCapabilities{Boolean: &acp.Capability{}}},
	Meta:        json.RawMessage(`{"terminal_output":true}`),
}

// open starts a door and an editor with the given capabilities, which has initialized. The function
// change may change the door's settings.
func (s *site) open(t *testing.T, can acp.ClientCapabilities, change func(*acpdoor.Config)) *editor {
	t.Helper()
	cfg := acpdoor.Config{Relays: connect.NewRelays(s.relay), Host: stack.Host, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	fromEditor, toDoor := io.Pipe()
	fromDoor, toEditor := io.Pipe()
	e := &editor{t: t, changed: make(chan struct{})}
	e.conn = acp.NewConn(fromDoor, toDoor, e, acp.Limits{})
	ctx, stop := context.WithCancel(context.Background())
	served, ran := make(chan error, 1), make(chan struct{})
	go func() {
		err := acpdoor.Serve(ctx, cfg, fromEditor, toEditor)
		_ = toEditor.Close()
		_ = fromEditor.Close()
		served <- err
	}()
	go func() {
		_ = e.conn.Run()
		close(ran)
	}()
	t.Cleanup(func() {
		_ = toDoor.Close()
		if err := <-served; err != nil {
			t.Errorf("the door ends with %v; want no error", err)
		}
		stop()
		<-ran
	})
	var hello acp.InitializeResponse
	e.call("initialize", acp.InitializeRequest{ProtocolVersion: 1, ClientCapabilities: can}, &hello)
	if hello.ProtocolVersion != 1 || !hello.AgentCapabilities.LoadSession || !hello.AgentCapabilities.PromptCapabilities.Image {
		t.Errorf("the door's initialize answer is %+v; want version 1, with sessions to load, and images", hello)
	}
	return e
}

func (e *editor) call(method string, params, result any) {
	e.t.Helper()
	if err := e.conn.Call(e.t.Context(), method, params, result); err != nil {
		e.t.Fatal(err)
	}
}

// create starts a session, and returns its id.
func (e *editor) create() string {
	e.t.Helper()
	var made acp.NewSessionResponse
	e.call("session/new", acp.NewSessionRequest{Cwd: "/demo/shop", McpServers: []acp.McpServer{}}, &made)
	return made.SessionID
}

func textBlock(text string) acp.ContentBlock {
	return acp.ContentBlock{Type: acp.ContentBlockText, Text: text}
}

func promptOf(session, text string) acp.PromptRequest {
	return acp.PromptRequest{SessionID: session, Prompt: []acp.ContentBlock{textBlock(text)}}
}

// prompt sends a prompt, waits until the turn ends, and returns the updates since.
func (e *editor) prompt(session, text string) ([]update, acp.PromptResponse) {
	e.t.Helper()
	from := len(e.seen())
	var done acp.PromptResponse
	e.call("session/prompt", promptOf(session, text), &done)
	return e.seen()[from:], done
}

// said returns the joined texts in the updates of a kind.
func said(updates []update, kind string) string {
	var b strings.Builder
	for _, u := range updates {
		if u.kind == kind {
			b.WriteString(u.text)
		}
	}
	return b.String()
}

// tools returns the tool calls in updates by id, each with its latest members.
func tools(updates []update) map[string]acp.ToolCallUpdate {
	all := map[string]acp.ToolCallUpdate{}
	for _, u := range updates {
		if u.kind != acp.UpdateToolCall && u.kind != acp.UpdateToolCallUpdate {
			continue
		}
		t := all[u.ToolCallID]
		if u.Title != "" {
			t.Title = u.Title
		}
		if u.Kind != "" {
			t.Kind = u.Kind
		}
		if u.Status != "" {
			t.Status = u.Status
		}
		if u.Content != nil {
			t.Content = u.Content
		}
		if u.RawInput != nil {
			t.RawInput = u.RawInput
		}
		all[u.ToolCallID] = t
	}
	return all
}

// next waits for the next request from the door, which must have the given method, and returns it.
// The test then answers it.
func (e *editor) next(method string) *acp.Request {
	e.t.Helper()
	var r *acp.Request
	e.await(method, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.asked) == 0 {
			return false
		}
		r, e.asked = e.asked[0], e.asked[1:]
		return true
	})
	if r.Method != method {
		e.t.Fatalf("the door asks %s; want %s", r.Method, method)
	}
	return r
}

// TestEditorDrivesASession runs turns of all kinds at the demo host. The editor must show texts,
// reasoning, tool calls, an edit, a picture, an error and a terminal's output, and list the
// sessions.
func TestEditorDrivesASession(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	id := e.create()

	updates, done := e.prompt(id, "hello")
	if got := said(updates, acp.UpdateAgentMessageChunk); got != "Hello, world!" || done.StopReason != acp.StopReasonEndTurn || said(updates, acp.UpdateUserMessageChunk) != "" {
		t.Errorf("the turn hello: %q, %+v; want Hello, world! at the turn's end", got, done)
	}
	if done.Usage == nil || done.Usage.InputTokens != 1 {
		t.Errorf("the turn's usage is %+v; want 1 input token", done.Usage)
	}

	updates, _ = e.prompt(id, "tool")
	if got := tools(updates)["tc-1"]; got.Status != acp.ToolCallStatusCompleted || got.Title != "Ran echo tool" || got.Content[0].Content.Text != "echoed" {
		t.Errorf("the tool call is %+v; want it completed, with the text echoed", got)
	}

	updates, _ = e.prompt(id, "show everything")
	if got := said(updates, acp.UpdateAgentThoughtChunk); !strings.Contains(got, "smells of **time**") {
		t.Errorf("the reasoning is %q; want the text about time", got)
	}
	all := tools(updates)
	if got := all["tc-failed"]; got.Status != acp.ToolCallStatusFailed || got.Kind != acp.ToolKindExecute || string(got.RawInput) != `{"command":"go test ./cart"}` {
		t.Errorf("the failed tool call is %+v; want its command, as a failed execute", got)
	}
	if got := all["tc-edited"]; len(got.Content) != 1 || got.Content[0].Type != acp.ToolCallContentDiff || got.Content[0].Path != "/demo/shop/session.go" ||
		!strings.Contains(got.Content[0].OldText, "time.Now()") || !strings.Contains(got.Content[0].NewText, "newSession(now time.Time)") {
		t.Errorf("the edit is %+v; want the difference in session.go", got)
	}
	if got := all["tc-image"]; len(got.Content) != 1 || got.Content[0].Content.Type != acp.ContentBlockImage {
		t.Errorf("the picture is %+v; want one image", got)
	}

	if err := e.conn.Call(t.Context(), "session/prompt", promptOf(id, "error"), nil); err == nil || !strings.Contains(err.Error(), "Something went wrong") {
		t.Errorf("a failed turn: %v; want that something went wrong", err)
	}

	updates, _ = e.prompt(id, "terminal")
	if !slices.ContainsFunc(updates, func(u update) bool { return strings.Contains(u.raw, `"terminal_info"`) }) ||
		!slices.ContainsFunc(updates, func(u update) bool {
			return strings.Contains(u.raw, `"terminal_output"`) && strings.Contains(u.raw, "hello from the terminal")
		}) {
		for _, u := range updates {
			t.Log(u.raw)
		}
		t.Error("no update contains the terminal's output; want it")
	}

	var list acp.ListSessionsResponse
	e.call("session/list", acp.ListSessionsRequest{}, &list)
	if len(list.Sessions) != 4 || !slices.ContainsFunc(list.Sessions, func(i acp.SessionInfo) bool { return i.SessionID == id && i.Cwd == "/demo/shop" && i.UpdatedAt != "" }) {
		t.Errorf("the list is %+v; want four sessions, with the new one", list)
	}
	var none acp.ListSessionsResponse
	e.call("session/list", acp.ListSessionsRequest{Cwd: "/elsewhere"}, &none)
	if len(none.Sessions) != 0 {
		t.Errorf("the sessions of a different folder are %+v; want none", none)
	}
}

// TestLoadShowsWhatWasShown loads a session in a second editor. It must show the messages and tool
// calls that the first has shown. An editor that resumes the session must show no history.
func TestLoadShowsWhatWasShown(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	id := e.create()
	var texts string
	calls := map[string]acp.ToolCallUpdate{}
	for _, prompt := range []string{"hello", "tool", "show everything"} {
		updates, _ := e.prompt(id, prompt)
		texts += said(updates, acp.UpdateAgentMessageChunk)
		for id, call := range tools(updates) {
			calls[id] = call
		}
	}
	other := s.open(t, everything, nil)
	other.call("session/load", acp.LoadSessionRequest{SessionID: id, Cwd: "/demo/shop", McpServers: []acp.McpServer{}}, nil)
	if got := said(other.seen(), acp.UpdateUserMessageChunk); got != "hellotoolshow everything" {
		t.Errorf("the user's messages after a load are %q; want hello, tool, show everything", got)
	}
	if got := said(other.seen(), acp.UpdateAgentMessageChunk); got != texts {
		t.Errorf("the history is %q; want %q", got, texts)
	}
	for id, call := range tools(other.seen()) {
		want, _ := json.Marshal(calls[id])
		if got, _ := json.Marshal(call); string(got) != string(want) {
			t.Errorf("tool call %s is %s; want %s", id, got, want)
		}
	}
	third := s.open(t, everything, nil)
	third.call("session/resume", acp.ResumeSessionRequest{SessionID: id, Cwd: "/demo/shop"}, nil)
	if updates, _ := third.prompt(id, "hello"); said(updates, acp.UpdateAgentMessageChunk) != "Hello, world!" || len(said(third.seen(), acp.UpdateUserMessageChunk)) > 0 {
		t.Errorf("a prompt in a resumed session got %d updates; want the answer, and no earlier messages", len(updates))
	}
	joined := s.open(t, everything, func(c *acpdoor.Config) { c.Session = id })
	if got := joined.create(); got != id {
		t.Errorf("with --session %s, the door opens %s; want the same", id, got)
	}
	joined.await("the history", func() bool {
		return strings.HasSuffix(said(joined.seen(), acp.UpdateAgentMessageChunk), "Hello, world!")
	})
}

// asIs changes nothing.
func asIs(b []byte) []byte { return b }

// frontThat returns a function for newSiteBehind: it passes the clients' messages to the host, and
// the host's to the clients, as to and from return them.
func frontThat(t *testing.T, to, from func([]byte) []byte) func(http.Handler) http.Handler {
	return func(host http.Handler) http.Handler {
		behind, err := stack.Serve(host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(behind.Stop)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			in, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			defer func() { _ = in.CloseNow() }()
			out, _, err := websocket.Dial(r.Context(), behind.URL(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = out.CloseNow() }()
			in.SetReadLimit(-1)
			out.SetReadLimit(-1)
			go func() {
				defer func() { _ = in.CloseNow() }()
				pass(r.Context(), out, in, from)
			}()
			pass(r.Context(), in, out, to)
		})
	}
}

// pass sends messages from one WebSocket to the other, as change returns them, until either ends.
func pass(ctx context.Context, from, to *websocket.Conn, change func([]byte) []byte) {
	for {
		kind, message, err := from.Read(ctx)
		if err != nil || to.Write(ctx, kind, change(message)) != nil {
			return
		}
	}
}

// TestLoadShowsOlderPages loads a session with 25 turns. The chat's state contains the last two,
// and a page of older turns has 20. The editor must show all 25 in order, and the first editor
// nothing again.
func TestLoadShowsOlderPages(t *testing.T) {
	subscribe, limited := []byte(`"method":"subscribe","params":{`), []byte(`"method":"subscribe","params":{"view":{"turns":2},`)
	s := newSiteBehind(t, agenthost.Config{}, frontThat(t, func(b []byte) []byte { return bytes.Replace(b, subscribe, limited, 1) }, asIs))
	e := s.open(t, everything, nil)
	id := e.create()
	var want string
	for i := range 25 {
		text := fmt.Sprintf("hello %d.", i)
		want += text
		e.prompt(id, text)
	}
	other := s.open(t, everything, nil)
	other.call("session/load", acp.LoadSessionRequest{SessionID: id, Cwd: "/demo/shop", McpServers: []acp.McpServer{}}, nil)
	if got := said(other.seen(), acp.UpdateUserMessageChunk); got != want {
		t.Errorf("the user's messages are %q; want %q", got, want)
	}
	if updates, _ := other.prompt(id, "hello"); said(updates, acp.UpdateAgentMessageChunk) != "Hello, world!" {
		t.Errorf("a prompt after the older pages got %d updates; want Hello, world!", len(updates))
	}
	if got := said(e.seen(), acp.UpdateUserMessageChunk); strings.Count(got, "hello 3.") > 0 {
		t.Errorf("the first editor receives the older pages too: %q; want them at the loading editor only", got)
	}
}

// TestPermissionShowsEverything answers requests for permission. Each request must show the
// command, or the edit's content, and offer the host's options. After an unknown option, nothing
// may be allowed.
func TestPermissionShowsEverything(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	id := e.create()
	for _, c := range []struct{ prompt, option, want string }{
		{"permission", "allow-once", "Allowed."}, {"permission", "skip", "Denied."}, {"edit", "allow-once", "Done, as you allowed."}, {"edit", "no-such-option", ""},
	} {
		pending := e.conn.Begin("session/prompt", promptOf(id, c.prompt))
		r := e.next("session/request_permission")
		var p acp.RequestPermissionRequest
		if err := json.Unmarshal(r.Params, &p); err != nil {
			t.Fatal(err)
		}
		kinds := map[string]string{}
		for _, o := range p.Options {
			kinds[o.OptionID] = o.Kind
		}
		if kinds["allow-once"] != acp.PermissionOptionKindAllowOnce || kinds["allow-session"] != acp.PermissionOptionKindAllowAlways || kinds["skip"] != acp.PermissionOptionKindRejectOnce {
			t.Errorf("the prompt %s offers the options %v; want one of each kind", c.prompt, p.Options)
		}
		if c.prompt == "permission" && (string(p.ToolCall.RawInput) != `"echo test"` || p.ToolCall.Title != "Run a test command") {
			t.Errorf("the permission request is %+v; want the command and the title", p.ToolCall)
		}
		if c.prompt == "edit" && (len(p.ToolCall.Content) != 2 || p.ToolCall.Content[1].Path != "/demo/shop/session_test.go" || !strings.Contains(p.ToolCall.Content[0].NewText, "now time.Time")) {
			t.Errorf("the edit shows %+v; want both files with their new text", p.ToolCall.Content)
		}
		r.Reply(selected(c.option), nil)
		if c.want == "" {
			if err := e.conn.Notify("session/cancel", acp.CancelNotification{SessionID: id}); err != nil {
				t.Fatal(err)
			}
		}
		var done acp.PromptResponse
		if err := pending.Wait(t.Context(), &done); err != nil {
			t.Fatal(err)
		}
		if got := e.withdrawn(); c.want != "" && len(got) > 0 {
			t.Errorf("answered requests are withdrawn: %s; want none", got)
		}
		if c.want == "" && done.StopReason != acp.StopReasonCancelled {
			t.Errorf("an unknown option ends the prompt with %s; want cancelled", done.StopReason)
		}
		if got := said(e.seen(), acp.UpdateAgentMessageChunk); !strings.HasSuffix(got, c.want) {
			t.Errorf("after %s: %q; want %q at its end", c.option, got, c.want)
		}
	}
}

// TestHiddenPermissionCanOnlyBeRefused asks for permission for an edit whose content the host does
// not serve. The door must offer options to refuse only, and ignore any other answer.
func TestHiddenPermissionCanOnlyBeRefused(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	id := e.create()
	pending := e.conn.Begin("session/prompt", promptOf(id, `approve {"invocationMessage":"Edit","edits":{"items":[{"after":{"uri":"file:///demo/x","content":{"uri":"file:///demo/no-such-file"}}}]}}`))
	r := e.next("session/request_permission")
	var p acp.RequestPermissionRequest
	if err := json.Unmarshal(r.Params, &p); err != nil {
		t.Fatal(err)
	}
	for _, o := range p.Options {
		if o.Kind != acp.PermissionOptionKindRejectOnce {
			t.Errorf("a hidden edit offers %+v; want only reject once", o)
		}
	}
	r.Reply(selected("allow-once"), nil) // this option was not offered
	r2 := e.conn.Notify("session/cancel", acp.CancelNotification{SessionID: id})
	if err := pending.Wait(t.Context(), nil); err != nil || r2 != nil {
		t.Fatal(err, r2)
	}
	if got := said(e.seen(), acp.UpdateAgentMessageChunk); strings.Contains(got, "as you allowed") {
		t.Error("the hidden edit was allowed; want it refused")
	}
}

// TestQuestionsAreForms lets the host ask a question. An editor that supports forms must get a
// form, and the host its answers. Another editor must get a choice as a permission, and for a
// question that needs text a hint to the console.
func TestQuestionsAreForms(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	id := e.create()
	pending := e.conn.Begin("session/prompt", promptOf(id, "ask"))
	r := e.next("elicitation/create")
	var p acp.CreateElicitationRequest
	if err := json.Unmarshal(r.Params, &p); err != nil {
		t.Fatal(err)
	}
	if f := p.RequestedSchema.Properties; len(f) != 5 || f["runs"].Type != "integer" || f["race"].Type != "boolean" || len(f["where"].OneOf) != 2 || len(f["what"].Items.AnyOf) != 3 || !slices.Equal(p.RequestedSchema.Required, []string{"name"}) {
		t.Errorf("the form is %+v; want five questions of their types", p.RequestedSchema)
	}
	r.Reply(acp.CreateElicitationResponse{Action: "accept", Content: map[string]json.RawMessage{
		"name": json.RawMessage(`"fix"`), "runs": json.RawMessage("7"), "race": json.RawMessage("true"), "where": json.RawMessage(`"ci"`), "what": json.RawMessage(`["cart","web"]`),
	}}, nil)
	if err := pending.Wait(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	got := said(e.seen(), acp.UpdateAgentMessageChunk)
	for _, want := range []string{"You answered: accept", `"value":"fix"`, `"value":7`, `"kind":"selected","value":"ci"`, `"kind":"selected-many","value":["cart","web"]`} {
		if !strings.Contains(got, want) {
			t.Errorf("the host has %s; want %s", got, want)
		}
	}

	plain := s.open(t, acp.ClientCapabilities{}, nil)
	id = plain.create()
	pending = plain.conn.Begin("session/prompt", promptOf(id, "ask choice"))
	r = plain.next("session/request_permission")
	r.Reply(selected("step"), nil)
	if err := pending.Wait(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := said(plain.seen(), acp.UpdateAgentMessageChunk); !strings.Contains(got, `"value":"step"`) {
		t.Errorf("with an editor that has no forms, the question's answer is %s; want the value step", got)
	}
	pending = plain.conn.Begin("session/prompt", promptOf(id, "ask text"))
	plain.await("a hint", func() bool {
		return strings.Contains(said(plain.seen(), acp.UpdateAgentMessageChunk), "answer in the console")
	})
	_ = plain.conn.Notify("session/cancel", acp.CancelNotification{SessionID: id})
	if err := pending.Wait(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

// TestCancelAndQueue cancels a session with a running turn and a queued prompt: both must end as
// cancelled. Then it sends two prompts: they must run in order.
func TestCancelAndQueue(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, acp.ClientCapabilities{}, nil)
	id := e.create()
	running := e.conn.Begin("session/prompt", promptOf(id, "stream 100000 5"))
	e.await("the stream", func() bool { return said(e.seen(), acp.UpdateAgentMessageChunk) != "" })
	queued := e.conn.Begin("session/prompt", promptOf(id, "hello"))
	if err := e.conn.Notify("session/cancel", acp.CancelNotification{SessionID: id}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*acp.Pending{running, queued} {
		var done acp.PromptResponse
		if err := p.Wait(t.Context(), &done); err != nil || done.StopReason != acp.StopReasonCancelled {
			t.Errorf("a cancelled prompt ends with %v, %s; want cancelled", err, done.StopReason)
		}
	}
	first := e.conn.Begin("session/prompt", promptOf(id, "stream 20 5"))
	second := e.conn.Begin("session/prompt", promptOf(id, "hello"))
	for _, p := range []*acp.Pending{first, second} {
		var done acp.PromptResponse
		if err := p.Wait(t.Context(), &done); err != nil || done.StopReason != acp.StopReasonEndTurn {
			t.Errorf("a queued prompt ends with %v, %s; want end_turn", err, done.StopReason)
		}
	}
	if got := said(e.seen(), acp.UpdateAgentMessageChunk); !strings.HasSuffix(got, "Hello, world!") {
		t.Errorf("the queued message was answered with %q; want Hello, world!", got)
	}
}

// A failingAgent ends each turn with an error, when it may.
type failingAgent struct{ fails chan error }

func (a *failingAgent) Info() agenthost.AgentInfo {
	return agenthost.AgentInfo{Provider: "failing", Name: "Failing"}
}

func (a *failingAgent) Open(context.Context, agenthost.Start, *agenthost.Chat) (agenthost.Conversation, error) {
	return a, nil
}

func (a *failingAgent) SetOption(context.Context, string, any) error { return nil }
func (a *failingAgent) ID() string                                   { return "c" }
func (a *failingAgent) Close() error                                 { return nil }

func (a *failingAgent) Prompt(ctx context.Context, _ agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
	select {
	case err := <-a.fails:
		return agenthost.End{}, err
	case <-ctx.Done():
		return agenthost.End{}, ctx.Err()
	}
}

// TestQueuedPromptEndsAfterAnError ends a turn with an error while a prompt waits. The host gives the agent no further message then,
// so the editor must learn that the agent has not got it, and the message must not wait any more.
func TestQueuedPromptEndsAfterAnError(t *testing.T) {
	folder, agent := t.TempDir(), &failingAgent{fails: make(chan error)}
	s := newSite(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Folders: []string{folder}})
	e := s.open(t, acp.ClientCapabilities{}, func(cfg *acpdoor.Config) { cfg.Folder = folder })
	id := e.create()
	running := e.conn.Begin("session/prompt", promptOf(id, "one"))
	queued := e.conn.Begin("session/prompt", promptOf(id, "two"))
	s.awaitQueue(t, id)
	agent.fails <- errors.New("the limit of the plan is reached")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for want, p := range map[string]*acp.Pending{"the limit": running, "send it again": queued} {
		if err := p.Wait(ctx, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a prompt ends with %v; want an error with %q", err, want)
		}
	}
	again := e.conn.Begin("session/prompt", promptOf(id, "three"))
	agent.fails <- errors.New("still reached")
	if err := again.Wait(ctx, nil); err == nil || !strings.Contains(err.Error(), "still reached") {
		t.Errorf("the next prompt ends with %v; want its own error", err)
	}
}

// TestTerminalIsText opens a door for an editor that cannot show terminals. It must get the
// terminal's output as text.
func TestTerminalIsText(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, acp.ClientCapabilities{}, nil)
	updates, _ := e.prompt(e.create(), "terminal")
	if got := tools(updates)["tc-term"]; len(got.Content) != 1 || !strings.HasPrefix(got.Content[0].Content.Text, "```console\n") || !strings.Contains(got.Content[0].Content.Text, "hello from the terminal") {
		t.Errorf("the terminal is %+v; want its output as a code block", got)
	}
}

// TestTerminalOfAShortTurnIsShown delays the host's answer about a terminal until its turn has ended.
// The editor must get the terminal's output before the answer to its prompt, and as text too if it
// cannot show terminals.
func TestTerminalOfAShortTurnIsShown(t *testing.T) {
	for name, can := range map[string]acp.ClientCapabilities{"terminal": everything, "text": {}} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{})
			end := sync.OnceFunc(func() { close(ended) })
			s := newSiteBehind(t, agenthost.Config{}, frontThat(t, func(b []byte) []byte {
				if bytes.Contains(b, []byte(`"method":"subscribe"`)) && bytes.Contains(b, []byte("terminal:")) {
					select {
					case <-ended:
					case <-t.Context().Done():
					}
				}
				return b
			}, func(b []byte) []byte {
				if bytes.Contains(b, []byte(`"chat/turnComplete"`)) {
					time.AfterFunc(100*time.Millisecond, end) // when the door has it
				}
				return b
			}))
			e := s.open(t, can, nil)
			updates, _ := e.prompt(e.create(), "terminal")
			if !slices.ContainsFunc(updates, func(u update) bool {
				return strings.Contains(u.raw, "hello from the terminal") && (strings.Contains(u.raw, `"terminal_output"`) || strings.Contains(u.raw, "```console"))
			}) {
				t.Errorf("no update contains the output of a terminal whose state came after the turn's end; want it: %+v", updates)
			}
		})
	}
}

// TestFirstAnswerCounts lets a phone answer a request for permission that the editor shows. The
// door must withdraw the request, and a later answer from the editor must change nothing. The
// editor must also show a turn that the phone begins.
func TestFirstAnswerCounts(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	id := e.create()
	phone, err := client.Open(t.Context(), client.Config{Relay: s.relay, Host: stack.Host, Name: "phone", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer phone.Close()
	pending := e.conn.Begin("session/prompt", promptOf(id, "permission"))
	r := e.next("session/request_permission")
	at, err := phone.Session(t.Context(), id)
	if err != nil || len(at.InputNeeded) != 1 {
		t.Fatalf("the phone sees the questions %v, %v; want 1", at.InputNeeded, err)
	}
	action, err := at.Questions(id)[0].Action(watch.Reply{Option: "skip"})
	if err != nil {
		t.Fatal(err)
	}
	if err := phone.Dispatch(t.Context(), at.DefaultChat, json.RawMessage(action)); err != nil {
		t.Fatal(err)
	}
	if err := pending.Wait(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	e.await("the request is withdrawn", func() bool { return len(e.withdrawn()) == 1 })
	r.Reply(selected("allow-once"), nil) // too late: the phone has answered
	if got := tools(e.seen())["tc-perm"]; got.Status != acp.ToolCallStatusFailed {
		t.Errorf("the tool call that the phone refused is %+v; want failed", got)
	}
	if got := said(e.seen(), acp.UpdateAgentMessageChunk); got != "Denied." {
		t.Errorf("the turn says %q; want Denied", got)
	}
	if err := phone.Say(t.Context(), at.DefaultChat, "phones-turn", client.Message{Text: "hello"}, false); err != nil {
		t.Fatal(err)
	}
	e.await("the phone's turn", func() bool {
		return said(e.seen(), acp.UpdateUserMessageChunk) == "hello" && strings.HasSuffix(said(e.seen(), acp.UpdateAgentMessageChunk), "Hello, world!")
	})
}

// TestCancelledMessageThatBegins cancels a queued message. The host begins its turn nevertheless, as it does if the removal
// comes too late. The door must end the turn, because the editor shows nothing that its user could stop.
func TestCancelledMessageThatBegins(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	id := e.create()
	prompts := []*acp.Pending{e.conn.Begin("session/prompt", promptOf(id, "permission"))}
	e.next("session/request_permission")
	prompts = append(prompts, e.conn.Begin("session/prompt", promptOf(id, "permission")))
	queued := s.awaitQueue(t, id)
	if err := e.conn.Notify("session/cancel", acp.CancelNotification{SessionID: id}); err != nil {
		t.Fatal(err)
	}
	for _, p := range prompts {
		if err := p.Wait(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	phone, err := client.Open(t.Context(), client.Config{Relay: s.relay, Host: stack.Host, Name: "phone", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer phone.Close()
	at, err := phone.Session(t.Context(), id)
	if err == nil {
		err = phone.Dispatch(t.Context(), at.DefaultChat, map[string]any{
			"type": "chat/turnStarted", "turnId": "late", "startedAt": "2026-01-01T00:00:00.000Z", "queuedMessageId": queued, "message": map[string]any{"text": "permission"},
		})
	}
	for deadline := time.Now().Add(time.Minute); err == nil && time.Now().Before(deadline); {
		var chat client.Chat
		if chat, err = phone.Chat(t.Context(), at.DefaultChat); len(chat.Turns) == 2 {
			if last := chat.Turns[1]; last.ID != "late" || last.State != "cancelled" {
				t.Errorf("the last turn is %s, %s; want the late one, cancelled", last.ID, last.State)
			}
			return
		}
	}
	t.Fatalf("the late turn has not ended after a minute, %v; want it cancelled", err)
}

// TestInterruptionLosesNothing restarts the host-agent during a turn, which ends all connections to
// the host. The turn must go on, and the editor must have all its text at the end.
func TestInterruptionLosesNothing(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	id := e.create()
	pending := e.conn.Begin("session/prompt", promptOf(id, "stream 500 5"))
	e.await("the stream", func() bool { return len(said(e.seen(), acp.UpdateAgentMessageChunk)) > 100 })
	if err := s.StopAgent(); err != nil {
		t.Fatal(err)
	}
	if err := s.StartAgent(); err != nil {
		t.Fatal(err)
	}
	var done acp.PromptResponse
	if err := pending.Wait(t.Context(), &done); err != nil || done.StopReason != acp.StopReasonEndTurn {
		t.Fatalf("the interrupted turn ends with %v, %s; want end_turn", err, done.StopReason)
	}
	var want strings.Builder
	for i := range 500 {
		fmt.Fprintf(&want, "%-8s", fmt.Sprint(i, " ")+strings.Repeat("x", max(0, 7-len(fmt.Sprint(i)))))
	}
	if got := said(e.seen(), acp.UpdateAgentMessageChunk); got != want.String() {
		t.Errorf("the editor has %d bytes, want %d: …%q", len(got), want.Len(), got[max(0, len(got)-40):])
	}
	if updates, _ := e.prompt(id, "hello"); said(updates, acp.UpdateAgentMessageChunk) != "Hello, world!" {
		t.Error("the session does not answer after the interruption; want Hello, world!")
	}
}

// TestLostSessionIsLeft restarts the host-agent during a turn, while the host no longer knows the
// session. The turn must end with the reason, and the next prompt with the remedy. When the host
// knows the session again, the editor must be able to load it.
func TestLostSessionIsLeft(t *testing.T) {
	var lost atomic.Bool
	known, unknown := []byte(`"method":"subscribe","params":{"channel":"demo:/`), []byte(`"method":"subscribe","params":{"channel":"demo:/not-`)
	s := newSiteBehind(t, agenthost.Config{}, frontThat(t, func(b []byte) []byte {
		if !lost.Load() {
			return b
		}
		return bytes.Replace(b, known, unknown, 1)
	}, asIs))
	e := s.open(t, everything, nil)
	id := e.create()
	pending := e.conn.Begin("session/prompt", promptOf(id, "stream 500 5"))
	e.await("the stream", func() bool { return len(said(e.seen(), acp.UpdateAgentMessageChunk)) > 100 })
	lost.Store(true)
	if err := errors.Join(s.StopAgent(), s.StartAgent()); err != nil {
		t.Fatal(err)
	}
	if err := pending.Wait(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "the session cannot be continued") {
		t.Errorf("the turn of a lost session ends with %v; want that the session cannot be continued", err)
	}
	if err := e.conn.Call(t.Context(), "session/prompt", promptOf(id, "hello"), nil); err == nil || !strings.Contains(err.Error(), "load or resume it first") {
		t.Errorf("a prompt to a lost session: %v; want to load it first", err)
	}
	lost.Store(false)
	e.call("session/load", acp.LoadSessionRequest{SessionID: id, Cwd: "/demo/shop", McpServers: []acp.McpServer{}}, nil)
	if updates, _ := e.prompt(id, "hello"); !strings.Contains(said(updates, acp.UpdateAgentMessageChunk), "Hello, world!") {
		t.Error("the session does not answer after it was loaded again; want Hello, world!")
	}
}

// TestErrorsNameTheRemedy sends requests that must fail, for example for unknown sessions and
// hosts. Each error must name the remedy.
func TestErrorsNameTheRemedy(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	for _, c := range []struct {
		method string
		params any
		want   string
	}{
		{"session/new", acp.NewSessionRequest{Cwd: "C:\\work"}, "--folder"},
		{"session/load", acp.LoadSessionRequest{SessionID: "demo:/none"}, "demo:/none"},
		{"session/prompt", promptOf("demo:/none", "hello"), "load or resume it first"},
		{"session/set_mode", acp.SetSessionModeRequest{SessionID: "demo:/none"}, "load or resume it first"},
		{"later/method", struct{}{}, "does not have the method"},
	} {
		if err := e.conn.Call(t.Context(), c.method, c.params, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.method, err, c.want)
		}
	}
	nowhere := s.open(t, everything, func(c *acpdoor.Config) { c.Host = "nowhere" })
	if err := nowhere.conn.Call(t.Context(), "session/new", acp.NewSessionRequest{Cwd: "/"}, nil); err == nil || !strings.Contains(err.Error(), "under that name; ahp-connect hosts lists") {
		t.Errorf("session/new at an unknown host: %v; want the way to list the hosts", err)
	}
	low, err := s.Token(func(c *auth.Client) { c.Access = auth.AccessRead })
	if err == nil {
		err = os.WriteFile(s.token, []byte(low), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.relay = connect.NewRelay(s.Relay.URL(), connect.FileTokens(s.token))
	viewer := s.open(t, everything, nil)
	if err := viewer.conn.Call(t.Context(), "session/new", acp.NewSessionRequest{Cwd: "/"}, nil); err == nil || !strings.Contains(err.Error(), "use a higher --level") {
		t.Errorf("session/new with the level look: %v; want a higher --level", err)
	}
}
