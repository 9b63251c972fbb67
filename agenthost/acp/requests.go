package acp

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
)

// Request implements acp.Handler.
func (c *conversation) Request(r *acp.Request) {
	c.text.flush()
	switch r.Method {
	case "session/request_permission":
		c.permission(r)
	case "elicitation/create":
		c.question(r)
	case "fs/read_text_file", "fs/write_text_file":
		go func() { r.Reply(file(c.chat, r)) }()
	case "terminal/create", "terminal/output", "terminal/kill", "terminal/release", "terminal/wait_for_exit":
		go func() { r.Reply(c.terminalRequest(r)) }()
	default:
		r.Reply(nil, errNotHere)
	}
}

// An openRequest is a request for permission, or a question, that waits for a person's answer.
type openRequest struct {
	tool     string          // the tool call; "" for a question
	content  string          // all parameters; "" for a question
	requests []*acp.Request  // equal requests; none if the agent has withdrawn them
	done     chan struct{}   // closed when it is answered
	ctx      context.Context // ends with the turn, or when the agent has withdrawn all requests
	withdraw func()          // ends ctx
}

// openLocked records a request of the agent that waits for an answer during a turn.
func openLocked(c *conversation, turn *agenthost.Turn, tool, content string, r *acp.Request) *openRequest {
	ctx, end := context.WithCancel(turn.Context())
	open := &openRequest{tool, content, []*acp.Request{r}, make(chan struct{}), ctx, end}
	c.asked = append(c.asked, open)
	return open
}

// errWithdrawn answers a request that the agent has withdrawn.
var errWithdrawn = &acp.Error{Code: acp.CodeCancelled, Message: "the request was cancelled"}

// withdraw handles $/cancel_request: it ends a question when the agent has withdrawn all its equal requests.
func withdraw(c *conversation, params json.RawMessage) {
	var n acp.CancelRequestNotification
	if acp.Decode(params, &n) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.asked {
		i := slices.IndexFunc(p.requests, func(r *acp.Request) bool { return r.Withdrawn(n) })
		if i < 0 {
			continue
		}
		p.requests[i].Reply(nil, errWithdrawn)
		if p.requests = slices.Delete(p.requests, i, i+1); len(p.requests) == 0 {
			p.withdraw()
		}
	}
}

// cancelled answers a permission request on which no person has decided.
var cancelled = acp.RequestPermissionResponse{Outcome: acp.RequestPermissionOutcome{Outcome: acp.RequestPermissionOutcomeCancelled}}

// permissionKinds lists the known kinds of options. Options of other kinds are not
// offered.
var permissionKinds = []agenthost.PermissionKind{agenthost.AllowOnce, agenthost.AllowAlways, agenthost.RejectOnce, agenthost.RejectAlways}

// permission asks people for permission. A request that equals a waiting request
// gets the same answer. A different request for the same tool call waits until
// the earlier request is answered.
func (c *conversation) permission(r *acp.Request) {
	var p acp.RequestPermissionRequest
	if err := acp.Decode(r.Params, &p); err != nil || !c.isMine(p.SessionID) {
		r.Reply(cancelled, nil)
		return
	}
	turn := c.current(true)
	c.mu.Lock()
	past := c.past
	before, joined := joinLocked(c, p.ToolCall.ToolCallID, r)
	if joined {
		c.mu.Unlock()
		return
	}
	if turn == nil || past {
		c.mu.Unlock()
		r.Reply(cancelled, nil)
		return
	}
	open := openLocked(c, turn, p.ToolCall.ToolCallID, string(r.Params), r)
	c.mu.Unlock()
	var options []agenthost.PermissionOption
	for _, o := range p.Options {
		if c.agent.cfg.NoBypass && isBypass(o.OptionID, o.Name, "") || !slices.Contains(permissionKinds, agenthost.PermissionKind(o.Kind)) {
			continue
		}
		options = append(options, agenthost.PermissionOption{ID: o.OptionID, Label: o.Name, Kind: agenthost.PermissionKind(o.Kind)})
	}
	update := c.tool(p.ToolCall)
	go func() {
		for _, other := range before {
			<-other.done
		}
		id, err := turn.Ask(open.ctx, update, options)
		answer := cancelled
		if err == nil {
			answer.Outcome = acp.RequestPermissionOutcome{Outcome: acp.RequestPermissionOutcomeSelected, OptionID: id}
		}
		c.answered(open, answer)
	}()
}

// joinLocked adds a request for permission to an equal one that waits. If there is none, it returns the requests for the same
// tool call.
func joinLocked(c *conversation, tool string, r *acp.Request) (before []*openRequest, joined bool) {
	for _, other := range c.asked {
		if other.content == string(r.Params) && len(other.requests) > 0 {
			other.requests = append(other.requests, r)
			return nil, true
		}
		if other.tool == tool && other.content != "" {
			before = append(before, other)
		}
	}
	return before, false
}

// answered answers an open request, and removes it.
func (c *conversation) answered(open *openRequest, answer any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range open.requests {
		r.Reply(answer, nil)
	}
	open.withdraw()
	close(open.done)
	c.asked = slices.DeleteFunc(c.asked, func(other *openRequest) bool { return other == open })
}

// file serves a read or write of a file below the chat's folders.
func file(chat *agenthost.Chat, r *acp.Request) (any, error) {
	var p struct {
		acp.WriteTextFileRequest
		Line  *int64 `json:"line"`
		Limit *int64 `json:"limit"`
	}
	if err := decodeParams(r, &p); err != nil {
		return nil, err
	}
	if r.Method == "fs/write_text_file" {
		return struct{}{}, fileError(chat.WriteFile(p.Path, p.Content), p.Path)
	}
	text, err := chat.ReadFile(p.Path)
	if err != nil {
		return nil, fileError(err, p.Path)
	}
	return acp.ReadTextFileResponse{Content: lines(text, p.Line, p.Limit)}, nil
}

func decodeParams(r *acp.Request, v any) error {
	if err := acp.Decode(r.Params, v); err != nil {
		return &acp.Error{Code: acp.CodeInvalidParams, Message: "the parameters are not readable"}
	}
	return nil
}

// fileError translates an error. For a missing file, it returns the code and text
// that agents look for.
func fileError(err error, path string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &acp.Error{Code: acp.CodeNotFound, Message: "Resource not found: " + path}
	}
	return err
}

// lines returns a part of a text: limit lines beginning at line, which counts from
// 1.
func lines(text string, line, limit *int64) string {
	if line == nil && limit == nil {
		return text
	}
	skip, keep := int64(0), int64(-1)
	if line != nil {
		skip = max(*line-1, 0)
	}
	if limit != nil {
		keep = max(*limit, 0)
	}
	var out strings.Builder
	for l := range strings.Lines(text) {
		if skip > 0 {
			skip--
			continue
		}
		if keep == 0 {
			break
		}
		keep--
		out.WriteString(l)
	}
	return out.String()
}

// terminal returns a terminal that the agent has opened, or nil.
func (c *conversation) terminal(id string) *agenthost.AgentTerminal {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.terminals[id]
}

// shownTerminal returns a terminal for a tool call, or nil. Released terminals stay visible.
func shownTerminal(c *conversation, id string) *agenthost.AgentTerminal {
	if t := c.terminal(id); t != nil {
		return t
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.released, func(t *agenthost.AgentTerminal) bool { return t.ID() == id }); i >= 0 {
		return c.released[i]
	}
	return nil
}

// maxTerminals bounds the terminals of a conversation.
const maxTerminals = 32

// terminalRequest serves a terminal's method.
func (c *conversation) terminalRequest(r *acp.Request) (any, error) {
	if r.Method == "terminal/create" {
		return c.createTerminal(r.Params)
	}
	var p acp.TerminalOutputRequest
	if err := decodeParams(r, &p); err != nil {
		return nil, err
	}
	t := c.terminal(p.TerminalID)
	if t == nil {
		return nil, &acp.Error{Code: acp.CodeNotFound, Message: "no such terminal"}
	}
	switch r.Method {
	case "terminal/output":
		var response acp.TerminalOutputResponse
		var exit *int
		response.Output, response.Truncated, exit = t.Output()
		if exit != nil {
			code := int64(*exit)
			response.ExitStatus = &acp.TerminalExitStatus{ExitCode: &code}
		}
		return response, nil
	case "terminal/wait_for_exit":
		exit, err := t.Wait(c.life)
		code := int64(exit)
		return acp.WaitForTerminalExitResponse{ExitCode: &code}, err
	case "terminal/kill":
		t.Kill()
	case "terminal/release":
		c.mu.Lock()
		delete(c.terminals, p.TerminalID)
		c.released = append(c.released, t)
		c.released = c.released[max(0, len(c.released)-maxTerminals):]
		c.mu.Unlock()
		t.Kill()
	}
	return struct{}{}, nil
}

// createTerminal runs a command in a terminal of the host.
func (c *conversation) createTerminal(params json.RawMessage) (any, error) {
	var p acp.CreateTerminalRequest
	if err := acp.Decode(params, &p); err != nil {
		return nil, err
	}
	spec := agenthost.ProcessSpec{Command: p.Command, Args: p.Args, Folder: p.Cwd}
	if p.OutputByteLimit != nil {
		spec.Limit = int(*p.OutputByteLimit)
	}
	for _, variable := range p.Env {
		spec.Env = append(spec.Env, variable.Name+"="+variable.Value)
	}
	c.mu.Lock()
	full := len(c.terminals) >= maxTerminals
	c.mu.Unlock()
	if full {
		return nil, errors.New("too many terminals; release some")
	}
	t, err := c.chat.OpenTerminal(spec)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.terminals[t.ID()] = t
	closed := c.closed
	c.mu.Unlock()
	if closed { // reportLost may have missed this terminal
		t.Kill()
	}
	return acp.CreateTerminalResponse{TerminalID: t.ID()}, nil
}

// question asks the user.
func (c *conversation) question(r *acp.Request) {
	var p acp.CreateElicitationRequest
	turn := c.current(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if acp.Decode(r.Params, &p) != nil || turn == nil || c.past {
		r.Reply(acp.CreateElicitationResponse{Action: acp.CreateElicitationResponseCancel}, nil)
		return
	}
	question, open := questionOf(p, r.Params), openLocked(c, turn, "", "", r)
	go func() {
		answer, err := turn.Question(open.ctx, question)
		c.answered(open, answerOf(answer, err, question))
	}()
}

// answerOf translates an answer. Fields without a value are omitted.
func answerOf(answer agenthost.Answer, err error, q agenthost.Question) acp.CreateElicitationResponse {
	response := acp.CreateElicitationResponse{Action: answer.Response}
	if err != nil {
		response.Action = acp.CreateElicitationResponseCancel
	}
	if response.Action != acp.CreateElicitationResponseAccept || q.URL != "" {
		return response
	}
	response.Content = map[string]json.RawMessage{}
	for _, f := range q.Fields {
		if value, ok := answer.Values[f.ID]; ok {
			if text, err := json.Marshal(value); err == nil {
				response.Content[f.ID] = text
			}
		}
	}
	return response
}
