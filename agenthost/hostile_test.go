package agenthost_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/agenthost"
	"ahprelay/ahp"
)

// TestAgentThatIgnoresACancel cancels a turn whose agent never ends it. Clients see the
// turn as cancelled at once. After the grace time, the next prompt goes to a new
// conversation.
func TestAgentThatIgnoresACancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forever := make(chan bool)
		defer close(forever)
		agent := newFake(func(_ context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
			if p.Text == "hang" {
				<-forever
			}
			turn.Text("", "here")
			return agenthost.End{}, nil
		})
		c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
		c.prompt("t1", "hang")
		c.until("chat/turnStarted")
		synctest.Wait() // until the agent has the prompt, and hangs
		began := time.Now()
		c.dispatch(fakeChat, `{"type":"chat/turnCancelled","turnId":"t1","duration":1}`)
		c.until("chat/turnCancelled")
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("the clients receive the cancel after %v; want at most 1 s", waited)
		}
		c.prompt("t2", "go on")
		c.until("chat/turnComplete")
		if waited := time.Since(began); waited < agenthost.CancelGrace || waited > agenthost.CancelGrace+time.Second {
			t.Errorf("the next turn ends after %v; want %v", waited, agenthost.CancelGrace)
		}
		agent.mu.Lock()
		defer agent.mu.Unlock()
		if last := agent.starts[len(agent.starts)-1]; len(agent.starts) != 2 || last.ID != "c1" {
			t.Errorf("the agent's conversations start with %+v; want two, the second with the ID c1", agent.starts)
		}
	})
}

// A slowClosing is a conversation whose Close takes a second.
type slowClosing struct {
	fakeConversation
	closed chan bool
}

func (c *slowClosing) Close() error {
	time.Sleep(time.Second)
	close(c.closed)
	return nil
}

// TestCloseAwaitsADroppedConversation cancels the turn of an agent that ignores this, and closes the
// host when the host has given the conversation up. The host's Close must wait until the
// conversation is closed.
func TestCloseAwaitsADroppedConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forever := make(chan bool)
		defer close(forever)
		agent := newFake(nil)
		conv := &slowClosing{fakeConversation{id: "c", prompt: func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
			<-forever
			return agenthost.End{}, nil
		}}, make(chan bool)}
		agent.open = func(context.Context, agenthost.Start, *agenthost.Chat) (agenthost.Conversation, error) {
			return conv, nil
		}
		h := newHost(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
		c := &agentClient{pipeClient: connectPipe(t, h), t: t}
		c.call("initialize", `{"channel":"ahp-root://","clientId":"c","protocolVersions":["0.9.0"]}`)
		c.call("createSession", `{"channel":"`+fakeSession+`","provider":"fake"}`)
		c.call("subscribe", `{"channel":"`+fakeChat+`"}`)
		c.prompt("t1", "hang")
		c.until("chat/turnStarted")
		c.dispatch(fakeChat, `{"type":"chat/turnCancelled","turnId":"t1","duration":1}`)
		time.Sleep(agenthost.CancelGrace + time.Millisecond)
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		select {
		case <-conv.closed:
		default:
			t.Error("the host's Close returns before the dropped conversation is closed; want it to wait")
		}
	})
}

// TestFastAgentIsMerged lets an agent send 10,000 deltas in a second. The host merges
// them into fewer actions, without losing text.
func TestFastAgentIsMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const deltas = 10_000
		c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(_ context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
			for range deltas {
				turn.Text("m", "x")
				time.Sleep(time.Second / deltas)
			}
			return agenthost.End{}, nil
		})}})
		c.prompt("t1", "go")
		frames := 0
		for !strings.Contains(c.recv(), "chat/turnComplete") {
			frames++
		}
		if frames > 600 {
			t.Errorf("a client receives %d frames; want at most 600", frames)
		}
		if _, parts := lastTurn(t, c.chatState()); len(parts) != 1 || len(parts[0].(map[string]any)["content"].(string)) != deltas {
			t.Errorf("the turn has %d parts; want one with all deltas", len(parts))
		}
	})
}

func TestAgentAsksTwice(t *testing.T) {
	second, asked := make(chan error, 1), make(chan bool)
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		first := make(chan string, 1)
		go func() {
			id, _ := turn.Ask(ctx, agenthost.ToolUpdate{ID: "t", Title: "x"}, twoOptions)
			first <- id
		}()
		<-asked
		_, err := turn.Ask(ctx, agenthost.ToolUpdate{ID: "t", Title: "x"}, twoOptions)
		second <- err
		turn.Text("", "the answer is "+<-first)
		return agenthost.End{}, nil
	})}})
	c.prompt("t1", "go")
	c.until("chat/toolCallReady")
	close(asked)
	if err := <-second; !errors.Is(err, agenthost.ErrEnded) {
		t.Errorf("the agent's second request for the same permission returns %v; want %v", err, agenthost.ErrEnded)
	}
	c.dispatch(fakeChat, `{"type":"chat/toolCallConfirmed","turnId":"t1","toolCallId":"t","approved":true,"confirmed":"user-action"}`)
	c.until("chat/turnComplete")
	if _, parts := lastTurn(t, c.chatState()); !strings.Contains(fmt.Sprint(parts), "the answer is once") {
		t.Errorf("the turn's parts are %v; want the answer once", parts)
	}
}

func TestHugeTurnIsCut(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(_ context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		text := strings.Repeat("x", 1<<16)
		for range 18 {
			turn.Text("m", text)
		}
		turn.Tool(agenthost.ToolUpdate{ID: "t", Title: "t", Input: []byte(`"` + text + `"`), Status: agenthost.ToolCompleted, Content: []agenthost.ToolContent{{Text: text}}})
		for range 10 {
			turn.Notice(text)
		}
		return agenthost.End{}, nil
	})}})
	c.prompt("t1", "go")
	for !strings.Contains(c.recv(), `"chat/turnComplete"`) {
	}
	c.send(`{"jsonrpc":"2.0","id":"s","method":"subscribe","params":{"channel":"` + fakeChat + `"}}`)
	state := c.recv()
	for !strings.Contains(state, `"snapshot"`) {
		state = c.recv()
	}
	if len(state) > 3<<19 || !strings.Contains(state, "leaves out the rest") {
		t.Errorf("the state has %d bytes, or lacks the note that the turn is cut; want at most 1.5 MiB, with it", len(state))
	}
}

// TestLimitsOutOfRangeAreHarmless has an agent report limits of the plan that JSON cannot carry: a time in
// milliseconds instead of seconds, and a share whose percentage is infinite.
func TestLimitsOutOfRangeAreHarmless(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(_ context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		turn.Usage(agenthost.Usage{Limits: []agenthost.Limit{
			{Name: "week", Used: 0.25, Resets: time.Unix(1_800_000_000_000, 0)},
			{Name: "day", Used: -1e308, Resets: time.Unix(1_800_000_000, 0)},
		}})
		return agenthost.End{}, nil
	})}})
	c.prompt("t1", "go")
	c.until("chat/turnComplete")
	turn, _ := lastTurn(t, c.chatState())
	const want = "map[_meta:map[quotaSnapshots:map[day:map[remainingPercentage:100 resetDate:2027-01-15T08:00:00Z] week:map[remainingPercentage:75]]] inputTokens:0 outputTokens:0]"
	if got := fmt.Sprint(turn["usage"]); got != want {
		t.Errorf("the turn's usage is %s; want %s", got, want)
	}
}

// TestPermissionIsAskedAfterTheBound has an agent ask for permission in a turn that has reached its bound of
// texts, or of tool calls.
func TestPermissionIsAskedAfterTheBound(t *testing.T) {
	for name, fill := range map[string]func(*agenthost.Turn){
		"texts": func(turn *agenthost.Turn) {
			for range 17 {
				turn.Text("m", strings.Repeat("x", 1<<16))
			}
		},
		"tool calls": func(turn *agenthost.Turn) {
			for i := range 201 {
				turn.Tool(agenthost.ToolUpdate{ID: fmt.Sprint(i), Status: agenthost.ToolCompleted})
			}
		},
	} {
		chosen := make(chan string, 1)
		c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
			fill(turn)
			id, err := turn.Ask(ctx, agenthost.ToolUpdate{ID: "asked", Title: "rm -r x", Input: json.RawMessage(`{"command":"rm -r x"}`)}, twoOptions)
			chosen <- id
			return agenthost.End{}, err
		})}})
		c.prompt("t1", "go")
		asked := false
		for done := false; !asked && !done; {
			frame := c.recv()
			asked = strings.Contains(frame, `"confirmationTitle":"rm -r x"`)
			done = strings.Contains(frame, `"chat/error"`)
		}
		if asked {
			c.dispatch(fakeChat, `{"type":"chat/toolCallConfirmed","turnId":"t1","toolCallId":"asked","approved":true,"confirmed":"user-action","selectedOptionId":"once"}`)
		}
		if got := <-chosen; got != "once" {
			t.Errorf("after too many %s, the agent's request for permission returns %q; want once, the person's answer", name, got)
		}
	}
}

// TestReplacedContentDoesNotCount has an agent replace the content of a running tool call again and again, as agents
// do with the output of a command. Only the last content is in the turn, so the turn must not be cut.
func TestReplacedContentDoesNotCount(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(_ context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		output := strings.Repeat("x", 12<<10)
		for i := range 200 {
			turn.Tool(agenthost.ToolUpdate{ID: "t", Title: fmt.Sprint("make, step ", i/2), Status: agenthost.ToolRunning, Content: []agenthost.ToolContent{{Text: fmt.Sprint(output, i)}}})
		}
		turn.Tool(agenthost.ToolUpdate{ID: "t", Status: agenthost.ToolCompleted})
		turn.Text("", "It is built.")
		return agenthost.End{}, nil
	})}})
	c.prompt("t1", "go")
	c.until("chat/turnComplete")
	_, parts := lastTurn(t, c.chatState())
	if got := string(mustJSON(t, parts)); len(parts) != 2 || !strings.Contains(got, "It is built.") {
		t.Errorf("the turn has %d parts, the last is %.200s; want the tool call and the answer", len(parts), got[max(0, len(got)-200):])
	}
}

// TestReplaysAreBounded has an agent cause 10 MiB of actions. The host must not keep all of them for clients that
// reconnect: such a client gets the state instead. A relay with little memory passes messages of 14 MiB.
func TestReplaysAreBounded(t *testing.T) {
	host := newHost(t, agenthost.Config{Agents: []agenthost.Agent{newFake(func(_ context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		for range 160 {
			turn.Usage(agenthost.Usage{Model: strings.Repeat("x", 1<<16)})
		}
		return agenthost.End{}, nil
	})}})
	c := &agentClient{pipeClient: connectPipe(t, host), t: t}
	c.call("initialize", `{"channel":"ahp-root://","clientId":"c","protocolVersions":["0.9.0"]}`)
	c.call("createSession", `{"channel":"`+fakeSession+`","provider":"fake"}`)
	seen := c.call("subscribe", `{"channel":"`+fakeSession+`"}`)["snapshot"].(map[string]any)["fromSeq"].(float64)
	c.prompt("t1", "go")
	for status := ""; status != "1"; { // idle
		changes, _ := c.until("session/chatUpdated")["changes"].(map[string]any)
		status = fmt.Sprint(changes["status"])
	}
	again := &agentClient{pipeClient: connectPipe(t, host), t: t}
	got := again.call("reconnect", fmt.Sprintf(`{"channel":"ahp-root://","clientId":"c","lastSeenServerSeq":%d,"subscriptions":[]}`, int(seen)+1))
	if got["type"] != "snapshot" {
		t.Errorf("after 10 MiB of actions, reconnect answers with a %v; want a snapshot", got["type"])
	}
}

// TestReconnectHasTheTurnsOfItsSubscription reconnects clients that have missed too much for a replay. The snapshot must have as many
// turns as the subscription has asked for: a phone does not get thousands again. A chat that does not fit into a frame is left out,
// so the client's other channels continue.
func TestReconnectHasTheTurnsOfItsSubscription(t *testing.T) {
	host := newHost(t, agenthost.Config{MaxFrame: 1 << 17, ReplayBuffer: 1, Agents: []agenthost.Agent{newFake(answer)}})
	c := &agentClient{pipeClient: connectPipe(t, host), t: t}
	c.call("initialize", `{"channel":"ahp-root://","clientId":"c","protocolVersions":["0.9.0"]}`)
	c.call("createSession", `{"channel":"`+fakeSession+`","provider":"fake"}`)
	whole := &agentClient{pipeClient: connectPipe(t, host), t: t}
	whole.call("initialize", `{"channel":"ahp-root://","clientId":"whole","protocolVersions":["0.9.0"]}`)
	whole.call("subscribe", `{"channel":"`+fakeChat+`"}`)
	c.call("subscribe", `{"channel":"`+fakeChat+`","view":{"turns":2}}`)
	for i := range 4 {
		c.prompt(fmt.Sprint("t", i), strings.Repeat("x", 16<<10))
		c.until("chat/turnComplete")
	}
	for id, want := range map[string]string{"c": fakeChat + " 2 turns, more", "whole": ""} {
		again := &agentClient{pipeClient: connectPipe(t, host), t: t}
		result := again.call("reconnect", fmt.Sprintf(`{"channel":"ahp-root://","clientId":%q,"lastSeenServerSeq":1,"subscriptions":["ahp-root://",%q]}`, id, fakeChat))
		got := ""
		for _, s := range result["snapshots"].([]any) {
			snap := s.(map[string]any)
			if state := snap["state"].(map[string]any); state["turns"] != nil {
				got = fmt.Sprintf("%v %d turns", snap["resource"], len(state["turns"].([]any)))
				if state["turnsNextCursor"] != nil {
					got += ", more"
				}
			}
		}
		if got != want || len(result["snapshots"].([]any)) == 0 {
			t.Errorf("the client %s reconnects with %d snapshots, the chat's is %q; want the root's, and %q", id, len(result["snapshots"].([]any)), got, want)
		}
	}
}

// TestLongOutputIsNotCopiedAgain has an agent's command write 8 MiB. The host keeps 1 MiB of it. It must not copy that for each
// further piece, of which there are thousands.
func TestLongOutputIsNotCopiedAgain(t *testing.T) {
	agent := newFake(nil)
	agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		return &fakeConversation{id: "c", chat: chat, prompt: func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			term, piece := chat.ShowOutput("make"), strings.Repeat("x", 4095)+"\n"
			for range 2048 {
				term.Write(piece)
			}
			runtime.ReadMemStats(&after)
			if copied := after.TotalAlloc - before.TotalAlloc; copied > 40*8<<20 {
				t.Errorf("for 8 MiB of output, the host allocates %d MiB; want at most 40 times the output", copied>>20)
			}
			text, cut, _ := term.Output()
			if len(text) < 512<<10 || len(text) > 1<<20 || !cut || strings.Trim(text, "x\n") != "" {
				t.Errorf("the host keeps %d bytes of the output, cut: %v; want its last 1 MiB", len(text), cut)
			}
			return agenthost.End{}, nil
		}}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	c.prompt("t1", "go")
	c.until("chat/turnComplete")
}

func TestLostConversationIsContinued(t *testing.T) {
	var chat *agenthost.Chat
	agent := newFake(nil)
	agent.open = func(_ context.Context, start agenthost.Start, c *agenthost.Chat) (agenthost.Conversation, error) {
		if chat = c; start.ID == "forgotten" {
			return nil, fmt.Errorf("session/load: %w", agenthost.ErrUnknown)
		}
		id := "forgotten"
		return &fakeConversation{id: id, prompt: func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
			return agenthost.End{}, nil
		}}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	c.prompt("t1", "one")
	c.until("chat/turnComplete")
	chat.Lost(errors.New("killed"))
	c.prompt("t2", "two")
	c.until("chat/turnComplete")
	if _, parts := lastTurn(t, c.chatState()); !strings.Contains(fmt.Sprint(parts), "remembers nothing") {
		t.Errorf("the turn of a forgotten conversation has the parts %v; want remembers nothing", parts)
	}
}

type signedInAgent struct {
	*fakeAgent
	in chan string
}

func (a *signedInAgent) SignIn(_ context.Context, method string) error {
	a.in <- method
	return nil
}

func TestSignInIsAskedInTheTurn(t *testing.T) {
	agent := &signedInAgent{newFake(nil), make(chan string, 1)}
	agent.info.SignIn = []agenthost.SignInMethod{{ID: "key", Name: "API key"}, {ID: "web", Name: "Browser"}}
	agent.open = func(context.Context, agenthost.Start, *agenthost.Chat) (agenthost.Conversation, error) {
		if len(agent.in) == 0 {
			return nil, fmt.Errorf("-32000: %w", agenthost.ErrSignIn)
		}
		return &fakeConversation{id: "c", prompt: func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
			return agenthost.End{}, nil
		}}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	c.prompt("t1", "go")
	id := c.until("chat/inputRequested")["request"].(map[string]any)["id"]
	c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/inputCompleted","requestId":%q,"response":"accept","answers":{"method":{"state":"submitted","value":{"kind":"selected","value":"web"}}}}`, id))
	c.until("chat/turnComplete")
	if method := <-agent.in; method != "web" {
		t.Errorf("the agent signs in by the method %q; want web", method)
	}
}

func TestAgentsTerminalShowsItsOutput(t *testing.T) {
	agent := newFake(nil)
	agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		return &fakeConversation{id: "c", prompt: func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
			term, err := chat.OpenTerminal(agenthost.ProcessSpec{Command: "/bin/sh", Args: []string{"-c", "echo $WHO is here; exit 3"}, Env: []string{"WHO=Ada"}})
			if err != nil {
				return agenthost.End{}, err
			}
			turn.Tool(agenthost.ToolUpdate{ID: "t", Title: "sh", Kind: agenthost.ToolExecute, Status: agenthost.ToolRunning, Content: []agenthost.ToolContent{{Terminal: term}}})
			code, err := term.Wait(ctx)
			if text, _, _ := term.Output(); code != 3 || err != nil || text != "Ada is here\n" {
				return agenthost.End{}, fmt.Errorf("the command ended with exit code %d, %v, output %q; want 3 and Ada is here", code, err, text)
			}
			turn.Tool(agenthost.ToolUpdate{ID: "t", Status: agenthost.ToolCompleted})
			term.Kill()
			if _, err := chat.OpenTerminal(agenthost.ProcessSpec{Command: "true", Folder: "/"}); err == nil {
				return agenthost.End{}, errors.New("OpenTerminal outside of the permitted folders succeeds")
			}
			return agenthost.End{}, nil
		}}, nil
	}
	c := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	c.call("createSession", `{"channel":"`+fakeSession+`","provider":"fake","workingDirectories":["file://`+t.TempDir()+`"]}`)
	c.call("subscribe", `{"channel":"`+fakeChat+`"}`)
	c.prompt("t1", "go")
	shown := c.until("chat/toolCallContentChanged")["content"].([]any)[0].(map[string]any)
	if shown["type"] != "terminal" {
		t.Errorf("the running tool shows %v; want a terminal", shown)
	}
	c.until("chat/toolCallComplete")
	turn, parts := lastTurn(t, func() map[string]any { c.until("chat/turnComplete"); return c.chatState() }())
	if turn["state"] != "complete" || !strings.Contains(fmt.Sprint(parts), "text:Ada is here") {
		t.Errorf("the turn is %v; want it complete with the terminal's output", turn)
	}
}

// TestLongOutputKeepsItsEnd runs a command whose output is a little longer than the bound of a terminal. The agent
// must get the end of the output, and not only the last bytes.
func TestLongOutputKeepsItsEnd(t *testing.T) {
	agent := newFake(nil)
	agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		return &fakeConversation{id: "c", prompt: func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
			term, err := chat.OpenTerminal(agenthost.ProcessSpec{Command: "/bin/sh", Args: []string{"-c", "yes 0123456789abcdef | head -n 60000; echo the end"}})
			if err != nil {
				return agenthost.End{}, err
			}
			if _, err := term.Wait(ctx); err != nil {
				return agenthost.End{}, err
			}
			text, truncated, _ := term.Output()
			if len(text) < 256<<10 || !truncated || !strings.HasSuffix(text, "0123456789abcdef\nthe end\n") {
				return agenthost.End{}, fmt.Errorf("the agent gets %d bytes of output, truncated: %v, at its end %q; want at least 256 KiB, with the end", len(text), truncated, text[max(0, len(text)-40):])
			}
			return agenthost.End{}, nil
		}}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Folders: []string{t.TempDir()}})
	c.prompt("t1", "go")
	for frame := ""; !strings.Contains(frame, `"chat/turnComplete"`); frame = c.recv() {
		if strings.Contains(frame, `"chat/error"`) {
			t.Fatal(frame)
		}
	}
}

func TestSlashCommandsAreCompleted(t *testing.T) {
	agent := newFake(nil)
	agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		chat.SetCommands([]agenthost.Command{{Name: "compact", Description: "Compacts"}, {Name: "clear"}})
		return &fakeConversation{id: "c"}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	for text, want := range map[string][]string{"/c": {"/compact ", "/clear "}, "/co": {"/compact "}, "say /c": nil, "/compact x": nil} {
		var got []string
		for _, item := range c.call("completions", fmt.Sprintf(`{"channel":%q,"kind":"userMessage","text":%q,"offset":%d}`, fakeChat, text, len(text)))["items"].([]any) {
			got = append(got, item.(map[string]any)["insertText"].(string))
		}
		if !slices.Equal(got, want) {
			t.Errorf("for %q the completions are %q; want %q", text, got, want)
		}
	}
}

// TestIdleSessionIsSmall measures the memory of sessions without subscribers, which has a
// limit.
func TestIdleSessionIsSmall(t *testing.T) {
	agent := newFake(func(_ context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		turn.Text("", strings.Repeat("An answer. ", 1000))
		return agenthost.End{}, nil
	})
	c := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: t.TempDir(), ReplayBuffer: 1})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const sessions, turns = 5, 30
	before := heap()
	for i := range sessions {
		session := fmt.Sprintf("fake:/s%d", i)
		c.call("createSession", fmt.Sprintf(`{"channel":%q,"provider":"fake"}`, session))
		chat := c.call("subscribe", fmt.Sprintf(`{"channel":%q}`, session))["snapshot"].(map[string]any)["state"].(map[string]any)["defaultChat"].(string)
		c.call("subscribe", fmt.Sprintf(`{"channel":%q}`, chat))
		for n := range turns {
			c.dispatch(chat, fmt.Sprintf(`{"type":"chat/turnStarted","turnId":"t%d","startedAt":"2026-01-01T00:00:00.000Z","message":{"text":"go"}}`, n))
			c.until("chat/turnComplete")
		}
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":%q}}`, chat))
	}
	c.call("ping", `{"channel":"ahp-root://"}`)
	c.frames = nil
	if each := (int64(heap()) - int64(before)) / sessions; each > 200<<10 {
		t.Errorf("a session with %d turns costs %d bytes; want at most 204800", turns, each)
	} else {
		t.Logf("a session of %d turns costs %d bytes", turns, each)
	}
}

// TestConversationLostWhileItOpens opens a conversation that ends before the host has
// it. The turn fails, and the next prompt must open the conversation again.
func TestConversationLostWhileItOpens(t *testing.T) {
	agent := newFake(nil)
	opens := 0
	agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		opens++
		var dead error
		if opens == 2 {
			dead = errors.New("exit status 3")
			chat.Lost(dead)
		}
		return &fakeConversation{id: "c", prompt: func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
			if opens == 1 {
				chat.Lost(errors.New("killed"))
			}
			return agenthost.End{}, dead
		}}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	c.prompt("t1", "one")
	c.until("chat/turnComplete")
	c.prompt("t2", "two")
	c.until("chat/error")
	c.prompt("t3", "three")
	for {
		switch action, _ := c.envelope()["action"].(map[string]any); action["type"] {
		case "chat/error":
			t.Fatal("the turn after the lost conversation fails; want a new conversation")
		case "chat/turnComplete":
			return
		}
	}
}

// A closing is a conversation that tells when it is closed.
type closing struct {
	fakeConversation
	closed chan bool
}

func (c *closing) Close() error {
	c.closed <- true
	return nil
}

// TestConversationThatOpensWhileTheHostCloses closes the host while the agent opens a
// conversation. The agent returns the conversation nevertheless, and the host must close it.
func TestConversationThatOpensWhileTheHostCloses(t *testing.T) {
	agent := newFake(nil)
	conv := &closing{fakeConversation{id: "c"}, make(chan bool, 1)}
	opening := make(chan bool)
	agent.open = func(ctx context.Context, _ agenthost.Start, _ *agenthost.Chat) (agenthost.Conversation, error) {
		close(opening)
		<-ctx.Done()
		return conv, nil
	}
	h := newHost(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	c := &agentClient{pipeClient: connectPipe(t, h), t: t}
	c.call("initialize", `{"channel":"ahp-root://","clientId":"c","protocolVersions":["0.9.0"]}`)
	c.send(`{"jsonrpc":"2.0","id":7,"method":"createSession","params":{"channel":"` + fakeSession + `","provider":"fake"}}`)
	<-opening
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-conv.closed:
	default:
		t.Error("the conversation is open after the host's end; want it closed")
	}
}

// TestNestedDraftLeavesTheChatReadable has a client write a draft and begin a chat with as much nesting as a relay accepts in its
// messages. The states with these values must have no more nesting, or no relay could pass them on.
func TestNestedDraftLeavesTheChatReadable(t *testing.T) {
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{newFake(answer)}})
	value := func(around int) string {
		n := ahp.MaxDepth - around
		return strings.Repeat(`{"x":`, n) + `"\\\"["` + strings.Repeat("}", n)
	}
	c.dispatch(fakeChat, `{"type":"chat/draftChanged","draft":`+value(3)+`}`)
	const second = "ahp-chat:/second"
	if _, failure := c.try("createChat", `{"channel":"`+fakeSession+`","chat":"`+second+`","initialMessage":{"text":"go","x":`+value(3)+`}}`); failure == nil {
		t.Error("a chat begins with a message that is nested too deep; want an error")
	}
	c.call("createChat", `{"channel":"`+fakeSession+`","chat":"`+second+`","initialMessage":{"text":"go","x":`+value(103)+`}}`)
	for _, chat := range []string{fakeChat, second} {
		c.id++
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscribe","params":{"channel":%q}}`, c.id, chat))
		for {
			frame := c.recv()
			if env, err := ahp.Peek([]byte(frame)); err != nil || string(env.ID) == fmt.Sprint(c.id) {
				if err != nil {
					t.Errorf("a relay cannot read a message about %s: %v", chat, err)
				}
				break
			}
		}
	}
}
