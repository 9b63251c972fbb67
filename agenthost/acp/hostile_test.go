package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
	"ahprelay/test/acpagent"
)

// hostile starts a host with two sessions. The test makes the agent misbehave in the
// session bad. The session good must work all the same.
func hostile(t *testing.T, change func(*Config)) (bad, good *talk) {
	t.Helper()
	s := newSite(t, acpagent.Options{Store: t.TempDir(), With: "load resume"}, change)
	return s.connect(t).begin(s, "bad", nil), s.connect(t).begin(s, "good", nil)
}

// works sends a prompt, and fails the test unless the turn ends with the expected
// answer.
func (k *talk) works() {
	k.t.Helper()
	k.prompt("hello")
	if end := k.end(); end != "turnComplete" || k.last() != "markdown: Hello, world!" {
		k.t.Errorf("session %s: the turn after hello ends with %s: %s; want turnComplete, Hello, world!", k.session, end, k.last())
	}
}

func (k *talk) cancel(turn string) {
	k.t.Helper()
	k.dispatch(k.chat, map[string]any{"type": "chat/turnCancelled", "turnId": turn, "duration": 1})
}

func short(c *Config) { c.Grace = 50 * time.Millisecond }

func TestGarbageIsSkipped(t *testing.T) {
	bad, good := hostile(t, nil)
	bad.prompt("garbage")
	if end := bad.end(); end != "turnComplete" || bad.last() != "markdown: after the garbage" {
		t.Errorf("the turn with garbage ends with %s: %s; want turnComplete, after the garbage", end, bad.last())
	}
	bad.works()
	good.works()
}

// TestLongLines lets an agent send a line within the limit, and a line above it. Only
// the line above the limit is left out.
func TestLongLines(t *testing.T) {
	const limit = 1 << 20
	const within = limit - 1<<10 // leaves space for the rest of the line
	bad, good := hostile(t, func(c *Config) { c.MaxLine = limit })
	for n, want := range map[int]string{within: strings.Repeat("x", within) + " end", limit: " end"} {
		bad.prompt(fmt.Sprint("long ", n))
		if end := bad.end(); end != "turnComplete" {
			t.Errorf("the turn with a text of %d bytes in a line ends with %s; want turnComplete", n, end)
		}
		if got := bad.last(); got != "markdown: "+want {
			t.Errorf("the turn with a text of %d bytes in a line has %d bytes; want %d", n, len(got), len("markdown: "+want))
		}
	}
	bad.works()
	good.works()
}

// TestAFloodOfUpdatesIsJoined lets an agent send 10,000 pieces of text at once. The
// host joins them into fewer actions.
func TestAFloodOfUpdatesIsJoined(t *testing.T) {
	bad, good := hostile(t, nil)
	began := time.Now()
	bad.prompt("stream 10000 10")
	deltas := 0
	for kind := ""; kind != "chat/turnComplete"; deltas++ {
		kind, _ = bad.until("chat/delta", "chat/turnComplete", "chat/error")["type"].(string)
		if kind == "chat/error" {
			t.Fatal("the turn fails with many updates; want it complete")
		}
	}
	if lines := strings.Count(bad.last(), "\n"); lines != 10_000 {
		t.Errorf("%d pieces arrived; want 10000", lines)
	}
	if most := max(2000, int(time.Since(began)/(2*time.Millisecond))); deltas > most { // the host sends at most one delta in this time
		t.Errorf("%d actions for 10000 pieces; want at most %d", deltas, most)
	}
	good.works()
}

// TestAPermissionRequestedTwice lets an agent request the same permission twice. Each
// request gets an answer. While both wait, clients see a single question.
func TestAPermissionRequestedTwice(t *testing.T) {
	bad, good := hostile(t, nil)
	turn := bad.prompt("twice")
	var open []map[string]any // questions that clients see
	questions, both := 0, false
	for end := false; !end; {
		action := bad.until("chat/toolCallReady", "chat/responsePart", "chat/turnComplete", "chat/error")
		switch action["type"] {
		case "chat/toolCallReady":
			if action["options"] != nil {
				questions++
				open = append(open, action)
			}
		case "chat/responsePart": // the agent sends this after both requests
			both = both || strings.Contains(fmt.Sprint(action), "asked twice")
		default:
			end = true
		}
		if both {
			for _, ready := range open {
				bad.confirm(turn, ready, true, "once")
			}
			open = nil
		}
	}
	if got := bad.last(); !strings.Contains(got, "answers: once once") || questions != 1 {
		t.Errorf("after %d questions, the turn's text is %s; want one question, and the answer once for both requests", questions, got)
	}
	bad.works()
	good.works()
}

// TestAnswersAfterACancel cancels a turn. The host ignores text and requests that the
// agent sends afterwards.
func TestAnswersAfterACancel(t *testing.T) {
	bad, good := hostile(t, nil)
	turn := bad.prompt("late")
	bad.until("chat/responsePart") // the host does not send a prompt that is cancelled before
	bad.cancel(turn)
	if end := bad.end(); end != "turnCancelled" {
		t.Errorf("the cancelled turn ends with %s; want turnCancelled", end)
	}
	bad.works()
	if state := fmt.Sprint(bad.state(bad.chat)); strings.Contains(state, "too late") || strings.Contains(state, "too-late") {
		t.Errorf("the history contains late updates: %s; want none", state)
	}
	good.works()
}

// TestACancelledAgentIsHushed cancels a turn, and the agent answers its prompt. Text
// that follows must not begin a turn of its own, until the next prompt.
func TestACancelledAgentIsHushed(t *testing.T) {
	bad, good := hostile(t, nil)
	turn := bad.prompt("afterwards")
	bad.until("chat/responsePart") // the host does not send a prompt that is cancelled before
	bad.cancel(turn)
	bad.end()
	bad.awaits("title that follows the text", func() bool { return bad.state(bad.session)["title"] == "said afterwards" })
	if state := bad.state(bad.chat); state["activeTurn"] != nil || len(state["turns"].([]any)) != 1 || strings.Contains(fmt.Sprint(state), "too late") {
		t.Errorf("the chat is %v; want its cancelled turn only", state)
	}
	bad.works()
	good.works()
}

// TestATurnThatNeverEnds cancels a turn whose agent goes on. The host kills the agent,
// and continues the conversation in a new process.
func TestATurnThatNeverEnds(t *testing.T) {
	bad, good := hostile(t, short)
	bad.works()
	turn := bad.prompt("never")
	bad.until("chat/responsePart")
	bad.cancel(turn)
	if end := bad.end(); end != "turnCancelled" || bad.last() != "markdown: I never end." {
		t.Errorf("the cancelled turn ends with %s: %s; want turnCancelled, I never end.", end, bad.last())
	}
	bad.works()
	if turns, _ := bad.state(bad.chat)["turns"].([]any); len(turns) != 3 {
		t.Errorf("the history has %d turns; want 3", len(turns))
	}
	good.works()
}

// TestADeafAgent uses an agent that stops reading. The host ends it, and the session
// works again.
func TestADeafAgent(t *testing.T) {
	bad, good := hostile(t, short)
	turn := bad.prompt("deaf")
	bad.until("chat/responsePart")
	bad.cancel(turn)
	if end := bad.end(); end != "turnCancelled" {
		t.Errorf("the cancelled turn ends with %s; want turnCancelled", end)
	}
	bad.works()
	good.works()
}

func TestAnAgentThatDies(t *testing.T) {
	bad, good := hostile(t, nil)
	bad.works()
	bad.prompt("die")
	if end := bad.end(); end != "error" {
		t.Errorf("the turn of an agent that dies ends with %s; want error", end)
	}
	got := bad.last()
	if !strings.Contains(got, "markdown: Goodbye.") || !strings.Contains(got, "error: the agent has exited: exit status 3") || strings.Contains(got, "in_progress") || strings.Contains(got, "running") {
		t.Errorf("the turn is\n%s\nwant the agent's last words, its exit status, and no running call", got)
	}
	bad.works()
	good.works()
}

// TestAnAgentThatQuitsWhenCancelled cancels a turn whose agent then ends. The next prompt must
// go to a new process.
func TestAnAgentThatQuitsWhenCancelled(t *testing.T) {
	bad, good := hostile(t, nil)
	bad.works()
	turn := bad.prompt("quit")
	bad.until("chat/responsePart")
	bad.cancel(turn)
	if end := bad.end(); end != "turnCancelled" {
		t.Errorf("the cancelled turn ends with %s; want turnCancelled", end)
	}
	bad.works()
	good.works()
}

// TestUpdatesBeforeTheSession uses an agent that reports a forbidden mode before it has answered
// initialize. The host must stay, and the session must open.
func TestUpdatesBeforeTheSession(t *testing.T) {
	const script = `read line
echo '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"config_option_update","configOptions":[{"id":"allow_all","name":"Allow all","type":"boolean","currentValue":true}]}}}'
sleep 0.2
echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}'
read line
echo '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}'
exec cat > /dev/null`
	s := newSite(t, acpagent.Options{}, func(c *Config) {
		c.Program.Command, c.NoBypass = []string{"/bin/sh", "-c", script}, true
	})
	s.connect(t).begin(s, "early", nil)
}

// TestOptionsBehindTheAnswer uses an agent that changes its options directly after it has answered
// session/new. The session must show the later options.
func TestOptionsBehindTheAnswer(t *testing.T) {
	const script = `option() { echo '{"id":"pace","name":"Pace","type":"select","currentValue":"'$1'","options":[{"value":"slow","name":"Slow"},{"value":"fast","name":"Fast"}]}'; }
read line
echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}'
read line
printf '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s","configOptions":[%s]}}\n{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"config_option_update","configOptions":[%s]}}}\n' "$(option slow)" "$(option fast)"
while read line; do :; done`
	s := newSite(t, acpagent.Options{}, func(c *Config) { c.Program.Command = []string{"/bin/sh", "-c", script} })
	c := s.connect(t)
	for i := range 20 {
		k := c.begin(s, fmt.Sprint("s", i), nil)
		values := func() string { return fmt.Sprint(c.state(k.session)["config"].(map[string]any)["values"]) }
		c.awaits("the options that the agent has reported last", func() bool { return values() == "map[pace:fast]" })
	}
}

// A capture passes on each conversation that its agent opens.
type capture struct {
	*Agent
	opened chan *conversation
}

func (a capture) Open(ctx context.Context, start agenthost.Start, chat *agenthost.Chat) (agenthost.Conversation, error) {
	conv, err := a.Agent.Open(ctx, start, chat)
	if c, ok := conv.(*conversation); ok {
		a.opened <- c
	}
	return conv, err
}

// captured starts a session, and returns the agent's conversation with a client.
func captured(t *testing.T) (*conversation, *talk) {
	t.Helper()
	command, environment := acpagent.Command(acpagent.Options{Store: t.TempDir(), With: "load resume"})
	agent := capture{New(Config{Program: Program{Name: "test", Title: "Test", Command: command}, Environment: environment, Quiet: time.Hour}), make(chan *conversation, 1)}
	s := &site{folder: t.TempDir()}
	var err error
	if s.host, err = agenthost.New(agenthost.Config{
		Agents: []agenthost.Agent{agent}, Folders: []string{s.folder}, Terminals: agenthost.ShellTerminals, Protocol: agenthost.NewestProtocol,
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.host.Close(); err != nil {
			t.Error(err)
		}
	})
	k := s.connect(t).begin(s, "s1", nil)
	return <-agent.opened, k
}

// TestATerminalOfADeadAgent handles a dead agent's last request, for a terminal. Its command
// must not run on.
func TestATerminalOfADeadAgent(t *testing.T) {
	c, _ := captured(t)
	c.peer.end()
	c.lost()
	params, err := json.Marshal(acp.CreateTerminalRequest{Command: "sleep", Args: []string{"3600"}})
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.createTerminal(params)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.terminal(made.(acp.CreateTerminalResponse).TerminalID).Wait(ctx); err != nil {
		t.Errorf("waiting for the end of the dead agent's command: %v; want its end", err)
	}
}

// TestShownOutputEndsWithItsTurn uses an agent that shows a command's output, and does not say
// when the command ends. The output must end with the turn: a host has few terminals, and only
// ended ones make room.
func TestShownOutputEndsWithItsTurn(t *testing.T) {
	bad, good := hostile(t, nil)
	bad.prompt("unended")
	if end := bad.end(); end != "turnComplete" {
		t.Errorf("the turn ends with %s; want turnComplete", end)
	}
	terminals, _ := bad.state("ahp-root://")["terminals"].([]any)
	if text := fmt.Sprint(terminals); len(terminals) != 1 || !strings.Contains(text, "exited") {
		t.Errorf("after the turn, the host's terminals are %s; want one that has ended", text)
	}
	good.works()
}

// TestOutputWhileTheTurnEnds has a command's first output arrive while the turn ends. The race
// detector judges the test, and the output ends with the next turn at the latest.
func TestOutputWhileTheTurnEnds(t *testing.T) {
	c, _ := captured(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 50 {
		late := &tool{}
		c.mu.Lock()
		c.tools = map[string]*tool{"late": late}
		c.mu.Unlock()
		var end sync.WaitGroup
		end.Go(func() { c.endTurn(t.Context()) })
		if !c.feed(late, toolMeta{Output: &terminalMeta{ID: "late", Data: "text"}}) {
			t.Fatal("the output is not shown")
		}
		end.Wait()
		c.mu.Lock()
		c.takeTurnLocked(nil)
		c.mu.Unlock()
		if _, err := late.shown.Wait(ctx); err != nil {
			t.Fatalf("waiting for the end of the output in the next turn: %v; want its end", err)
		}
	}
}

// TestChildrenOfADeadAgent uses an agent that dies, and whose child process holds the
// pipes open. The host ends the child process, too.
func TestChildrenOfADeadAgent(t *testing.T) {
	bad, good := hostile(t, nil)
	bad.prompt("children")
	if end := bad.end(); end != "error" || !strings.Contains(bad.last(), "exit status 4") {
		t.Errorf("the turn of a dead agent ends with %s: %s; want error, exit status 4", end, bad.last())
	}
	var pid int
	if _, err := fmt.Sscanf(bad.last(), "markdown: Left the child %d.", &pid); err != nil || pid == 0 {
		t.Fatalf("the turn is %s, %v; want the child's process ID", bad.last(), err)
	}
	wantEnded(t, pid)
	bad.works()
	good.works()
}

func TestUnknownUpdatesAreHarmless(t *testing.T) {
	bad, good := hostile(t, nil)
	bad.prompt("unknown")
	bad.end()
	if got, want := bad.last(), "tool completed Surprise\nmarkdown: refused: later/request: this client does not have the method (-32601)"; got != want {
		t.Errorf("the turn is\n%s\nwant\n%s", got, want)
	}
	bad.works()
	good.works()
}

// TestAgentsThatDoNotStart uses agents that fail to start. The error names the reason.
func TestAgentsThatDoNotStart(t *testing.T) {
	folder := t.TempDir()
	for name, c := range map[string]struct{ script, want string }{
		"exits":           {"exit 7", "exit status 7"},
		"version":         {`read line; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":2}}'; exec cat`, "speaks version 2 of the Agent Client Protocol, and host-agent version 1: install a newer host-agent"},
		"version refused": {`read line; echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"Unsupported","data":{"requested":1,"supported":[3,2]}}}'; exec cat`, "speaks version 2 of"},
		"old version":     {`read line; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":0}}'; exec cat`, "install a newer version of the agent"},
		"refuses":         {`read line; echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"broken"}}'; exec cat`, "broken"},
	} {
		agent := New(Config{Program: Program{Name: "x", Command: []string{"/bin/sh", "-c", c.script}}})
		if err := agent.Probe(t.Context(), folder); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %s", name, err, c.want)
		}
		// host-agent up must not take such an agent for a host.
		if _, err := Speaks(t.Context(), []string{"/bin/sh", "-c", c.script}, io.Discard); strings.HasPrefix(name, "version") && (err == nil || errors.Is(err, ErrOther) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: up reports %v; want %s", name, err, c.want)
		}
	}
	// Some packages leave such a script in place of the program if their installation is
	// incomplete.
	script := filepath.Join(folder, "script")
	if err := os.WriteFile(script, []byte("echo the reason >&2\nexit 9\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{filepath.Join(folder, "absent"): "no such file or directory", script: "exit status 9 (its messages are in host-agent's output)"} {
		agent := New(Config{Program: Program{Name: "x", Command: []string{program}}})
		if err := agent.Probe(t.Context(), folder); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v; want %s", program, err, want)
		}
	}
}

// TestSecretsStayFromAgents checks that an agent's environment lacks the host-agent's
// own secrets.
func TestSecretsStayFromAgents(t *testing.T) {
	t.Setenv("AHP_AGENT_TOKEN", "secret")
	t.Setenv("OTHER_KEY", "its own")
	all := strings.Join(environment([]string{"MORE=1"}), "\n")
	if strings.Contains(all, "secret") || !strings.Contains(all, "OTHER_KEY=its own") || !strings.HasSuffix(all, "MORE=1") {
		t.Errorf("the agent's environment is %s; want its own key and MORE=1, without the secret", all)
	}
}

// TestSecretsStayFromCommands lets an agent run a command in a terminal of the host. The command's environment lacks
// the host-agent's own secrets, too.
func TestSecretsStayFromCommands(t *testing.T) {
	t.Setenv("AHP_AGENT_TOKEN", "secret")
	t.Setenv("OTHER_KEY", "its own")
	s := newSite(t, acpagent.Options{}, nil)
	k := s.connect(t).begin(s, "s1", nil)
	k.prompt("shell echo $OTHER_KEY:$AHP_AGENT_TOKEN")
	k.end()
	if got := k.last(); strings.Contains(got, "secret") || !strings.Contains(got, "its own:") {
		t.Errorf("the command says %s; want the other key, without the secret", got)
	}
}

// TestStandardErrorStaysHere writes to standard error in an agent. The text must be in
// the owner's log, and no client may get it.
func TestStandardErrorStaysHere(t *testing.T) {
	folder := t.TempDir()
	log, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	agent := New(Config{Program: Program{Name: "x", Command: []string{"/bin/sh", "-c", "echo a-secret >&2; exit 1"}}, Stderr: log})
	err = agent.Probe(t.Context(), folder)
	if text, _ := os.ReadFile(log.Name()); string(text) != "a-secret\n" || strings.Contains(err.Error(), "a-secret") {
		t.Errorf("the log has %q, and the error is %v; want a-secret only in the log", text, err)
	}
}

// TestTheGroupEnds ends an agent's process. The child processes that it has started
// must end, too.
func TestTheGroupEnds(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pid")
	p, err := start(Config{Program: Program{Name: "x", Command: []string{"/bin/sh", "-c", "sleep 3600 & echo $! > " + pids + "; exec cat > /dev/null"}}}, t.TempDir(), refuser{})
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	for deadline := time.Now().Add(waiting); pid == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		text, _ := os.ReadFile(pids)
		_, _ = fmt.Sscan(string(text), &pid)
	}
	p.end()
	wantEnded(t, pid)
}

// wantEnded waits until a process has ended.
func wantEnded(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(waiting); syscall.Kill(pid, 0) == nil && !zombie(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("the process %d is alive; want it ended", pid)
		}
	}
}

// zombie reports whether a process has ended and nothing has waited for it.
func zombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(text), ") Z ")
}

// TestReleasedTerminalStaysInItsToolCall releases a terminal, and then names it in the content of a tool call again,
// because an update replaces the whole content. The tool call must still show the terminal.
func TestReleasedTerminalStaysInItsToolCall(t *testing.T) {
	c, k := captured(t)
	k.prompt("hello")
	k.end()
	made, err := c.createTerminal(json.RawMessage(`{"command":"true"}`))
	if err != nil {
		t.Fatal(err)
	}
	id := made.(acp.CreateTerminalResponse).TerminalID
	params, err := json.Marshal(acp.TerminalOutputRequest{TerminalID: id})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.terminalRequest(&acp.Request{Method: "terminal/release", Params: params}); err != nil {
		t.Fatal(err)
	}
	if content, ok := c.content(acp.ToolCallContent{Type: acp.ToolCallContentTerminal, TerminalID: id}); !ok || content.Terminal.ID() != id {
		t.Errorf("the released terminal becomes the content %+v, %v; want the terminal", content, ok)
	}
	if _, err := c.terminalRequest(&acp.Request{Method: "terminal/output", Params: params}); err == nil {
		t.Error("the released terminal has an output for the agent; want an error")
	}
}

// TestWithdrawnPermissionIsNotAsked has an agent withdraw its request for permission, because a different client of the agent has
// answered it. People must no longer be asked, and the tool call must show its end.
func TestWithdrawnPermissionIsNotAsked(t *testing.T) {
	c, k := captured(t)
	k.prompt("run ls")
	k.asked()
	c.Notify("$/cancel_request", json.RawMessage(`{"requestId":1}`)) // the agent's first request
	if end := k.end(); end != "turnComplete" || !strings.Contains(k.last(), "not allowed") {
		t.Errorf("after the agent has withdrawn its request, the turn ends with %s: %s; want turnComplete, not allowed", end, k.last())
	}
}

// TestWithdrawnPermissionCanBeAskedAgain has an agent withdraw a request for permission, and send an equal request at once.
// People must be asked, and the second request must get their answer.
func TestWithdrawnPermissionCanBeAskedAgain(t *testing.T) {
	bad, good := hostile(t, nil)
	for range 20 {
		turn, end := bad.prompt("again"), false
		for !end {
			action := bad.until("chat/toolCallReady", "chat/turnComplete", "chat/error")
			if action["options"] != nil {
				bad.confirm(turn, action, true, "once")
			}
			end = action["type"] != "chat/toolCallReady"
		}
		if got := bad.last(); !strings.HasSuffix(got, " once") { // the first request may have an answer, too
			t.Fatalf("the turn is\n%s\nwant it to end with the answer once to the second request", got)
		}
	}
	good.works()
}

// TestWithdrawnQuestionEnds has an agent withdraw a question. The question must no longer wait for an answer.
func TestWithdrawnQuestionEnds(t *testing.T) {
	c, k := captured(t)
	k.prompt("ask")
	k.until("chat/inputRequested")
	c.Notify("$/cancel_request", json.RawMessage(`{"requestId":1}`)) // the agent's first request
	if got := k.until("chat/inputCompleted", "chat/turnComplete")["response"]; got != "cancel" {
		t.Errorf("the withdrawn question has the response %v; want cancel", got)
	}
	if end := k.end(); end != "turnComplete" || !strings.Contains(k.last(), "no answer: elicitation/create: the request was cancelled") {
		t.Errorf("after the agent has withdrawn its question, the turn ends with %s: %s; want turnComplete, no answer", end, k.last())
	}
}
