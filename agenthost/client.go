package agenthost

import (
	"encoding/json"
	"slices"

	"ahprelay/ahp"
)

// A client is the host's record of a clientId. It is kept after the last connection
// has ended, so the client can reconnect.
type client struct {
	id     string
	offer  offer   // from the latest initialize, for reconnect
	conns  []*conn // open, newest last
	leftAt int64   // serverSeq at the end of the last connection

	options map[string]resumption // of the subscriptions with options, by channel
}

// A resumption has the options of a subscription that reconnect restores.
type resumption struct {
	window *receiveLimits // nil: the channel has no flow control
	view   view
}

// maxOptions bounds the subscriptions with options that a client can resume.
const maxOptions = 1024

// rememberOptions records a subscription's options.
func (cl *client) rememberOptions(channel string, w *window, v view) {
	delete(cl.options, channel)
	if w == nil && v.Turns == nil || len(cl.options) >= maxOptions {
		return
	}
	if cl.options == nil {
		cl.options = make(map[string]resumption)
	}
	one := resumption{view: v}
	if w != nil {
		one.window = &w.limits
	}
	cl.options[channel] = one
}

// An offer has the version and the capabilities from a client's initialize. It decides
// which messages the client gets, and in which form.
type offer struct {
	version version

	// True if the client declares the capability of this name.
	canvas  bool
	mcpApps bool
}

// takes reports whether the client receives actions of this type.
func (o offer) takes(kind string) bool {
	switch {
	case kind == "canvas/stateChanged" || kind == "chat/canvasesChanged":
		return o.registers()
	case family(kind) == "canvas" || kind == "session/canvasesChanged" || kind == "session/openCanvasesChanged":
		return o.seeds()
	}
	return o.version.knows(kind)
}

// registers reports whether the client's version includes canvases; then no
// capability is needed.
func (o offer) registers() bool { return o.version.compare(canvasesRegistered) >= 0 }

// seeds reports whether the client uses canvases in the form before 0.10.
func (o offer) seeds() bool { return o.canvas && !o.registers() }

// newest returns the newest connection, which gets the client's notifications and
// requests, or nil.
func (cl *client) newest() *conn {
	if len(cl.conns) == 0 {
		return nil
	}
	return cl.conns[len(cl.conns)-1]
}

// joinLocked makes c the client's newest connection.
func (h *core) joinLocked(c *conn, clientID string) *client {
	cl := h.clients[clientID]
	if cl == nil {
		cl = &client{id: clientID}
		h.clients[clientID] = cl
	}
	if older := cl.newest(); older != nil {
		older.flushHeldLocked()
	}
	cl.conns = append(cl.conns, c)
	c.client = cl
	return cl
}

// leaveLocked removes a closed connection from its client.
func (h *Host) leaveLocked(c *conn) {
	cl := c.client
	cl.conns = slices.DeleteFunc(cl.conns, func(other *conn) bool { return other == c })
	cl.leftAt = h.seq
	if len(cl.conns) == 0 {
		h.logLocked(levelInfo, "Client disconnected: %s, subscriptions=%d", cl.id, len(c.subs))
		h.canvases.providerLeftLocked(cl.id)
		h.forgetClientsLocked()
	}
}

// forgetClientsLocked removes the client that has been absent longest if more than
// maxClients are absent. The removed client must initialize again.
func (h *core) forgetClientsLocked() {
	var oldest *client
	gone := 0
	for _, cl := range h.clients {
		if len(cl.conns) > 0 {
			continue
		}
		gone++
		if oldest == nil || cl.leftAt < oldest.leftAt {
			oldest = cl
		}
	}
	if gone > maxClients {
		delete(h.clients, oldest.id)
	}
}

// readCapabilities reads the capability flags that this host knows.
func readCapabilities(raw json.RawMessage) offer {
	var flags map[string]json.RawMessage
	if json.Unmarshal(raw, &flags) != nil {
		return offer{}
	}
	return offer{canvas: ahp.IsObject(flags["canvas"]), mcpApps: ahp.IsObject(flags["mcpApps"])}
}
