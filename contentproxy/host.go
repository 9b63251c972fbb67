package contentproxy

import (
	"sync"
)

// DefaultLimit is how large a resource may be, in bytes: in base64 it fits
// into a frame of 32 MiB.
const DefaultLimit = 16 << 20

// Bounds of what is remembered.
const (
	maxCanvases = 1024 // of a host, and of a connection
	maxWaiting  = 1024 // requests of a connection whose answers are awaited
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
}

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
	return &Host{cfg: cfg, fetcher: newFetcher(cfg.Limit), canvases: map[string]canvas{}, sessions: map[string]string{}}
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
