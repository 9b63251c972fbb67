package acp

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"ahprelay/agenthost"
	"ahprelay/ahp"
	"ahprelay/internal/acp"
)

// Prompt implements [agenthost.Conversation].
func (c *conversation) Prompt(ctx context.Context, prompt agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
	if c.agent.forbids(prompt) {
		return agenthost.End{}, errBypass
	}
	c.mu.Lock()
	rested := c.rested
	if !rested.IsZero() && c.heard.After(rested) {
		rested = c.heard
	}
	c.mu.Unlock()
	if c.keeper.beforePrompt() || c.peer.changedElsewhere(ctx, c.start.Folder, c.id, rested) {
		return agenthost.End{}, agenthost.ErrBusy
	}
	c.beginTurn(turn)
	defer c.endTurn(ctx)
	type result struct {
		response acp.PromptResponse
		err      error
	}
	answered := make(chan result, 1)
	sent := c.peer.conn.Begin("session/prompt", acp.PromptRequest{SessionID: c.id, Prompt: blocks(c.peer.can.PromptCapabilities, prompt)}) // sent before a cancellation
	turn.Prompted()
	go func() {
		var r result
		r.err = sent.Wait(c.life, &r.response)
		if errors.Is(r.err, acp.ErrClosed) {
			r.err = c.peer.because(r.err)
			c.lost() // before the host can send another prompt
		}
		answered <- r
	}()
	select {
	case r := <-answered:
		if r.err != nil {
			return agenthost.End{}, r.err
		}
		return agenthost.End{Reason: agenthost.EndReason(r.response.StopReason), Usage: c.usageOf(r.response)}, nil
	case <-ctx.Done():
	}
	_ = c.peer.conn.Notify("session/cancel", acp.CancelNotification{SessionID: c.id}) // if the agent is lost, the code below notices
	select {
	case r := <-answered:
		return agenthost.End{Reason: agenthost.EndCancelled, Usage: c.usageOf(r.response)}, nil
	case <-time.After(c.agent.cfg.Grace):
		c.agent.cfg.Log.Warn("agent with a cancelled turn killed", "after", c.agent.cfg.Grace)
		c.peer.end()
		c.lost()
	}
	return agenthost.End{Reason: agenthost.EndCancelled}, nil
}

// forbids reports whether a prompt is a command that skips permissions, and the host's owner has forbidden those.
func (a *Agent) forbids(prompt agenthost.Prompt) bool {
	return a.cfg.NoBypass && isBypass(command(prompt.Text), "", "")
}

// A steered conversation accepts messages during a turn.
type steered struct{ *conversation }

// Steer implements [agenthost.Steerer]. An agent may answer when it takes the message, for example behind a long tool call, so Steer
// waits as long as the turn runs. The answer counts after the turn's end, too.
func (c steered) Steer(_ context.Context, prompt agenthost.Prompt, turn *agenthost.Turn) error {
	if c.agent.forbids(prompt) {
		return errBypass
	}
	ctx, cancel := context.WithCancel(c.life)
	defer cancel()
	stop := context.AfterFunc(turn.Context(), func() { time.AfterFunc(c.agent.cfg.answer, cancel) })
	defer stop()
	var refused error
	request := steering{acp.PromptRequest{SessionID: c.id, Prompt: blocks(c.peer.can.PromptCapabilities, prompt)}, json.RawMessage(`{"steering":{"idleBehavior":"promptRequired"}}`)}
	err := c.peer.conn.CallThen(ctx, "_session/steering", request, nil, func(answer json.RawMessage) {
		switch ahp.TextOf(answer, "outcome") {
		case "promptRequired":
			refused = agenthost.ErrEnded
		case "failed":
			refused = errors.New("it failed")
		default:
			turn.Notice("*The agent has this message now:* " + prompt.Text)
		}
	})
	if err != nil {
		return err
	}
	return refused
}

// A steering is a request that gives a message to the agent's turn. If no turn runs, an agent that knows the member in Meta
// does not begin one.
type steering struct {
	acp.PromptRequest
	Meta json.RawMessage `json:"_meta"`
}

func (c *conversation) beginTurn(turn *agenthost.Turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takeTurnLocked(turn)
	c.prompting, c.hushed = true, false
}

// takeTurnLocked makes a turn the current turn.
func (c *conversation) takeTurnLocked(turn *agenthost.Turn) {
	if c.quiet != nil {
		c.quiet.Stop()
	}
	endShown(c.tools)
	c.turn, c.tools, c.quiet = turn, map[string]*tool{}, nil
}

// endShown ends the output that tool calls show, because some agents do not report the end of
// each command, and only ended terminals make room for others.
func endShown(tools map[string]*tool) {
	for _, t := range tools {
		if t.shown != nil {
			t.shown.Exited(unknownExit)
		}
	}
}

// unknownExit is the exit code of a command whose end the agent has not reported.
const unknownExit = -1

// endTurn ends a prompt; the host then ends the turn at once. After a cancelled turn,
// later text of the agent is ignored.
func (c *conversation) endTurn(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prompting, c.hushed, c.rested = false, ctx.Err() != nil, time.Now()
	endShown(c.tools)
	c.keeper.afterPrompt()
}

// current returns the turn to which the next update belongs, or nil. In a replayed
// history, it begins a turn for the user message before the update. After the end of a
// turn, it begins a new turn without a prompt if the update makes sense alone (alone is
// true).
func (c *conversation) current(alone bool) *agenthost.Turn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.past {
		if c.said != nil || c.turn == nil {
			c.nextPastLocked()
		}
		return c.turn
	}
	if turn := c.turn; turn != nil && !c.prompting && c.quiet == nil {
		c.mu.Unlock()
		<-turn.Context().Done()
		c.mu.Lock()
	}
	c.heard = time.Now()
	if c.turn != nil && c.turn.Context().Err() == nil {
		return c.turn
	}
	c.unaskedEndedLocked(c.turn)
	if !alone || c.prompting || c.hushed || c.closed {
		return nil
	}
	turn, err := c.chat.Begin()
	if err != nil {
		return nil // a prompt came first
	}
	c.takeTurnLocked(turn)
	c.quiet = time.AfterFunc(c.agent.cfg.Quiet, func() { c.endUnasked(turn) })
	context.AfterFunc(turn.Context(), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unaskedEndedLocked(turn)
	})
	return turn
}

// endUnasked ends a turn that began without a prompt, once the agent sends nothing,
// unless a tool runs, or a tool or question waits.
func (c *conversation) endUnasked(turn *agenthost.Turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn != turn || c.quiet == nil {
		return
	}
	wait := c.agent.cfg.Quiet - time.Since(c.heard) // an update may have arrived just now
	if len(c.asked) > 0 || slices.ContainsFunc(slices.Collect(maps.Values(c.tools)), func(t *tool) bool { return !t.ended }) {
		wait = c.agent.cfg.Quiet
	}
	if wait > 0 {
		c.quiet.Reset(wait)
		return
	}
	turn.End(agenthost.End{}, nil)
}

// unaskedEndedLocked is called after the end of a turn. If the turn began without a prompt and
// a client has cancelled it, unaskedEndedLocked asks the agent to stop, and later text is ignored.
func (c *conversation) unaskedEndedLocked(turn *agenthost.Turn) {
	if c.turn != turn || c.quiet == nil {
		return
	}
	c.takeTurnLocked(nil)
	if context.Cause(turn.Context()) != agenthost.ErrEnded {
		c.hushed = true
		_ = c.peer.conn.Notify("session/cancel", acp.CancelNotification{SessionID: c.id}) // a lost agent has stopped
	}
}

// blocks translates a prompt for an agent.
func blocks(can acp.PromptCapabilities, prompt agenthost.Prompt) []acp.ContentBlock {
	list := []acp.ContentBlock{}
	if prompt.Text != "" || len(prompt.Attachments) == 0 {
		list = append(list, acp.ContentBlock{Type: acp.ContentBlockText, Text: prompt.Text})
	}
	for _, a := range prompt.Attachments {
		list = append(list, blockOf(can, a))
	}
	return list
}

// blockOf translates an attachment into the richest kind of block that the agent accepts.
// Each kind has its branch.
func blockOf(can acp.PromptCapabilities, a agenthost.Attachment) acp.ContentBlock {
	kind, _, _ := strings.Cut(a.MIMEType, "/")
	if a.Text == "" && kind == "text" && utf8.Valid(a.Data) {
		a.Text = string(a.Data) // agents accept few other forms of text
	}
	data := base64.StdEncoding.EncodeToString(a.Data)
	switch {
	case len(a.Data) > 0 && kind == "image" && can.Image:
		return acp.ContentBlock{Type: acp.ContentBlockImage, MimeType: a.MIMEType, Data: data}
	case len(a.Data) > 0 && kind == "audio" && can.Audio:
		return acp.ContentBlock{Type: acp.ContentBlockAudio, MimeType: a.MIMEType, Data: data}
	case a.Text != "" && can.EmbeddedContext:
		return acp.ContentBlock{Type: acp.ContentBlockResource, Resource: acp.EmbeddedResourceResource{
			URI: cmp.Or(a.URI, "attachment:///"+a.Name), MimeType: cmp.Or(a.MIMEType, "text/plain"), Text: a.Text,
		}}
	case a.Text != "":
		return acp.ContentBlock{Type: acp.ContentBlockText, Text: a.Name + ":\n\n" + a.Text}
	case len(a.Data) > 0 && can.EmbeddedContext:
		return acp.ContentBlock{Type: acp.ContentBlockResource, Resource: acp.EmbeddedResourceResource{
			URI: cmp.Or(a.URI, "attachment:///"+a.Name), MimeType: a.MIMEType, Blob: data,
		}}
	case a.URI != "":
		return acp.ContentBlock{Type: acp.ContentBlockResourceLink, Name: cmp.Or(a.Name, a.URI), URI: a.URI, MimeType: a.MIMEType}
	default:
		return acp.ContentBlock{Type: acp.ContentBlockText, Text: "(The agent cannot read the attachment " + a.Name + ".)"}
	}
}

// usageOf returns the usage of a turn: the tokens in the answer to the prompt, and the
// conversation's context and cost. Without tokens, it returns nil.
func (c *conversation) usageOf(r acp.PromptResponse) *agenthost.Usage {
	c.mu.Lock()
	usage := c.usage
	c.mu.Unlock()
	if u := r.Usage; u != nil {
		usage.InputTokens, usage.OutputTokens = int(u.InputTokens), int(u.OutputTokens)
		if u.CachedReadTokens != nil {
			usage.CachedTokens = int(*u.CachedReadTokens)
		}
		if u.ThoughtTokens != nil {
			usage.ThoughtTokens = int(*u.ThoughtTokens)
		}
		return &usage
	}
	var meta struct { // of Gemini CLI
		Quota struct {
			Tokens struct {
				Input  int `json:"input_tokens"`
				Output int `json:"output_tokens"`
			} `json:"token_count"`
		} `json:"quota"`
	}
	if r.Meta == nil || acp.Decode(r.Meta, &meta) != nil || meta.Quota.Tokens.Input == 0 {
		return nil
	}
	usage.InputTokens, usage.OutputTokens = meta.Quota.Tokens.Input, meta.Quota.Tokens.Output
	return &usage
}
