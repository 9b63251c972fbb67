package agenthost

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A script plays the agent in one turn, in its own goroutine.
type script struct {
	// Set by runLocked, then read-only.
	chat      *chat
	turnID    string
	started   time.Time
	input     int           // tokens counted for the prompt
	stop      chan struct{} // closed when the turn is cancelled or given up
	confirmed chan bool     // the user's answer to a tool's confirmation; capacity 1

	answered chan inputCompletedAction // the user's answer to a question; capacity 1

	output int // tokens in the answer; owned by the script
}

// playLocked makes the agent answer the active turn's prompt.
func (ch *chat) playLocked(prompt string) {
	ch.runLocked(len(strings.Fields(prompt)), func(s *script) { s.play(prompt) })
}

// runLocked plays the active turn; input is the prompt's length in words.
func (ch *chat) runLocked(input int, play func(*script)) {
	s := &script{
		chat:      ch,
		turnID:    ch.active.ID,
		started:   ch.active.started,
		input:     input,
		stop:      make(chan struct{}),
		confirmed: make(chan bool, 1),
		answered:  make(chan inputCompletedAction, 1),
	}
	ch.script = s
	ch.session.host.goLocked(func() { play(s) })
}

// thinking is the agent's delay before an answer.
const thinking = 5 * time.Millisecond

// play runs the script for a prompt: see the package documentation.
func (s *script) play(prompt string) {
	if !s.sleep(thinking) {
		return
	}
	if n, pause, size, ok := parseStream(prompt); ok {
		s.stream(n, pause, size)
		return
	}
	if words, ok := strings.CutPrefix(prompt, "canvas "); ok {
		s.driveCanvas(words)
		return
	}
	if reason, ok := strings.CutPrefix(prompt, "sign-in"); ok {
		s.driveSignIn(strings.TrimSpace(reason))
		return
	}
	if words, ok := strings.CutPrefix(prompt, "mcp "); ok {
		mcpScript{s}.driveMCP(words)
		return
	}
	if appPattern.MatchString(prompt) && (mcpScript{s}).firstMCP() != "" {
		mcpScript{s}.callMCP("show_board", "")
		return
	}
	if members, ok := strings.CutPrefix(prompt, approvePrompt); ok {
		s.askFor(members)
		return
	}
	if show := showPrompt(strings.TrimSpace(prompt)); show != nil {
		show(s)
		return
	}
	switch strings.TrimSpace(prompt) {
	case "hello":
		s.say("Hello, world!")
		s.sleep(10 * time.Millisecond)
		s.complete()
	case "tool":
		s.useTool()
	case "permission":
		s.askPermission()
	case "terminal":
		s.useTerminal()
	case "error":
		s.failTurn(turnError{"test_error", "Something went wrong"})
	default:
		s.echo("You said: "+prompt, 20*time.Millisecond)
	}
}

// sleep waits, and reports false when the turn or the host has ended.
func (s *script) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.stop:
	case <-s.chat.session.host.done:
	}
	return false
}

// emit publishes an action for the turn, and reports false when the turn has ended.
func (s *script) emit(action any) bool {
	h := s.chat.session.host
	h.mu.Lock()
	defer h.mu.Unlock()
	return s.emitLocked(action)
}

func (s *script) emitLocked(action any) bool {
	if s.chat.script != s || s.chat.session.host.closed {
		return false
	}
	s.chat.emitLocked(action)
	return true
}

// say adds a text and returns its part's id.
func (s *script) say(text string) string {
	h := s.chat.session.host
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parts++
	id := partID(h.parts)
	s.emitLocked(partAction{"chat/responsePart", s.turnID, newMarkdown(id, text)})
	s.output += len(strings.Fields(text))
	return id
}

func partID(n int) string { return fmt.Sprintf("md-%d", n) }

// delta extends a text.
func (s *script) delta(partID, text string) bool {
	s.output++
	return s.emit(deltaAction{"chat/delta", s.turnID, partID, text})
}

// end ends the turn, unless it has ended.
func (s *script) end(action turnEndAction) {
	h := s.chat.session.host
	h.mu.Lock()
	defer h.mu.Unlock()
	action.TurnID = s.turnID
	action.Duration = h.cfg.Now().Sub(s.started).Milliseconds()
	if s.emitLocked(usageAction{actionUsage, s.turnID, usage{InputTokens: s.input, OutputTokens: s.output}}) {
		s.emitLocked(action)
		s.chat.script = nil
		s.chat.nextLocked()
	}
}

func (s *script) complete() { s.end(turnEndAction{Type: "chat/turnComplete"}) }

func (s *script) failTurn(e turnError) {
	s.end(turnEndAction{Type: "chat/error", Part: &errorPart{Kind: "error", Error: e}})
}

// Limits for the prompt "stream N MS SIZE".
const (
	maxStreamPause = time.Minute
	maxStreamBytes = 64 << 20 // N times SIZE
)

var streamPattern = regexp.MustCompile(`^stream (\d{1,7}) (\d{1,5})(?: (\d{1,8}))?\s*$`)

// parseStream parses the prompt "stream N MS [SIZE]": N deltas with SIZE bytes each,
// MS milliseconds apart.
func parseStream(prompt string) (n int, pause time.Duration, size int, ok bool) {
	m := streamPattern.FindStringSubmatch(prompt)
	if m == nil {
		return 0, 0, 0, false
	}
	n, _ = strconv.Atoi(m[1]) // the pattern bounds the digits
	ms, _ := strconv.Atoi(m[2])
	size = 8
	if m[3] != "" {
		size, _ = strconv.Atoi(m[3])
	}
	pause = time.Duration(ms) * time.Millisecond
	return n, pause, size, pause <= maxStreamPause && n*size <= maxStreamBytes
}

// burst is the length of a run of deltas without a break when no pause is requested.
const burst = 50

func (s *script) stream(n int, pause time.Duration, size int) {
	part := s.say("")
	for i := range n {
		text := fmt.Sprintf("%d ", i)
		if pad := size - len(text); pad > 0 {
			text += strings.Repeat("x", pad)
		}
		wait := pause
		if pause == 0 && i%burst == burst-1 {
			wait = time.Millisecond
		}
		if !s.delta(part, text) || wait > 0 && !s.sleep(wait) {
			return
		}
	}
	s.complete()
}

// echo repeats a text word by word.
func (s *script) echo(text string, pause time.Duration) {
	part := s.say("")
	for word := range strings.SplitAfterSeq(text, " ") {
		if !s.delta(part, word) || !s.sleep(pause) {
			return
		}
	}
	s.complete()
}

func (s *script) useTool() {
	const id = "tc-1"
	s.emit(toolStartAction{Type: "chat/toolCallStart", TurnID: s.turnID, ToolCallID: id, ToolName: "echo_tool", DisplayName: "Echo Tool"})
	s.emit(toolReadyAction{Type: "chat/toolCallReady", TurnID: s.turnID, ToolCallID: id,
		InvocationMessage: "Running echo tool...", Confirmed: "not-needed"})
	if !s.sleep(10 * time.Millisecond) {
		return
	}
	s.completeTool(id, "Ran echo tool", textContent{"text", "echoed"})
	s.say("Tool done.")
	s.sleep(10 * time.Millisecond)
	s.complete()
}

func (s *script) completeTool(id, past string, content ...any) {
	s.emit(toolCompleteAction{"chat/toolCallComplete", s.turnID, id, toolResult{PastTenseMessage: past, Content: content, Success: true}})
}

// askPermission waits for the first answer from any client.
func (s *script) askPermission() {
	const id = "tc-perm"
	s.emit(toolStartAction{Type: "chat/toolCallStart", TurnID: s.turnID, ToolCallID: id, ToolName: "shell", DisplayName: "Shell"})
	s.emit(toolReadyAction{Type: "chat/toolCallReady", TurnID: s.turnID, ToolCallID: id,
		InvocationMessage: "Run a test command", ToolInput: inputText("echo test"),
		ConfirmationTitle: "Run a test command", Options: confirmOptions})
	var approved bool
	select {
	case approved = <-s.confirmed:
	case <-s.stop:
		return
	case <-s.chat.session.host.done:
		return
	}
	if !s.sleep(thinking) {
		return
	}
	if approved {
		s.completeTool(id, "Ran", textContent{"text", "ok"})
		s.say("Allowed.")
	} else {
		s.say("Denied.")
	}
	s.sleep(thinking)
	s.complete()
}

// useTerminal shows a terminal in a tool call. It stays until a client disposes of it.
func (s *script) useTerminal() {
	const id = "tc-term"
	const command = "echo hello from the terminal"
	s.emit(toolStartAction{Type: "chat/toolCallStart", TurnID: s.turnID, ToolCallID: id, ToolName: "terminal", DisplayName: "Terminal"})
	s.emit(toolReadyAction{Type: "chat/toolCallReady", TurnID: s.turnID, ToolCallID: id,
		InvocationMessage: command, ToolInput: inputText(command), Confirmed: "not-needed"})
	uri, err := s.openTerminal(id, command)
	if err != nil {
		s.failTurn(turnError{"terminal", err.Error()})
		return
	}
	shown := terminalContent{"terminal", uri, "Terminal"}
	s.emit(toolContentAction{"chat/toolCallContentChanged", s.turnID, id, []any{shown}})
	if !s.sleep(50 * time.Millisecond) {
		return
	}
	s.completeTool(id, "Ran command", shown)
	s.say("Terminal done.")
	s.complete()
}

func (s *script) openTerminal(toolCallID, command string) (string, error) {
	h := s.chat.session.host
	h.mu.Lock()
	defer h.mu.Unlock()
	uri := terminalScheme + "//tool/" + h.cfg.NewID()
	claim := encode(struct {
		Kind       string `json:"kind"`
		Session    string `json:"session"`
		Chat       string `json:"chat"`
		TurnID     string `json:"turnId"`
		ToolCallID string `json:"toolCallId"`
	}{"session", s.chat.session.uri, s.chat.uri, s.turnID, toolCallID})
	t, err := h.terminals.addTerminalLocked(terminalParams{Channel: uri, Name: "Terminal", Claim: json.RawMessage(claim)}, h.terminals.openBackendLocked)
	if err != nil {
		return "", err
	}
	t.backend.input(command + "\r")
	return uri, nil
}
