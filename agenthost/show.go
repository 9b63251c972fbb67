package agenthost

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// showPrompt returns the script for a prompt that shows a host's features, nil for
// other prompts. Each prompt has its branch.
func showPrompt(prompt string) func(*script) {
	switch prompt {
	case "show everything":
		return (*script).showEverything
	case "edit":
		return (*script).askEdit
	case "danger":
		return (*script).askDanger
	case "ask":
		return func(s *script) { s.askUser(askAll) }
	case "ask choice":
		return func(s *script) { s.askUser(askChoice) }
	case "ask text":
		return func(s *script) { s.askUser(askText) }
	case "ask url":
		return func(s *script) { s.askUser(askURL) }
	case "plan":
		return func(s *script) { s.askUser(askPlan) }
	case "subagent":
		return (*script).useSubagent
	case "hostile":
		return (*script).showHostile
	}
	name, number, _ := strings.Cut(prompt, " ")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > maxShown {
		return nil
	}
	switch name {
	case "history":
		return func(s *script) { s.addHistory(n) }
	case "sessions":
		return func(s *script) { s.addSessions(n) }
	case "talk":
		return func(s *script) { s.talk(n) }
	}
	return nil
}

// maxShown bounds the items created by a prompt.
const maxShown = 10_000

// part adds a constant part, given as JSON.
func (s *script) part(raw string) {
	s.emit(partAction{"chat/responsePart", s.turnID, json.RawMessage(raw)})
}

const showMarkdown = "# What was found\n\nThe test reads the **clock twice**. See [the notes](https://example.com/notes), and `session.go`.\n\n" +
	"| package | tests | time |\n|---|---:|---:|\n| cart | 318 | 2.1 s |\n| session | 41 | 0.3 s |\n\n" +
	"1. Pass the clock in.\n2. Run it 500 times:\n   - with `-race`,\n   - without.\n\n" +
	"```go\nfunc newSession(now time.Time) session {\n\treturn session{expires: now.Add(time.Hour)} // one hour\n}\n```\n\n> Nothing else depends on it.\n\n- [x] found\n- [ ] mended\n"

// onePixel is a picture.
const onePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// showEverything adds all kinds of parts, including an unknown kind.
func (s *script) showEverything() {
	s.part(`{"kind":"reasoning","id":"think","content":"The test fails once in twenty runs. That smells of **time**."}`)
	s.say(showMarkdown)
	s.part(`{"kind":"systemNotification","content":{"markdown":"The build in the background has **ended**."}}`)
	s.part(`{"kind":"contentRef","uri":"file:///demo/shop/README.md","contentType":"text/markdown"}`)
	s.part(`{"kind":"x-hologram","shape":"cube","note":"of a version to come"}`)
	s.quickTool("search", "grep", "Search", `{"pattern":"time.Now","path":"/demo/shop"}`, "Searched for time.Now", textContent{"text", "session.go:8: func newSession(now time.Time) session {"})
	s.quickTool("web", "web_fetch", "Fetch", `{"url":"https://example.com/notes"}`, "Read a page", textContent{"text", "Notes on clocks"})
	s.quickTool("image", "screenshot", "Screenshot", "", "Took a picture", json.RawMessage(`{"type":"embeddedResource","contentType":"image/png","data":"`+onePixel+`"}`), json.RawMessage(`{"type":"x-smell","of":"roses"}`))
	s.quickTool("edited", "edit_file", "Edit", "", "Changed session.go", json.RawMessage(`{"type":"fileEdit",`+editOf+`}`))
	s.emit(toolStartAction{Type: "chat/toolCallStart", TurnID: s.turnID, ToolCallID: "tc-failed", ToolName: "bash", DisplayName: "Shell"})
	s.emit(toolReadyAction{Type: "chat/toolCallReady", TurnID: s.turnID, ToolCallID: "tc-failed", InvocationMessage: "go test ./cart", ToolInput: inputText(`{"command":"go test ./cart"}`), Confirmed: "setting"})
	s.emit(toolCompleteAction{"chat/toolCallComplete", s.turnID, "tc-failed", toolResult{
		PastTenseMessage: "Ran go test ./cart", Content: []any{textContent{"text", "\x1b[31mFAIL\x1b[0m cart 2.1s\n"}}, Error: &toolError{"exit status 1"},
	}})
	s.say("That is everything.")
	s.complete()
}

// quickTool uses a tool without confirmation.
func (s *script) quickTool(id, name, display, input, past string, content ...any) {
	id = "tc-" + id
	s.emit(toolStartAction{Type: "chat/toolCallStart", TurnID: s.turnID, ToolCallID: id, ToolName: name, DisplayName: display})
	s.emit(toolReadyAction{Type: "chat/toolCallReady", TurnID: s.turnID, ToolCallID: id, InvocationMessage: past, ToolInput: inputText(input), Confirmed: "not-needed"})
	s.completeTool(id, past, content...)
}

func dataURI(text string) string {
	return "data:text/plain;base64," + base64.StdEncoding.EncodeToString([]byte(text))
}

const sessionGo = "package shop\n\nimport \"time\"\n\ntype session struct{ expires time.Time }\n\nfunc newSession() session {\n\treturn session{expires: time.Now().Add(time.Hour)}\n}\n"

// editOf holds the members of a FileEdit.
var editOf = fmt.Sprintf(`"before":{"uri":"file:///demo/shop/session.go","content":{"uri":%q}},"after":{"uri":"file:///demo/shop/session.go","content":{"uri":%q}},"diff":{"added":2,"removed":2}`,
	dataURI(sessionGo), dataURI(strings.NewReplacer("newSession()", "newSession(now time.Time)", "time.Now()", "now").Replace(sessionGo)))

var newFileOf = fmt.Sprintf(`"after":{"uri":"file:///demo/shop/session_test.go","content":{"uri":%q}},"diff":{"added":3,"removed":0}`,
	dataURI("package shop\n\n// Tests come here.\n"))

// askEdit asks for permission to change two files.
func (s *script) askEdit() {
	s.ask(toolReadyAction{
		ToolCallID: "tc-edit", InvocationMessage: "Edit session.go and add a test", ConfirmationTitle: "Change 2 files?", Options: confirmOptions,
		Edits: json.RawMessage(`{"items":[{` + editOf + `},{` + newFileOf + `}]}`),
		Risk:  json.RawMessage(`{"kind":"judge","status":"complete","reason":"Changes stay in the folder.","safety":0.9}`),
	}, "edit_file", "Edit")
}

// askDanger asks for permission for a dangerous command; the judge's warning follows a
// moment later.
func (s *script) askDanger() {
	s.ask(toolReadyAction{
		ToolCallID: "tc-danger", InvocationMessage: "Delete the build directory", ConfirmationTitle: "Run in the terminal?", ToolInput: inputText(`rm -rf "$BUILD"/*`),
		Options: confirmOptions, Editable: true,
		Risk: json.RawMessage(`{"kind":"judge","status":"complete","reason":{"markdown":"If BUILD is empty, this deletes everything below /."},"safety":0.1}`),
	}, "bash", "Shell")
}

// approvePrompt begins the prompt that makes the agent ask for the permission in its
// JSON, and the message that changes a pending request.
const approvePrompt = "approve "

// askFor asks with the members of a chat/toolCallReady.
func (s *script) askFor(members string) {
	ready := toolReadyAction{ToolCallID: askedFor, Options: confirmOptions}
	if err := json.Unmarshal([]byte(members), &ready); err != nil {
		s.failTurn(turnError{"approve", err.Error()})
		return
	}
	s.ask(ready, "bash", "Shell")
}

// askedFor is askFor's tool call.
const askedFor = "tc-asked"

// changeAskedLocked obeys a message that begins with [approvePrompt]: it announces the
// pending tool call again, with the members in the message. It reports false for any
// other message.
func (ch *chat) changeAskedLocked(message string) bool {
	members, ok := strings.CutPrefix(message, approvePrompt)
	ready := toolReadyAction{Type: "chat/toolCallReady", TurnID: ch.active.ID, ToolCallID: askedFor}
	if !ok || json.Unmarshal([]byte(members), &ready) != nil || len(ch.active.pending()) == 0 {
		return false
	}
	ch.emitLocked(ready)
	return true
}

// inputText returns a tool's text input as JSON; nil for none.
func inputText(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return encode(text)
}

// ask starts a tool and waits for the first answer from any client.
func (s *script) ask(ready toolReadyAction, name, display string) {
	ready.Type, ready.TurnID = "chat/toolCallReady", s.turnID
	s.emit(toolStartAction{Type: "chat/toolCallStart", TurnID: s.turnID, ToolCallID: ready.ToolCallID, ToolName: name, DisplayName: display})
	s.emit(ready)
	var approved bool
	select {
	case approved = <-s.confirmed:
	case <-s.stop:
		return
	case <-s.chat.session.host.done:
		return
	}
	if approved && ready.Edits != nil {
		s.changeSession(changedFile{ID: "file:///demo/shop/session.go", Edit: json.RawMessage("{" + editOf + "}")},
			changedFile{ID: "file:///demo/shop/session_test.go", Edit: json.RawMessage("{" + newFileOf + "}")})
	}
	if approved {
		s.completeTool(ready.ToolCallID, "Done", textContent{"text", "ok"})
		s.say("Done, as you allowed.")
	} else {
		s.say("Then not.")
	}
	s.complete()
}

func (s *script) changeSession(files ...changedFile) {
	h := s.chat.session.host
	h.mu.Lock()
	defer h.mu.Unlock()
	s.chat.session.changeLocked(files...)
}

const (
	askAll = `"message":"Before I begin, **a few things**:","questions":[` +
		`{"id":"name","kind":"text","title":"Name","message":"What is the branch called?","required":true,"max":40},` +
		`{"id":"runs","kind":"integer","title":"Runs","message":"How often shall I run it?","min":1,"max":1000,"defaultValue":500},` +
		`{"id":"race","kind":"boolean","title":"Race detector","message":"With the race detector?","defaultValue":true},` +
		`{"id":"where","kind":"single-select","title":"Where","message":"Where does it run?","options":[{"id":"here","label":"Here","recommended":true},{"id":"ci","label":"CI","description":"Slower, and cleaner"}],"allowFreeformInput":true},` +
		`{"id":"what","kind":"multi-select","title":"What","message":"Which packages?","options":[{"id":"cart","label":"cart"},{"id":"session","label":"session"},{"id":"web","label":"web"}],"min":1}]`
	askChoice = `"message":"The plan is ready.","questions":[{"id":"plan","kind":"single-select","message":"How shall I go on?","required":true,` +
		`"options":[{"id":"go","label":"Do it","recommended":true},{"id":"step","label":"Step by step","description":"Ask before each change"},{"id":"no","label":"Plan anew"}]}]`
	// As VS Code's host asks about a plan by Copilot.
	askPlan = `"_meta":{"purpose":"planReview"},"planReview":{"title":"Review the plan","content":"1. Pass the clock **in**.\n2. Run the test 500 times.","planUri":"file:///demo/shop/README.md",` +
		`"actions":[{"id":"autopilot","label":"Go on by itself","description":"Ask for nothing more"},{"id":"interactive","label":"Go on, and ask","default":true},{"id":"exit_only","label":"Only leave the plan"}],` +
		`"canProvideFeedback":true,"answerQuestionId":"how"},"questions":[{"kind":"single-select","id":"how","title":"Review the plan","message":"How shall I go on?","required":true,` +
		`"options":[{"id":"autopilot","label":"Go on by itself"},{"id":"interactive","label":"Go on, and ask","recommended":true},{"id":"exit_only","label":"Only leave the plan"}],"allowFreeformInput":true}]`
	askText = `"questions":[{"id":"name","kind":"text","message":"What is the branch called?","required":true}]`
	askURL  = `"message":"Please look at the preview.","url":"https://example.com/preview"`
)

// A questionPart is the agent's question to the user.
type questionPart struct {
	Kind     string         `json:"kind"`
	Request  map[string]any `json:"request"`
	Response string         `json:"response,omitempty"`
}

type inputRequestedAction struct {
	Type    string         `json:"type"`
	Request map[string]any `json:"request"`
}

// inputCompletedAction is a client's answer.
type inputCompletedAction struct {
	Type      string         `json:"type"`
	RequestID string         `json:"requestId"`
	Response  string         `json:"response"`
	Answers   map[string]any `json:"answers"`
}

// askUser asks a question and repeats the answer.
func (s *script) askUser(members string) {
	h := s.chat.session.host
	h.mu.Lock()
	request := map[string]any{}
	if err := json.Unmarshal([]byte(`{`+members+`}`), &request); err != nil {
		panic(err) // it is a constant
	}
	request["id"] = h.cfg.NewID()
	s.emitLocked(inputRequestedAction{"chat/inputRequested", request})
	h.mu.Unlock()
	select {
	case a := <-s.answered:
		s.say(fmt.Sprintf("You answered: %s %s", a.Response, encode(a.Answers)))
	case <-s.stop:
		return
	case <-h.done:
		return
	}
	s.complete()
}

// reduceQuestion applies an action to a turn's questions.
func (t *turn) reduceQuestion(action any) {
	switch a := action.(type) {
	case inputRequestedAction:
		t.ResponseParts = append(t.ResponseParts, &questionPart{Kind: "inputRequest", Request: a.Request})
	case inputCompletedAction:
		if q := t.question(a.RequestID); q != nil {
			q.Response = a.Response
			if len(a.Answers) > 0 {
				q.Request["answers"] = a.Answers
			}
		}
	}
}

// questions returns the open questions.
func (t *turn) questions() (open []*questionPart) {
	for _, part := range t.ResponseParts {
		if q, ok := part.(*questionPart); ok && q.Response == "" {
			open = append(open, q)
		}
	}
	return open
}

// question returns the open question with this id; nil if there is none.
func (t *turn) question(id string) *questionPart {
	for _, q := range t.questions() {
		if q.Request["id"] == id {
			return q
		}
	}
	return nil
}

// clientAnswerLocked handles chat/inputCompleted. The first answer counts; later
// answers are echoed too.
func (ch *chat) clientAnswerLocked(env envelope) {
	var a inputCompletedAction
	if json.Unmarshal(env.action, &a) != nil || a.RequestID == "" || a.Response == "" {
		return
	}
	if ch.active != nil && ch.active.question(a.RequestID) != nil {
		switch {
		case ch.script != nil:
			ch.script.answered <- a // only one question waits at a time
		case ch.seat != nil && ch.seat.turn != nil:
			ch.seat.turn.answeredLocked(a)
		}
	}
	ch.applyLocked(a, env)
}

// useSubagent makes a new chat in the session do the work.
func (s *script) useSubagent() {
	h := s.chat.session.host
	h.mu.Lock()
	uri := chatScheme + "/" + h.cfg.NewID()
	worker := &chat{
		session: s.chat.session, uri: uri, status: statusIdle, modified: h.cfg.Now(), title: "Look for other clocks",
		origin: chatOrigin{Kind: "tool", Chat: s.chat.uri, ToolCallID: "tc-agent"}, interactivity: "read-only",
	}
	h.chats[uri] = worker
	worker.session.listed = append(worker.session.listed, worker)
	h.emitLocked(worker.session.uri, chatAddedAction{"session/chatAdded", worker.summary()})
	worker.session.touchLocked()
	a := turnStartedAction{"chat/turnStarted", h.cfg.NewID(), timestamp(h.cfg.Now()), encode(map[string]any{"text": "Look for other clocks", "origin": plainOrigin{"tool"}})}
	worker.startTurnLocked(a, own(uri, a), "there are none")
	h.mu.Unlock()
	s.quickTool("agent", "task", "Task", "", "Asked another agent",
		json.RawMessage(fmt.Sprintf(`{"type":"subagent","resource":%q,"title":"Look for other clocks","description":"in all packages"}`, uri)))
	s.say("Another agent has looked.")
	s.complete()
}

// showHostile sends texts that a malicious host might send.
func (s *script) showHostile() {
	const script = `<img src=x onerror="window.owned=1"><script>window.owned=1</script><svg onload="window.owned=1">`
	s.say(script + "\n\n[click](javascript:window.owned=1) [data](data:text/html,<script>window.owned=1</script>) ![leak](https://leak.invalid/picture.png)\n\n" +
		"<style>*{display:none}</style><form action=https://leak.invalid><button style=\"position:fixed;inset:0\">Allow</button></form>\n\n" +
		"<a id=prompt name=send class=composer href=\"https://leak.invalid\">x</a> [x](https://leak.invalid \"\\\" onmouseover=window.owned=1 x=\")\n\n" +
		"```\"><script>window.owned=1</script>\n</code></pre><script>window.owned=1</script>\n```")
	s.quickTool("hostile", script, script, script, script, textContent{"text", "\x1b]0;owned\x07\x1b]8;;javascript:window.owned=1\x07link\x1b]8;;\x07 " + script},
		json.RawMessage(`{"type":"embeddedResource","contentType":"image/svg+xml","data":"`+base64.StdEncoding.EncodeToString([]byte(`<svg xmlns="http://www.w3.org/2000/svg"><script>parent.owned=1</script><image href="https://leak.invalid/x.png"/></svg>`))+`"}`),
		json.RawMessage(`{"type":"embeddedResource","contentType":"image/png\" onerror=\"window.owned=1","data":"x"}`),
		json.RawMessage(`{"type":"resource","uri":"javascript:window.owned=1"}`))
	s.part(`{"kind":"` + strings.ReplaceAll(script, `"`, `\"`) + `"}`)
	s.part(`{"kind":"toolCall","toolCall":null}`)
	s.complete()
}

// talkPause separates two words in a long answer.
const talkPause = 5 * time.Millisecond

// talk writes n words like an agent: paragraphs, lists and code.
func (s *script) talk(n int) {
	words := strings.SplitAfter(strings.Repeat(showMarkdown+"\nThe test ran on both machines, with and without the race detector, and did not fail again. The last step is to write this down.\n\n", 1+n/60), " ")
	part := s.say("")
	for _, word := range words[:n] {
		if !s.delta(part, word) || !s.sleep(talkPause) {
			return
		}
	}
	s.complete()
}

// addHistory puts n turns before the existing turns.
func (s *script) addHistory(n int) {
	defer s.complete()
	h := s.chat.session.host
	h.mu.Lock()
	defer h.mu.Unlock()
	past := make([]*turn, n)
	for i := range past {
		at := s.started.Add(-time.Duration(n-i) * time.Minute)
		past[i] = h.pastTurnLocked(demoTurn{fmt.Sprintf("Question %d", i), fmt.Sprintf("Answer **%d**\n\n```go\nreturn %d\n```", i, i)}, at)
	}
	s.chat.turns = append(past, s.chat.turns...)
	h.emitLocked(s.chat.uri, turnsLoadedAction{Type: "chat/turnsLoaded", Turns: past})
}

// addSessions adds n sessions.
func (s *script) addSessions(n int) {
	defer s.complete()
	h := s.chat.session.host
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range min(n, maxSessions-len(h.sessions.keys)) {
		added := h.sessions.addSessionLocked(providerName+":/"+h.cfg.NewID(), []string{"file:///demo/shop"}, s.started.Add(-time.Duration(i)*time.Hour))
		added.title = fmt.Sprintf("Session %d", i)
		h.sessions.announceLocked(added)
	}
}

// ---- queued messages

// A pendingMessage is queued for the agent.
type pendingMessage struct {
	ID      string          `json:"id"`
	Message json.RawMessage `json:"message"`
}

type pendingAction struct {
	Kind    string          `json:"kind"` // queued or steering
	ID      string          `json:"id"`
	Message json.RawMessage `json:"message"`
}

// clientPendingLocked handles chat/pendingMessageSet and chat/pendingMessageRemoved.
func (ch *chat) clientPendingLocked(env envelope) {
	var a pendingAction
	if json.Unmarshal(env.action, &a) != nil || a.ID == "" {
		return
	}
	rest := ch.queued[:0:0]
	for _, m := range ch.queued {
		if m.ID != a.ID {
			rest = append(rest, m)
		}
	}
	set := env.kind == "chat/pendingMessageSet"
	switch {
	case a.Kind == "steering" && set:
		ch.steering = &pendingMessage{a.ID, a.Message}
	case a.Kind == "steering":
		ch.steering = nil
	case set:
		ch.queued = append(rest, pendingMessage{a.ID, a.Message})
	default:
		ch.queued = rest
	}
	ch.session.saveLocked()
	ch.session.host.publishLocked(env, nil)
	ch.steerLocked()
	ch.nextLocked()
}

// steerLocked gives the working agent its steering message.
func (ch *chat) steerLocked() {
	if ch.steering == nil || ch.script == nil && (ch.seat == nil || !ch.seat.steerLocked(ch.steering.Message)) {
		return
	}
	m := *ch.steering
	ch.steering = nil
	h := ch.session.host
	h.emitLocked(ch.uri, struct {
		Type string `json:"type"`
		Kind string `json:"kind"`
		ID   string `json:"id"`
	}{"chat/pendingMessageRemoved", "steering", m.ID})
	if ch.seat != nil {
		ch.seat.turn.noticeLocked("*The agent has this message now:* " + textOf(m.Message))
		return
	}
	if ch.changeAskedLocked(textOf(m.Message)) {
		return
	}
	h.parts++
	ch.emitLocked(partAction{"chat/responsePart", ch.active.ID, newMarkdown(partID(h.parts), "I have read: "+textOf(m.Message))})
}

// nextLocked begins a turn with a steering message that the agent has not read, or
// with a queued message, if none is active.
func (ch *chat) nextLocked() {
	if ch.active != nil || ch.steering == nil && len(ch.queued) == 0 {
		return
	}
	var m pendingMessage
	if ch.steering != nil && ch.seat != nil {
		m, ch.steering = *ch.steering, nil
	} else if len(ch.queued) > 0 {
		m, ch.queued = ch.queued[0], ch.queued[1:]
	} else {
		return
	}
	h := ch.session.host
	a := turnStartedAction{"chat/turnStarted", h.cfg.NewID(), timestamp(h.cfg.Now()), m.Message}
	said := struct {
		turnStartedAction
		QueuedMessageID string `json:"queuedMessageId"`
	}{a, m.ID}
	ch.startTurnLocked(a, own(ch.uri, said), textOf(m.Message))
}

func textOf(message json.RawMessage) string {
	var m struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(message, &m) // a malformed message has no text
	return m.Text
}
