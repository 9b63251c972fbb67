package acp

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
)

// maxCollected bounds the chunks of a text that are passed on together, in bytes.
const maxCollected = 64 << 10

// A collector joins chunks of one text that arrive together.
type collector struct {
	turn    *agenthost.Turn
	thought bool
	id      string
	text    strings.Builder
}

// add adds a chunk. If the chunk belongs to another text, it first passes on the
// earlier chunks.
func (t *collector) add(turn *agenthost.Turn, thought bool, id, text string) {
	if t.turn != turn || t.thought != thought || t.id != id || t.text.Len()+len(text) > maxCollected {
		t.flush()
	}
	t.turn, t.thought, t.id = turn, thought, id
	t.text.WriteString(text)
}

// flush passes the chunks on.
func (t *collector) flush() {
	if t.text.Len() == 0 {
		return
	}
	if t.thought {
		t.turn.Thought(t.id, t.text.String())
	} else {
		t.turn.Text(t.id, t.text.String())
	}
	t.text.Reset()
	t.turn = nil
}

// Flush implements acp.Handler.
func (c *conversation) Flush() { c.text.flush() }

// Notify implements acp.Handler.
func (c *conversation) Notify(method string, params json.RawMessage) {
	if method == "$/cancel_request" {
		withdraw(c, params)
	}
	if method != "session/update" {
		return // an extension
	}
	var n acp.SessionNotification
	if acp.Decode(params, &n) != nil || !c.isMine(n.SessionID) {
		return
	}
	kind := acp.UpdateKind(n.Update)
	if kind == acp.UpdateUserMessageChunk {
		c.userChunk(n.Update)
		return
	}
	switch kind {
	case acp.UpdateAgentMessageChunk, acp.UpdateAgentThoughtChunk:
		c.chunk(kind == acp.UpdateAgentThoughtChunk, n.Update)
		return
	case acp.UpdateAvailableCommandsUpdate, acp.UpdateSessionInfoUpdate, acp.UpdateCurrentModeUpdate, acp.UpdateConfigOptionUpdate:
		c.sessionUpdate(kind, n.Update)
		return
	}
	c.text.flush()
	alone := kind == acp.UpdateToolCall || kind == acp.UpdatePlan || kind == acp.UpdateNotice
	if turn := c.current(alone); turn != nil {
		c.turnUpdate(turn, kind, n.Update)
	}
}

// isMine reports whether an update belongs to this conversation. Subagents have
// sessions of their own. Until the agent has named its session, all updates belong to
// the conversation.
func (c *conversation) isMine(session string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = time.Now()
	return c.session == "" || c.session == session
}

// decoded decodes an update. It returns the zero value for an unreadable one.
func decoded[T any](update json.RawMessage) (v T) {
	_ = acp.Decode(update, &v) // its kind was decoded before
	return v
}

// nextPastLocked ends the current turn of a replayed history and begins the next.
func (c *conversation) nextPastLocked() {
	if c.turn != nil {
		c.turn.End(agenthost.End{}, nil)
	}
	prompt := agenthost.Prompt{}
	if c.said != nil {
		prompt = *c.said
	}
	endShown(c.tools)
	c.turn, c.said, c.tools = c.chat.Past(prompt, time.Time{}), nil, map[string]*tool{}
}

// endPast ends a replayed history.
func (c *conversation) endPast() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.past && c.said != nil {
		c.nextPastLocked()
	}
	if c.past && c.turn != nil {
		c.turn.End(agenthost.End{}, nil)
	}
	endShown(c.tools)
	c.past, c.turn, c.tools = false, nil, nil
}

// userChunk collects a user message of a replayed history. During a live turn it does
// nothing, because the host has the message.
func (c *conversation) userChunk(update json.RawMessage) {
	chunk := decoded[acp.ContentChunk](update)
	c.text.flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.past {
		return
	}
	if c.said != nil && c.saidID != chunk.MessageID {
		c.nextPastLocked()
	}
	if c.said == nil {
		c.said = &agenthost.Prompt{}
	}
	c.saidID = chunk.MessageID
	if chunk.Content.Type == acp.ContentBlockText {
		c.said.Text += chunk.Content.Text
		return
	}
	if a, ok := attachment(chunk.Content); ok {
		c.said.Attachments = append(c.said.Attachments, a)
	}
}

// attachment translates a part of a user's message.
func attachment(b acp.ContentBlock) (agenthost.Attachment, bool) {
	switch e := embedded(b); {
	case e == nil:
		return agenthost.Attachment{}, false
	default:
		return agenthost.Attachment{Name: cmp.Or(b.Name, b.Title, e.URI), URI: e.URI, MIMEType: e.MIMEType, Data: e.Data, Text: e.Text}, true
	}
}

// chunk adds a chunk to the answer or, if thought is true, to the reasoning.
func (c *conversation) chunk(thought bool, update json.RawMessage) {
	chunk := decoded[acp.ContentChunk](update)
	text := chunk.Content.Text
	if chunk.Content.Type != acp.ContentBlockText {
		text = placeholder(chunk.Content)
	}
	if text == "" {
		return
	}
	if turn := c.current(true); turn != nil {
		c.text.add(turn, thought, chunk.MessageID, text)
	}
}

// placeholder returns text that stands for other content in the agent's answer.
func placeholder(b acp.ContentBlock) string {
	switch b.Type {
	case acp.ContentBlockResourceLink:
		return "[" + cmp.Or(b.Title, b.Name, b.URI) + "](" + b.URI + ")"
	case acp.ContentBlockResource:
		return b.Resource.Text
	case acp.ContentBlockImage, acp.ContentBlockAudio:
		return fmt.Sprintf("\n\n(The agent has sent %s, %d bytes, which cannot be shown here.)\n\n", b.MimeType, base64.StdEncoding.DecodedLen(len(b.Data)))
	}
	return ""
}

// sessionUpdate handles an update that does not belong to a turn.
func (c *conversation) sessionUpdate(kind string, update json.RawMessage) {
	switch kind {
	case acp.UpdateAvailableCommandsUpdate:
		c.chat.SetCommands(c.agent.commands(decoded[acp.AvailableCommandsUpdate](update).AvailableCommands))
	case acp.UpdateSessionInfoUpdate:
		if title := decoded[acp.SessionInfoUpdate](update).Title; title != "" {
			c.chat.SetTitle(title)
		}
	case acp.UpdateCurrentModeUpdate:
		c.optionsChanged(func(o *options) { o.choose(modeOption, decoded[acp.CurrentModeUpdate](update).CurrentModeID) })
	case acp.UpdateConfigOptionUpdate:
		c.optionsChanged(func(o *options) { o.setConfig(decoded[acp.ConfigOptionUpdate](update).ConfigOptions) })
	}
}

// turnUpdate handles an update that belongs to a turn.
func (c *conversation) turnUpdate(turn *agenthost.Turn, kind string, update json.RawMessage) {
	switch kind {
	case acp.UpdateToolCall, acp.UpdateToolCallUpdate:
		turn.Tool(c.tool(decoded[acp.ToolCallUpdate](update)))
	case acp.UpdatePlan:
		turn.Plan(planOf(decoded[acp.Plan](update).Entries))
	case acp.UpdatePlanUpdate:
		u := decoded[struct {
			Plan acp.Plan `json:"plan"`
		}](update)
		turn.Plan(planOf(u.Plan.Entries))
	case acp.UpdateUsageUpdate:
		u := decoded[acp.UsageUpdate](update)
		c.mu.Lock()
		c.usage.ContextUsed, c.usage.ContextSize = int(u.Used), int(u.Size)
		if u.Cost != nil {
			c.usage.Cost, c.usage.Currency = u.Cost.Amount, u.Cost.Currency
		}
		c.usage.Limits = limitsWith(c.usage.Limits, u.Meta)
		usage := c.usage
		c.mu.Unlock()
		turn.Usage(usage)
	case acp.UpdateNotice:
		n := decoded[acp.Notice](update)
		turn.Notice(strings.TrimSpace("**" + n.Title + "**\n\n" + n.Description))
	case acp.UpdateCompactionUpdate:
		if decoded[acp.CompactionUpdate](update).Status == acp.CompactionStatusCompleted {
			turn.Notice("The agent has summarized the conversation so far.")
		}
	}
}

func planOf(entries []acp.PlanEntry) []agenthost.PlanEntry {
	list := []agenthost.PlanEntry{}
	for _, e := range entries {
		list = append(list, agenthost.PlanEntry{Text: e.Content, Status: e.Status, Priority: e.Priority})
	}
	return list
}

// limitsWith returns had with the limit that an update of Claude Code reports. It does
// not change had.
func limitsWith(had []agenthost.Limit, meta json.RawMessage) []agenthost.Limit {
	var said struct {
		Limit struct {
			Name   string   `json:"rateLimitType"`
			Status string   `json:"status"`
			Used   *float64 `json:"utilization"` // 1: the limit is reached
			Resets int64    `json:"resetsAt"`    // s since 1970
		} `json:"_claude/rateLimit"`
	}
	if meta == nil || acp.Decode(meta, &said) != nil || said.Limit.Name == "" || len(said.Limit.Name) > maxLimitName {
		return had
	}
	l := agenthost.Limit{Name: said.Limit.Name}
	switch {
	case said.Limit.Used != nil:
		l.Used = *said.Limit.Used
	case said.Limit.Status == "rejected":
		l.Used = 1
	default:
		return had
	}
	if said.Limit.Resets > 0 {
		l.Resets = time.Unix(said.Limit.Resets, 0)
	}
	now := slices.DeleteFunc(slices.Clone(had), func(other agenthost.Limit) bool { return other.Name == l.Name })
	if len(now) >= maxLimits {
		return had
	}
	return append(now, l)
}

// Bounds of the limits that an agent reports.
const (
	maxLimits    = 16
	maxLimitName = 64 // bytes
)
