package agenthost

import (
	"cmp"
	"encoding/json"
	"slices"
)

// A pendingMessage waits until the agent can receive it.
type pendingMessage struct {
	ID      string          `json:"id"`
	Message json.RawMessage `json:"message"`
}

type pendingAction struct {
	Kind    string          `json:"kind"` // queued or steering
	ID      string          `json:"id"`
	Message json.RawMessage `json:"message"`
}

// clientPendingLocked handles chat/pendingMessageSet and chat/pendingMessageRemoved.
func (ch *chat) clientPendingLocked(env envelope) {
	var a pendingAction
	if json.Unmarshal(env.action, &a) != nil || a.ID == "" {
		return
	}
	at := slices.IndexFunc(ch.queued, func(m pendingMessage) bool { return m.ID == a.ID })
	set := env.kind == "chat/pendingMessageSet"
	switch {
	case a.Kind == "steering" && set:
		ch.steering = &pendingMessage{a.ID, a.Message}
	case a.Kind == "steering":
		if ch.steering != nil && ch.steering.ID == a.ID {
			ch.steering = nil
		}
	case set && at >= 0:
		ch.queued[at].Message = a.Message
	case set:
		ch.queued = append(ch.queued, pendingMessage{a.ID, a.Message})
	case at >= 0:
		ch.queued = slices.Delete(ch.queued, at, at+1)
	}
	ch.session.saveLocked()
	ch.session.host.publishLocked(env, nil)
	ch.steerLocked()
	if set { // without one of the messages, the others go on waiting
		ch.nextLocked()
	}
}

// clientOrderLocked handles chat/queuedMessagesReordered. Messages that it does not name follow in
// their previous order.
func (ch *chat) clientOrderLocked(env envelope) {
	var a struct {
		Order []string `json:"order"`
	}
	if json.Unmarshal(env.action, &a) != nil {
		return
	}
	rank := func(m pendingMessage) int {
		if i := slices.Index(a.Order, m.ID); i >= 0 {
			return i
		}
		return len(a.Order)
	}
	slices.SortStableFunc(ch.queued, func(x, y pendingMessage) int { return cmp.Compare(rank(x), rank(y)) })
	ch.session.saveLocked()
	ch.session.host.publishLocked(env, nil)
}

// steerLocked gives the steering message to the working agent.
func (ch *chat) steerLocked() {
	if ch.steering == nil || !ch.seat.steers() {
		return
	}
	m := *ch.steering
	ch.steering = nil
	ch.session.host.emitLocked(ch.uri, struct {
		Type string `json:"type"`
		Kind string `json:"kind"`
		ID   string `json:"id"`
	}{"chat/pendingMessageRemoved", "steering", m.ID})
	ch.session.saveLocked()
	ch.seat.steerLocked(m)
}

// waitAgainLocked makes a steering message wait again, because the agent has not taken it.
func (ch *chat) waitAgainLocked(m pendingMessage) {
	kind := "steering"
	if ch.steering == nil {
		ch.steering = &m
	} else {
		kind, ch.queued = "queued", append(ch.queued, m)
	}
	ch.session.saveLocked()
	ch.session.host.emitLocked(ch.uri, struct {
		Type string `json:"type"`
		pendingAction
	}{"chat/pendingMessageSet", pendingAction{kind, m.ID, m.Message}})
	ch.nextLocked()
}

// nextLocked begins a turn if none is active: with a steering message that the agent
// has not received, or else with the first queued message.
func (ch *chat) nextLocked() {
	if ch.active != nil || !ch.waits() {
		return
	}
	m := ch.steering
	if m == nil {
		m = &ch.queued[0]
	}
	h := ch.session.host
	a := turnStarted(h, m.Message, m.ID)
	ch.startTurnLocked(a, own(ch.uri, a), textOf(m.Message))
}

// waits reports whether a message waits.
func (ch *chat) waits() bool { return ch.steering != nil || len(ch.queued) > 0 }

// takeLocked removes the waiting message with which a turn begins.
func (ch *chat) takeLocked(id string) {
	if ch.steering != nil && ch.steering.ID == id {
		ch.steering = nil
	}
	ch.queued = slices.DeleteFunc(ch.queued, func(m pendingMessage) bool { return m.ID == id })
}

func textOf(message json.RawMessage) string {
	var m struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(message, &m) // a malformed message has no text
	return m.Text
}
