package acpagent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ahprelay/internal/acp"
)

// play does what a prompt asks for, and returns the stop reason.
func (s *session) play(ctx context.Context, prompt string, blocks []acp.ContentBlock) (reason string) {
	verb, rest, _ := strings.Cut(prompt, " ")
	switch verb {
	case "hello":
		for _, word := range []string{"Hel", "lo, ", "world!"} {
			s.say("%s", word)
		}
		if rest != "" {
			s.say(" %s", prompt)
		}
	case "stream":
		var n, size int
		_, _ = fmt.Sscan(rest, &n, &size)
		for i := 0; i < n && ctx.Err() == nil; i++ {
			s.say("%*d\n", max(size-1, 1), i)
		}
	case "recall":
		s.recall()
	case "clock":
		var n int
		_, _ = fmt.Sscan(rest, &n)
		for range n {
			time.Sleep(5 * time.Millisecond)
			s.say("%d\n", time.Now().UnixNano())
		}
	case "think":
		s.update(acp.UpdateAgentThoughtChunk, acp.ContentChunk{Content: text("Let me think.")})
		s.say("Done thinking.")
	case "run":
		s.run(ctx, rest)
	case "write":
		file, content, _ := strings.Cut(rest, " ")
		if !filepath.IsAbs(file) {
			file = filepath.Join(s.saved.Cwd, file)
		}
		s.write(ctx, file, content+"\n")
	case "read":
		var result acp.ReadTextFileResponse
		if err := s.agent.conn.Call(ctx, "fs/read_text_file", acp.ReadTextFileRequest{SessionID: s.id, Path: rest}, &result); err != nil {
			s.say("cannot read: %v", err)
			return ""
		}
		s.say("%s", result.Content)
	case "shell":
		s.shell(ctx, rest)
	case "later":
		return s.later(ctx)
	case "ask":
		s.ask(ctx, rest)
	case "mode":
		s.setMode(rest)
	case "image":
		for _, block := range blocks {
			s.say("[%s %s %d]", block.Type, block.MimeType, len(block.Data)+len(block.URI)+len(block.Resource.Text))
		}
	case "slow":
		for i := 0; ctx.Err() == nil; i++ {
			s.say("%d ", i)
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	default:
		if !s.show(verb, rest) && !s.hostile(ctx, verb, rest) {
			s.say("echo: %s", prompt)
		}
	}
	return ""
}

// show sends the updates that a verb names. It returns false if it does not know the
// verb.
func (s *session) show(verb, rest string) bool {
	switch verb {
	case "plan":
		s.update(acp.UpdatePlan, acp.Plan{Entries: []acp.PlanEntry{
			{Content: "Look", Priority: "high", Status: "completed"}, {Content: "Change", Priority: "medium", Status: "in_progress"}, {Content: "Test", Priority: "low", Status: "pending"},
		}})
	case "usage":
		s.update(acp.UpdateUsageUpdate, acp.UsageUpdate{Used: 1200, Size: 200_000, Cost: &acp.Cost{Amount: 0.5, Currency: "USD"}})
	case "limits": // in the form in which Claude Code reports limits
		for _, limit := range []string{
			`{"rateLimitType":"five_hour","status":"allowed","utilization":0.2,"resetsAt":1800000000}`,
			`{"rateLimitType":"seven_day","status":"rejected"}`,
			`{"rateLimitType":"five_hour","status":"allowed_warning","utilization":0.75,"resetsAt":1800000000}`,
			`{"rateLimitType":"unknown","status":"allowed"}`, `{"rateLimitType":7}`,
		} {
			s.update(acp.UpdateUsageUpdate, acp.UsageUpdate{Used: 1200, Size: 200_000, Meta: json.RawMessage(`{"_claude/rateLimit":` + limit + `}`)})
		}
	case "title":
		s.saved.Title = rest
		s.update(acp.UpdateSessionInfoUpdate, acp.SessionInfoUpdate{Title: rest})
	case "commands":
		s.update(acp.UpdateAvailableCommandsUpdate, acp.AvailableCommandsUpdate{AvailableCommands: []acp.AvailableCommand{
			{Name: "review", Description: "Reviews changes", Input: &acp.AvailableCommandInput{Hint: "branch"}},
		}})
	case "notice":
		s.update(acp.UpdateNotice, acp.Notice{Severity: "warning", Title: "Careful", Description: "A notice"})
	default:
		return false
	}
	return true
}

// recall says all prompts in the session's history that begin with "remember".
func (s *session) recall() {
	s.mu.Lock()
	updates := s.saved.Updates
	s.mu.Unlock()
	var list []string
	for _, update := range updates {
		var chunk acp.ContentChunk
		if acp.UpdateKind(update) == acp.UpdateUserMessageChunk && acp.Decode(update, &chunk) == nil && strings.HasPrefix(chunk.Content.Text, "remember ") {
			list = append(list, chunk.Content.Text)
		}
	}
	s.say("%s", strings.Join(list, " "))
}

// permit asks the client for permission. It waits for the answer and returns the chosen
// option, or "".
func (s *session) permit(ctx context.Context, call acp.ToolCallUpdate) string {
	return chosen(ctx, s.request(call))
}

// request asks the client for permission.
func (s *session) request(call acp.ToolCallUpdate) *acp.Pending {
	return s.agent.conn.Begin("session/request_permission", acp.RequestPermissionRequest{SessionID: s.id, ToolCall: call, Options: []acp.PermissionOption{
		{OptionID: "always", Name: "Always allow", Kind: acp.PermissionOptionKindAllowAlways},
		{OptionID: "once", Name: "Yes, once", Kind: acp.PermissionOptionKindAllowOnce},
		{OptionID: "no", Name: "No", Kind: acp.PermissionOptionKindRejectOnce},
	}})
}

// chosen waits for the answer to a request for permission. It returns the chosen option, or "".
func chosen(ctx context.Context, sent *acp.Pending) string {
	var result acp.RequestPermissionResponse
	if sent.Wait(ctx, &result) != nil {
		return ""
	}
	return result.Outcome.OptionID
}

// callID returns an id for a new tool call.
func (s *session) callID() string {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	s.agent.count++
	return fmt.Sprint("call-", s.agent.count)
}

func (s *session) run(ctx context.Context, command string) {
	input, _ := json.Marshal(map[string]string{"command": command})
	id := s.callID()
	s.update(acp.UpdateToolCall, acp.ToolCallUpdate{ToolCallID: id, Title: command, Kind: acp.ToolKindExecute, Status: acp.ToolCallStatusPending, RawInput: input})
	chosen := s.permit(ctx, acp.ToolCallUpdate{ToolCallID: id, Title: command, Kind: acp.ToolKindExecute, RawInput: input})
	if chosen != "once" && chosen != "always" {
		s.update(acp.UpdateToolCallUpdate, acp.ToolCallUpdate{ToolCallID: id, Status: acp.ToolCallStatusFailed})
		s.say("not allowed: %s", chosen)
		return
	}
	s.update(acp.UpdateToolCallUpdate, acp.ToolCallUpdate{ToolCallID: id, Status: acp.ToolCallStatusInProgress})
	s.update(acp.UpdateToolCallUpdate, acp.ToolCallUpdate{
		ToolCallID: id, Status: acp.ToolCallStatusCompleted,
		Content: []acp.ToolCallContent{{Type: acp.ToolCallContentContent, Content: text("ran " + command)}},
	})
	s.say("done: %s", command)
}

func (s *session) write(ctx context.Context, file, content string) {
	id := s.callID()
	old, _ := os.ReadFile(file)
	before := string(old)
	call := acp.ToolCallUpdate{
		ToolCallID: id, Title: "Write " + filepath.Base(file), Kind: acp.ToolKindEdit, Locations: []acp.ToolCallLocation{{Path: file}},
		Content: []acp.ToolCallContent{{Type: acp.ToolCallContentDiff, Path: file, OldText: before, NewText: content}},
	}
	if chosen := s.permit(ctx, call); chosen != "once" && chosen != "always" {
		s.say("not allowed")
		return
	}
	err := s.agent.conn.Call(ctx, "fs/write_text_file", acp.WriteTextFileRequest{SessionID: s.id, Path: file, Content: content}, nil)
	call.Status = acp.ToolCallStatusCompleted
	if err != nil {
		call.Status = acp.ToolCallStatusFailed
	}
	s.update(acp.UpdateToolCallUpdate, call)
	s.say("done: %v", err)
}

func (s *session) shell(ctx context.Context, command string) {
	id := s.callID()
	var made acp.CreateTerminalResponse
	if err := s.agent.conn.Call(ctx, "terminal/create", acp.CreateTerminalRequest{SessionID: s.id, Command: "sh", Args: []string{"-c", command}, Cwd: s.saved.Cwd}, &made); err != nil {
		s.say("no terminal: %v", err)
		return
	}
	s.update(acp.UpdateToolCall, acp.ToolCallUpdate{
		ToolCallID: id, Title: command, Kind: acp.ToolKindExecute, Status: acp.ToolCallStatusInProgress,
		Content: []acp.ToolCallContent{{Type: acp.ToolCallContentTerminal, TerminalID: made.TerminalID}},
	})
	var exit acp.WaitForTerminalExitResponse
	var output acp.TerminalOutputResponse
	ask := acp.TerminalOutputRequest{SessionID: s.id, TerminalID: made.TerminalID}
	err := s.agent.conn.Call(ctx, "terminal/wait_for_exit", ask, &exit)
	if err == nil {
		err = s.agent.conn.Call(ctx, "terminal/output", ask, &output)
	}
	if err == nil {
		err = s.agent.conn.Call(ctx, "terminal/release", ask, nil)
	}
	if err != nil {
		s.say("terminal failed: %v", err)
		return
	}
	s.update(acp.UpdateToolCallUpdate, acp.ToolCallUpdate{ToolCallID: id, Status: acp.ToolCallStatusCompleted})
	code := int64(-1)
	if exit.ExitCode != nil {
		code = *exit.ExitCode
	}
	s.say("exit %d: %s", code, strings.TrimSpace(output.Output))
}

func (s *session) ask(ctx context.Context, kind string) {
	r := acp.CreateElicitationRequest{SessionID: s.id, Message: "Which colour?", Mode: acp.CreateElicitationRequestForm, RequestedSchema: acp.ElicitationSchema{
		Type: "object", Required: []string{"colour"}, Properties: map[string]acp.ElicitationPropertySchema{
			"colour": {Type: "string", Title: "Colour", OneOf: []acp.EnumOption{{Const: "r", Title: "Red"}, {Const: "b", Title: "Blue"}}},
			"loud":   {Type: "boolean", Title: "Loud"},
			"name":   {Type: "string", Title: "Name"},
			"size":   {Type: "integer", Title: "Size"},
		},
	}}
	if kind == "url" {
		r = acp.CreateElicitationRequest{SessionID: s.id, Message: "Sign in", Mode: acp.CreateElicitationRequestURL, URL: "https://example.com/sign-in", ElicitationID: "e1"}
	}
	var result acp.CreateElicitationResponse
	if err := s.agent.conn.Call(ctx, "elicitation/create", r, &result); err != nil {
		s.say("no answer: %v", err)
		return
	}
	content, _ := json.Marshal(result.Content)
	s.say("%s %s", result.Action, content)
}

// hostile misbehaves as a verb demands. It returns false if it does not know the verb.
func (s *session) hostile(ctx context.Context, verb, more string) bool {
	switch verb {
	case "garbage":
		for i := range 50 {
			fmt.Fprintf(s.agent.out, "DEBUG %d: \x00\xff {not JSON\n[1,2]\n\"text\"\n{}\n", i)
		}
		s.say("after the garbage")
	case "long":
		var n int
		_, _ = fmt.Sscan(more, &n)
		s.say("%s", strings.Repeat("x", n))
		s.say(" end")
	case "twice":
		call := acp.ToolCallUpdate{ToolCallID: s.callID(), Title: "twice", Kind: acp.ToolKindExecute}
		first, second := s.request(call), s.request(call)
		s.say("asked twice")
		s.say("answers: %s %s", chosen(ctx, first), chosen(ctx, second))
	case "again":
		call := acp.ToolCallUpdate{ToolCallID: s.callID(), Title: "again", Kind: acp.ToolKindExecute}
		first := s.request(call)
		first.Cancel()
		second := s.request(call)
		s.say("answers: %s %s", chosen(ctx, first), chosen(ctx, second))
	case "late":
		s.say("I began.")
		<-ctx.Done()
		time.Sleep(100 * time.Millisecond)
		s.say("too late")
		s.run(context.Background(), "too-late")
	case "afterwards":
		s.say("I began.")
		<-ctx.Done()
		go func() {
			time.Sleep(100 * time.Millisecond) // after the answer to the prompt
			s.say("too late")
			s.update(acp.UpdateSessionInfoUpdate, acp.SessionInfoUpdate{Title: "said afterwards"})
		}()
	case "never":
		s.say("I never end.")
		rest()
	case "die":
		s.update(acp.UpdateToolCall, acp.ToolCallUpdate{ToolCallID: s.callID(), Title: "dying", Kind: acp.ToolKindExecute, Status: acp.ToolCallStatusInProgress})
		s.say("Goodbye.")
		time.Sleep(50 * time.Millisecond) // lets the messages reach the pipe
		os.Exit(3)
	case "quit":
		s.mu.Lock()
		s.cancel = quit
		s.mu.Unlock()
		s.say("I quit when I am cancelled.")
		rest()
	case "children":
		s.say("Left the child %d.", child())
		time.Sleep(50 * time.Millisecond)
		os.Exit(4)
	case "deaf":
		s.agent.mu.Lock()
		s.agent.deaf = true
		s.agent.mu.Unlock()
		s.say("I am deaf.")
		rest()
	case "unended":
		s.update(acp.UpdateToolCall, acp.ToolCallUpdate{
			ToolCallID: s.callID(), Title: "make", Kind: acp.ToolKindExecute, Status: acp.ToolCallStatusInProgress,
			Meta: json.RawMessage(`{"terminal_info":{"terminal_id":"t"},"terminal_output_delta":{"terminal_id":"t","data":"built"}}`),
		})
	case "unknown":
		s.update("later_kind", map[string]any{"x": 1})
		s.update(acp.UpdateToolCallUpdate, acp.ToolCallUpdate{ToolCallID: "never-started", Status: acp.ToolCallStatusCompleted, Title: "Surprise"})
		(&session{agent: s.agent, id: "no-such-session"}).say("to no session")
		_ = s.agent.conn.Notify("later/method", struct{}{})
		if err := s.agent.conn.Call(ctx, "later/request", struct{}{}, nil); err != nil {
			s.say("refused: %v", err)
		}
	default:
		return false
	}
	return true
}
