package agenthost_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/agenthost/transcript"
)

// A steeredConversation accepts messages during a turn.
type steeredConversation struct{ *fakeConversation }

func (c steeredConversation) Steer(_ context.Context, p agenthost.Prompt, turn *agenthost.Turn) error {
	turn.Notice("steered: " + p.Text)
	return nil
}

// A lateConversation refuses messages, when their turn has ended or at once.
type lateConversation struct {
	*fakeConversation
	atOnce bool
}

func (c lateConversation) Steer(_ context.Context, _ agenthost.Prompt, turn *agenthost.Turn) error {
	if !c.atOnce {
		<-turn.Context().Done()
	}
	return errors.New("no turn")
}

// TestRefusedSteeringMessageIsThePrompt has an agent refuse a steering message, during the turn or because it has ended. The
// message must be the next prompt.
func TestRefusedSteeringMessageIsThePrompt(t *testing.T) {
	t.Run("behind the turn", func(t *testing.T) { refusedSteering(t, false) })
	t.Run("during the turn", func(t *testing.T) { refusedSteering(t, true) })
}

func refusedSteering(t *testing.T, atOnce bool) {
	proceed := make(chan bool)
	prompt := func(_ context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		turn.Prompted()
		turn.Notice("prompt: " + p.Text)
		<-proceed
		return agenthost.End{}, nil
	}
	agent := newFake(prompt)
	agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		return lateConversation{&fakeConversation{id: "c1", chat: chat, prompt: prompt}, atOnce}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	defer close(proceed)
	c.prompt("t1", "one")
	c.until("chat/responsePart")
	c.dispatch(fakeChat, `{"type":"chat/pendingMessageSet","kind":"steering","id":"m","message":{"text":"late"}}`)
	c.until("chat/pendingMessageRemoved")
	if atOnce {
		c.until("chat/pendingMessageSet")
	}
	proceed <- true
	c.until("chat/turnComplete")
	if part := fmt.Sprint(c.until("chat/responsePart")["part"]); !strings.Contains(part, "prompt: late") {
		t.Errorf("behind the turn, the agent shows %s; want the message as its next prompt", part)
	}
	if state := c.chatState(); state["steeringMessage"] != nil || state["queuedMessages"] != nil {
		t.Errorf("the messages %v and %v wait; want none", state["steeringMessage"], state["queuedMessages"])
	}
}

// TestSteeringMessageWaitsForTheAgent sends a steering message while the agent opens the conversation for the turn's prompt. The
// agent must get the message during this turn, after the prompt.
func TestSteeringMessageWaitsForTheAgent(t *testing.T) {
	opening, proceed := make(chan *agenthost.Chat, 2), make(chan bool)
	prompt := func(ctx context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		turn.Notice("prompt: " + p.Text)
		turn.Prompted()
		<-ctx.Done()
		return agenthost.End{}, nil
	}
	agent := newFake(prompt)
	agent.open = func(_ context.Context, start agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		if opening <- chat; start.ID != "" {
			<-proceed
		}
		return steeredConversation{&fakeConversation{id: "c1", chat: chat, prompt: prompt}}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	(<-opening).Lost(errors.New("gone"))
	c.prompt("t1", "one")
	<-opening
	c.dispatch(fakeChat, `{"type":"chat/pendingMessageSet","kind":"steering","id":"m","message":{"text":"more"}}`)
	c.until("chat/pendingMessageSet")
	close(proceed)
	for _, want := range []string{"prompt: one", "steered: more"} {
		if part := fmt.Sprint(c.until("chat/responsePart")["part"]); !strings.Contains(part, want) {
			t.Errorf("the turn has the part %s; want %s", part, want)
		}
	}
}

// TestSteeringMessageReachesAnAgentThatGoesOnByItself sends a steering message while the agent works without a prompt. The agent
// must get it at once: such a turn lasts until the agent is quiet.
func TestSteeringMessageReachesAnAgentThatGoesOnByItself(t *testing.T) {
	opened := make(chan *agenthost.Chat, 1)
	agent := newFake(nil)
	agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		opened <- chat
		return steeredConversation{&fakeConversation{id: "c1", chat: chat}}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	turn, err := (<-opened).Begin()
	if err != nil {
		t.Fatal(err)
	}
	c.dispatch(fakeChat, `{"type":"chat/pendingMessageSet","kind":"steering","id":"m","message":{"text":"more"}}`)
	c.dispatch(fakeChat, `{"type":"chat/draftChanged"}`)
	part, taken := "", false
	for kind := any(nil); kind != "chat/draftChanged"; {
		action, _ := c.envelope()["action"].(map[string]any)
		switch kind = action["type"]; kind {
		case "chat/pendingMessageRemoved":
			taken = true
		case "chat/responsePart":
			part = fmt.Sprint(action["part"])
		}
	}
	if !taken {
		t.Fatal("the message waits; want it given to the agent")
	}
	if part == "" {
		part = fmt.Sprint(c.until("chat/responsePart")["part"])
	}
	if !strings.Contains(part, "steered: more") {
		t.Errorf("the turn has the part %s; want steered: more", part)
	}
	turn.End(agenthost.End{}, nil)
}

// TestMessageWithTheAgentWaitsNoLonger copies the storage after the agent has got a waiting message. A new
// host with the copy must not have the message a second time.
func TestMessageWithTheAgentWaitsNoLonger(t *testing.T) {
	for _, test := range []struct {
		kind   string
		steers bool
	}{{"queued", false}, {"steering", false}, {"steering", true}} {
		dir := t.TempDir()
		proceed := make(chan bool)
		prompt := func(ctx context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
			turn.Prompted()
			turn.Notice("prompt: " + p.Text)
			select {
			case <-proceed:
			case <-ctx.Done():
			}
			return agenthost.End{}, nil
		}
		agent := newFake(prompt)
		if test.steers {
			agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
				return steeredConversation{&fakeConversation{id: "c1", chat: chat, prompt: prompt}}, nil
			}
		}
		c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
		c.prompt("t1", "one")
		c.until("chat/responsePart")
		c.dispatch(fakeChat, `{"type":"chat/pendingMessageSet","kind":"`+test.kind+`","id":"m","message":{"text":"waited"}}`)
		c.until("chat/pendingMessageSet")
		if !test.steers {
			proceed <- true
		}
		c.until("chat/responsePart") // the agent has the message
		state := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copyOf(t, dir)}).chatState()
		if state["queuedMessages"] != nil || state["steeringMessage"] != nil {
			t.Errorf("after a crash, the messages %v and %v wait; want none, because the agent has got the %s message (Steer: %v)",
				state["queuedMessages"], state["steeringMessage"], test.kind, test.steers)
		}
	}
}

// TestQueuedMessageOfAnInterruptedTurnWaitsNoLonger has a crash between the two writes with which a queued message becomes a turn:
// the turn has begun, and the message still waits. The new host must have the message once, in the interrupted turn.
func TestQueuedMessageOfAnInterruptedTurnWaitsNoLonger(t *testing.T) {
	dir := t.TempDir()
	agent := newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		<-ctx.Done()
		return agenthost.End{}, nil
	})
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	c.prompt("t1", "one")
	c.dispatch(fakeChat, `{"type":"chat/pendingMessageSet","kind":"queued","id":"m","message":{"text":"two"}}`)
	c.until("chat/pendingMessageSet")
	copied := copyOf(t, dir)
	store, err := transcript.Open(copied)
	if err != nil {
		t.Fatal(err)
	}
	sessions, err := store.Sessions()
	if err != nil || len(sessions) != 1 {
		t.Fatalf("the storage has %d sessions, %v; want one", len(sessions), err)
	}
	live, _, err := sessions[0].Live(fakeChat)
	if err == nil {
		err = errors.Join(live.Clear(), live.Append([]byte(`{"type":"chat/turnStarted","turnId":"t2","startedAt":"2026-01-01T00:00:00.000Z","message":{"text":"two"},"queuedMessageId":"m"}`)), live.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	state := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copied}).chatState()
	if turn, _ := lastTurn(t, state); turn["id"] != "t2" || state["queuedMessages"] != nil {
		t.Errorf("after the crash, the last turn is %v, and %v wait; want t2 and none", turn["id"], state["queuedMessages"])
	}
}

// TestQueueGoesOnAfterARestart ends the host while a turn runs and messages wait. As after the turn's end, the new host must give
// them to the agent, in order.
func TestQueueGoesOnAfterARestart(t *testing.T) {
	dir := t.TempDir()
	c := talkTo(t, agenthost.Config{Storage: dir, Agents: []agenthost.Agent{newFake(func(ctx context.Context, _ agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
		<-ctx.Done()
		return agenthost.End{}, nil
	})}})
	c.prompt("t1", "one")
	for _, kind := range []string{"queued", "steering"} {
		c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/pendingMessageSet","kind":%q,"id":%q,"message":{"text":%q}}`, kind, kind, kind))
		c.until("chat/pendingMessageSet")
	}
	prompts := make(chan string, 3)
	again := reopen(t, agenthost.Config{Storage: copyOf(t, dir), Agents: []agenthost.Agent{newFake(func(_ context.Context, p agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
		prompts <- p.Text
		return agenthost.End{}, nil
	})}})
	for _, want := range []string{"steering", "queued"} {
		select {
		case got := <-prompts:
			if got != want {
				t.Errorf("after the restart, the agent gets %s; want %s", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("after the restart, the agent does not get the message %s", want)
		}
	}
	if state := again.chatState(); state["queuedMessages"] != nil || state["steeringMessage"] != nil {
		t.Errorf("the messages %v and %v wait; want none", state["queuedMessages"], state["steeringMessage"])
	}
}

// TestQueueWaitsAfterAnError ends a turn with an error while messages wait: the agent cannot be opened, or reports an error, as at the
// limit of a plan. Each further message would end in the same way. They must wait until a later turn has succeeded, also when a
// person takes one of them back.
func TestQueueWaitsAfterAnError(t *testing.T) {
	t.Run("not opened", func(t *testing.T) { queueAfterAnError(t, true) })
	t.Run("the prompt fails", func(t *testing.T) { queueAfterAnError(t, false) })
}

func queueAfterAnError(t *testing.T, unopened bool) {
	limit := errors.New("the limit of the plan is reached")
	results := make(chan error)
	result := func(ctx context.Context) error {
		select {
		case err := <-results:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	agent := newFake(func(ctx context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		turn.Text("", "answer to "+p.Text)
		if unopened {
			return agenthost.End{}, nil
		}
		return agenthost.End{}, result(ctx)
	})
	chats := make(chan *agenthost.Chat, 1)
	open := agent.open
	agent.open = func(ctx context.Context, start agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		if start.ID == "" {
			chats <- chat
		} else if err := result(ctx); err != nil {
			return nil, err
		}
		return open(ctx, start, chat)
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}})
	if unopened {
		(<-chats).Lost(errors.New("gone"))
	}
	c.prompt("t1", "one")
	for _, id := range []string{"m1", "m2", "m3"} {
		c.dispatch(fakeChat, fmt.Sprintf(`{"type":"chat/pendingMessageSet","kind":"queued","id":%q,"message":{"text":%q}}`, id, id))
		c.until("chat/pendingMessageSet")
	}
	results <- limit
	c.until("chat/error")
	c.dispatch(fakeChat, `{"type":"chat/pendingMessageRemoved","kind":"queued","id":"m1"}`)
	c.until("chat/pendingMessageRemoved")
	state := c.chatState()
	if list, _ := state["queuedMessages"].([]any); len(list) != 2 || state["activeTurn"] != nil {
		t.Fatalf("after the error, %v wait, and the turn %v runs; want two messages and no turn", list, state["activeTurn"])
	}
	c.prompt("t2", "go on")
	for range map[bool]int{true: 1, false: 3}[unopened] {
		results <- nil
	}
	for range 3 {
		c.until("chat/turnComplete")
	}
	if state := c.chatState(); state["queuedMessages"] != nil {
		t.Errorf("after a turn without an error, %v wait; want none", state["queuedMessages"])
	}
}

// TestQueueWaitsOverARestartAfterAnError starts a host with a message that waits behind an error of the agent. The message could end
// in the same way, and the next one after the next restart: it must still wait.
func TestQueueWaitsOverARestartAfterAnError(t *testing.T) {
	fails := make(chan struct{})
	agent := newFake(func(ctx context.Context, _ agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
		select {
		case <-fails:
		case <-ctx.Done():
		}
		return agenthost.End{}, errors.New("the limit of the plan is reached")
	})
	dir := t.TempDir()
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	c.prompt("t1", "one")
	c.dispatch(fakeChat, `{"type":"chat/pendingMessageSet","kind":"queued","id":"m","message":{"text":"two"}}`)
	c.until("chat/pendingMessageSet")
	close(fails)
	c.until("chat/error")
	state := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copyOf(t, dir)}).chatState()
	turns, _ := state["turns"].([]any)
	if list, _ := state["queuedMessages"].([]any); len(list) != 1 || len(turns) != 1 || state["activeTurn"] != nil {
		t.Errorf("after the restart, %v wait behind %d turns, and the turn %v runs; want one message behind one turn, and no turn", list, len(turns), state["activeTurn"])
	}
}

// TestOldQueueStartsNoAgent starts a host with a message that waits since the previous run: two days later, and in a session that is
// archived. No agent may work on it unseen; it must still wait.
func TestOldQueueStartsNoAgent(t *testing.T) {
	idle := newFake(func(ctx context.Context, _ agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
		<-ctx.Done()
		return agenthost.End{}, nil
	})
	dir := t.TempDir()
	c := talkTo(t, agenthost.Config{Storage: dir, Agents: []agenthost.Agent{idle}})
	c.prompt("t1", "one")
	c.dispatch(fakeChat, `{"type":"chat/pendingMessageSet","kind":"queued","id":"m","message":{"text":"two"}}`)
	c.until("chat/pendingMessageSet")
	old := copyOf(t, dir)
	c.dispatch(fakeSession, `{"type":"session/isArchivedChanged","isArchived":true}`)
	c.until("session/isArchivedChanged")
	for dir, after := range map[string]time.Duration{old: 48 * time.Hour, copyOf(t, dir): 0} {
		now := func() time.Time { return time.Now().Add(after) }
		state := reopen(t, agenthost.Config{Storage: dir, Now: now, Agents: []agenthost.Agent{idle}}).chatState()
		if list, _ := state["queuedMessages"].([]any); len(list) != 1 || state["activeTurn"] != nil {
			t.Errorf("%v after the previous run, %v waits, and the turn %v runs; want that the message waits, and no turn", after, list, state["activeTurn"])
		}
	}
}

// TestFullDiskGivesNoMessageTwice starts a host with a message that waits since the previous run, while the disk is full. The host
// could not record that the agent has got the message, and would give it again after each restart: it must wait.
func TestFullDiskGivesNoMessageTwice(t *testing.T) {
	agent := newFake(func(ctx context.Context, _ agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
		<-ctx.Done()
		return agenthost.End{}, nil
	})
	dir := t.TempDir()
	c := talkTo(t, agenthost.Config{Storage: dir, Agents: []agenthost.Agent{agent}})
	c.prompt("t1", "one")
	c.dispatch(fakeChat, `{"type":"chat/pendingMessageSet","kind":"queued","id":"m","message":{"text":"two"}}`)
	c.until("chat/pendingMessageSet")
	dir = copyOf(t, dir)
	host := newHost(t, agenthost.Config{Storage: dir, Agents: []agenthost.Agent{agent}})
	meta := filepath.Join(filepath.Dir(turnsFile(t, dir)), "meta")
	if err := errors.Join(os.Remove(meta), os.Mkdir(meta, 0o700)); err != nil { // cannot be written
		t.Fatal(err)
	}
	d := &agentClient{pipeClient: connectPipe(t, host), t: t}
	d.call("initialize", `{"channel":"ahp-root://","clientId":"c","protocolVersions":["0.9.0"]}`)
	state := d.chatState()
	if list, _ := state["queuedMessages"].([]any); len(list) != 1 || state["activeTurn"] != nil {
		t.Errorf("while the disk is full, %v waits, and the turn %v runs; want that the message waits, and no turn", list, state["activeTurn"])
	}
}

// turnsFile returns the path of the file with the turns of the test's chat.
func turnsFile(t *testing.T, dir string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(fakeChat))
	found, err := filepath.Glob(filepath.Join(dir, "*", "meta"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the storage has the sessions %q, %v; want one", found, err)
	}
	return filepath.Join(filepath.Dir(found[0]), hex.EncodeToString(sum[:12])+".turns")
}

// answer is the turn of an agent that answers each message at once.
func answer(_ context.Context, p agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
	turn.Text("", "answer to "+p.Text)
	return agenthost.End{}, nil
}

// TestTurnThatWasNotStoredIsStoredLater has a storage that fails at the end of a turn, as a full disk does. After
// a later turn, which is stored, the first turn must be in this host and in the next.
func TestTurnThatWasNotStoredIsStoredLater(t *testing.T) {
	dir := t.TempDir()
	agent := newFake(answer)
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	file := turnsFile(t, dir)
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	c.prompt("t1", "one")
	c.until("chat/turnComplete")
	c.send(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"` + fakeChat + `"}}`)
	wants := func(c *agentClient, when string, texts ...string) {
		t.Helper()
		got := string(mustJSON(t, c.chatState()["turns"]))
		for _, want := range texts {
			if !strings.Contains(got, want) {
				t.Errorf("%s, the turns are %s; want %s", when, got, want)
			}
		}
	}
	wants(c, "when no client had a subscription", "answer to one")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.prompt("t2", "two")
	c.until("chat/turnComplete")
	wants(c, "after a stored turn", "answer to one", "answer to two")
	wants(reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copyOf(t, dir)}), "at the next host", "answer to one", "answer to two")
}

// TestLongInterruptedTurnKeepsItsEnd removes the beginning of a text from the actions of a running turn, as the storage
// does for a turn that exceeds its bound. The next host must show the rest of the text.
func TestLongInterruptedTurnKeepsItsEnd(t *testing.T) {
	dir := t.TempDir()
	agent := newFake(func(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
		turn.Thought("a", "first ")
		turn.Thought("a", "thought")
		turn.Text("b", "first ")
		turn.Text("b", "words")
		turn.Notice("here")
		<-ctx.Done()
		return agenthost.End{}, nil
	})
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	c.prompt("t1", "one")
	for !strings.Contains(string(mustJSON(t, c.until("chat/responsePart"))), "here") {
	}
	dir = copyOf(t, dir)
	store, err := transcript.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	session, err := store.Session(fakeSession)
	if err != nil {
		t.Fatal(err)
	}
	live, records, err := session.Live(fakeChat)
	if err != nil || len(records) == 0 {
		t.Fatalf("the running turn has %d actions, %v; want some", len(records), err)
	}
	if err := live.Clear(); err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if !strings.Contains(string(r), "first ") {
			if err := live.Append(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := live.Close(); err != nil {
		t.Fatal(err)
	}
	_, parts := lastTurn(t, reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir}).chatState())
	got := string(mustJSON(t, parts))
	for _, want := range []string{`"content":"thought","id":"md-1","kind":"reasoning"`, `"content":"words","id":"md-2","kind":"markdown"`} {
		if !strings.Contains(got, want) {
			t.Errorf("the interrupted turn has the parts %s; want %s", got, want)
		}
	}
}

// TestHistoryIsReadAgain has a storage whose file with the turns cannot be opened at first. When it can be opened, the
// chat must have its turns.
func TestHistoryIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	agent := newFake(answer)
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	c.prompt("t1", "one")
	c.until("chat/turnComplete")
	dir = copyOf(t, dir)
	file := turnsFile(t, dir)
	aside := filepath.Join(t.TempDir(), "turns")
	if err := errors.Join(os.Rename(file, aside), os.Mkdir(file, 0o700)); err != nil {
		t.Fatal(err)
	}
	d := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	d.chatState()
	if err := errors.Join(os.Remove(file), os.Rename(aside, file)); err != nil {
		t.Fatal(err)
	}
	if got := string(mustJSON(t, d.chatState()["turns"])); !strings.Contains(got, "answer to one") {
		t.Errorf("after the file can be opened, the turns are %s; want answer to one", got)
	}
}

// TestEndOfTheLastTurnIsKnownAfterARestart runs a turn of an hour. The next host must list the session as changed at
// the turn's end.
func TestEndOfTheLastTurnIsKnownAfterARestart(t *testing.T) {
	dir := t.TempDir()
	var now atomic.Int64 // milliseconds on the test's clock
	cfg := agenthost.Config{Storage: dir, Now: func() time.Time { return time.UnixMilli(now.Load()) }}
	cfg.Agents = []agenthost.Agent{newFake(func(context.Context, agenthost.Prompt, *agenthost.Turn) (agenthost.End, error) {
		now.Add(3_600_000)
		return agenthost.End{}, nil
	})}
	c := talkTo(t, cfg)
	c.prompt("t1", "one")
	c.until("chat/turnComplete")
	cfg.Storage = copyOf(t, dir)
	item := reopen(t, cfg).call("listSessions", `{"channel":"ahp-root://"}`)["items"].([]any)[0].(map[string]any)
	if got, want := item["modifiedAt"], "1970-01-01T01:00:00.000Z"; got != want {
		t.Errorf("after a restart, the session was changed at %s; want %s, the end of its turn", got, want)
	}
}

// TestAgentsOwnModeSurvivesTheHost has a client choose a mode, which the agent leaves later, as at the end of planning.
// After a restart, the agent must not be sent back.
func TestAgentsOwnModeSurvivesTheHost(t *testing.T) {
	dir := t.TempDir()
	agent := newFake(nil)
	agent.open = func(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
		set := func(mode string) {
			chat.SetOptions([]agenthost.Option{{ID: "mode", Name: "Mode", Category: "mode", Value: mode, Choices: []agenthost.Choice{{ID: "ask", Label: "Ask"}, {ID: "plan", Label: "Plan"}}}})
		}
		set("ask")
		return &fakeConversation{id: "c1", chat: chat,
			set: func(_ string, value any) error { set(value.(string)); return nil },
			prompt: func(_ context.Context, p agenthost.Prompt, _ *agenthost.Turn) (agenthost.End, error) {
				set(p.Text)
				return agenthost.End{}, nil
			}}, nil
	}
	c := talkTo(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: dir})
	c.dispatch(fakeSession, `{"type":"session/configChanged","config":{"mode":"plan"}}`)
	c.until("session/configChanged") // the echo
	c.until("session/configChanged") // from the agent
	c.prompt("t1", "ask")            // the agent leaves the mode
	c.until("chat/turnComplete")
	d := reopen(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Storage: copyOf(t, dir)})
	d.call("subscribe", `{"channel":"`+fakeChat+`"}`)
	d.prompt("t2", "ask")
	d.until("chat/turnComplete")
	agent.mu.Lock()
	defer agent.mu.Unlock()
	if got := agent.starts[len(agent.starts)-1].Options["mode"]; got != "ask" {
		t.Errorf("after a restart, the agent is told the mode %v; want ask, its mode before", got)
	}
}
