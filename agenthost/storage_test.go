package agenthost_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"ahprelay/agenthost"
)

// copyOf copies a storage while its host runs, as a crash would leave it, and returns
// the copy's directory.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// reopen starts a new host with a storage, and returns a client of it.
func reopen(t testing.TB, cfg agenthost.Config) *agentClient {
	t.Helper()
	c := &agentClient{pipeClient: connectPipe(t, newHost(t, cfg)), t: t}
	c.call("initialize", `{"channel":"ahp-root://","clientId":"d","protocolVersions":["0.9.0"]}`)
	return c
}

// TestInterruptedTurnHasAllThatClientsSaw copies the storage in the middle of a turn. A
// new host with the copy must show everything that a client has seen, for each kind of
// action.
func TestInterruptedTurnHasAllThatClientsSaw(t *testing.T) {
	dir := t.TempDir()
	agent := newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		turn.Thought("m1", "I thi")
		turn.Thought("m1", "nk.")
		turn.Text("m2", "I sp")
		turn.Text("m2", "eak.")
		for _, id := range []string{"allowed", "refused"} {
			tool := agenthost.ToolUpdate{ID: id, Title: id}
			if _, err := turn.Ask(ctx, tool, twoOptions); err != nil {
				return agenthost.End{}, err
			}
			tool.Status, tool.Content = agenthost.ToolCompleted, []agenthost.ToolContent{{Text: "ok"}}
			turn.Tool(tool)
		}
		turn.Question(ctx, agenthost.Question{Message: "answered", Fields: []agenthost.Field{{ID: "x", Kind: agenthost.FieldText}}})
		turn.Usage(agenthost.Usage{OutputTokens: 7})
		turn.Notice("The end.")
		<-ctx.Done()
		return agenthost.End{}, nil
	})
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	c.prompt("t1", "go")
	for _, answer := range []string{`"approved":true,"confirmed":"user-action","selectedOptionId":"always"`, `"approved":false,"reason":"denied"`} {
		ready := c.until("chat/toolCallReady")
		for ready["options"] == nil {
			ready = c.until("chat/toolCallReady")
		}
		c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/toolCallConfirmed","turnId":"t1","toolCallId":%q,%s}`, ready["toolCallId"], answer))
	}
	id := c.until("chat/inputRequested")["request"].(map[string]any)["id"]
	c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/inputCompleted","requestId":%q,"response":"decline"}`, id))
	for part := ""; !strings.Contains(part, "The end."); {
		part = fmt.Sprint(c.until("chat/responsePart")["part"])
	}
	before := c.chatState()["activeTurn"].(map[string]any)
	d := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copyOf(t, dir)})
	after, parts := lastTurn(t, d.chatState())
	if diff := cmp.Diff(before["responseParts"], parts[:len(parts)-1]); diff != "" {
		t.Errorf("after a crash, the turn has different parts (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(before["usage"], after["usage"]); diff != "" {
		t.Errorf("after a crash, the turn has a different usage (-before +after):\n%s", diff)
	}
	for _, want := range []string{"I think.", "I speak.", "user-action", "denied", "decline", "outputTokens:7"} {
		if !strings.Contains(fmt.Sprint(before), want) {
			t.Errorf("the turn before the crash lacks %q: %v", want, before)
		}
	}
}

func TestInterruptedTurnSurvives(t *testing.T) {
	dir := t.TempDir()
	agent := newFake(func(ctx context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		turn.Text("m", "Answer to "+p.Text)
		if p.Text == "two" {
			turn.Tool(agenthost.ToolUpdate{ID: "t", Title: "make", Kind: agenthost.ToolExecute, Status: agenthost.ToolCompleted, Content: []agenthost.ToolContent{{Text: "ok"}}})
			turn.Ask(ctx, agenthost.ToolUpdate{ID: "u", Title: "rm"}, twoOptions)
		}
		return agenthost.End{}, nil
	})
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	c.prompt("t1", "one")
	c.until("chat/turnComplete")
	c.dispatch(fakeSession, `{"type":"session/titleChanged","title":"Named"}`)
	c.prompt("t2", "two")
	c.until("chat/toolCallReady")
	c.until("chat/toolCallReady") // the agent has asked
	dir = copyOf(t, dir)
	for restart := range 2 { // a second restart must not change the turn again
		d := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
		list := fmt.Sprint(d.call("listSessions", `{"channel":"ahp-root://"}`)["items"])
		if !strings.Contains(list, "title:Named") || !strings.Contains(list, "status:2") {
			t.Errorf("the list is %s; want the session, with an error", list)
		}
		turn, parts := lastTurn(t, d.chatState())
		text := string(mustJSON(t, parts))
		if turn["state"] != "error" || !strings.Contains(text, "Answer to two") || !strings.Contains(text, `"text":"ok"`) || !strings.Contains(text, `"errorType":"interrupted"`) {
			t.Errorf("the interrupted turn is %v; want its parts, and the error interrupted", turn)
		}
		if turns := d.chatState()["turns"].([]any); len(turns) != 2 || !strings.Contains(string(mustJSON(t, turns)), "Answer to one") {
			t.Errorf("after restart %d, the turns are %v; want two, with Answer to one", restart, turns)
		}
		dir = copyOf(t, dir)
	}
	// A new host continues the session, with the agent's own conversation.
	d := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	d.call("subscribe", `{"channel":"`+fakeChat+`"}`)
	d.prompt("t3", "three")
	d.until("chat/turnComplete")
	agent.mu.Lock()
	defer agent.mu.Unlock()
	if last := agent.starts[len(agent.starts)-1]; last.ID != "c1" || last.Replay {
		t.Errorf("the agent gets %+v; want the id of the conversation from before the restart", last)
	}
	if turns := d.chatState()["turns"].([]any); len(turns) != 3 {
		t.Errorf("after a further prompt, the chat has %d turns; want 3", len(turns))
	}
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSessionIsRemovedFromDisk(t *testing.T) {
	dir := t.TempDir()
	agent := newFake(func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
		return agenthost.End{}, nil
	})
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	c.prompt("t1", "one")
	c.until("chat/turnComplete")
	c.call("disposeSession", `{"channel":"`+fakeSession+`"}`)
	entries, err := os.ReadDir(dir)
	if err != nil || slices.ContainsFunc(entries, os.DirEntry.IsDir) {
		t.Errorf("after disposeSession, the storage has %v, %v; want no folders", entries, err)
	}
}

func TestHistoryOfTheAgentIsLoaded(t *testing.T) {
	agent := newLister()
	agent.open = func(_ context.Context, start agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		if start.Replay && start.ID == "old/1" {
			turn := chat.Past(agenthost.Prompt{Text: "before"}, time.Time{})
			turn.Text("", "as it was")
			turn.Tool(agenthost.ToolUpdate{ID: "t", Title: "x", Status: agenthost.ToolCompleted})
			turn.End(agenthost.End{}, nil)
		}
		return &fakeConversation{id: start.ID, prompt: func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
			return agenthost.End{}, nil
		}}, nil
	}
	c := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: t.TempDir()})
	list := ""
	for deadline := time.Now().Add(time.Minute); !strings.Contains(list, "fake:/") && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		list = string(mustJSON(t, c.call("listSessions", `{"channel":"ahp-root://"}`)["items"]))
	}
	if !strings.Contains(list, `"fake:/old%2F1"`) || !strings.Contains(list, `"title":"Old"`) {
		t.Fatalf("the list is %s; want the agent's old session with its title", list)
	}
	chat := "ahp-chat://default/ZmFrZTovb2xkJTJGMQ"
	c.call("subscribe", `{"channel":"`+chat+`"}`)
	var state map[string]any
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		state = c.call("subscribe", `{"channel":"`+chat+`"}`)["snapshot"].(map[string]any)["state"].(map[string]any)
		if len(state["turns"].([]any)) > 0 || time.Now().After(deadline) {
			break
		}
	}
	if text := string(mustJSON(t, state["turns"])); !strings.Contains(text, "before") || !strings.Contains(text, "as it was") || !strings.Contains(text, `"state":"complete"`) {
		t.Errorf("the history is %s; want the complete turns from before", text)
	}
}

// TestHistoryIsLoadedAfterATimeout subscribes to a chat while its agent takes long to open it for a
// prompt. When the wait for the history has timed out, and the prompt has failed, a later
// subscription must load the history.
func TestHistoryIsLoadedAfterATimeout(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		agent := newLister()
		fail := make(chan struct{})
		agent.open = func(context.Context, agenthost.Start, *agenthost.Chat) (agenthost.Conversation, error) {
			<-fail
			return nil, errors.New("not now")
		}
		c := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
		c.call("listSessions", `{"channel":"ahp-root://"}`)
		synctest.Wait()
		const chat = "ahp-chat://default/ZmFrZTovb2xkJTJGMQ"
		c.dispatch(chat, `{"type":"chat/turnStarted","turnId":"t","startedAt":"2026-01-01T00:00:00.000Z","message":{"text":"hello","origin":{"kind":"user"}}}`)
		opened := func() int {
			synctest.Wait()
			agent.mu.Lock()
			defer agent.mu.Unlock()
			return len(agent.starts)
		}
		if got := opened(); got != 1 {
			t.Fatalf("the agent was asked %d times to open the chat; want once, for the prompt", got)
		}
		c.call("subscribe", `{"channel":"`+chat+`"}`)
		time.Sleep(time.Hour)
		close(fail)
		opened()
		c.call("subscribe", `{"channel":"`+chat+`"}`)
		if got := opened(); got != 2 {
			t.Errorf("the agent was asked %d times to open the chat; want twice, because a client has subscribed again", got)
		}
	})
}

// A countedConversation counts its ends.
type countedConversation struct {
	*fakeConversation
	closed *atomic.Int64
}

func (c countedConversation) Close() error {
	c.closed.Add(1)
	return nil
}

// TestReadHistoryLeavesNoAgent reads the history of an agent's conversation, and waits. The conversation must end, and open
// again for a prompt. After the prompt, it must stay open.
func TestReadHistoryLeavesNoAgent(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Int64
		agent := newLister()
		agent.open = func(_ context.Context, start agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
			if start.Replay {
				chat.Past(agenthost.Prompt{Text: "before"}, time.Time{}).End(agenthost.End{}, nil)
			}
			return countedConversation{&fakeConversation{id: start.ID, prompt: answer}, &closed}, nil
		}
		c := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
		c.call("listSessions", `{"channel":"ahp-root://"}`)
		synctest.Wait()
		const chat = "ahp-chat://default/ZmFrZTovb2xkJTJGMQ"
		c.call("subscribe", `{"channel":"`+chat+`"}`)
		c.until("chat/turnsLoaded")
		for range 2 {
			time.Sleep(time.Hour)
			if got := closed.Load(); got != 1 {
				t.Fatalf("%d conversations have ended; want the one that was opened for the history", got)
			}
			c.dispatch(chat, fmt.Sprintf(`{"type":"chat/turnStarted","turnId":%q,"startedAt":"2026-01-01T00:00:00.000Z","message":{"text":"hello","origin":{"kind":"user"}}}`, time.Now()))
			c.until("chat/turnComplete")
		}
		agent.mu.Lock()
		defer agent.mu.Unlock()
		if starts := agent.starts; len(starts) != 2 || starts[1].ID != "old/1" || starts[1].Replay {
			t.Errorf("the agent has opened %+v; want the history, and the same conversation for two prompts", starts)
		}
	})
}

// TestRemovedSessionStaysAway removes a session. Then the agent lists the session's
// conversation again. Neither this host nor the next may show the session.
func TestRemovedSessionStaysAway(t *testing.T) {
	agent := newLister()
	cfg := agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: t.TempDir()}
	c := reopen(t, cfg)
	list := func(c *agentClient) string {
		return string(mustJSON(t, c.call("listSessions", `{"channel":"ahp-root://"}`)["items"]))
	}
	for deadline := time.Now().Add(time.Minute); !strings.Contains(list(c), "old") && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	c.call("disposeSession", `{"channel":"fake:/old%2F1"}`)
	if id := <-agent.gone; id != "old/1" {
		t.Errorf("the agent is asked to delete the conversation %q; want old/1", id)
	}
	cfg.Storage = copyOf(t, cfg.Storage)
	asked := agent.lists.Load()
	d := reopen(t, cfg)
	for deadline := time.Now().Add(time.Minute); agent.lists.Load() == asked && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	host := d.call("listSessions", `{"channel":"ahp-root://"}`)
	if text := string(mustJSON(t, host["items"])); strings.Contains(text, "old") {
		t.Errorf("the list is %s; want it without the removed session", text)
	}
}

func TestStorageHasOneHost(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		cfg := agenthost.Config{Agents: []agenthost.Agent{newFake(nil)}, Storage: dir}
		newHost(t, cfg)
		if host, err := agenthost.New(cfg); err == nil {
			host.Close()
			t.Error("two hosts open the same storage; want an error")
		}
	})
}

// A listingAgent lists a conversation that began without the host.
type listingAgent struct {
	*fakeAgent
	lists atomic.Int64
	gone  chan string // receives the ids of deleted conversations
}

func newLister() *listingAgent {
	agent := &listingAgent{fakeAgent: newFake(nil), gone: make(chan string, 1)}
	agent.info.Replays = true
	return agent
}

func (a *listingAgent) Delete(_ context.Context, id string) error {
	a.gone <- id
	return nil
}

func (a *listingAgent) List(context.Context, string) ([]agenthost.Past, error) {
	a.lists.Add(1)
	return []agenthost.Past{{ID: "old/1", Folder: "/tmp", Title: "Old", Modified: time.Unix(1, 0)}}, nil
}

const crashVariable = "AGENTHOST_TEST_CRASH"

// TestKillLosesNoCompletedMessage kills a process with a host that writes numbered messages.
// A new host must have all messages that clients of the killed process have seen.
func TestKillLosesNoCompletedMessage(t *testing.T) {
	if dir := os.Getenv(crashVariable); dir != "" {
		writeUntilKilled(t, dir)
		return
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKillLosesNoCompletedMessage$")
	cmd.Env = append(os.Environ(), crashVariable+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	shown := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Sscanf(lines.Text(), "shown %d", &shown)
		if shown == 57 {
			cmd.Process.Kill()
		}
	}
	cmd.Wait()
	if shown < 57 {
		t.Fatalf("the host completed %d messages before the kill; want at least 57", shown)
	}
	d := reopen(t, agenthost.Config{Agents: []agenthost.Agent{newFake(nil)}, Storage: dir})
	text := string(mustJSON(t, d.chatState()["turns"]))
	for i := 1; i <= shown; i++ {
		if !strings.Contains(text, fmt.Sprintf("message %d.", i)) {
			t.Errorf("after the kill, message %d of %d is lost; want all", i, shown)
		}
	}
}

func writeUntilKilled(t *testing.T, dir string) {
	c := talkTo(t, agenthost.Config{Storage: dir, Agents: []agenthost.Agent{newFake(func(ctx context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		var first int
		fmt.Sscan(p.Text, &first)
		for i := range 10 {
			turn.Text(fmt.Sprint(first+i), fmt.Sprintf("message %d.", first+i))
		}
		return agenthost.End{}, nil
	})}})
	for turn := 0; ; turn++ {
		c.prompt(fmt.Sprint("t", turn), fmt.Sprint(turn*10+1))
		for i := range 10 {
			c.until("chat/responsePart")
			fmt.Printf("shown %d\n", turn*10+1+i)
		}
		c.until("chat/turnComplete")
	}
}

// TestOptionsSurviveTheHost restarts the host. A session then shows its mode before its
// agent is open, even a mode that skips permissions. A new session does not inherit
// such a mode.
func TestOptionsSurviveTheHost(t *testing.T) {
	dir := t.TempDir()
	agent := newFake(nil)
	agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		options := func(mode string) []agenthost.Option {
			return []agenthost.Option{
				{ID: "mode", Name: "Mode", Category: "mode", Value: mode, Choices: []agenthost.Choice{{ID: "ask", Label: "Ask"}, {ID: "yolo", Label: "Yolo", Bypass: true}}},
				{ID: "all", Name: "Allow all", Value: mode == "yolo", Bypass: true},
			}
		}
		chat.SetOptions(options("ask"))
		return &fakeConversation{id: "c1", chat: chat, prompt: func(_ context.Context, p agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
			chat.SetOptions(options(p.Text)) // the agent changes its options by itself
			return agenthost.End{}, nil
		}}, nil
	}
	config := func(c *agentClient) string {
		c.t.Helper()
		state := c.call("subscribe", `{"channel":"`+fakeSession+`"}`)["snapshot"].(map[string]any)["state"].(map[string]any)
		return string(mustJSON(t, state["config"]))
	}
	wants := func(got string, words ...string) {
		t.Helper()
		for _, want := range words {
			if !strings.Contains(got, want) {
				t.Errorf("the options are %s; want %s", got, want)
			}
		}
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	c.prompt("t1", "yolo")
	c.until("chat/turnComplete")
	fresh := c.call("resolveSessionConfig", `{"channel":"ahp-root://","provider":"fake"}`)
	wants(string(mustJSON(t, fresh["values"])), `{}`)
	wants(string(mustJSON(t, fresh["schema"])), `"yolo"`)

	d := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copyOf(t, dir)})
	wants(config(d), `"values":{"all":true,"mode":"yolo"}`, `"bypass":["yolo"]`, `"bypass":[true]`)
	d.dispatch(fakeSession, `{"type":"session/configChanged","config":{"mode":"ask","all":false}}`)
	d.until("session/configChanged")
	wants(config(d), `"values":{"all":false,"mode":"ask"}`) // these values are passed to the agent when it opens

	e := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copyOf(t, dir), NoBypass: true})
	if got := config(e); strings.Contains(got, "yolo") || strings.Contains(got, "all") {
		t.Errorf("a host with NoBypass offers the options %s; want none that skips permissions", got)
	}
}

// TestDraftSurvivesTheHost has a client that sees the echo of its draft. A new host with a copy of
// the files of that moment must have the draft.
func TestDraftSurvivesTheHost(t *testing.T) {
	dir := t.TempDir()
	cfg := agenthost.Config{Agents: []agenthost.Agent{newFake(nil)}, Storage: dir}
	c := talkTo(t, cfg)
	for _, draft := range []any{map[string]any{"text": "not yet"}, nil} {
		c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/draftChanged","draft":%s}`, mustJSON(t, draft)))
		c.until("chat/draftChanged")
		cfg.Storage = copyOf(t, dir)
		if diff := cmp.Diff(draft, reopen(t, cfg).chatState()["draft"]); diff != "" {
			t.Errorf("the draft at a new host (-want +got):\n%s", diff)
		}
	}
}
