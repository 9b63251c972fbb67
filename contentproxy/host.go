package contentproxy

import (
	"bytes"
	"maps"
	"sync"

	"ahprelay/ahp"
)

// DefaultLimit is how large a resource may be, in bytes: in base64 it fits
// into a frame of 32 MiB.
const DefaultLimit = 16 << 20

// Bounds of what is remembered.
const (
	maxCanvases = 1024 // of a host, and of a connection
	maxWaiting  = 1024 // requests of a connection whose answers are awaited
	maxClaims   = 1024 // what clients have said of a host's canvases
)

// Config says what a [Host] may do.
type Config struct {
	Off       bool     // loopback addresses pass as they are
	DenyPorts []string // ports of origins that are never read; the AHP host's own belongs here
	Limit     int      // bytes of one resource; default DefaultLimit
}

// A Host is what the connections to one AHP host have in common.
type Host struct {
	cfg     Config
	fetcher *fetcher

	mu       sync.Mutex
	canvases map[string]canvas // by channel, as last told on any connection
	sessions map[string]string // by the channel of a canvas
	claims   map[claim]bool
}

// A claim is a port of which a client has said that a canvas's content is there.
type claim struct{ channel, port string }

// A canvas is what the host has said about an instance.
type canvas struct {
	instance string
	server   bool   // its provider is the host
	origin   origin // of its content; zero: not minted
}

// NewHost returns what connects the connections to one AHP host.
func NewHost(cfg Config) *Host {
	if cfg.Limit == 0 {
		cfg.Limit = DefaultLimit
	}
	return &Host{cfg: cfg, fetcher: newFetcher(cfg.Limit), canvases: map[string]canvas{}, sessions: map[string]string{}, claims: map[claim]bool{}}
}

// Close ends the idle connections to origins.
func (h *Host) Close() { h.fetcher.client.CloseIdleConnections() }

// known returns what was last said about a canvas.
func (h *Host) known(channel string) (canvas, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.canvases[channel]
	return c, ok
}

func (h *Host) learn(channel string, c canvas) {
	h.mu.Lock()
	defer h.mu.Unlock()
	remember(h.canvases, channel, c)
}

// forget forgets a canvas that is closed, but not whose it was: other
// connections have still to hear that it is closed.
func (h *Host) forget(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.canvases, channel)
	maps.DeleteFunc(h.claims, func(c claim, _ bool) bool { return c.channel == channel })
}

// claimed takes note of the addresses that a client dispatches to a canvas.
func (h *Host) claimed(env *ahp.Envelope) {
	channel := string(env.Channel)
	ahp.Strings(env.Params, func(s ahp.StringAt) bool {
		if o, ok := claimedOrigin(s); ok {
			h.mu.Lock()
			defer h.mu.Unlock()
			if len(h.claims) < maxClaims {
				h.claims[claim{channel, o.port}] = true
			}
		}
		return true
	})
}

// claimedOrigin returns the origin that a member of an action names as that of a
// canvas's content.
func claimedOrigin(s ahp.StringAt) (origin, bool) {
	if s.IsKey || !bytes.EqualFold(s.Key, []byte("url")) && !bytes.EqualFold(s.Key, []byte("contentUri")) {
		return origin{}, false
	}
	o, _, ok := splitLoopback(string(s.Text))
	return o, ok
}

// mayBeClients reports whether an address in the state of a canvas may have come
// there from a client: one has said it, and the host has not said it before.
// When there are too many to remember, any may.
func (h *Host) mayBeClients(channel string, o origin) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.canvases[channel].origin == o {
		return false
	}
	return h.claims[claim{channel, o.port}] || len(h.claims) >= maxClaims
}

// belongs notes the session of a canvas.
func (h *Host) belongs(channel, session string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	remember(h.sessions, channel, session)
}

func (h *Host) sessionOf(channel string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sessions[channel]
}

// remember puts something into a map that is bounded. What goes for it is
// learnt again with the next snapshot.
func remember[V any](m map[string]V, key string, value V) {
	if _, ok := m[key]; !ok && len(m) >= maxCanvases {
		for other := range m {
			delete(m, other)
			break
		}
	}
	m[key] = value
}
