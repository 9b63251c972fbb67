package agenthost_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/agenthost"
)

// A fakeAgent is an agent whose conversations are functions of a test.
type fakeAgent struct {
	info agenthost.AgentInfo
	open func(ctx context.Context, start agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error)

	mu     sync.Mutex
	starts []agenthost.Start
}

func (a *fakeAgent) Info() agenthost.AgentInfo { return a.info }

func (a *fakeAgent) Open(ctx context.Context, start agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
	a.mu.Lock()
	a.starts = append(a.starts, start)
	a.mu.Unlock()
	return a.open(ctx, start, chat)
}

// A fakeConversation calls a test's function for each prompt.
type fakeConversation struct {
	id     string
	chat   *agenthost.Chat
	prompt func(ctx context.Context, p agenthost.Prompt, t *agenthost.Turn) (agenthost.End, error)
	set    func(id string, value any) error
}

func (c *fakeConversation) ID() string { return c.id }

func (c *fakeConversation) Prompt(ctx context.Context, p agenthost.Prompt, t *agenthost.Turn) (agenthost.End, error) {
	return c.prompt(ctx, p, t)
}

func (c *fakeConversation) Close() error { return nil }

func (c *fakeConversation) SetOption(_ context.Context, id string, value any) error {
	return c.set(id, value)
}

type promptFunc = func(ctx context.Context, p agenthost.Prompt, t *agenthost.Turn) (agenthost.End, error)

// newFake returns an agent that calls a function for each prompt.
func newFake(prompt promptFunc) *fakeAgent {
	n := 0
	return &fakeAgent{
		info: agenthost.AgentInfo{Provider: "fake", Name: "Fake", Continues: true},
		open: func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
			n++
			return &fakeConversation{id: fmt.Sprintf("c%d", n), chat: chat, prompt: prompt}, nil
		},
	}
}

const fakeSession = "fake:/s1"

const fakeChat = "ahp-chat://default/ZmFrZTovczE"

// An agentClient is a client of a host with an agent, over a pipe.
type agentClient struct {
	*pipeClient
	t      testing.TB
	seq    int
	id     int
	frames []string // received frames that no method has returned yet
}

func (c *agentClient) send(frame string) { fmt.Fprintln(c.in, frame) }

// recv waits for the next frame and returns it.
func (c *agentClient) recv() string {
	c.t.Helper()
	for c.frames = append(c.frames, c.take()...); len(c.frames) == 0; c.frames = c.take() {
		select {
		case <-c.arrived:
		case <-time.After(time.Minute):
			c.t.Fatal("no frame arrives within a minute; want one")
		}
	}
	frame := c.frames[0]
	c.frames = c.frames[1:]
	return frame
}

// talkTo starts a host with an agent and creates a session. It returns a client that is
// subscribed to the session and its chat.
func talkTo(t testing.TB, cfg agenthost.Config) *agentClient {
	t.Helper()
	c := &agentClient{pipeClient: connectPipe(t, newHost(t, cfg)), t: t}
	c.call("initialize", `{"channel":"ahp-root://","clientId":"c","protocolVersions":["0.9.0"]}`)
	c.call("createSession", `{"channel":"`+fakeSession+`","provider":"fake"}`)
	c.call("subscribe", `{"channel":"`+fakeSession+`"}`)
	c.call("subscribe", `{"channel":"`+fakeChat+`"}`)
	return c
}

// call sends a request and returns its result. An error fails the test.
func (c *agentClient) call(method, params string) map[string]any {
	c.t.Helper()
	result, failure := c.try(method, params)
	if failure != nil {
		c.t.Fatalf("calling %s: %v; want no error", method, failure)
	}
	return result
}

// try sends a request, and returns its result or its error.
func (c *agentClient) try(method, params string) (result map[string]any, failure any) {
	c.t.Helper()
	c.id++
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, c.id, method, params))
	for {
		var msg map[string]any
		if err := json.Unmarshal([]byte(c.recv()), &msg); err != nil {
			c.t.Fatal(err)
		}
		if msg["id"] == float64(c.id) && msg["method"] == nil {
			result, _ := msg["result"].(map[string]any)
			return result, msg["error"]
		}
	}
}

func (c *agentClient) dispatch(channel, action string) {
	c.t.Helper()
	c.seq++
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":%q,"clientSeq":%d,"action":%s}}`, channel, c.seq, action))
}

func (c *agentClient) prompt(turn, text string) {
	c.t.Helper()
	c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/turnStarted","turnId":%q,"startedAt":"2026-01-01T00:00:00.000Z","message":{"text":%q,"origin":{"kind":"user"}}}`, turn, text))
}

// until waits for the next action of a type, and returns it.
func (c *agentClient) until(kind string) map[string]any {
	c.t.Helper()
	for {
		if action, ok := c.envelope()["action"].(map[string]any); ok && action["type"] == kind {
			return action
		}
	}
}

// envelope waits for the next frame and returns its params. For a response it returns
// nil.
func (c *agentClient) envelope() map[string]any {
	c.t.Helper()
	var msg struct {
		Params map[string]any `json:"params"`
	}
	if err := json.Unmarshal([]byte(c.recv()), &msg); err != nil {
		c.t.Fatal(err)
	}
	return msg.Params
}

func (c *agentClient) chatState() map[string]any {
	c.t.Helper()
	return c.call("subscribe", `{"channel":"`+fakeChat+`"}`)["snapshot"].(map[string]any)["state"].(map[string]any)
}

func lastTurn(t *testing.T, state map[string]any) (turn map[string]any, parts []any) {
	t.Helper()
	turns := state["turns"].([]any)
	if len(turns) == 0 {
		t.Fatal("the chat has no turn; want at least one")
	}
	turn = turns[len(turns)-1].(map[string]any)
	return turn, turn["responseParts"].([]any)
}

func TestAgentsAnswerIsATurn(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(_ context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		turn.Thought("m1", "Let me ")
		turn.Thought("m1", "think.")
		turn.Text("m2", "You said: ")
		turn.Text("m2", p.Text)
		turn.Tool(agenthost.ToolUpdate{ID: "t", Title: "Read a.go", Kind: agenthost.ToolRead, Status: agenthost.ToolPending})
		turn.Tool(agenthost.ToolUpdate{ID: "t", Input: json.RawMessage(`{"path": "a.go"}`), Status: agenthost.ToolCompleted, Content: []agenthost.ToolContent{{Text: "package a"}}})
		turn.Text("m2", "Done.") // text after a tool begins a new part
		return agenthost.End{Usage: &agenthost.Usage{InputTokens: 3, OutputTokens: 5, ContextSize: 1000}}, nil
	})}})
	c.prompt("t1", "hello")
	c.until("chat/turnComplete")
	turn, parts := lastTurn(t, c.chatState())
	var said []string
	for _, p := range parts {
		part := p.(map[string]any)
		if call, ok := part["toolCall"].(map[string]any); ok {
			said = append(said, fmt.Sprint(call["status"], " ", call["invocationMessage"], " ", call["toolInput"], " ", call["content"].([]any)[0].(map[string]any)["text"]))
			continue
		}
		said = append(said, fmt.Sprint(part["kind"], ": ", part["content"]))
	}
	want := []string{"reasoning: Let me think.", "markdown: You said: hello", `completed Read a.go {"path":"a.go"} package a`, "markdown: Done."}
	if got := strings.Join(said, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("the turn has the parts\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	if got := fmt.Sprint(turn["usage"]); got != "map[_meta:map[contextSize:1000] inputTokens:3 outputTokens:5]" {
		t.Errorf("the turn's usage is %s; want 3 input and 5 output tokens", got)
	}
}

func TestToolEndsWithTheTimeThatItHasRun(t *testing.T) {
	var now atomic.Int64 // milliseconds on the test's clock
	running := make(chan struct{})
	c := talkTo(t, agenthost.Config{Now: func() time.Time { return time.UnixMilli(now.Load()) }, Agents: []agenthost.Agent{newFake(func(ctx context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		turn.Tool(agenthost.ToolUpdate{ID: "read", Kind: agenthost.ToolRead, Status: agenthost.ToolRunning})
		now.Add(1500)
		turn.Tool(agenthost.ToolUpdate{ID: "read", Status: agenthost.ToolCompleted})
		_, err := turn.Ask(ctx, agenthost.ToolUpdate{ID: "asked", Title: "make"}, twoOptions)
		now.Add(500)
		turn.Tool(agenthost.ToolUpdate{ID: "asked", Status: agenthost.ToolCompleted})
		close(running)
		return agenthost.End{}, err
	})}})
	c.prompt("t1", "go")
	for c.until("chat/toolCallReady")["toolCallId"] != "asked" {
	}
	now.Add(3_600_000) // while the agent waits for permission
	c.dispatch(fakeChat, `{"type":"chat/toolCallConfirmed","turnId":"t1","toolCallId":"asked","approved":true,"confirmed":"user-action","selectedOptionId":"once"}`)
	<-running
	c.until("chat/turnComplete")
	_, parts := lastTurn(t, c.chatState())
	for i, want := range []string{
		"map[agenthost.ran:map[durationMs:1500 startedAt:1970-01-01T00:00:00Z] toolKind:read]",
		"map[agenthost.ran:map[durationMs:500 startedAt:1970-01-01T01:00:01.5Z]]",
	} {
		if got := fmt.Sprint(parts[i].(map[string]any)["toolCall"].(map[string]any)["_meta"]); got != want {
			t.Errorf("the call's _meta is %s; want %s", got, want)
		}
	}
}

var twoOptions = []agenthost.PermissionOption{
	{ID: "always", Label: "Always", Kind: agenthost.AllowAlways},
	{ID: "once", Label: "Just this time", Kind: agenthost.AllowOnce},
	{ID: "no", Label: "No", Kind: agenthost.RejectOnce},
}

// TestSessionIsUnreadAfterNewActivity marks a session as read while a turn runs. The turn's end must make it unread, for all clients
// and after a restart.
func TestSessionIsUnreadAfterNewActivity(t *testing.T) {
	ends := make(chan struct{})
	agent := newFake(func(ctx context.Context, _ agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
		select {
		case <-ends:
		case <-ctx.Done():
		}
		return agenthost.End{}, nil
	})
	dir := t.TempDir()
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	c.prompt("t1", "one")
	c.until("chat/turnStarted")
	c.dispatch(fakeSession, `{"type":"session/isReadChanged","isRead":true}`)
	c.until("session/isReadChanged")
	ends <- struct{}{}
	if action := c.until("session/isReadChanged"); action["isRead"] != false {
		t.Errorf("the turn's end publishes %v; want the session unread", action)
	}
	c.until("chat/turnComplete")
	again := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copyOf(t, dir)})
	for name, c := range map[string]*agentClient{"the same": c, "the next": again} {
		list, _ := c.call("listSessions", `{"channel":"ahp-root://"}`)["items"].([]any)
		if status := list[0].(map[string]any)["status"]; status != float64(1) {
			t.Errorf("in %s host, the session's status is %v; want 1, idle and unread", name, status)
		}
	}
}

func TestAgentAsksForPermission(t *testing.T) {
	for _, test := range []struct{ answer, want string }{
		{`"approved":true,"confirmed":"user-action","selectedOptionId":"always"`, "always"},
		{`"approved":true,"confirmed":"user-action"`, "once"},
		// The client's answer and the selected option contradict each other. The agent must
		// not get more rights than the answer gives.
		{`"approved":false,"reason":"denied","selectedOptionId":"always"`, "no"},
		{`"approved":true,"confirmed":"user-action","selectedOptionId":"no"`, "once"},
	} {
		chosen := make(chan string, 1)
		c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
			id, err := turn.Ask(ctx, agenthost.ToolUpdate{ID: "t", Title: "rm -r x", Kind: agenthost.ToolExecute, Input: json.RawMessage(`{"command":"rm -r x"}`)}, twoOptions)
			chosen <- id
			return agenthost.End{}, err
		})}})
		c.prompt("t1", "go")
		ready := c.until("chat/toolCallReady")
		if got := ready["options"].([]any)[0].(map[string]any)["label"]; got != "Just this time" {
			t.Errorf("the first option is %q; want Just this time, the agent's label for a single permission", got)
		}
		c.dispatch(fakeChat, `{"type":"chat/toolCallConfirmed","turnId":"t1","toolCallId":"t",`+test.answer+`}`)
		c.dispatch(fakeChat, `{"type":"chat/toolCallConfirmed","turnId":"t1","toolCallId":"t","approved":true,"confirmed":"user-action","selectedOptionId":"always"}`)
		if got := <-chosen; got != test.want {
			t.Errorf("for {%s} the agent gets %q; want %q", test.answer, got, test.want)
		}
		c.until("chat/turnComplete")
	}
}

func TestAgentsTurnIsCancelled(t *testing.T) {
	asked := make(chan error, 1)
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		if p.Text == "again" {
			turn.Text("", "here")
			return agenthost.End{}, nil
		}
		_, err := turn.Ask(ctx, agenthost.ToolUpdate{ID: "t", Title: "x"}, twoOptions)
		turn.Text("", "too late")
		turn.Tool(agenthost.ToolUpdate{ID: "t", Status: agenthost.ToolCompleted})
		asked <- err
		return agenthost.End{Reason: agenthost.EndCancelled}, nil
	})}})
	c.prompt("t1", "go")
	c.until("chat/toolCallReady")
	c.dispatch(fakeChat, `{"type":"chat/turnCancelled","turnId":"t1","duration":1}`)
	c.until("chat/turnCancelled")
	if err := <-asked; !errors.Is(err, agenthost.ErrEnded) {
		t.Errorf("Ask = %v; want %v", err, agenthost.ErrEnded)
	}
	turn, parts := lastTurn(t, c.chatState())
	if len(parts) != 1 || turn["state"] != "cancelled" {
		t.Errorf("the cancelled turn is %v; want one part, and the state cancelled", turn)
	}
	c.prompt("t2", "again")
	c.until("chat/turnComplete")
}

func TestAgentAsksAQuestion(t *testing.T) {
	got := make(chan agenthost.Answer, 1)
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		a, err := turn.Question(ctx, agenthost.Question{Message: "Which?", Fields: []agenthost.Field{
			{ID: "n", Kind: agenthost.FieldInteger, Message: "How many?"},
			{ID: "b", Kind: agenthost.FieldBoolean, Message: "Sure?"},
			{ID: "m", Kind: agenthost.FieldMany, Message: "What?", Choices: []agenthost.Choice{{ID: "x", Label: "X"}}},
		}})
		got <- a
		return agenthost.End{}, err
	})}})
	c.prompt("t1", "go")
	id := c.until("chat/inputRequested")["request"].(map[string]any)["id"]
	c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/inputCompleted","requestId":%q,"response":"accept","answers":{"n":{"state":"submitted","value":{"kind":"number","value":3}},`+
		`"b":{"state":"submitted","value":{"kind":"boolean","value":true}},"m":{"state":"submitted","value":{"kind":"selected-many","value":["x"]}}}}`, id))
	want := agenthost.Answer{Response: "accept", Values: map[string]any{"n": int64(3), "b": true, "m": []string{"x"}}}
	if a := <-got; fmt.Sprint(a) != fmt.Sprint(want) {
		t.Errorf("the answer is %v; want %v", a, want)
	}
	c.until("chat/turnComplete")
}

// TestWithdrawnQuestionsAreNotShown has an agent withdraw a question and a request for permission before they are shown. Clients
// must see neither.
func TestWithdrawnQuestionsAreNotShown(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		withdrawn, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := turn.Question(withdrawn, agenthost.Question{Message: "Which?"}); err == nil {
			t.Error("a withdrawn question has an answer")
		}
		if _, err := turn.Ask(withdrawn, agenthost.ToolUpdate{ID: "t", Title: "make"}, twoOptions); err == nil {
			t.Error("a withdrawn request for permission has an answer")
		}
		return agenthost.End{}, nil
	})}})
	c.prompt("t1", "go")
	for kind := any(nil); kind != "chat/turnComplete"; {
		action, _ := c.envelope()["action"].(map[string]any)
		if kind = action["type"]; kind == "session/inputNeededSet" {
			t.Errorf("clients are asked: %v; want no question", action)
		}
	}
}

// TestAnswersToFieldsAreKept has a client answer each field of a question separately, and withdraw an answer. A snapshot
// must have the other answers, and the agent must get them at the end.
func TestAnswersToFieldsAreKept(t *testing.T) {
	got := make(chan agenthost.Answer, 1)
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		a, err := turn.Question(ctx, agenthost.Question{Message: "Which?", Fields: []agenthost.Field{{ID: "n", Kind: agenthost.FieldText}, {ID: "b", Kind: agenthost.FieldText}, {ID: "m", Kind: agenthost.FieldText}}})
		got <- a
		return agenthost.End{}, err
	})}})
	c.prompt("t1", "go")
	id := c.until("chat/inputRequested")["request"].(map[string]any)["id"]
	const value = `{"state":"submitted","value":{"kind":"text","value":"%s"}}`
	for _, field := range []string{"n", "b"} {
		c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/inputAnswerChanged","requestId":%q,"questionId":%q,"answer":`+value+`}`, id, field, field+"1"))
	}
	c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/inputAnswerChanged","requestId":%q,"questionId":"b"}`, id))
	active := fmt.Sprint(c.chatState()["activeTurn"])
	if !strings.Contains(active, "answers:map[n:map[state:submitted value:map[kind:text value:n1]]]") {
		t.Errorf("the running turn is %s; want the answer to the field n only", active)
	}
	c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/inputCompleted","requestId":%q,"response":"accept","answers":{"m":`+value+`}}`, id, "m1"))
	if a, want := <-got, (agenthost.Answer{Response: "accept", Values: map[string]any{"n": "n1", "m": "m1"}}); fmt.Sprint(a) != fmt.Sprint(want) {
		t.Errorf("the answer is %v; want %v", a, want)
	}
	c.until("chat/turnComplete")
}

func TestAgentThatFailsLeavesAnError(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
		return agenthost.End{}, errors.New("out of tokens")
	})}})
	c.prompt("t1", "go")
	if part := c.until("chat/error")["part"].(map[string]any); !strings.Contains(fmt.Sprint(part), "out of tokens") {
		t.Errorf("the failed turn's error is %v; want out of tokens", part)
	}
}

func TestQueuedAndSteeringMessagesFollowTheTurn(t *testing.T) {
	proceed := make(chan bool)
	var prompts []string
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		prompts = append(prompts, p.Text)
		select {
		case <-proceed:
		case <-ctx.Done():
		}
		return agenthost.End{}, nil
	})}})
	c.prompt("t1", "one")
	for _, kind := range []string{"queued", "steering"} {
		c.dispatch(fakeChat, `{"type":"chat/pendingMessageSet","kind":"`+kind+`","id":"`+kind+`","message":{"text":"`+kind+`"}}`)
		c.until("chat/pendingMessageSet")
	}
	for range 3 {
		proceed <- true
		c.until("chat/turnComplete")
	}
	if got := strings.Join(prompts, " "); got != "one steering queued" {
		t.Errorf("the agent got the prompts %q; want one, steering, queued", got)
	}
}

// TestWaitingMessagesFollowTheReducers changes waiting messages while a turn runs. A snapshot must have them as AHP's
// reducers do: a changed message keeps its place, a new order counts, and only the named message is removed.
func TestWaitingMessagesFollowTheReducers(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, _ agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
		<-ctx.Done()
		return agenthost.End{}, nil
	})}})
	c.prompt("t1", "one")
	set := func(kind, id, text string) {
		c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/pendingMessageSet","kind":%q,"id":%q,"message":{"text":%q}}`, kind, id, text))
	}
	waiting := func() string {
		state := c.chatState()
		return fmt.Sprint(state["queuedMessages"], state["steeringMessage"])
	}
	for _, id := range []string{"a", "b", "c"} {
		set("queued", id, "first")
	}
	set("queued", "a", "second")
	set("steering", "s", "steer")
	c.dispatch(fakeChat, `{"type":"chat/pendingMessageRemoved","kind":"steering","id":"earlier"}`)
	const message = "map[id:%s message:map[text:%s]]"
	a, b, other := fmt.Sprintf(message, "a", "second"), fmt.Sprintf(message, "b", "first"), fmt.Sprintf(message, "c", "first")
	steering := fmt.Sprintf(message, "s", "steer")
	if got, want := waiting(), fmt.Sprintf("[%s %s %s] %s", a, b, other, steering); got != want {
		t.Errorf("after a change of a, the messages %s wait; want %s", got, want)
	}
	c.dispatch(fakeChat, `{"type":"chat/queuedMessagesReordered","order":["c","unknown","c"]}`)
	if got, want := waiting(), fmt.Sprintf("[%s %s %s] %s", other, a, b, steering); got != want {
		t.Errorf("after a new order, the messages %s wait; want %s", got, want)
	}
}

// TestTurnTakesItsWaitingMessage has a client begin a turn with a waiting message, to send it at once. AHP's
// reducers then remove the message, so it must no longer wait, and no further turn may begin with it.
func TestTurnTakesItsWaitingMessage(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, p agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
		if p.Text != "queued" {
			<-ctx.Done()
		}
		return agenthost.End{}, nil
	})}})
	c.prompt("t1", "one")
	for _, kind := range []string{"queued", "steering"} {
		c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/pendingMessageSet","kind":%q,"id":%q,"message":{"text":%q}}`, kind, kind, kind))
	}
	for _, kind := range []string{"steering", "queued"} {
		c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/turnStarted","turnId":%q,"startedAt":"2026-01-01T00:00:00.000Z","queuedMessageId":%q,"message":{"text":%q}}`, kind, kind, kind))
	}
	c.until("chat/turnComplete")
	if state := c.chatState(); state["queuedMessages"] != nil || state["steeringMessage"] != nil || state["activeTurn"] != nil {
		t.Errorf("after their turns, the messages %v and %v wait, and the turn %v runs; want none", state["queuedMessages"], state["steeringMessage"], state["activeTurn"])
	}
}

// TestTurnsThatTheAgentRemembersStay removes the turns after the first. The agent would still remember them, so the
// host must reject the action and keep the turns.
func TestTurnsThatTheAgentRemembersStay(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
		return agenthost.End{}, nil
	})}})
	for _, turn := range []string{"t1", "t2"} {
		c.prompt(turn, "go")
		c.until("chat/turnComplete")
	}
	c.dispatch(fakeChat, `{"type":"chat/truncated","turnId":"t1"}`)
	for {
		envelope := c.envelope()
		if action, ok := envelope["action"].(map[string]any); ok && action["type"] == "chat/truncated" {
			if reason := fmt.Sprint(envelope["rejectionReason"]); !strings.Contains(reason, "Fake") {
				t.Errorf("the removal of turns is echoed with the rejection reason %s; want one that names the agent", reason)
			}
			break
		}
	}
	if turns := c.chatState()["turns"].([]any); len(turns) != 2 {
		t.Errorf("the chat has %d turns; want 2", len(turns))
	}
}

// TestAbsentClientsLeaveTheSession has many clients declare their tools in a session and leave, as a window does that gets a
// new name each time it is loaded. The session must not keep all of them, and a client that stays must see that they go.
func TestAbsentClientsLeaveTheSession(t *testing.T) {
	host := newHost(t, agenthost.Config{Agents: []agenthost.Agent{newFake(nil)}})
	c := &agentClient{pipeClient: connectPipe(t, host), t: t}
	c.call("initialize", `{"channel":"ahp-root://","clientId":"stays","protocolVersions":["0.9.0"]}`)
	c.call("createSession", `{"channel":"`+fakeSession+`","provider":"fake"}`)
	c.call("subscribe", `{"channel":"`+fakeSession+`"}`)
	c.dispatch(fakeSession, `{"type":"session/activeClientSet","activeClient":{"clientId":"stays","tools":[]}}`)
	const windows = 100
	for i := range windows {
		w := &agentClient{pipeClient: connectPipe(t, host), t: t}
		w.call("initialize", fmt.Sprintf(`{"channel":"ahp-root://","clientId":"w%d","protocolVersions":["0.9.0"]}`, i))
		w.dispatch(fakeSession, fmt.Sprintf(`{"type":"session/activeClientSet","activeClient":{"clientId":"w%d","tools":[]}}`, i))
		w.call("ping", `{"channel":"ahp-root://"}`)
		w.close()
	}
	names := map[any]bool{}
	for len(names) == 0 || !names[fmt.Sprint("w", windows-1)] {
		action, _ := c.envelope()["action"].(map[string]any)
		switch action["type"] {
		case "session/activeClientSet":
			names[action["activeClient"].(map[string]any)["clientId"]] = true
		case "session/activeClientRemoved":
			delete(names, action["clientId"])
		}
	}
	active := c.call("subscribe", `{"channel":"`+fakeSession+`"}`)["snapshot"].(map[string]any)["state"].(map[string]any)["activeClients"].([]any)
	if len(active) > 65 || !strings.Contains(fmt.Sprint(active), "stays") || len(active) > len(names) {
		t.Errorf("the session has %d clients, and a client has seen %d: %v; want at most 65, with the one that stays", len(active), len(names), active)
	}
}

// TestClientThatBeginsAgainLeavesTheSession has a client declare its tools in a session, and initialize a new connection. The
// session then lacks the client, and others must see that.
func TestClientThatBeginsAgainLeavesTheSession(t *testing.T) {
	host := newHost(t, agenthost.Config{Agents: []agenthost.Agent{newFake(nil)}})
	connect := func(id string) *agentClient {
		c := &agentClient{pipeClient: connectPipe(t, host), t: t}
		c.call("initialize", `{"channel":"ahp-root://","clientId":"`+id+`","protocolVersions":["0.9.0"]}`)
		return c
	}
	c, window := connect("c"), connect("window")
	c.call("createSession", `{"channel":"`+fakeSession+`","provider":"fake"}`)
	c.call("subscribe", `{"channel":"`+fakeSession+`"}`)
	window.dispatch(fakeSession, `{"type":"session/activeClientSet","activeClient":{"clientId":"window","tools":[]}}`)
	c.until("session/activeClientSet")
	connect("window")
	c.dispatch(fakeSession, `{"type":"session/titleChanged","title":"x"}`)
	for {
		action, _ := c.envelope()["action"].(map[string]any)
		switch action["type"] {
		case "session/activeClientRemoved":
			if action["clientId"] != "window" {
				t.Errorf("the client %v leaves; want window", action["clientId"])
			}
			return
		case "session/titleChanged":
			t.Fatal("no client sees that the window has left the session")
		}
	}
}

// TestChangedFilesKeepTheirOrder has an agent change a file a second time. A snapshot must have the files in the order in
// which clients have them, which replace the file in its place.
func TestChangedFilesKeepTheirOrder(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(_ context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		for i, name := range []string{"/x/a", "/x/b", "/x/a"} {
			text := fmt.Sprint(i)
			turn.Tool(agenthost.ToolUpdate{ID: text, Status: agenthost.ToolCompleted, Content: []agenthost.ToolContent{{Diff: &agenthost.Diff{Path: name, New: &text}}}})
		}
		return agenthost.End{}, nil
	})}})
	c.prompt("t1", "go")
	c.until("chat/turnComplete")
	var ids []string
	for _, f := range c.call("subscribe", `{"channel":"`+fakeSession+`/changeset/session"}`)["snapshot"].(map[string]any)["state"].(map[string]any)["files"].([]any) {
		ids = append(ids, fmt.Sprint(f.(map[string]any)["id"]))
	}
	if got, want := strings.Join(ids, " "), "file:///x/a file:///x/b"; got != want {
		t.Errorf("the changed files are %s; want %s", got, want)
	}
}

// TestEndedChatServesNoFiles reads and writes a file of a session before and after the session's end.
func TestEndedChatServesNoFiles(t *testing.T) {
	var chat *agenthost.Chat
	agent := newFake(nil)
	agent.open = func(_ context.Context, _ agenthost.Start, of *agenthost.Chat) (agenthost.Conversation, error) {
		chat = of
		return &fakeConversation{id: "c1", chat: of, prompt: func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
			return agenthost.End{}, nil
		}}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Folders: []string{t.TempDir()}})
	c.prompt("t1", "go")
	c.until("chat/turnComplete")
	if err := chat.WriteFile("a.txt", "one"); err != nil {
		t.Fatal(err)
	}
	c.call("disposeSession", `{"channel":"`+fakeSession+`"}`)
	_, err := chat.ReadFile("a.txt")
	if wrote := chat.WriteFile("a.txt", "two"); !errors.Is(err, agenthost.ErrEnded) || !errors.Is(wrote, agenthost.ErrEnded) {
		t.Errorf("ReadFile and WriteFile after the session's end: %v and %v; want %v", err, wrote, agenthost.ErrEnded)
	}
}

// TestFolderHasItsRealNameToo creates a session in a folder whose name is a symbolic link. Agents also use the
// name to which the link leads, because the system gives them that name of their working directory.
func TestFolderHasItsRealNameToo(t *testing.T) {
	folder, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(folder, link); err != nil {
		t.Fatal(err)
	}
	var chat *agenthost.Chat
	agent := newFake(nil)
	agent.open = func(_ context.Context, _ agenthost.Start, of *agenthost.Chat) (agenthost.Conversation, error) {
		chat = of
		return &fakeConversation{id: "c1", chat: of}, nil
	}
	c := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	c.call("createSession", `{"channel":"`+fakeSession+`","provider":"fake","workingDirectories":["file://`+link+`"]}`)
	if err := chat.WriteFile(filepath.Join(folder, "a.txt"), "words"); err != nil {
		t.Errorf("the agent writes a file below the folder's real name: %v; want no error", err)
	}
	for _, name := range []string{folder, link} {
		if text, err := chat.ReadFile(filepath.Join(name, "a.txt")); err != nil || text != "words" {
			t.Errorf("the agent reads %q, %v below %s; want words", text, err, name)
		}
	}
	if _, err := chat.OpenTerminal(agenthost.ProcessSpec{Command: "true", Folder: folder}); err != nil {
		t.Errorf("the agent opens a terminal in the folder's real name: %v; want no error", err)
	}
}

func TestOptionsAreTheSessionsConfig(t *testing.T) {
	set := make(chan string, 4)
	agent := newFake(nil)
	agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		options := func(mode string) []agenthost.Option {
			return []agenthost.Option{{ID: "unsafe", Name: "Skip permissions", Value: false, Bypass: true}, {ID: "mode", Name: "Mode", Category: "mode", Value: mode, Choices: []agenthost.Choice{{ID: "ask", Label: "Ask"}, {ID: "edit", Label: "Edit"}, {ID: "yolo", Label: "Yolo", Bypass: true}}}}
		}
		chat.SetOptions(options("ask"))
		return &fakeConversation{id: "c1", chat: chat, set: func(id string, value any) error {
			set <- fmt.Sprint(id, "=", value)
			if value == "yolo" {
				return errors.New("no")
			}
			chat.SetOptions(options(fmt.Sprint(value)))
			return nil
		}}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, NoBypass: true})
	state := c.call("subscribe", `{"channel":"`+fakeSession+`"}`)["snapshot"].(map[string]any)["state"].(map[string]any)
	if config := fmt.Sprint(state["config"]); !strings.Contains(config, "enum:[ask edit]") || !strings.Contains(config, "values:map[mode:ask]") || strings.Contains(config, "unsafe") {
		t.Errorf("the session has the options %v; want only the modes ask and edit, with ask chosen", config)
	}
	c.dispatch(fakeSession, `{"type":"session/configChanged","config":{"mode":"yolo"}}`)
	c.until("session/configChanged") // the host has rejected the change
	c.dispatch(fakeSession, `{"type":"session/configChanged","config":{"mode":"edit"}}`)
	if got := <-set; got != "mode=edit" {
		t.Errorf("the agent is told %s; want mode=edit", got)
	}
}

// TestOptionChosenWhileTheAgentOpens has a client choose an option after the agent's end, and a different one while the next
// conversation opens. A snapshot must have each choice, and the agent must get the last.
func TestOptionChosenWhileTheAgentOpens(t *testing.T) {
	options := func(mode string) []agenthost.Option {
		return []agenthost.Option{{ID: "mode", Name: "Mode", Value: mode, Choices: []agenthost.Choice{{ID: "ask"}, {ID: "edit"}, {ID: "plan"}}}}
	}
	set, opens, proceed := make(chan any, 4), make(chan *agenthost.Chat, 4), make(chan bool, 4)
	agent := newFake(nil)
	agent.open = func(_ context.Context, start agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		opens <- chat
		<-proceed
		mode := "ask"
		if chosen, ok := start.Options["mode"].(string); ok {
			mode = chosen
		}
		chat.SetOptions(options(mode))
		return &fakeConversation{id: "c1", chat: chat, prompt: answer, set: func(_ string, value any) error {
			chat.SetOptions(options(value.(string)))
			set <- value
			return nil
		}}, nil
	}
	proceed <- true
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	shown := func() any {
		state := c.call("subscribe", `{"channel":"`+fakeSession+`"}`)["snapshot"].(map[string]any)["state"].(map[string]any)
		return state["config"].(map[string]any)["values"].(map[string]any)["mode"]
	}
	(<-opens).Lost(errors.New("killed"))
	c.dispatch(fakeSession, `{"type":"session/configChanged","config":{"mode":"edit"}}`)
	if got := shown(); got != "edit" {
		t.Errorf("after a choice without an agent, the mode is %v; want edit", got)
	}
	c.prompt("t1", "one")
	<-opens
	c.dispatch(fakeSession, `{"type":"session/configChanged","config":{"mode":"plan"}}`)
	c.until("session/configChanged")
	proceed <- true
	c.until("chat/turnComplete")
	select {
	case got := <-set:
		if now := shown(); got != "plan" || now != "plan" {
			t.Errorf("the agent is told the mode %v, and the session has %v; want plan", got, now)
		}
	case <-time.After(5 * time.Second):
		t.Errorf("the agent is not told the mode that was chosen while it opened; the session has %v", shown())
	}
}

// TestTurnNamesMissingToolCalls has an agent with more tool calls in a turn than the host keeps. The
// turn must have as many as the host keeps, and one notice that calls are missing.
func TestTurnNamesMissingToolCalls(t *testing.T) {
	const most = 200
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(_ context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		for i := range most + 2 {
			turn.Tool(agenthost.ToolUpdate{ID: fmt.Sprint(i), Title: "tool", Status: agenthost.ToolCompleted})
		}
		return agenthost.End{}, nil
	})}})
	c.prompt("t1", "go")
	c.until("chat/turnComplete")
	_, parts := lastTurn(t, c.chatState())
	if last := fmt.Sprint(parts[len(parts)-1]); len(parts) != most+1 || !strings.Contains(last, "more than 200 tool calls") {
		t.Errorf("the turn has %d parts, and the last is %s; want %d tool calls and a notice", len(parts), last, most)
	}
}

// TestActiveSessionsAreCounted runs turns in two chats of a session. The session must count as one
// active session until the last of its turns ends.
func TestActiveSessionsAreCounted(t *testing.T) {
	end := make(chan struct{})
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
		<-end
		return agenthost.End{}, nil
	})}})
	c.call("subscribe", `{"channel":"ahp-root://"}`)
	c.call("createChat", `{"channel":"`+fakeSession+`","chat":"ahp-chat://second"}`)
	for i, step := range []struct {
		what string
		do   func()
		want float64
	}{
		{"a turn starts", func() { c.prompt("t1", "go") }, 1},
		{"a turn starts in the second chat", func() {
			c.dispatch("ahp-chat://second", `{"type":"chat/turnStarted","turnId":"t2","startedAt":"2026-01-01T00:00:00.000Z","message":{"text":"go"}}`)
		}, 1},
		{"one turn ends", func() { end <- struct{}{} }, 1},
		{"the other turn ends", func() { end <- struct{}{} }, 0},
	} {
		step.do()
		if got := c.until("root/activeSessionsChanged")["activeSessions"]; got != step.want {
			t.Errorf("step %d, %s: %v active sessions; want %v", i, step.what, got, step.want)
		}
	}
}

// TestFoldersOfASessionStay has a client add a folder to a session, and remove one. The agent keeps the folders with which it
// began, so the host must reject the actions.
func TestFoldersOfASessionStay(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(nil)}})
	for _, kind := range []string{"session/workingDirectorySet", "session/workingDirectoryRemoved"} {
		c.dispatch(fakeSession, fmt.Sprintf(`{"type":%q,"directory":"file:///x"}`, kind))
		for {
			params := c.envelope()
			if action, ok := params["action"].(map[string]any); ok && action["type"] == kind {
				if params["rejectionReason"] == nil {
					t.Errorf("%s is echoed without a rejection reason; want one", kind)
				}
				break
			}
		}
	}
}

// TestDeletedSessionRejectsActions dispatches an action on a deleted session. Its echo must have the
// reason for the rejection.
func TestDeletedSessionRejectsActions(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(nil)}})
	c.call("disposeSession", `{"channel":"`+fakeSession+`"}`)
	c.dispatch(fakeSession, `{"type":"session/titleChanged","title":"x"}`)
	for {
		params := c.envelope()
		if action, ok := params["action"].(map[string]any); ok && action["type"] == "session/titleChanged" {
			if reason := fmt.Sprint(params["rejectionReason"]); !strings.Contains(reason, "explicitly deleted") {
				t.Errorf("the echo has the reason %q; want that the session was deleted", reason)
			}
			return
		}
	}
}
