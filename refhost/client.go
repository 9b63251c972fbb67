package refhost

import (
	"encoding/json"

	"ahprelay/ahp"
)

// A client is what the host knows under one clientId. It outlives its
// connections, so that the client can come back with reconnect.
type client struct {
	id     string
	offer  offer   // of the latest initialize, for reconnect
	conns  []*conn // open ones, the newest last
	leftAt int64   // serverSeq when the last connection ended

	windows map[string]receiveLimits // of its windowed subscriptions
}

// maxWindows bounds the windowed subscriptions that a client can resume.
const maxWindows = 1024

// rememberWindow notes how a channel is delivered, nil meaning as usual.
func (cl *client) rememberWindow(channel string, w *window) {
	delete(cl.windows, channel)
	if w == nil || len(cl.windows) >= maxWindows {
		return
	}
	if cl.windows == nil {
		cl.windows = make(map[string]receiveLimits)
	}
	cl.windows[channel] = w.limits
}

// An offer is what a client said of itself in initialize. It shapes what the
// client is sent.
type offer struct {
	version version

	// Capabilities: a flag that is absent means no.
	canvas  bool
	mcpApps bool
}

// takes reports whether actions of this type are sent to such a client.
func (o offer) takes(kind string) bool {
	switch {
	case kind == "canvas/stateChanged" || kind == "chat/canvasesChanged":
		return o.registers()
	case family(kind) == "canvas" || kind == "session/canvasesChanged" || kind == "session/openCanvasesChanged":
		return o.seeds()
	}
	return o.version.knows(kind)
}

// registers reports whether the client's version has canvases: no capability is
// asked for then.
func (o offer) registers() bool { return o.version.compare(canvasesRegistered) >= 0 }

// seeds reports whether the client takes canvases as the seed proposed them.
func (o offer) seeds() bool { return o.canvas && !o.registers() }

// newest returns the connection that gets the client's notifications and
// requests, or nil.
func (cl *client) newest() *conn {
	if len(cl.conns) == 0 {
		return nil
	}
	return cl.conns[len(cl.conns)-1]
}

// joinLocked makes c the newest connection of the client.
func (h *Host) joinLocked(c *conn, clientID string) *client {
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

// leaveLocked takes a closed connection from its client.
func (h *Host) leaveLocked(c *conn) {
	cl := c.client
	for i, other := range cl.conns {
		if other == c {
			cl.conns = append(cl.conns[:i:i], cl.conns[i+1:]...)
			break
		}
	}
	cl.leftAt = h.seq
	if len(cl.conns) == 0 {
		h.logLocked(levelInfo, "Client disconnected: %s, subscriptions=%d", cl.id, len(c.subs))
		h.providerLeftLocked(cl.id)
		h.forgetClientsLocked()
	}
}

// forgetClientsLocked drops the record of the client that left first, where
// there are too many. It can only initialize again.
func (h *Host) forgetClientsLocked() {
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

// readCapabilities reads the presence flags that this host knows.
func readCapabilities(raw json.RawMessage) offer {
	var flags map[string]json.RawMessage
	if json.Unmarshal(raw, &flags) != nil {
		return offer{}
	}
	return offer{canvas: ahp.IsObject(flags["canvas"]), mcpApps: ahp.IsObject(flags["mcpApps"])}
}
