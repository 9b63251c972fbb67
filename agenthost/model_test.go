package agenthost_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ahprelay/agenthost"
)

type object = map[string]any

// A mirror is a client's copy of a chat. It starts with a snapshot, and applies each
// action as AHP's reducers do.
type mirror struct{ state object }

func (m *mirror) turn() object {
	t, _ := m.state["activeTurn"].(object)
	return t
}

func (m *mirror) parts() []any {
	if t := m.turn(); t != nil {
		return t["responseParts"].([]any)
	}
	return nil
}

func (m *mirror) tool(id any) object {
	for _, p := range m.parts() {
		if call, ok := p.(object)["toolCall"].(object); ok && call["toolCallId"] == id {
			return call
		}
	}
	return nil
}

func keep(from object, names ...string) object {
	kept := object{}
	for _, name := range names {
		if v, ok := from[name]; ok {
			kept[name] = v
		}
	}
	return kept
}

var (
	toolBase      = []string{"toolCallId", "toolName", "displayName", "intention", "contributor", "_meta"}
	toolConfirmed = slices.Concat(toolBase, []string{"invocationMessage", "toolInput", "confirmed", "selectedOption"})
)

func replaceWith(call, next object) {
	clear(call)
	for name, v := range next {
		if v != nil {
			call[name] = v
		}
	}
}

func (m *mirror) add(part any) { m.turn()["responseParts"] = append(m.parts(), part) }

func (m *mirror) apply(a object) {
	kind := a["type"].(string)
	if kind == "chat/turnStarted" {
		m.state["activeTurn"] = object{"id": a["turnId"], "startedAt": a["startedAt"], "message": a["message"], "responseParts": []any{}}
		return
	}
	if m.turn() == nil || a["turnId"] != nil && a["turnId"] != m.turn()["id"] {
		return
	}
	switch kind {
	case "chat/responsePart":
		m.add(a["part"])
	case "chat/delta", "chat/reasoning":
		for _, p := range m.parts() {
			if part := p.(object); part["id"] == a["partId"] && (part["kind"] == "reasoning") == (kind == "chat/reasoning") {
				part["content"] = part["content"].(string) + a["content"].(string)
			}
		}
	case "chat/usage":
		m.turn()["usage"] = a["usage"]
	case "chat/toolCallStart":
		call := keep(a, toolBase...)
		call["status"] = "streaming"
		m.add(object{"kind": "toolCall", "toolCall": call})
	case "chat/turnComplete", "chat/turnCancelled", "chat/error":
		m.end(a, map[string]string{"chat/turnComplete": "complete", "chat/turnCancelled": "cancelled", "chat/error": "error"}[kind])
	case "chat/inputRequested":
		m.add(object{"kind": "inputRequest", "request": a["request"]})
	case "chat/inputCompleted":
		for _, p := range m.parts() {
			part := p.(object)
			if request, ok := part["request"].(object); ok && part["response"] == nil && request["id"] == a["requestId"] {
				part["response"] = a["response"]
				answers, _ := a["answers"].(object)
				for field, answer := range answers {
					setAnswer(request, field, answer)
				}
			}
		}
	case "chat/inputAnswerChanged":
		for _, p := range m.parts() {
			if request, ok := p.(object)["request"].(object); ok && p.(object)["response"] == nil && request["id"] == a["requestId"] {
				setAnswer(request, a["questionId"].(string), a["answer"])
			}
		}
	default:
		if call := m.tool(a["toolCallId"]); call != nil {
			m.applyTool(kind, call, a)
		}
	}
}

func setAnswer(request object, field string, answer any) {
	answers := object{}
	had, _ := request["answers"].(object)
	maps.Copy(answers, had)
	if answers[field] = answer; answer == nil {
		delete(answers, field)
	}
	if request["answers"] = answers; len(answers) == 0 {
		delete(request, "answers")
	}
}

func (m *mirror) applyTool(kind string, call, a object) {
	status := call["status"]
	switch {
	case kind == "chat/toolCallReady" && (status == "streaming" || status == "running" || status == "pending-confirmation"):
		next := keep(call, toolBase...)
		next["invocationMessage"], next["toolInput"] = a["invocationMessage"], a["toolInput"]
		if next["toolInput"] == nil && status != "streaming" {
			next["toolInput"] = call["toolInput"]
		}
		if next["status"] = "running"; a["confirmed"] != nil {
			next["confirmed"] = a["confirmed"]
		} else {
			next["status"] = "pending-confirmation"
			for _, name := range []string{"confirmationTitle", "riskAssessment", "edits", "editable", "options"} {
				if next[name] = a[name]; next[name] == nil && status == "pending-confirmation" {
					next[name] = call[name]
				}
			}
		}
		replaceWith(call, next)
	case kind == "chat/toolCallConfirmed" && status == "pending-confirmation":
		next := keep(call, slices.Concat(toolBase, []string{"invocationMessage", "toolInput"})...)
		options, _ := call["options"].([]any)
		for _, o := range options {
			if o.(object)["id"] == a["selectedOptionId"] {
				next["selectedOption"] = o
			}
		}
		if a["_meta"] != nil {
			next["_meta"] = a["_meta"]
		}
		if a["approved"] == true {
			next["status"], next["confirmed"] = "running", a["confirmed"]
			if edited, ok := a["editedToolInput"]; ok {
				next["toolInput"] = edited
			}
		} else {
			next["status"] = "cancelled"
			maps.Copy(next, keep(a, "reason", "reasonMessage", "userSuggestion"))
		}
		replaceWith(call, next)
	case kind == "chat/toolCallContentChanged" && status == "running":
		call["content"] = a["content"]
	case kind == "chat/toolCallComplete" && (status == "running" || status == "pending-confirmation"):
		next := keep(call, toolConfirmed...)
		if status == "pending-confirmation" {
			next["confirmed"] = "not-needed"
			delete(next, "selectedOption")
		}
		for name, v := range a["result"].(object) {
			next[name] = v
		}
		if meta, ok := a["_meta"]; ok {
			next["_meta"] = meta
		}
		next["status"] = "completed"
		replaceWith(call, next)
	}
}

func (m *mirror) end(a object, state string) {
	t := m.turn()
	for _, p := range m.parts() {
		call, ok := p.(object)["toolCall"].(object)
		if !ok || call["status"] == "completed" || call["status"] == "cancelled" {
			continue
		}
		next := keep(call, slices.Concat(toolBase, []string{"invocationMessage", "toolInput"})...)
		next["status"], next["reason"] = "cancelled", "skipped"
		replaceWith(call, next)
	}
	if a["part"] != nil {
		m.add(a["part"])
	}
	t["state"], t["duration"] = state, a["duration"]
	m.state["turns"] = append(m.state["turns"].([]any), t)
	delete(m.state, "activeTurn")
}

// content returns the parts of a state that the tests compare: the turns and the active
// turn.
func content(t *rapid.T, state object) (clean object) {
	raw, err := json.Marshal(keep(state, "turns", "activeTurn"))
	if err == nil {
		err = json.Unmarshal(raw, &clean)
	}
	if err != nil {
		t.Fatal(err)
	}
	return clean
}

// A watcher is a client that has a mirror of the chat.
type watcher struct {
	*agentClient
	mirror  mirror
	session object // the client's copy of the session
}

// applySession applies an action to the copy of the session.
func (w *watcher) applySession(a object) {
	switch a["type"] {
	case "session/inputNeededSet", "session/inputNeededRemoved":
		id := a["id"]
		request, set := a["request"].(object)
		if set {
			id = request["id"]
		}
		list, _ := w.session["inputNeeded"].([]any)
		at := slices.IndexFunc(list, func(r any) bool { return r.(object)["id"] == id })
		switch {
		case set && at >= 0:
			list[at] = request
		case set:
			list = append(list, request)
		case at >= 0:
			list = slices.Delete(list, at, at+1)
		}
		if w.session["inputNeeded"] = list; len(list) == 0 {
			delete(w.session, "inputNeeded")
		}
	case "session/titleChanged":
		w.session["title"] = a["title"]
	case "session/chatUpdated":
		for _, c := range w.session["chats"].([]any) {
			if chat := c.(object); chat["resource"] == a["chat"] {
				maps.Copy(chat, a["changes"].(object))
			}
		}
	}
}

// ofSession returns the parts of a session's state that the tests compare. Questions are in no order.
func ofSession(state object) object {
	kept := keep(state, "title")
	for _, r := range state["chats"].([]any) {
		kept[fmt.Sprint("chat ", r.(object)["resource"])] = fmt.Sprint(r.(object)["status"], r.(object)["title"])
	}
	list, _ := state["inputNeeded"].([]any)
	for _, r := range list {
		kept[fmt.Sprint("question ", r.(object)["id"])] = r
	}
	return kept
}

// read sends a request, and applies all actions that arrive before the response. It
// returns the result.
func (w *watcher) read(method, params string) object {
	w.id++
	w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, w.id, method, params))
	for {
		var msg object
		if err := json.Unmarshal([]byte(w.recv()), &msg); err != nil {
			w.t.Fatal(err)
		}
		if msg["id"] == float64(w.id) && msg["method"] == nil {
			result, _ := msg["result"].(object)
			return result
		}
		if p, _ := msg["params"].(object); msg["method"] == "action" && p["channel"] == fakeChat && p["rejectionReason"] == nil && w.mirror.state != nil {
			w.mirror.apply(p["action"].(object))
		} else if msg["method"] == "action" && p["channel"] == fakeSession && p["rejectionReason"] == nil && w.session != nil {
			w.applySession(p["action"].(object))
		}
	}
}

func (w *watcher) snapshot() object {
	return w.read("subscribe", `{"channel":"`+fakeChat+`"}`)["snapshot"].(object)["state"].(object)
}

// A player is an agent that runs a turn step by step, as the test demands.
type player struct {
	steps chan func(ctx context.Context, turn *agenthost.Turn)
}

func (p *player) prompt(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
	for {
		select {
		case step := <-p.steps:
			if step == nil {
				return agenthost.End{Usage: &agenthost.Usage{InputTokens: 1, ContextUsed: 7}}, nil
			}
			step(ctx, turn)
		case <-ctx.Done():
			return agenthost.End{Reason: agenthost.EndCancelled}, nil
		}
	}
}

// step makes the agent run f within its turn, and waits until f returns.
func (p *player) step(f func(ctx context.Context, turn *agenthost.Turn)) {
	done := make(chan bool)
	p.steps <- func(ctx context.Context, turn *agenthost.Turn) { f(ctx, turn); close(done) }
	<-done
}

func drawTool(t *rapid.T) agenthost.ToolUpdate {
	id := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tool")
	update := agenthost.ToolUpdate{
		ID:     id,
		Title:  rapid.SampledFrom([]string{"", "Run " + id, "Edit"}).Draw(t, "title"),
		Kind:   rapid.SampledFrom([]agenthost.ToolKind{"", agenthost.ToolEdit, agenthost.ToolExecute}).Draw(t, "kind"),
		Status: rapid.SampledFrom([]agenthost.ToolStatus{"", agenthost.ToolPending, agenthost.ToolRunning, agenthost.ToolCompleted, agenthost.ToolFailed}).Draw(t, "status"),
	}
	if rapid.Bool().Draw(t, "input") {
		update.Input = json.RawMessage(`{"command": "x` + id + `"}`)
	}
	text := "new"
	switch rapid.IntRange(0, 3).Draw(t, "content") {
	case 1:
		update.Content = []agenthost.ToolContent{{Text: rapid.StringN(0, 5, -1).Draw(t, "output")}}
	case 2:
		update.Content = []agenthost.ToolContent{{Diff: &agenthost.Diff{Path: "/x/" + id, New: &text}}}
	case 3:
		update.Content = []agenthost.ToolContent{}
	}
	return update
}

// TestStateIsSnapshotAndActions runs agents with random steps. After each step, a
// client that has applied all actions since its snapshot must have the state of a new
// snapshot, in every version of AHP. A new host that reads the files as they are then
// must have this state, too.
func TestStateIsSnapshotAndActions(t *testing.T) {
	const checks = 30 // default; -rapid.checks may demand more
	number := flag.Lookup("rapid.checks")
	if before := number.Value.String(); before == number.DefValue {
		if err := flag.Set("rapid.checks", fmt.Sprint(checks)); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = flag.Set("rapid.checks", before) }()
	}
	rapid.Check(t, func(rt *rapid.T) { checkModel(t, rt) })
}

func checkModel(t *testing.T, rt *rapid.T) {
	dir := t.TempDir()
	play := &player{make(chan func(context.Context, *agenthost.Turn))}
	agent := newFake(play.prompt)
	var handle *agenthost.Chat // the chat, from the first prompt
	var own *agenthost.Turn    // turn that the agent has begun by itself; nil: none
	opened := agent.open
	agent.open = func(ctx context.Context, start agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		handle = chat
		return opened(ctx, start, chat)
	}
	host, err := agenthost.New(agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir, Protocol: agenthost.NewestProtocol})
	if err != nil {
		rt.Fatal(err)
	}
	defer host.Close()
	var watchers []*watcher
	for i, version := range []string{"0.9.0", "1.1.0"} {
		w := &watcher{agentClient: &agentClient{pipeClient: connectPipe(t, host), t: t}}
		defer w.close()
		w.read("initialize", fmt.Sprintf(`{"channel":"ahp-root://","clientId":"c%d","protocolVersions":[%q]}`, i, version))
		w.read("createSession", `{"channel":"`+fakeSession+`","provider":"fake"}`)
		w.mirror.state = w.snapshot()
		w.session = w.read("subscribe", `{"channel":"`+fakeSession+`"}`)["snapshot"].(object)["state"].(object)
		watchers = append(watchers, w)
	}
	first := watchers[0]
	turns := 0
	working := func() bool { return first.mirror.turn() != nil }
	tell := func(f func(ctx context.Context, turn *agenthost.Turn)) {
		switch {
		case own != nil:
			f(own.Context(), own)
		case working():
			play.step(f)
		}
	}
	begin := func() {
		turns++
		own = nil // a prompt ends such a turn
		id := fmt.Sprint("t", turns)
		first.prompt(id, "go")
		for !working() || first.mirror.turn()["id"] != id {
			first.read("ping", `{"channel":"ahp-root://"}`)
		}
		play.step(func(context.Context, *agenthost.Turn) {}) // returns when the conversation is open
	}
	check := func(rt *rapid.T) {
		for _, w := range watchers {
			state := w.snapshot()
			if diff := cmp.Diff(content(rt, state), content(rt, w.mirror.state)); diff != "" {
				rt.Fatalf("the client's state differs after its actions (-the host's +the client's):\n%s", diff)
			}
			session := w.read("subscribe", `{"channel":"`+fakeSession+`"}`)["snapshot"].(object)["state"].(object)
			if diff := cmp.Diff(ofSession(session), ofSession(w.session)); diff != "" {
				rt.Fatalf("the client's session differs after its actions (-the host's +the client's):\n%s", diff)
			}
		}
	}
	restart := func(rt *rapid.T) {
		for try := 0; ; try++ {
			before := content(rt, first.snapshot())
			copied := copyOf(t, dir)
			if state := first.snapshot(); cmp.Equal(content(rt, state), before) { // a question may arrive meanwhile
				checkRestart(t, rt, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copied}, state)
				return
			}
			if try == 1000 {
				rt.Fatal("the state changes in 1000 reads; want it to rest")
			}
		}
	}
	rt.Repeat(map[string]func(*rapid.T){
		"":        check,
		"restart": restart,
		"begin": func(rt *rapid.T) {
			if !working() || own != nil {
				begin()
			}
		},
		"unasked": func(rt *rapid.T) {
			if !working() && handle != nil {
				if own, err = handle.Begin(); err != nil {
					rt.Fatal(err)
				}
				for !working() {
					first.read("ping", `{"channel":"ahp-root://"}`)
				}
			}
		},
		"text": func(rt *rapid.T) {
			id, text := rapid.SampledFrom([]string{"", "m1", "m2"}).Draw(rt, "id"), rapid.String().Draw(rt, "text")
			thought := rapid.Bool().Draw(rt, "thought")
			tell(func(_ context.Context, turn *agenthost.Turn) {
				if thought {
					turn.Thought(id, text)
				} else {
					turn.Text(id, text)
				}
			})
		},
		"tool": func(rt *rapid.T) {
			update := drawTool(rt)
			tell(func(_ context.Context, turn *agenthost.Turn) { turn.Tool(update) })
		},
		"ask": func(rt *rapid.T) {
			update := drawTool(rt)
			tell(func(ctx context.Context, turn *agenthost.Turn) { go turn.Ask(ctx, update, twoOptions) })
		},
		"answer": func(rt *rapid.T) {
			approved, option := rapid.Bool().Draw(rt, "approved"), rapid.SampledFrom([]string{"always", "once", "no", "?"}).Draw(rt, "option")
			more := rapid.SampledFrom([]string{"", `,"reasonMessage":{"markdown":"no"},"userSuggestion":{"text":"later"}`, `,"editedToolInput":"y","_meta":{"m":1}`}).Draw(rt, "more")
			for _, p := range first.mirror.parts() {
				if call, ok := p.(object)["toolCall"].(object); ok && call["status"] == "pending-confirmation" {
					first.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/toolCallConfirmed","turnId":%q,"toolCallId":%q,"approved":%v,"confirmed":"user-action","reason":"denied","selectedOptionId":%q%s}`,
						first.mirror.turn()["id"], call["toolCallId"], approved, option, more))
				}
			}
		},
		"question": func(rt *rapid.T) {
			tell(func(ctx context.Context, turn *agenthost.Turn) {
				go turn.Question(ctx, agenthost.Question{Message: "?", Fields: []agenthost.Field{{ID: "x", Kind: agenthost.FieldText}}})
			})
		},
		"field": func(rt *rapid.T) {
			answer := rapid.SampledFrom([]string{"", `,"answer":{"state":"draft","value":{"kind":"text","value":"z"}}`}).Draw(rt, "answer")
			for _, p := range first.mirror.parts() {
				if request, ok := p.(object)["request"].(object); ok {
					first.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/inputAnswerChanged","requestId":%q,"questionId":"y"%s}`, request["id"], answer))
				}
			}
		},
		"reply": func(rt *rapid.T) {
			for _, p := range first.mirror.parts() {
				if request, ok := p.(object)["request"].(object); ok && p.(object)["response"] == nil {
					first.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/inputCompleted","requestId":%q,"response":"accept","answers":{"x":{"state":"submitted","value":{"kind":"text","value":"y"}}}}`, request["id"]))
				}
			}
		},
		"plan": func(rt *rapid.T) {
			status := rapid.SampledFrom([]string{"pending", "completed"}).Draw(rt, "status")
			tell(func(_ context.Context, turn *agenthost.Turn) {
				turn.Plan([]agenthost.PlanEntry{{Text: "one", Status: "completed"}, {Text: "two", Status: status}})
			})
		},
		"notice": func(rt *rapid.T) {
			tell(func(_ context.Context, turn *agenthost.Turn) {
				turn.Notice("n")
				turn.Usage(agenthost.Usage{OutputTokens: 2, Cost: 0.5, Currency: "USD"})
			})
		},
		"end": func(rt *rapid.T) {
			if working() {
				if own != nil {
					own.End(agenthost.End{}, nil)
					own = nil
				} else {
					play.steps <- nil
				}
				for working() {
					first.read("ping", `{"channel":"ahp-root://"}`)
				}
			}
		},
		"cancel": func(rt *rapid.T) {
			if working() {
				own = nil
				first.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/turnCancelled","turnId":%q,"duration":1}`, first.mirror.turn()["id"]))
				for working() {
					first.read("ping", `{"channel":"ahp-root://"}`)
				}
			}
		},
	})
}

// checkRestart starts a host with a copy of the storage, and compares its state with
// state. If a turn was active, it must now have ended with an error.
func checkRestart(t *testing.T, rt *rapid.T, cfg agenthost.Config, state object) {
	host, err := agenthost.New(cfg)
	if err != nil {
		rt.Fatal(err)
	}
	defer host.Close()
	w := &watcher{agentClient: &agentClient{pipeClient: connectPipe(t, host), t: t}}
	defer w.close()
	w.read("initialize", `{"channel":"ahp-root://","clientId":"d","protocolVersions":["0.9.0"]}`)
	want := mirror{state}
	got := w.snapshot()
	if want.turn() != nil {
		turns := got["turns"].([]any)
		last := turns[len(turns)-1].(object)
		parts := last["responseParts"].([]any)
		part := parts[len(parts)-1].(object)
		if !strings.Contains(fmt.Sprint(part), "interrupted") {
			rt.Fatalf("the interrupted turn ends with %v; want interrupted", part)
		}
		want.end(object{"part": part, "duration": last["duration"]}, "error")
	}
	if diff := cmp.Diff(content(rt, want.state), content(rt, got)); diff != "" {
		rt.Fatalf("the state changes in a restart (-before +after):\n%s", diff)
	}
}
