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
	maxWaiting  = 256  // requests of a connection whose answers are awaited
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
	return &Host{cfg: cfg, fetcher: newFetcher(cfg.Limit), canvases: map[string]canvas{}}
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
	if _, ok := h.canvases[channel]; !ok && len(h.canvases) >= maxCanvases {
		for other := range h.canvases { // any: it is learnt again with its next snapshot
			delete(h.canvases, other)
			break
		}
	}
	h.canvases[channel] = c
}

func (h *Host) forget(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.canvases, channel)
}
