package acp

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
)

// Prompt implements [agenthost.Conversation].
func (c *conversation) Prompt(ctx context.Context, prompt agenthost.Prompt, turn *agenthost.Turn) (agenthost.End, error) {
	if c.agent.cfg.NoBypass && isBypass(command(prompt.Text), "", "") {
		return agenthost.End{}, errBypass
	}
	c.beginTurn(ctx, turn)
	defer c.endTurn()
	type result struct {
		response acp.PromptResponse
		err      error
	}
	answered := make(chan result, 1)
	sent := c.peer.conn.Begin("session/prompt", acp.PromptRequest{SessionID: c.id, Prompt: c.blocks(prompt)}) // before a cancellation
	go func() {
		var r result
		r.err = sent.Wait(c.life, &r.response)
		answered <- r
	}()
	select {
	case r := <-answered:
		if err := c.peer.because(r.err); err != nil {
			if errors.Is(r.err, acp.ErrClosed) {
				c.lost() // before the host can send the next prompt
			}
			return agenthost.End{}, err
		}
		return agenthost.End{Reason: agenthost.EndReason(r.response.StopReason), Usage: c.usageWith(r.response.Usage)}, nil
	case <-ctx.Done():
	}
	_ = c.peer.conn.Notify("session/cancel", acp.CancelNotification{SessionID: c.id}) // a lost agent is noticed below
	grace := time.NewTimer(c.agent.cfg.Grace)
	defer grace.Stop()
	select {
	case r := <-answered:
		return agenthost.End{Reason: agenthost.EndCancelled, Usage: c.usageWith(r.response.Usage)}, nil
	case <-grace.C:
		c.agent.cfg.Log.Warn("agent killed: it did not end a cancelled turn", "after", c.agent.cfg.Grace)
		c.peer.end()
		c.lost()
	}
	return agenthost.End{Reason: agenthost.EndCancelled}, nil
}

// A steered conversation accepts messages during a turn.
type steered struct{ *conversation }

// Steer implements [agenthost.Steerer].
func (c steered) Steer(ctx context.Context, prompt agenthost.Prompt) error {
	return c.call(ctx, "_session/steering", acp.PromptRequest{SessionID: c.id, Prompt: c.blocks(prompt)}, nil)
}

func (c *conversation) beginTurn(ctx context.Context, turn *agenthost.Turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn, c.turnCtx, c.tools = turn, ctx, map[string]*tool{}
}

// endTurn makes later updates of the turn ineffective.
func (c *conversation) endTurn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn, c.turnCtx, c.tools = nil, nil, nil
}

// blocks translates a prompt.
func (c *conversation) blocks(prompt agenthost.Prompt) []acp.ContentBlock {
	can := c.peer.can.PromptCapabilities
	list := []acp.ContentBlock{}
	if prompt.Text != "" || len(prompt.Attachments) == 0 {
		list = append(list, acp.ContentBlock{Type: acp.ContentBlockText, Text: prompt.Text})
	}
	for _, a := range prompt.Attachments {
		kind, _, _ := strings.Cut(a.MIMEType, "/")
		data := base64.StdEncoding.EncodeToString(a.Data)
		switch {
		case len(a.Data) > 0 && kind == "image" && can.Image:
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockImage, MimeType: a.MIMEType, Data: data})
		case len(a.Data) > 0 && kind == "audio" && can.Audio:
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockAudio, MimeType: a.MIMEType, Data: data})
		case a.Text != "" && can.EmbeddedContext:
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockResource, Resource: acp.EmbeddedResourceResource{
				URI: cmp.Or(a.URI, "attachment:///"+a.Name), MimeType: cmp.Or(a.MIMEType, "text/plain"), Text: a.Text,
			}})
		case a.Text != "":
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockText, Text: a.Name + ":\n\n" + a.Text})
		case len(a.Data) > 0 && can.EmbeddedContext:
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockResource, Resource: acp.EmbeddedResourceResource{
				URI: cmp.Or(a.URI, "attachment:///"+a.Name), MimeType: a.MIMEType, Blob: data,
			}})
		case a.URI != "":
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockResourceLink, Name: cmp.Or(a.Name, a.URI), URI: a.URI, MimeType: a.MIMEType})
		default:
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockText, Text: "(The agent cannot read the attachment " + a.Name + ".)"})
		}
	}
	return list
}

// usageWith returns the usage of a turn: what the prompt's answer says, and the
// conversation's context and cost.
func (c *conversation) usageWith(u *acp.Usage) *agenthost.Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	if u == nil {
		return nil
	}
	usage := c.usage
	usage.InputTokens, usage.OutputTokens = int(u.InputTokens), int(u.OutputTokens)
	if u.CachedReadTokens != nil {
		usage.CachedTokens = int(*u.CachedReadTokens)
	}
	if u.ThoughtTokens != nil {
		usage.ThoughtTokens = int(*u.ThoughtTokens)
	}
	return &usage
}
