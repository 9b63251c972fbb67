package mcpgate

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"
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
	clients *simplelru.LRU[clientKey, *remembered]
	kept    int // servers in what was heard
}

type clientKey struct{ subject, clientID string }

// remembered is where the host speaks to a client, or has, for when it comes
// again.
type remembered struct {
	last  *Conn     // on which the host speaks to it; nil: none
	heard *register // what the host has said on the last, which has ended; nil: nothing, or it has not
}

// NewHost returns a Host that knows of no clients.
func NewHost() *Host {
	h := new(Host)
	h.clients, _ = simplelru.NewLRU(maxClients, func(_ clientKey, r *remembered) { h.drop(r) }) // fails only without a limit
	return h
}

// remember notes where the host speaks to a client.
func (h *Host) remember(key clientKey, last *Conn) {
	if key.clientID == "" || len(key.clientID) > maxName {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if r, ok := h.clients.Get(key); ok {
		h.drop(r)
		r.last = last
		return
	}
	h.clients.Add(key, &remembered{last: last})
}

// recall returns what the host has said to a client of sessions.
func (h *Host) recall(key clientKey, uris []string) map[string]*session {
	h.mu.Lock()
	r, ok := h.clients.Get(key)
	if !ok {
		h.mu.Unlock()
		return nil
	}
	last, heard := r.last, r.heard
	h.mu.Unlock()
	switch {
	case heard != nil: // in which nothing changes any more
		return heard.copyOf(uris)
	case last != nil:
		last.mu.Lock()
		defer last.mu.Unlock()
		return last.register.copyOf(uris)
	}
	return nil
}

// ended takes what the host has said on a connection that has ended. What there
// is no room for is forgotten, beginning with the clients that have not been
// there for longest.
func (h *Host) ended(key clientKey, last *Conn, heard *register) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, ok := h.clients.Peek(key)
	if !ok || r.last != last {
		return // the client has come again
	}
	r.last, r.heard = nil, heard
	h.kept += heard.servers
	for _, oldest := range h.clients.Keys() {
		if h.kept <= maxKept {
			break
		}
		r, _ := h.clients.Peek(oldest)
		h.drop(r)
	}
}

// drop forgets what the host has said to a client.
func (h *Host) drop(r *remembered) {
	if r.heard != nil {
		h.kept -= r.heard.servers
		r.heard = nil
	}
}
