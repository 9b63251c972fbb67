package acpdoor_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/gateway"
	"ahprelay/internal/acp"
	"ahprelay/internal/connect/acpdoor"
	"ahprelay/internal/connect/client"
	"ahprelay/test/stack"
)

// newImpatientSite returns a site whose relay does not wait for an absent host-agent.
func newImpatientSite(t *testing.T, cfg agenthost.Config) *site {
	t.Helper()
	return newSiteAt(t, cfg, func(host http.Handler) http.Handler { return host }, gateway.RelayConfig{Gateway: gateway.Config{HoldTime: 300 * time.Millisecond}})
}

// lose stops the host-agent, calls then, and returns when the door has noticed.
func (s *site) lose(t *testing.T, e *editor, then func()) {
	t.Helper()
	if err := s.StopAgent(); err != nil {
		t.Fatal(err)
	}
	then()
	for deadline := time.Now().Add(time.Minute); e.conn.Call(t.Context(), "session/list", acp.ListSessionsRequest{}, nil) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the door still lists sessions a minute after the host-agent's end; want an error")
		}
	}
}

// awaitQueue waits until a message waits at the host, and returns its id.
func (s *site) awaitQueue(t *testing.T, id string) string {
	t.Helper()
	phone, err := client.Open(t.Context(), client.Config{Relay: s.relay, Host: stack.Host, Name: "phone", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer phone.Close()
	at, err := phone.Session(t.Context(), id)
	for err == nil {
		var chat client.Chat
		if chat, err = phone.Chat(t.Context(), at.DefaultChat); len(chat.Queued) > 0 {
			return chat.Queued[0].ID
		}
	}
	t.Fatal(err)
	return ""
}

// TestAnswerWithoutAHostIsSentLater answers a request for permission while the host is away, before and after the door has
// noticed that. The answer cannot reach the host. When the host is back, it must get the answer, and the turn must go on.
func TestAnswerWithoutAHostIsSentLater(t *testing.T) {
	for _, noticed := range []bool{false, true} {
		s := newImpatientSite(t, agenthost.Config{})
		e := s.open(t, everything, nil)
		id := e.create()
		pending := e.conn.Begin("session/prompt", promptOf(id, "permission"))
		r := e.next("session/request_permission")
		s.lose(t, e, func() {
			if !noticed {
				r.Reply(selected("allow-once"), nil)
			}
		})
		r.Reply(selected("allow-once"), nil) // the first answer counts
		if err := s.StartAgent(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := pending.Wait(ctx, nil); err != nil {
			t.Errorf("with an answer after the door has noticed (%v), the turn ends with %v; want no error", noticed, err)
		}
	}
}

// TestCancelWithoutAHostIsSentLater cancels a turn while the host is away. When the host is back, the turn must end.
func TestCancelWithoutAHostIsSentLater(t *testing.T) {
	s := newImpatientSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	id := e.create()
	pending := e.conn.Begin("session/prompt", promptOf(id, "permission"))
	e.next("session/request_permission")
	queued := e.conn.Begin("session/prompt", promptOf(id, "hello"))
	s.awaitQueue(t, id)
	s.lose(t, e, func() {})
	if err := e.conn.Notify("session/cancel", acp.CancelNotification{SessionID: id}); err != nil {
		t.Fatal(err)
	}
	if err := s.StartAgent(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, p := range map[string]*acp.Pending{"running": pending, "queued": queued} {
		var done acp.PromptResponse
		if err := p.Wait(ctx, &done); err != nil || done.StopReason != acp.StopReasonCancelled {
			t.Errorf("the %s prompt ends with %v, %q; want cancelled", name, err, done.StopReason)
		}
	}
	if updates, _ := e.prompt(id, "think"); strings.Contains(said(updates, acp.UpdateAgentMessageChunk), "Hello") {
		t.Error("the host has answered the cancelled message; want it removed from the queue")
	}
}

// TestCancelIsAnsweredWithoutAHost cancels a prompt that waits for its host. The prompt must end at once, and the message must not
// reach the host later.
func TestCancelIsAnsweredWithoutAHost(t *testing.T) {
	s := newSiteAt(t, agenthost.Config{}, func(host http.Handler) http.Handler { return host }, gateway.RelayConfig{Gateway: gateway.Config{HoldTime: 3 * time.Second}})
	e := s.open(t, everything, nil)
	id := e.create()
	s.lose(t, e, func() {})
	pending := e.conn.Begin("session/prompt", promptOf(id, "hello"))
	if err := e.conn.Notify("session/cancel", acp.CancelNotification{SessionID: id}); err != nil {
		t.Fatal(err)
	}
	var done acp.PromptResponse
	if err := pending.Wait(t.Context(), &done); err != nil || done.StopReason != acp.StopReasonCancelled {
		t.Errorf("the cancelled prompt ends with %v, %q; want cancelled", err, done.StopReason)
	}
	if err := s.StartAgent(); err != nil {
		t.Fatal(err)
	}
	if updates, _ := e.prompt(id, "think"); strings.Contains(said(updates, acp.UpdateAgentMessageChunk), "Hello") {
		t.Error("the host has got the cancelled message; want only the later one")
	}
}

// A shellAgent runs a command in a terminal for each prompt.
type shellAgent struct {
	command string
	chat    *agenthost.Chat
	last    atomic.Pointer[shellAgent] // the conversation that was opened last
}

func (a *shellAgent) Info() agenthost.AgentInfo {
	return agenthost.AgentInfo{Provider: "shell", Name: "Shell"}
}

func (a *shellAgent) Open(ctx context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
	c := &shellAgent{command: a.command, chat: chat}
	a.last.Store(c)
	return c, c.SetOption(ctx, "mode", "ask")
}

func (a *shellAgent) SetOption(_ context.Context, id string, value any) error {
	a.chat.SetOptions([]agenthost.Option{{ID: id, Category: "mode", Value: value, Choices: []agenthost.Choice{{ID: "ask"}, {ID: "plan"}}}})
	return nil
}

func (a *shellAgent) ID() string   { return "c" }
func (a *shellAgent) Close() error { return nil }

func (a *shellAgent) Prompt(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
	term, err := a.chat.OpenTerminal(agenthost.ProcessSpec{Command: "/bin/sh", Args: []string{"-c", a.command}})
	if err != nil {
		return agenthost.End{}, err
	}
	defer term.Kill()
	turn.Tool(agenthost.ToolUpdate{ID: "t", Title: "make", Kind: agenthost.ToolExecute, Status: agenthost.ToolRunning, Content: []agenthost.ToolContent{{Terminal: term}}})
	_, err = term.Wait(ctx)
	turn.Tool(agenthost.ToolUpdate{ID: "t", Status: agenthost.ToolCompleted})
	return agenthost.End{}, err
}

// TestChangeWithoutAHostFails changes the mode again and again while the host goes away. Changes that cannot reach the host must
// fail when the door has noticed, and later changes must work.
func TestChangeWithoutAHostFails(t *testing.T) {
	folder := t.TempDir()
	s := newImpatientSite(t, agenthost.Config{Agents: []agenthost.Agent{&shellAgent{}}, Folders: []string{folder}})
	e := s.open(t, everything, func(cfg *acpdoor.Config) { cfg.Folder = folder })
	plan := acp.SetSessionModeRequest{SessionID: e.create(), ModeID: "plan"}
	var changes []*acp.Pending
	lost, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			changes = append(changes, e.conn.Begin("session/set_mode", plan))
			select {
			case <-time.After(10 * time.Millisecond):
			case <-lost:
				return
			}
		}
	}()
	s.lose(t, e, func() {})
	close(lost)
	<-stopped
	if err := s.StartAgent(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, change := range changes {
		if err := change.Wait(ctx, nil); ctx.Err() != nil {
			t.Fatalf("change %d of %d ends with %v; want an end within a minute", i, len(changes), err)
		}
	}
	if err := e.conn.Call(ctx, "session/set_mode", plan, nil); err != nil {
		t.Errorf("a later change ends with %v; want no error", err)
	}
}

// TestQueuedMessageBeginsInAnInterruption lets the turn of a queued message begin and end while the connection is interrupted.
// The message was not lost, so its prompt must end without an error.
func TestQueuedMessageBeginsInAnInterruption(t *testing.T) {
	folder := t.TempDir()
	agent := &shellAgent{command: "cd '" + folder + "'; while [ ! -e a ]; do sleep 0.02; done"}
	s := newImpatientSite(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Folders: []string{folder}})
	e := s.open(t, everything, func(cfg *acpdoor.Config) { cfg.Folder = folder })
	id := e.create()
	running := e.conn.Begin("session/prompt", promptOf(id, "one"))
	e.await("the running command", func() bool { return has(e.seen(), acp.UpdateToolCall) })
	queued := e.conn.Begin("session/prompt", promptOf(id, "two"))
	s.awaitQueue(t, id)
	s.lose(t, e, func() {
		if err := os.WriteFile(filepath.Join(folder, "a"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if err := s.StartAgent(); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*acp.Pending{"running": running, "queued": queued} {
		var done acp.PromptResponse
		if err := p.Wait(t.Context(), &done); err != nil || done.StopReason != acp.StopReasonEndTurn {
			t.Errorf("the %s prompt ends with %v, %q; want end_turn", name, err, done.StopReason)
		}
	}
}

// TestOptionsAreShownAfterAnInterruption changes the mode and the title while the connection is interrupted. When the host is
// back, the editor must get both.
func TestOptionsAreShownAfterAnInterruption(t *testing.T) {
	folder, agent := t.TempDir(), &shellAgent{}
	s := newImpatientSite(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Folders: []string{folder}})
	e := s.open(t, everything, func(cfg *acpdoor.Config) { cfg.Folder = folder })
	e.create()
	s.lose(t, e, func() {
		agent.last.Load().chat.SetTitle("Renamed")
		if err := agent.last.Load().SetOption(t.Context(), "mode", "plan"); err != nil {
			t.Error(err)
		}
	})
	if err := s.StartAgent(); err != nil {
		t.Fatal(err)
	}
	e.await("the title and the mode", func() bool {
		return has(e.seen(), acp.UpdateSessionInfoUpdate, `"Renamed"`) && has(e.seen(), acp.UpdateCurrentModeUpdate, `"plan"`) && has(e.seen(), acp.UpdateConfigOptionUpdate, `"plan"`)
	})
}

// TestOutputGoesOnAfterAnInterruption interrupts the connection while a command runs. When the host is back, the editor must
// get the output since then, each line once, while the command still runs. The output repeats a line.
func TestOutputGoesOnAfterAnInterruption(t *testing.T) {
	for name, can := range map[string]acp.ClientCapabilities{"terminal": everything, "text": {}} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			const wait = "; while [ ! -e %s ]; do sleep 0.02; done"
			agent := &shellAgent{command: "cd '" + folder + "'; echo line-one" + fmt.Sprintf(wait, "a") + "; echo line-one; echo line-two" + fmt.Sprintf(wait, "b")}
			s := newImpatientSite(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Folders: []string{folder}})
			e := s.open(t, can, func(cfg *acpdoor.Config) { cfg.Folder = folder })
			id := e.create()
			pending := e.conn.Begin("session/prompt", promptOf(id, "go"))
			shown := func() (all string) {
				for _, u := range e.seen() {
					all += u.raw
				}
				return all
			}
			e.await("the first line", func() bool { return strings.Contains(shown(), "line-one") })
			s.lose(t, e, func() {})
			if err := os.WriteFile(filepath.Join(folder, "a"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := s.StartAgent(); err != nil {
				t.Fatal(err)
			}
			e.await("the second line", func() bool { return strings.Contains(shown(), "line-two") })
			if name == "terminal" && strings.Count(shown(), "line-one") != 2 {
				t.Errorf("the editor has %s; want the first line as often as the command has written it: twice", shown())
			}
			if err := os.WriteFile(filepath.Join(folder, "b"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := pending.Wait(t.Context(), nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// An askingAgent shows a notice, asks a question, and shows a further notice.
type askingAgent struct {
	shellAgent
	proceed chan struct{}
}

func (a *askingAgent) Open(_ context.Context, _ agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
	return a, nil
}

func (a *askingAgent) Prompt(ctx context.Context, _ agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
	turn.Notice("first")
	if _, err := turn.Question(ctx, agenthost.Question{Message: "Which?", Fields: []agenthost.Field{{ID: "x", Kind: agenthost.FieldText}}}); err != nil {
		return agenthost.End{}, err
	}
	turn.Notice("second")
	<-a.proceed
	return agenthost.End{}, nil
}

// TestNoticesBehindAQuestionAreShownOnce interrupts the connection during a turn in which the agent has asked a question and then
// shown a notice. The editor must get each notice once.
func TestNoticesBehindAQuestionAreShownOnce(t *testing.T) {
	folder, agent := t.TempDir(), &askingAgent{proceed: make(chan struct{})}
	s := newImpatientSite(t, agenthost.Config{Agents: []agenthost.Agent{agent}, Folders: []string{folder}})
	e := s.open(t, everything, func(cfg *acpdoor.Config) { cfg.Folder = folder })
	id := e.create()
	pending := e.conn.Begin("session/prompt", promptOf(id, "go"))
	e.next("elicitation/create").Reply(acp.CreateElicitationResponse{Action: acp.CreateElicitationResponseAccept}, nil)
	shown := func(notice string) (times int) {
		for _, u := range e.seen() {
			times += strings.Count(u.raw, notice)
		}
		return times
	}
	e.await("the second notice", func() bool { return shown("second") > 0 })
	s.lose(t, e, func() { close(agent.proceed) })
	if err := s.StartAgent(); err != nil {
		t.Fatal(err)
	}
	if err := pending.Wait(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if first, second := shown("first"), shown("second"); first != 1 || second != 1 {
		t.Errorf("the editor has the notices %d and %d times; want each once", first, second)
	}
}
