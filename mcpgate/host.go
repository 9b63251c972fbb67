package mcpgate

import (
	"container/list"
	"sync"
	"sync/atomic"
)

// Bounds of what is remembered of clients.
const (
	maxClients = 1024
	maxKept    = 16 << 10 // MCP servers of clients that are away
)

// A Host is what the gates of all connections to a host share.
type Host struct {
	advertises atomic.Bool // it has named a channel of the scheme mcp

	mu      sync.Mutex
	clients map[clientKey]*list.Element
	order   *list.List // of *remembered, the last used first
	kept    int        // servers in what was heard
}

type clientKey struct{ subject, clientID string }

// remembered is what is known of a client, for when it comes again.
type remembered struct {
	key      clientKey
	declared declared
	last     *Conn     // on which the host speaks to it; nil: none
	heard    *register // what the host has said on the last, which has ended; nil: nothing, or it has not
}

// NewHost returns a Host that knows of no clients.
func NewHost() *Host {
	return &Host{clients: map[clientKey]*list.Element{}, order: list.New()}
}

// remember notes what a client has declared, and where the host speaks to it.
func (h *Host) remember(key clientKey, d declared, last *Conn) {
	if key.clientID == "" || len(key.clientID) > maxName {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.clients[key]
	if e == nil {
		e = h.order.PushFront(&remembered{key: key})
		h.clients[key] = e
	}
	h.order.MoveToFront(e)
	r := e.Value.(*remembered)
	h.drop(r)
	if r.last = last; d.known {
		d.from = fromEarlier
		r.declared = d
	}
	if h.order.Len() > maxClients {
		r := h.order.Remove(h.order.Back()).(*remembered)
		h.drop(r)
		delete(h.clients, r.key)
	}
}

// recall returns what a client has declared before, and what the host has said
// to it of sessions.
func (h *Host) recall(key clientKey, uris []string) (declared, map[string]*session) {
	h.mu.Lock()
	e := h.clients[key]
	if e == nil {
		h.mu.Unlock()
		return declared{}, nil
	}
	h.order.MoveToFront(e)
	r := *e.Value.(*remembered)
	h.mu.Unlock()
	switch {
	case r.heard != nil: // in which nothing changes any more
		return r.declared, r.heard.copyOf(uris)
	case r.last != nil:
		r.last.mu.Lock()
		defer r.last.mu.Unlock()
		return r.declared, r.last.register.copyOf(uris)
	}
	return r.declared, nil
}

// ended takes what the host has said on a connection that has ended. What there
// is no room for is forgotten, beginning with the clients that have not been
// there for longest.
func (h *Host) ended(key clientKey, last *Conn, heard *register) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.clients[key]
	if e == nil || e.Value.(*remembered).last != last {
		return // the client has come again
	}
	r := e.Value.(*remembered)
	r.last, r.heard = nil, heard
	h.kept += heard.servers
	for e := h.order.Back(); e != nil && h.kept > maxKept; e = e.Prev() {
		h.drop(e.Value.(*remembered))
	}
}

// drop forgets what the host has said to a client.
func (h *Host) drop(r *remembered) {
	if r.heard != nil {
		h.kept -= r.heard.servers
		r.heard = nil
	}
}
