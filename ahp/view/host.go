package view

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Bounds of a Host.
const (
	maxOwned    = 16 << 10 // URIs with known owners, and channels with known lists
	maxOwners   = 8        // of a URI
	maxPrefixes = 4096
	maxCanvases = 1024
	maxClients  = 1024     // remembered clients
	maxKept     = 16 << 10 // total weight of the values kept for clients
	maxClientID = 4 << 10
)

// A Host holds the facts a host process has sent to all of its clients. It is safe for
// concurrent use.
type Host struct {
	key     func(uri string) string
	changes atomic.Uint64 // increases whenever a URI may have been removed from its owner
	servers atomic.Bool   // the host has named an MCP server's channel
	forgot  atomic.Bool   // owners, or lists of what they own, were removed for lack of room
	content atomic.Bool   // named content was removed for lack of room

	mu       sync.Mutex // guards the fields below
	seq      int64      // the highest serverSeq on any connection
	owned    *simplelru.LRU[string, *owned]
	named    *simplelru.LRU[string, *owned] // URIs that tools name: they displace no owner
	prefixes *simplelru.LRU[string, *owned] // templates, up to their first variable
	lists    *simplelru.LRU[listKey, stamp] // the time of the last complete list
	floor    stamp                          // highest time among lists that were removed for lack of room
	heard    uint64                         // number of messages
	canvases *simplelru.LRU[string, Canvas]
	clients  *simplelru.LRU[clientKey, *client]
	kept     int     // total weight of the values kept for clients
	command  *string // prefix of messages that the host runs as commands; nil: unknown
}

type clientKey struct{ subject, clientID string }

// A client holds a client's declaration and kept value until the client returns.
type client struct {
	hello  hello
	known  bool // hello is set
	kept   any
	weight int
}

// NewHost returns an empty Host. Key returns the form in which URIs are compared; nil:
// as they are written.
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
	forgets := func(string, *owned) { h.forgot.Store(true) }
	h.owned = newLRU(maxOwned, forgets)
	h.named = newLRU(maxOwned, func(string, *owned) { h.content.Store(true) })
	h.prefixes = newLRU(maxPrefixes, forgets)
	h.lists = newLRU(maxOwned, func(_ listKey, when stamp) {
		h.floor = later(h.floor, when) // older statements about owners do not count any more
		h.forgot.Store(true)
	})
	h.canvases = newLRU[string, Canvas](maxCanvases, nil)
	h.clients = newLRU(maxClients, func(_ clientKey, c *client) { h.kept -= c.weight })
	h.kept = 0
	h.servers.Store(false)
	h.forgot.Store(false)
	h.content.Store(false)
	h.changes.Add(1)
}

func later(a, b stamp) stamp {
	if a.before(b) {
		return b
	}
	return a
}

func newLRU[K comparable, V any](limit int, evicted func(K, V)) *simplelru.LRU[K, V] {
	l, _ := simplelru.NewLRU(limit, evicted) // an error occurs only for a limit of 0
	return l
}

// Ended removes all facts, because the host process has ended and they do not hold for
// its successor.
func (h *Host) Ended() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetLocked()
}

// Changes returns a counter that increases whenever a URI may no longer belong to a
// channel.
func (h *Host) Changes() uint64 { return h.changes.Load() }

func (h *Host) reached() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seq
}

// begins records the serverSeq in the response to initialize. If it is below the value
// at the time of the request, the host process is new, and begins removes all facts.
func (h *Host) begins(seq, before int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if seq < before {
		h.forgetLocked()
	}
}

// CommandPrefix returns the prefix of messages the host runs as commands, or "" for
// none. known is false if the host has not announced it yet.
func (h *Host) CommandPrefix() (prefix string, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.command == nil {
		return "", false
	}
	return *h.command, true
}

func (h *Host) commandsBegin(prefix string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.command = &prefix
}

// learn records a message's facts. seq is the host's serverSeq on the message's
// connection.
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
		case Has, HasNot, Lists, Claims, Keeps:
			if f.Thing == Server {
				h.servers.Store(true)
			}
			h.ownershipLocked(f)
		case CanvasIs, CanvasChanges, CanvasSource:
			h.canvasLocked(f)
		}
	}
}

// HasServers reports whether the host has named an MCP server's channel to any client.
func (h *Host) HasServers() bool { return h.servers.Load() }

// clientLocked returns a client's entry, which it creates if necessary. It returns nil for
// an invalid clientId.
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

// greet records a client's declaration if declares is set. It returns the client's latest
// declaration.
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
