package scripted

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"ahprelay/agenthost"
)

// A script plays the agent in one turn.
type script struct {
	*agenthost.Turn
	conversation *conversation
	ctx          context.Context // ends with the turn
	output       int             // tokens in the answer
	limits       []agenthost.Limit
}

// thinking is the agent's delay before an answer.
const thinking = 5 * time.Millisecond

// play runs the script for a prompt: see the package documentation. Each form of prompt
// has its branch.
func (s *script) play(prompt string) error {
	if s.conversation.agent.demo.plays(s, prompt) {
		return nil
	}
	if !s.sleep(thinking) {
		return nil
	}
	if n, pause, size, ok := parseStream(prompt); ok {
		s.stream(n, pause, size)
		return nil
	}
	if words, ok := strings.CutPrefix(prompt, "canvas "); ok {
		return s.driveCanvas(words)
	}
	if reason, ok := strings.CutPrefix(prompt, "sign-in"); ok {
		s.say("Signed in to " + strings.Join(s.host().RequireSignIn(strings.TrimSpace(reason)), ", "))
		return nil
	}
	if words, ok := strings.CutPrefix(prompt, "mcp "); ok {
		return s.driveMCP(words)
	}
	if appPattern.MatchString(prompt) && s.firstMCP() != "" {
		return s.callMCP("show_board", "")
	}
	if members, ok := strings.CutPrefix(prompt, approvePrompt); ok {
		return s.askFor(members)
	}
	if show := showPrompt(strings.TrimSpace(prompt)); show != nil {
		show(s)
		return nil
	}
	switch strings.TrimSpace(prompt) {
	case "hello":
		s.say("Hello, world!")
		s.sleep(10 * time.Millisecond)
	case "tool":
		s.useTool()
	case "permission":
		s.askPermission()
	case "terminal":
		return s.useTerminal(50 * time.Millisecond)
	case "terminal slow":
		return s.useTerminal(maxStreamPause)
	case "error":
		return &agenthost.TurnError{ErrorType: "test_error", Message: "Something went wrong"}
	default:
		s.echo("You said: "+prompt, 20*time.Millisecond)
	}
	return nil
}

func (s *script) host() *agenthost.Host { return s.conversation.agent.host }

// sleep waits. It returns false if the turn has ended.
func (s *script) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-s.ctx.Done():
		return false
	}
}

// say adds a text, and returns the id of its part.
func (s *script) say(text string) string {
	s.output += len(strings.Fields(text))
	return s.PublishText(text)
}

// delta extends a text. It returns false if the turn has ended.
func (s *script) delta(partID, text string) bool {
	s.output++
	return s.Publish(agenthost.DeltaAction{Type: "chat/delta", TurnID: s.ID(), PartID: partID, Content: text})
}

// Limits for the prompt "stream N MS SIZE".
const (
	maxStreamPause = time.Minute
	maxStreamBytes = 64 << 20 // N times SIZE
)

var streamPattern = regexp.MustCompile(`^stream (\d{1,7}) (\d{1,5})(?: (\d{1,8}))?\s*$`)

// parseStream parses the prompt "stream N MS [SIZE]": N deltas with at least SIZE bytes
// each, MS milliseconds apart.
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

// burst is how many deltas are sent without a break if no pause is requested.
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
}

// echo repeats a text word by word.
func (s *script) echo(text string, pause time.Duration) {
	part := s.say("")
	for word := range strings.SplitAfterSeq(text, " ") {
		if !s.delta(part, word) || !s.sleep(pause) {
			return
		}
	}
}

func (s *script) useTool() {
	const id = "tc-1"
	s.Publish(agenthost.ToolStartAction{Type: "chat/toolCallStart", TurnID: s.ID(), ToolCallID: id, ToolName: "echo_tool", DisplayName: "Echo Tool"})
	s.Publish(agenthost.ToolReadyAction{Type: "chat/toolCallReady", TurnID: s.ID(), ToolCallID: id,
		InvocationMessage: "Running echo tool...", Confirmed: "not-needed"})
	if !s.sleep(10 * time.Millisecond) {
		return
	}
	s.completeTool(id, "Ran echo tool", agenthost.TextContent{Type: "text", Text: "echoed"})
	s.say("Tool done.")
	s.sleep(10 * time.Millisecond)
}

func (s *script) completeTool(id, past string, content ...any) {
	s.Publish(agenthost.ToolCompleteAction{Type: "chat/toolCallComplete", TurnID: s.ID(), ToolCallID: id, Result: agenthost.ToolResult{PastTenseMessage: past, Content: content, Success: true}})
}

// askPermission waits for the first answer from any client.
func (s *script) askPermission() {
	const id = "tc-perm"
	s.Publish(agenthost.ToolStartAction{Type: "chat/toolCallStart", TurnID: s.ID(), ToolCallID: id, ToolName: "shell", DisplayName: "Shell"})
	approved, err := s.askFirst(agenthost.ToolReadyAction{Type: "chat/toolCallReady", TurnID: s.ID(), ToolCallID: id,
		InvocationMessage: "Run a test command", ToolInput: inputText("echo test"),
		ConfirmationTitle: "Run a test command", Options: confirmOptions})
	if err != nil || !s.sleep(thinking) {
		return
	}
	if approved {
		s.completeTool(id, "Ran", agenthost.TextContent{Type: "text", Text: "ok"})
		s.say("Allowed.")
	} else {
		s.say("Denied.")
	}
	s.sleep(thinking)
}

// useTerminal shows a terminal in a tool call that runs for a time. The terminal stays
// until a client disposes of it.
func (s *script) useTerminal(time time.Duration) error {
	const id = "tc-term"
	const command = "echo hello from the terminal"
	s.Publish(agenthost.ToolStartAction{Type: "chat/toolCallStart", TurnID: s.ID(), ToolCallID: id, ToolName: "terminal", DisplayName: "Terminal"})
	s.Publish(agenthost.ToolReadyAction{Type: "chat/toolCallReady", TurnID: s.ID(), ToolCallID: id,
		InvocationMessage: command, ToolInput: inputText(command), Confirmed: "not-needed"})
	uri, err := s.OpenTerminal(id, command)
	if err != nil {
		return &agenthost.TurnError{ErrorType: "terminal", Message: err.Error()}
	}
	shown := agenthost.TerminalContent{Type: "terminal", Resource: uri, Title: "Terminal"}
	s.Publish(agenthost.ToolContentAction{Type: "chat/toolCallContentChanged", TurnID: s.ID(), ToolCallID: id, Content: []any{shown}})
	if s.sleep(time) {
		s.completeTool(id, "Ran command", shown)
		s.say("Terminal done.")
	}
	return nil
}

// confirmOptions are the answers offered in a tool confirmation.
var confirmOptions = []agenthost.ConfirmOption{
	{ID: "allow-session", Label: "Allow in this Session", Kind: "approve", Group: 1},
	{ID: "allow-once", Label: "Allow Once", Kind: "approve"},
	{ID: "skip", Label: "Skip", Kind: "deny", Group: 2},
}

// inputText returns a tool's text input as JSON; nil for none.
func inputText(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	raw, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always encodes
	}
	return raw
}
