package agenthost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// A Turn is an agent's handle to a turn. Its methods may be called from any goroutine.
// After the turn has ended they do nothing, and those that return an error return
// [ErrEnded].
type Turn struct {
	// Set at its creation, then read-only.
	host    *Host
	chat    *chat
	turn    *turn
	past    bool // a turn of the history: nothing is published
	unasked bool // it began without a prompt
	started time.Time
	ctx     context.Context // ends with the turn
	cancel  context.CancelCauseFunc

	// Guarded by the host's lock.
	ended     bool
	prompted  bool   // the agent has the prompt
	bytes     int    // of texts and contents
	cut       bool   // the turn has reached maxTurnBytes
	toolsCut  bool   // the turn has reached maxTurnTools
	text      string // the agent's id of the text that deltas extend
	part      string // id of that text's part; "": no text is open
	thought   bool   // the open text is reasoning
	held      string // text that is not published yet
	quietAt   time.Time
	flusher   *timer
	tools     map[string]*agentTool // by the agent's id
	order     []*agentTool
	waiting   map[string]chan toolConfirmedAction  // by tool call
	questions map[string]chan inputCompletedAction // by request
	plan      *agentTool
	plans     int
	used      Usage
}

// Bounds of a turn. The host drops what exceeds them, and notes dropped content in the turn.
// Tests lower them.
var (
	maxTurnBytes = 16 << 20 // texts and contents
	maxTurnTools = 2000
)

// deltaPause is how long the host collects deltas after a published delta, unless
// something else follows them.
const deltaPause = 2 * time.Millisecond

func newTurn(ch *chat, t *turn, past bool) *Turn {
	h := ch.session.host
	ctx, cancel := context.WithCancelCause(h.ctx)
	return &Turn{
		host: h, chat: ch, turn: t, past: past, started: t.started, ctx: ctx, cancel: cancel,
		tools:     map[string]*agentTool{},
		waiting:   map[string]chan toolConfirmedAction{},
		questions: map[string]chan inputCompletedAction{},
	}
}

// Context returns a context that ends with the turn. Its cause is [ErrEnded], or, if
// the turn was cancelled, [context.Canceled].
func (t *Turn) Context() context.Context { return t.ctx }

// Prompted reports that the agent has the turn's prompt. Only from now on, a [Steerer] gets messages during the turn.
func (t *Turn) Prompted() {
	t.update(func() {
		t.prompted = true
		t.chat.steerLocked()
	})
}

// update calls f with the host's lock held, unless the turn has ended.
func (t *Turn) update(f func()) {
	h := t.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if !t.ended && !h.closed {
		f()
	}
}

// emitLocked publishes an action after all earlier texts.
func (t *Turn) emitLocked(action any) {
	t.flushLocked()
	if t.past {
		t.turn.reduce(action)
		return
	}
	t.chat.emitLocked(action)
}

// allowLocked counts bytes towards the turn's bound, less those that they replace. It returns false
// if they do not fit.
func (t *Turn) allowLocked(n int) bool {
	if t.bytes+n <= maxTurnBytes && !t.cut {
		t.bytes += n
		return true
	}
	if !t.cut {
		t.cut = true
		t.noticeLocked(fmt.Sprintf("This turn is larger than %d MiB. The host leaves out the rest.", maxTurnBytes>>20))
	}
	return false
}

// allowToolLocked reports whether the turn may have another tool call.
func (t *Turn) allowToolLocked() bool {
	if len(t.order) < maxTurnTools {
		return true
	}
	if !t.toolsCut {
		t.toolsCut = true
		t.noticeLocked(fmt.Sprintf("This turn has more than %d tool calls. The host leaves out the rest.", maxTurnTools))
	}
	return false
}

// Text extends the agent's answer. It extends the latest text if id is empty or is that
// text's id, and nothing else has followed that text. Otherwise it begins a new part.
func (t *Turn) Text(id, delta string) { t.update(func() { t.textLocked(id, false, delta) }) }

// Thought extends the agent's reasoning, like Text.
func (t *Turn) Thought(id, delta string) { t.update(func() { t.textLocked(id, true, delta) }) }

func (t *Turn) textLocked(id string, thought bool, delta string) {
	delta = strings.ToValidUTF8(delta, "\uFFFD")
	if delta == "" || !t.allowLocked(len(delta)) {
		return
	}
	if t.part == "" || t.thought != thought || id != "" && id != t.text {
		h := t.host
		h.parts++
		t.closeTextLocked()
		part := partID(h.parts)
		t.emitLocked(PartAction{"chat/responsePart", t.turn.ID, newText(part, thought, delta)})
		t.part, t.text, t.thought = part, id, thought
		return
	}
	t.text = cmp.Or(id, t.text)
	t.held += delta
	now := time.Now()
	if wait := t.quietAt.Sub(now); wait > 0 && !t.past {
		if t.flusher == nil {
			t.flusher = t.host.afterLocked(wait, func() {
				t.flusher = nil
				if !t.ended {
					t.flushLocked()
					t.quietAt = time.Now().Add(deltaPause)
				}
			})
		}
		return
	}
	t.flushLocked()
	t.quietAt = now.Add(deltaPause)
}

// flushLocked publishes the held delta.
func (t *Turn) flushLocked() {
	if t.held == "" {
		return
	}
	delta := DeltaAction{"chat/delta", t.turn.ID, t.part, t.held}
	if t.thought {
		delta.Type = actionReasoning
	}
	t.held = ""
	t.flusher.stopLocked()
	t.flusher = nil
	t.emitLocked(delta)
}

// closeTextLocked makes the next text begin a new part.
func (t *Turn) closeTextLocked() {
	t.flushLocked()
	t.part, t.text = "", ""
}

// Notice shows a message that is not the agent's answer, in Markdown.
func (t *Turn) Notice(markdown string) {
	t.update(func() {
		if t.allowLocked(len(markdown)) {
			t.noticeLocked(markdown)
		}
	})
}

func (t *Turn) noticeLocked(markdown string) {
	t.closeTextLocked()
	t.emitLocked(PartAction{"chat/responsePart", t.turn.ID, struct {
		Kind    string            `json:"kind"`
		Content map[string]string `json:"content"`
	}{"systemNotification", map[string]string{"markdown": markdown}}})
}

// Usage replaces the usage that the turn has reported so far.
func (t *Turn) Usage(u Usage) {
	t.update(func() { t.usageLocked(u) })
}

func (t *Turn) usageLocked(u Usage) {
	t.used = u
	said := usage{InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, Model: u.Model, CacheTokens: u.CachedTokens}
	more := map[string]any{}
	for name, value := range map[string]int{"thoughtTokens": u.ThoughtTokens, "contextUsed": u.ContextUsed, "contextSize": u.ContextSize} {
		if value > 0 {
			more[name] = value
		}
	}
	if u.Cost > 0 {
		more["cost"], more["currency"] = u.Cost, u.Currency
	}
	if len(u.Limits) > 0 {
		more["quotaSnapshots"] = quotasOf(u.Limits)
	}
	if len(more) > 0 {
		said.Meta = encode(more)
	}
	t.emitLocked(usageAction{actionUsage, t.turn.ID, said})
}

// A quota is a [Limit] in the form of VS Code's host.
type quota struct {
	RemainingPercentage float64   `json:"remainingPercentage"`
	ResetDate           time.Time `json:"resetDate,omitzero"`
}

func quotasOf(limits []Limit) map[string]quota {
	all := map[string]quota{}
	for _, l := range limits {
		q := quota{RemainingPercentage: min(100, max(0, math.Round(100*(1-l.Used))))}
		if resets := l.Resets.UTC(); resets.Year() >= 0 && resets.Year() <= 9999 { // JSON has no other times
			q.ResetDate = resets
		}
		all[l.Name] = q
	}
	return all
}

// End ends a turn that began with [Chat.Past] or [Chat.Begin]. A turn of
// [Conversation.Prompt] ends when Prompt returns.
func (t *Turn) End(end End, err error) { t.update(func() { t.endLocked(end, err) }) }

// endLocked publishes the turn's end.
func (t *Turn) endLocked(end End, err error) {
	if t.ended {
		return
	}
	t.flushLocked()
	if t.plan != nil && !t.plan.done {
		t.finishToolLocked(t.plan, ToolCompleted, "")
	}
	if end.Usage != nil {
		t.usageLocked(*end.Usage)
	}
	action := turnEndAction{Type: "chat/turnComplete", TurnID: t.turn.ID, Duration: t.host.cfg.Now().Sub(t.started).Milliseconds()}
	switch {
	case err != nil:
		action.Type = "chat/error"
		part := &errorPart{Kind: "error", Error: TurnError{"agent", err.Error()}}
		if e, ok := errors.AsType[*TurnError](err); ok {
			part.Error = *e
		}
		action.Part = part
	case end.Reason == EndCancelled:
		action.Type = "chat/turnCancelled"
	case end.Reason == EndMaxTokens:
		t.noticeLocked("The agent stopped: the answer is at the model's limit of tokens.")
	case end.Reason == EndMaxRequests:
		t.noticeLocked("The agent stopped: it has made as many requests as it may in one turn.")
	case end.Reason == EndRefusal:
		t.noticeLocked("The agent refused to continue.")
	case end.Reason != "" && end.Reason != EndComplete:
		t.noticeLocked(fmt.Sprintf("The agent stopped: %q.", end.Reason))
	}
	if t.past {
		t.stopLocked(ErrEnded)
		t.chat.addPastLocked(t.turn, action)
		return
	}
	t.emitLocked(action)
	t.stopLocked(ErrEnded)
	t.chat.turnEndedLocked(t)
}

// stopLocked makes the handle's methods do nothing, because the turn has ended or the
// host has given it up.
func (t *Turn) stopLocked(why error) {
	if t.ended {
		return
	}
	t.ended = true
	t.flusher.stopLocked()
	t.flusher, t.held = nil, ""
	t.cancel(why)
}
