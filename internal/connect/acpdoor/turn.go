package acpdoor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"

	"ahprelay/ahp"
	"ahprelay/internal/acp"
	"ahprelay/internal/connect/client"
)

// A turn is the running turn as the editor has it.
type turn struct {
	session *session
	id      string
	texts   map[string]*text // by part id
	parts   int              // number of parts without an id that were shown
	tools   map[string]*tool
	usage   json.RawMessage
	reads   []<-chan struct{} // one for each call of read; closed when the reading has ended
}

// A text is one part of an answer.
type text struct {
	thought bool
	shown   int // bytes already shown
}

// An ending is how a turn ended.
type ending struct {
	reason string
	err    error
}

func endOf(t *client.Turn) ending {
	if t.State == "cancelled" {
		return ending{reason: acp.StopReasonCancelled}
	}
	for _, part := range t.Parts {
		if part.Kind == "error" {
			return ending{err: errors.New(errorText(part.Error))}
		}
	}
	if t.State == "error" {
		return ending{err: errors.New(errorText(t.Error))}
	}
	return ending{reason: acp.StopReasonEndTurn}
}

func endBy(act action) ending {
	switch {
	case act.Type == "chat/turnCancelled":
		return ending{reason: acp.StopReasonCancelled}
	case act.Type == "chat/turnComplete":
		return ending{reason: acp.StopReasonEndTurn}
	case act.Part != nil:
		return ending{err: errors.New(errorText(act.Part.Error))}
	}
	return ending{err: errors.New(errorText(nil))}
}

func errorText(raw json.RawMessage) string {
	return cmp.Or(ahp.TextOf(raw, "message"), "the agent's turn failed")
}

func (s *session) startTurn(id string) {
	s.turn = &turn{session: s, id: id, texts: map[string]*text{}, tools: map[string]*tool{}}
}

// beginTurn handles the start of a turn. It does not show messages which the editor
// has sent itself.
func (s *session) beginTurn(act action) {
	if s.turn != nil {
		s.endTurn(s.turn.id, ending{reason: acp.StopReasonCancelled}) // a turn replaces a running one
	}
	s.startTurn(act.TurnID)
	if act.QueuedID != "" && slices.Contains(s.dropped, act.QueuedID) {
		s.door.spawn(func() { cancelLate(s, act.TurnID) })
	}
	for _, p := range s.prompts {
		if p.turn == act.TurnID || p.queued != "" && p.queued == act.QueuedID {
			p.turn, p.queued = act.TurnID, ""
			return
		}
	}
	if act.Message != nil {
		s.showMessage(act.TurnID, act.Message)
	}
}

// showTurn shows what the editor does not have of a turn.
func (s *session) showTurn(t *client.Turn) {
	if s.turn == nil || s.turn.id != t.ID {
		s.startTurn(t.ID)
		if !slices.ContainsFunc(s.prompts, func(p *prompt) bool { return p.turn == t.ID }) {
			s.showMessage(t.ID, &t.Message)
		}
	}
	v := s.turn
	nameless := 0
	for i := range t.Parts {
		part := &t.Parts[i]
		if part.Kind == "inputRequest" {
			continue // the session's questions show it, and no action adds it as a part
		}
		if part.ID == "" && part.ToolCall == nil {
			if nameless++; nameless <= v.parts {
				continue // the part was shown already
			}
		}
		v.show(part)
	}
	if t.Usage != nil {
		v.showUsage(t.Usage)
	}
}

func (s *session) showMessage(turn string, m *client.Message) {
	for _, block := range blocks(m) {
		s.update(acp.UpdateUserMessageChunk, acp.ContentChunk{Content: block, MessageID: turn})
	}
}

func (s *session) endTurn(id string, end ending) {
	if s.turn == nil || s.turn.id != id {
		return
	}
	v := s.turn
	v.end()
	s.turn, s.last = nil, id
	if end.err != nil && slices.ContainsFunc(s.prompts, func(p *prompt) bool { return p.queued != "" }) {
		s.door.spawn(func() { removeBehind(s, id, end.err) })
	}
	for _, p := range s.prompts {
		if p.turn == id {
			end.usage(v.usage, p)
			p.leave(s)
			v.afterReads(func() { p.reply(end) })
			return
		}
	}
	if end.err != nil {
		v.say(acp.UpdateAgentMessageChunk, "", "Error: "+end.err.Error())
	}
}

// read starts to read something from the host that the editor shall have before the turn's
// end.
func (v *turn) read(what func()) {
	done := make(chan struct{})
	v.reads = append(v.reads, done)
	v.session.door.spawn(func() {
		defer close(done)
		what()
	})
}

// afterReads calls f when the turn's reads have ended, but at the latest after readsTime.
func (v *turn) afterReads(f func()) {
	reads := v.reads
	if len(reads) == 0 {
		f()
		return
	}
	v.session.door.spawn(func() {
		ctx, cancel := context.WithTimeout(v.session.door.life, readsTime)
		defer cancel()
		for _, done := range reads {
			select {
			case <-done:
			case <-ctx.Done():
			}
		}
		f()
	})
}

func (ending) usage(raw json.RawMessage, p *prompt) {
	if raw == nil {
		return
	}
	number := func(path ...string) int64 { return ahp.IntegerOf(ahp.RawOf(raw, path...)) }
	input, output := number("inputTokens"), number("outputTokens")
	p.usage = &acp.Usage{InputTokens: input, OutputTokens: output, TotalTokens: input + output}
	if cached := number("cacheReadTokens"); cached > 0 {
		p.usage.CachedReadTokens = &cached
	}
	if thought := number("_meta", "thoughtTokens"); thought > 0 {
		p.usage.ThoughtTokens = &thought
	}
}

func (v *turn) apply(act action, raw []byte) {
	switch act.Type {
	case "chat/responsePart":
		if act.Part != nil {
			v.show(act.Part)
		}
	case "chat/delta", "chat/reasoning":
		delta, _ := ahp.Text(act.Content)
		known := v.text(act.PartID, act.Type == "chat/reasoning")
		known.shown += len(delta)
		v.say(known.kind(), act.PartID, delta)
	case "chat/usage":
		v.showUsage(act.Usage)
	default:
		if act.ToolCallID != "" {
			v.applyTool(act, raw)
		}
	}
}

func (v *turn) text(id string, thought bool) *text {
	if v.texts[id] == nil {
		v.texts[id] = &text{thought: thought}
	}
	return v.texts[id]
}

func (t *text) kind() string {
	if t.thought {
		return acp.UpdateAgentThoughtChunk
	}
	return acp.UpdateAgentMessageChunk
}

// say sends a piece of text to the editor.
func (v *turn) say(kind, id, words string) {
	if words != "" {
		v.session.update(kind, acp.ContentChunk{Content: acp.ContentBlock{Type: acp.ContentBlockText, Text: words}, MessageID: id})
	}
}

// show shows what the editor does not have of a part.
func (v *turn) show(part *client.Part) {
	if part.ID == "" && part.ToolCall == nil {
		v.parts++
	}
	switch part.Kind {
	case "markdown", "reasoning":
		words := ahp.WordsOf(part.Content)
		known := v.text(part.ID, part.Kind == "reasoning")
		if len(words) > known.shown {
			v.say(known.kind(), part.ID, words[known.shown:])
			known.shown = len(words)
		}
	case "systemNotification":
		v.notice(ahp.WordsOf(part.Content))
	case "contentRef":
		v.session.update(acp.UpdateAgentMessageChunk, acp.ContentChunk{Content: acp.ContentBlock{Type: acp.ContentBlockResourceLink, Name: lastName(part.URI), URI: part.URI}})
	case "toolCall":
		if part.ToolCall != nil {
			known := v.tool(part.ToolCall.ID)
			known.call = *part.ToolCall
			known.show()
		}
	}
}

// titled matches a notice with a title, in Markdown.
var titled = regexp.MustCompile(`(?s)^\*\*(.+?)\*\*(?:\n\n(.*))?$`)

// notice shows a notice from the host.
func (v *turn) notice(words string) {
	d := v.session.door
	d.mu.Lock()
	can := d.can.Session != nil && d.can.Session.Notices != nil
	d.mu.Unlock()
	if !can {
		v.say(acp.UpdateAgentMessageChunk, "", words)
		return
	}
	n := acp.Notice{Severity: acp.NoticeSeverityInfo, Title: words}
	if m := titled.FindStringSubmatch(words); m != nil {
		n.Title, n.Description = m[1], m[2]
	}
	v.session.update(acp.UpdateNotice, n)
}

// showUsage shows the use of the context window.
func (v *turn) showUsage(raw json.RawMessage) {
	v.usage = raw
	var u struct {
		Meta struct {
			Used     ahp.Int `json:"contextUsed"`
			Size     ahp.Int `json:"contextSize"`
			Cost     float64 `json:"cost"`
			Currency string  `json:"currency"`
		} `json:"_meta"`
	}
	if json.Unmarshal(raw, &u) != nil {
		return
	}
	update := acp.UsageUpdate{Used: int64(u.Meta.Used), Size: int64(u.Meta.Size)}
	if update.Size == 0 {
		return
	}
	if u.Meta.Cost > 0 && u.Meta.Currency != "" {
		update.Cost = &acp.Cost{Amount: u.Meta.Cost, Currency: u.Meta.Currency}
	}
	v.session.update(acp.UpdateUsageUpdate, update)
}
