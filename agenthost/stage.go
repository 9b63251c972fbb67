package agenthost

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// The methods in this file are for agents that publish AHP's actions themselves, such as the
// scripted agent. They publish actions unchanged, and create sessions.

// ID is the turn's turnId.
func (t *Turn) ID() string { return t.turn.ID }

// Publish applies an action of this package to the turn and publishes it, without the
// checks and bounds of other methods. It returns false if the turn has ended.
func (t *Turn) Publish(action any) (ok bool) {
	t.update(func() {
		t.closeTextLocked()
		t.emitLocked(action)
		ok = true
	})
	return ok
}

// PublishAsk publishes a [ToolReadyAction] that asks for permission, and waits for the
// first answer of any client.
func (t *Turn) PublishAsk(ready ToolReadyAction) (approved bool, err error) {
	answer := make(chan toolConfirmedAction, 1)
	t.update(func() {
		t.waiting[ready.ToolCallID] = answer
		t.emitLocked(ready)
	})
	select {
	case a := <-answer:
		return *a.Approved, nil
	case <-t.ctx.Done():
		return false, ErrEnded
	}
}

// PublishQuestion publishes chat/inputRequested with an id chosen by the host, and waits
// for the first answer of any client.
func (t *Turn) PublishQuestion(request map[string]any) (response string, answers map[string]any, err error) {
	answer := make(chan inputCompletedAction, 1)
	t.update(func() {
		id := t.host.cfg.NewID()
		request["id"] = id
		t.questions[id] = answer
		t.emitLocked(InputRequestedAction{"chat/inputRequested", request})
	})
	select {
	case a := <-answer:
		return a.Response, a.Answers, nil
	case <-t.ctx.Done():
		return "", nil, ErrEnded
	}
}

// PublishText adds a text and returns the id of its part, for [DeltaAction].
func (t *Turn) PublishText(text string) (part string) {
	t.update(func() {
		t.host.parts++
		part = partID(t.host.parts)
		t.emitLocked(PartAction{"chat/responsePart", t.turn.ID, newMarkdown(part, text)})
	})
	return part
}

// OpenTerminal opens a terminal of the kind in [Config.Terminals] for a tool call, types
// a command, and returns the terminal's URI. The terminal stays until a client disposes
// of it.
func (t *Turn) OpenTerminal(toolCallID, command string) (uri string, err error) {
	err = ErrEnded
	t.update(func() {
		h := t.host
		uri = terminalScheme + "//tool/" + h.cfg.NewID()
		var term *terminal
		term, err = h.terminals.addTerminalLocked(terminalParams{Channel: uri, Name: "Terminal", Claim: t.chat.claim(t.turn.ID, toolCallID)}, h.terminals.openBackendLocked)
		if err == nil {
			term.backend.input(command + "\r")
		}
	})
	return uri, err
}

// Session is the URI of the chat's session.
func (c *Chat) Session() string {
	h := c.seat.host
	h.mu.Lock()
	defer h.mu.Unlock()
	return c.seat.chat.session.uri
}

// Edited adds a file change, in the form of AHP's FileEdit, to the session's changeset.
func (c *Chat) Edited(uri string, edit json.RawMessage) {
	c.update(func(ch *chat, _ *Host) { ch.session.changeLocked(changedFile{ID: uri, Edit: edit}) })
}

// Say begins a turn as if a person had written the message. It fails with [ErrBusy]
// during a turn, and with [ErrEnded] if the chat has ended.
func (c *Chat) Say(message string) error {
	err := ErrEnded
	c.update(func(ch *chat, h *Host) {
		if err = ErrBusy; ch.active != nil {
			return
		}
		err = nil
		a := turnStarted(h, userMessage(message, "user"), "")
		ch.startTurnLocked(a, own(ch.uri, a), message)
	})
	return err
}

// Keep removes all turns if the chat has more than n turns and none is active.
func (c *Chat) Keep(n int) {
	c.update(func(ch *chat, h *Host) {
		if ch.active == nil && len(ch.turns) > n {
			ch.turns = nil
			h.emitLocked(ch.uri, plainAction{"chat/truncated"})
		}
	})
}

// Delegate creates a chat in the session, in which the agent works on a message. The new
// chat belongs to a tool call of this chat. Delegate returns the new chat's URI.
func (c *Chat) Delegate(title, toolCallID, message string) (uri string) {
	c.update(func(ch *chat, h *Host) {
		uri = chatScheme + "/" + h.cfg.NewID()
		worker := &chat{
			session: ch.session, uri: uri, status: statusIdle, modified: h.cfg.Now(), title: title,
			origin: chatOrigin{Kind: "tool", Chat: ch.uri, ToolCallID: toolCallID}, interactivity: "read-only",
		}
		c.seat.provider.newSeat(worker)
		h.chats[uri] = worker
		worker.session.listed = append(worker.session.listed, worker)
		h.emitLocked(worker.session.uri, chatAddedAction{"session/chatAdded", worker.summary()})
		worker.session.touchLocked()
		a := turnStarted(h, userMessage(message, "tool"), "")
		worker.startTurnLocked(a, own(uri, a), message)
	})
	return uri
}

func userMessage(text, origin string) json.RawMessage {
	return encode(struct {
		Text   string      `json:"text"`
		Origin plainOrigin `json:"origin"`
	}{text, plainOrigin{origin}})
}

// An Exchange is a past turn.
type Exchange struct {
	Prompt, Reply string
	At            time.Time
}

// Prepend puts turns before the chat's turns.
func (c *Chat) Prepend(past []Exchange) {
	c.update(func(ch *chat, h *Host) {
		turns := h.sessions.pastLocked(past)
		ch.turns = append(turns, ch.turns...)
		h.emitLocked(ch.uri, turnsLoadedAction{Type: "chat/turnsLoaded", Turns: turns})
	})
}

func (ss *sessionTable) pastLocked(past []Exchange) []*turn {
	h := ss.host
	turns := make([]*turn, 0, len(past))
	for _, x := range past {
		h.parts++
		duration := int64(1000 * len(strings.Fields(x.Reply)) / 4)
		turns = append(turns, &turn{
			ID:            h.cfg.NewID(),
			StartedAt:     timestamp(x.At),
			Duration:      &duration,
			Message:       userMessage(x.Prompt, "user"),
			ResponseParts: []any{newMarkdown(partID(h.parts), x.Reply)},
			State:         "complete",
		})
	}
	return turns
}

// A Made describes a session to create with [Host.Make].
type Made struct {
	Name    string // in the URI, behind the agent's scheme; empty: a new id
	Title   string
	Folders []string // URIs
	Created time.Time
	Past    []Exchange
}

// Make creates a session of an agent and returns its chat. It fails if there are too
// many sessions, or no such agent.
func (h *Host) Make(agent string, m Made) (*Chat, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, err := h.sessions.providerLocked(agent)
	if err != nil {
		return nil, err
	}
	if len(h.sessions.keys) >= maxSessions {
		return nil, fmt.Errorf("agenthost: more than %d sessions", maxSessions)
	}
	if m.Name == "" {
		m.Name = h.cfg.NewID()
	}
	s := h.sessions.addSessionLocked(p, p.name+":/"+m.Name, m.Folders, m.Created)
	s.title = m.Title
	s.chat.turns = h.sessions.pastLocked(m.Past)
	if n := len(m.Past); n > 0 {
		s.chat.modified, s.modified = m.Past[n-1].At, m.Past[n-1].At
	}
	h.sessions.announceLocked(s)
	s.announced = s.summary()
	return s.chat.seat.handle, nil
}

// RequireSignIn asks all clients for new tokens for [Config.Resources], unless reason is
// empty. It returns a text for each resource, with the number of tokens accepted so far.
func (h *Host) RequireSignIn(reason string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var counts []string
	for _, r := range h.cfg.Resources {
		counts = append(counts, fmt.Sprintf("%s: %d times", r.Resource, h.mcp.signedIn[r.Resource]))
		if reason != "" {
			h.notifyAllLocked("auth/required", message{"channel": encode(rootChannel), "resource": encode(r.Resource), "reason": encode(reason)})
		}
	}
	return counts
}

// A Starter is an agent that prepares its sessions before the host's first connection.
// The returned function, if not nil, runs until the host closes.
type Starter interface {
	Start(h *Host) func(ctx context.Context)
}

// maxQueued is how long after a turn's beginning the messages behind it go on after a restart of the host.
const maxQueued = 24 * time.Hour

// startAgents calls Start of each agent that is a [Starter], and begins turns with the messages that wait. Older messages, and those of
// archived sessions, wait for the chat's next turn: no agent works unseen. So do messages behind an error of the agent, which each of them
// could get, and messages whose removal could not be recorded, because the disk is full: the agent would get them again after each restart.
func (ss *sessionTable) startAgents() {
	h := ss.host
	for _, a := range h.cfg.Agents {
		if s, ok := a.(Starter); ok {
			if run := s.Start(h); run != nil {
				h.mu.Lock()
				h.goLocked(func() { run(h.ctx) })
				h.mu.Unlock()
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ch := range h.chats {
		if !h.closed && ch.session.status&statusArchived == 0 && h.cfg.Now().Sub(ch.modified) < maxQueued && ch.waits() && (!ch.failed || ch.interrupted) && canSaveLocked(ch.session) {
			ch.nextLocked() // with a message that has waited since the previous run of the host
		}
	}
}

// Agent returns the agent with a provider's name; nil if there is none.
func (h *Host) Agent(provider string) Agent {
	for _, p := range h.sessions.providers {
		if p.name == provider {
			return p.agent
		}
	}
	return nil
}
