package view

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Bounds of what is known of a host.
const (
	maxOwned    = 16 << 10 // URIs of which it is known to what they belong, and channels whose lists are known
	maxOwners   = 8        // of one URI
	maxPrefixes = 4096
	maxCanvases = 1024
	maxClients  = 1024     // that are remembered
	maxKept     = 16 << 10 // of the weight of what is kept for clients
	maxClientID = 4 << 10
)

// A Host is what a host process has said to all of its clients. It is safe for
// concurrent use.
type Host struct {
	key     func(uri string) string
	changes atomic.Uint64 // how often something may have ceased to belong to what it did
	servers atomic.Bool   // it has named a channel of an MCP server

	mu       sync.Mutex // guards the fields below
	seq      int64      // the highest serverSeq on any connection
	owned    *simplelru.LRU[string, *owned]
	prefixes *simplelru.LRU[string, *owned] // templates, up to their first variable
	lists    *simplelru.LRU[listKey, stamp] // when the host has listed all of a kind
	floor    stamp                          // the same of the lists that there is no room for
	heard    uint64                         // messages
	canvases *simplelru.LRU[string, Canvas]
	clients  *simplelru.LRU[clientKey, *client]
	kept     int     // weight of what is kept for clients
	command  *string // what begins a command to the host; nil: it has not said
}

type clientKey struct{ subject, clientID string }

// A client is what is remembered of one for when it comes again.
type client struct {
	hello  hello
	known  bool // it has declared that
	kept   any
	weight int
}

// NewHost returns a Host of which nothing is known. Key returns the form in
// which URIs are compared; nil: as they are written.
func NewHost(key func(uri string) string) *Host {
	if key == nil {
		key = func(uri string) string { return uri }
	}
	h := &Host{key: key}
	h.forgetLocked()
	return h
}

func (h *Host) forgetLocked() {
	h.seq, h.floor, h.command = 0, stamp{}, nil
	h.owned = newLRU[string, *owned](maxOwned, nil)
	h.prefixes = newLRU[string, *owned](maxPrefixes, nil)
	h.lists = newLRU(maxOwned, func(_ listKey, when stamp) { h.floor = later(h.floor, when) })
	h.canvases = newLRU[string, Canvas](maxCanvases, nil)
	h.clients = newLRU(maxClients, func(_ clientKey, c *client) { h.kept -= c.weight })
	h.kept = 0
	h.servers.Store(false)
	h.changes.Add(1)
}

func later(a, b stamp) stamp {
	if a.before(b) {
		return b
	}
	return a
}

func newLRU[K comparable, V any](limit int, evicted func(K, V)) *simplelru.LRU[K, V] {
	l, _ := simplelru.NewLRU(limit, evicted) // fails only where there is no limit
	return l
}

// Ended says that the host process has ended: what it has said means nothing
// to the next one.
func (h *Host) Ended() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetLocked()
}

// Changes is another number than before when something may belong to a channel
// no more.
func (h *Host) Changes() uint64 { return h.changes.Load() }

// reached returns how far the host is.
func (h *Host) reached() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seq
}

// begins takes how far the host says that it is, when it is asked to begin with
// a client. Less far than it was before it was asked is another process.
func (h *Host) begins(seq, before int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if seq < before {
		h.forgetLocked()
	}
}

// CommandPrefix is what begins a message that the host takes for a command to run,
// "" for nothing; known is false if it has not said yet.
func (h *Host) CommandPrefix() (prefix string, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.command == nil {
		return "", false
	}
	return *h.command, true
}

// commandsBegin takes what begins a command.
func (h *Host) commandsBegin(prefix string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.command = &prefix
}

// learn takes what a message says. So far is the host on the connection that it
// has come on.
func (h *Host) learn(facts []Fact, seq int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq = max(h.seq, seq)
	h.heard++
	for i := range facts {
		f := &facts[i]
		f.when.heard = h.heard
		if f.when.seq == 0 {
			f.when.seq = seq
		}
		switch f.Kind {
		case Has, HasNot, Lists, Claims:
			if f.What == Server {
				h.servers.Store(true)
			}
			h.ownershipLocked(f)
		case CanvasIs, CanvasChanges, CanvasSource:
			h.canvasLocked(f)
		}
	}
}

// HasServers reports whether the host has named the channel of an MCP server to any
// client.
func (h *Host) HasServers() bool { return h.servers.Load() }

// clientLocked returns what is remembered of a client, nil for one that cannot be.
func (h *Host) clientLocked(key clientKey) *client {
	if key.clientID == "" || len(key.clientID) > maxClientID {
		return nil
	}
	c, ok := h.clients.Get(key)
	if !ok {
		c = new(client)
		h.clients.Add(key, c)
	}
	return c
}

// greet remembers what a client has declared, if it has. Else it returns what the
// client declared before.
func (h *Host) greet(key clientKey, says hello, declares bool) (before hello, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.clientLocked(key)
	switch {
	case c == nil:
		return hello{}, false
	case declares:
		c.hello, c.known = says, true
	}
	return c.hello, c.known
}
