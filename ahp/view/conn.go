package view

import (
	"slices"

	"ahprelay/ahp"
)

// maxSubscribed bounds a connection's known subscriptions.
const maxSubscribed = 4096

// A Conn is the view of a client's connection to a host. It is not safe for concurrent
// use: its owner orders the messages.
type Conn struct {
	host    *Host
	subject string

	calls, asks calls // open requests: of the client, and of the host
	frames      pieces
	subscribed  map[string]bool
	client      clientKey // accepted by the host
	hello       hello
	known       bool // the client's declaration is known
	earlier     bool // the declaration comes from a different connection
	greeted     bool // the host has accepted initialize or reconnect

	seq     int64 // highest serverSeq sent to the client, or claimed by it
	hostSeq int64 // the host's serverSeq was at least this at its last message here
}

// Conn returns the view of a new connection of this subject.
func (h *Host) Conn(subject string) *Conn {
	return &Conn{host: h, subject: subject, subscribed: map[string]bool{}}
}

// Host returns the Host, which all connections to the host share.
func (c *Conn) Host() *Host { return c.host }

// Seq returns the highest serverSeq that the host has sent here, or that the client
// claims to have seen.
func (c *Conn) Seq() int64 { return c.seq }

// SetSeq sets the result of Seq. It is for messages that reach the client without a call of
// FromHost. It also undoes a call of FromHost if the message reaches the client later.
func (c *Conn) SetSeq(seq int64) { c.seq = seq }

// ClientID returns the clientId with which the host has accepted the client. Before that, it
// returns the clientId the client has sent, or "".
func (c *Conn) ClientID() string { return c.hello.clientID }

// Greeted reports whether the host has accepted initialize or reconnect.
func (c *Conn) Greeted() bool { return c.greeted }

// Declared returns the client's declared capabilities as received, or nil if it
// declared none. known is false if they are unknown. earlier is true if they come from
// a different connection, because a reconnect may declare nothing.
func (c *Conn) Declared() (capabilities []byte, earlier, known bool) {
	return c.hello.capabilities, c.earlier, c.known
}

// Keep stores a value for the client's next connection, in place of the previous
// value, until the host process ends or space is needed. The value counts as
// weightless until [Conn.Weigh] sets its weight.
func (c *Conn) Keep(value any) { c.keep(value, 0, true) }

// Weigh sets a stored value's weight, unless the value was removed.
func (c *Conn) Weigh(value any, weight int) { c.keep(value, weight, false) }

func (c *Conn) keep(value any, weight int, anew bool) {
	h := c.host
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.clientLocked(c.client)
	if one == nil || !anew && one.kept != value {
		return
	}
	h.kept += weight - one.weight
	one.kept, one.weight = value, weight
	for _, oldest := range h.clients.Keys() {
		if h.kept <= maxKept {
			break
		}
		other, _ := h.clients.Peek(oldest)
		h.kept -= other.weight
		other.kept, other.weight = nil, 0
	}
}

// Kept returns the value kept for the client, or nil.
func (c *Conn) Kept() any {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	if one := c.host.clientLocked(c.client); one != nil {
		return one.kept
	}
	return nil
}

// Subscribed reports whether the client is subscribed to a channel, as confirmed by
// the host on this connection.
func (c *Conn) Subscribed(channel string) bool { return c.subscribed[channel] }

func (c *Conn) subscribe(channel string) {
	if len(c.subscribed) < maxSubscribed || c.subscribed[channel] {
		c.subscribed[channel] = true
	}
}

// unsubscribe removes a subscription. The responses to earlier requests do not add it
// again.
func (c *Conn) unsubscribe(channel string) {
	delete(c.subscribed, channel)
	c.frames.drop(channel)
	for i := range c.calls {
		call := &c.calls[i]
		if (opens(call.Method) || call.Method == "subscribe" && call.Channel == channel) && len(call.left) < maxSubscribed {
			call.left = append(call.left, channel)
		}
	}
}

// Waits reports whether a request of the client with this id is open, and whether the
// table of open requests is full.
func (c *Conn) Waits(id []byte) (waits, full bool) {
	return c.calls.find(id) >= 0, len(c.calls) >= maxCalls
}

// Sent records a client's message that is passed on to the host.
func (c *Conn) Sent(env *ahp.Envelope) {
	switch {
	case env.Kind == ahp.Notification && string(env.Method) == "unsubscribe":
		c.unsubscribe(string(env.Channel))
	case env.Kind == ahp.Response:
		c.asks.pop(env.ID)
	case env.Kind == ahp.Request && len(c.calls) < maxCalls:
		call := newCall(env)
		call.seq = c.host.reached()
		if opens(call.Method) {
			if !c.greeted {
				c.hello.clientID = call.hello.clientID
			}
			if m, ok := ahp.MemberOf(env.Params, "lastSeenServerSeq"); ok {
				c.seq = max(c.seq, ahp.IntegerOf(m.Raw))
			}
		}
		c.calls = append(c.calls, call)
	}
}

// Asked records a host's request that is passed on to the client. At the bound, it
// forgets the oldest open request.
func (c *Conn) Asked(env *ahp.Envelope) {
	if len(c.asks) >= maxCalls {
		c.asks = slices.Delete(c.asks, 0, 1)
	}
	c.asks = append(c.asks, newCall(env))
}

// Answering returns the host's request to which a client's response belongs.
func (c *Conn) Answering(id []byte) (Call, bool) {
	if i := c.asks.find(id); i >= 0 {
		return c.asks[i], true
	}
	return Call{}, false
}

// FromHost reads a host message and records its facts. It returns nil for a request, for
// a notification that cannot have facts, and for the response to an unknown request.
func (c *Conn) FromHost(message []byte, env *ahp.Envelope) *Reading {
	switch env.Kind {
	case ahp.Request:
		return nil
	case ahp.Notification:
		if !c.mayHaveFacts(env) {
			return nil
		}
	}
	r := new(Reading)
	w := walk{Reading: r, conn: c}
	if env.Kind == ahp.Response {
		if !w.answer(message, env) {
			return nil
		}
	} else {
		w.message(message, env)
	}
	c.seq = max(c.seq, w.seq)
	// A response is at least as new as its request.
	c.hostSeq = max(c.hostSeq, w.seq, w.Call.seq)
	c.host.learn(r.Facts, c.hostSeq)
	return r
}

// mayHaveFacts reports whether a notification may have facts, without parsing it. It also records
// the serverSeq of an action.
func (c *Conn) mayHaveFacts(env *ahp.Envelope) bool {
	switch string(env.Method) {
	case "action":
		seq, err := env.Said.Seq()
		if err == nil {
			c.seq, c.hostSeq = max(c.seq, seq), max(c.hostSeq, seq)
		}
		return concerns(&env.Said)
	case "channel/frame", "channel/snapshot", "channel/reset", "root/sessionAdded", "root/sessionSummaryChanged", "root/sessionRemoved":
		return true
	}
	return false
}
