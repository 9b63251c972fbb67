package view

import (
	"slices"

	"ahprelay/ahp"
)

// maxSubscribed bounds the subscriptions of a connection that are known.
const maxSubscribed = 4096

// A Conn is what is known of one client's connection to a host. It is not safe
// for concurrent use: who carries the messages has one order for them.
type Conn struct {
	host    *Host
	subject string

	calls, asks calls // of the client, and of the host
	frames      pieces
	subscribed  map[string]bool
	client      clientKey // that the host has let in
	hello       hello
	known       bool // what the client has declared
	earlier     bool // on another connection
	greeted     bool // the host has accepted initialize or reconnect

	seq  int64 // told to the client, or said to be by it
	told int64 // how far the host was at least when it last said something here: its own word alone
}

// Conn returns the view of a new connection of a subject's client.
func (h *Host) Conn(subject string) *Conn {
	return &Conn{host: h, subject: subject, subscribed: map[string]bool{}}
}

// Host returns what all connections to the host have in common.
func (c *Conn) Host() *Host { return c.host }

// Seq is the highest serverSeq that the host has said here; or, if it is higher,
// the one that the client says it has seen.
func (c *Conn) Seq() int64 { return c.seq }

// ClientID is who the client says that it is, "" if it has not.
func (c *Conn) ClientID() string { return c.hello.clientID }

// Greeted reports whether the host has accepted initialize or reconnect.
func (c *Conn) Greeted() bool { return c.greeted }

// Declared returns the capabilities that the client has declared, as they came,
// or nil for none; known is false if nobody has told. Earlier says that it was
// on another connection: with reconnect, clients declare nothing.
func (c *Conn) Declared() (capabilities []byte, earlier, known bool) {
	return c.hello.capabilities, c.earlier, c.known
}

// Keep keeps something for the client, for when it comes again on another
// connection: in place of what was kept, until the host process ends or there is no
// room for it. It weighs nothing until [Conn.Weigh].
func (c *Conn) Keep(what any) { c.keep(what, 0, true) }

// Weigh says how much of the room something takes, if it is what is kept.
func (c *Conn) Weigh(what any, weight int) { c.keep(what, weight, false) }

func (c *Conn) keep(what any, weight int, anew bool) {
	h := c.host
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.clientLocked(c.client)
	if one == nil || !anew && one.kept != what {
		return
	}
	h.kept += weight - one.weight
	one.kept, one.weight = what, weight
	for _, oldest := range h.clients.Keys() {
		if h.kept <= maxKept {
			break
		}
		other, _ := h.clients.Peek(oldest)
		h.kept -= other.weight
		other.kept, other.weight = nil, 0
	}
}

// Kept is what is kept for the client, nil for nothing.
func (c *Conn) Kept() any {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	if one := c.host.clientLocked(c.client); one != nil {
		return one.kept
	}
	return nil
}

// Subscribed reports whether the client is subscribed to a channel, as the host
// has confirmed on this connection.
func (c *Conn) Subscribed(channel string) bool { return c.subscribed[channel] }

func (c *Conn) subscribe(channel string) {
	if len(c.subscribed) < maxSubscribed || c.subscribed[channel] {
		c.subscribed[channel] = true
	}
}

// unsubscribe notes that the client wants to hear no more of a channel, not
// even in answers that are still to come.
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

// Waits reports whether a request of the client's with that id is without an
// answer, and full whether there is no room for another.
func (c *Conn) Waits(id []byte) (waits, full bool) {
	return c.calls.find(id) >= 0, len(c.calls) >= maxCalls
}

// Sent takes note of a message of the client's that goes on to the host.
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
			c.hello.clientID = call.hello.clientID
			if m, ok := ahp.MemberOf(env.Params, "lastSeenServerSeq"); ok {
				c.seq = max(c.seq, seqOf(m.Raw))
			}
		}
		c.calls = append(c.calls, call)
	}
}

// Asked takes note of a request of the host's that goes on to the client. Of
// those that are never answered, the oldest make room.
func (c *Conn) Asked(env *ahp.Envelope) {
	if len(c.asks) >= maxCalls {
		c.asks = slices.Delete(c.asks, 0, 1)
	}
	c.asks = append(c.asks, newCall(env))
}

// Answering returns the request of the host's that a response of the client's
// answers.
func (c *Conn) Answering(id []byte) (Call, bool) {
	if i := c.asks.find(id); i >= 0 {
		return c.asks[i], true
	}
	return Call{}, false
}

// FromHost reads a message of the host's, and takes note of it. It returns nil
// if nothing is to be read in it.
func (c *Conn) FromHost(message []byte, env *ahp.Envelope) *Reading {
	switch env.Kind {
	case ahp.Request:
		return nil
	case ahp.Notification:
		if !c.saysSomething(env) {
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
	// Who answers is as far as it was when it was asked.
	c.told = max(c.told, w.seq, w.Call.seq)
	c.host.learn(r.Facts, c.told)
	return r
}

// saysSomething is the cheap look at a notification.
func (c *Conn) saysSomething(env *ahp.Envelope) bool {
	switch string(env.Method) {
	case "action":
		seq, err := env.Said.Seq()
		if err == nil {
			c.seq, c.told = max(c.seq, seq), max(c.told, seq)
		}
		return concerns(&env.Said)
	case "channel/frame", "channel/snapshot", "channel/reset", "root/sessionAdded", "root/sessionSummaryChanged", "root/sessionRemoved":
		return true
	}
	return false
}
