package agenthost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"ahprelay/agenthost/transcript"
	"ahprelay/auth"
)

// A Host is an AHP host. Its methods are safe for concurrent use. Host serves
// connections; its tables hold the state that connections share.
type Host struct {
	core

	// Set by New, then read-only. The lock guards all state in them.
	sessions   sessionTable
	terminals  terminalTable
	canvases   canvasTable
	changesets changesetTable
	mcp        mcpServers
	resources  resources

	chats map[string]*chat // guarded by the lock, like their state
	parts int              // number of the response part that was made last
	start sync.Once        // calls the agents' Start
}

// A core holds the parts of a host that its tables share: lock, clients, numbered
// actions, goroutines and timers.
type core struct {
	// Set by New, then read-only.
	cfg     Config
	dialect dialect
	log     *slog.Logger
	done    chan struct{}   // closed by Close
	ctx     context.Context // ends with done
	cancel  context.CancelFunc

	wg sync.WaitGroup // every goroutine and timer of the host

	mu     sync.Mutex // guards the fields below, and all state in the host's tables
	closed bool
	conns  map[*conn]bool
	timers map[*timer]bool

	seq       int64 // serverSeq of the latest envelope
	replay    []*record
	clients   map[string]*client
	connCount int64
	reverse   reverseCalls
	logSubs   int // number of subscriptions to log channels

	replayBytes int // of the frames in replay
}

// A sessionTable holds the host's sessions and agents.
type sessionTable struct {
	host *Host
	catalog[*session]

	deleted   []string                 // URIs of deleted sessions, the oldest first
	creating  map[string]chan struct{} // URIs of sessions that requests are creating; closed when the request has finished
	providers []*provider              // the agents
	listedAt  time.Time                // when the host last asked agents for conversations that began without it
	store     *transcript.Store        // nil: sessions end with the host
	lock      *os.File                 // lock file of the store
}

// A terminalTable holds the host's terminals.
type terminalTable struct {
	host *Host
	catalog[*terminal]
}

// A canvasTable holds the open canvases.
type canvasTable struct {
	host *Host
	catalog[*canvas]

	count  int           // canvases ever opened
	server *canvasServer // nil until it is needed
}

// A changesetTable holds the changesets by URI.
type changesetTable struct {
	host *Host
	open map[string]*changeset
}

// mcpServers holds the MCP servers, which all sessions share.
type mcpServers struct {
	host      *Host
	upstreams []*mcpUpstream // nil until the first connection
	signedIn  map[string]int // number of accepted tokens, by resource
}

// resources serves files.
type resources struct {
	host  *Host
	files *fileStore
}

// errHostClosed is the reason for connections that a closed host ends.
var errHostClosed = errors.New("host shutting down")

// New returns a host. It starts nothing and serves nothing yet. It fails if cfg is
// invalid, or if a directory in cfg cannot be opened or locked.
func New(cfg Config) (*Host, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	files, err := openFileStore(cfg)
	if err != nil {
		return nil, err
	}
	h := &Host{
		core: core{
			cfg:     cfg,
			dialect: dialects[cfg.Protocol],
			log:     cfg.Logger,
			done:    make(chan struct{}),
			conns:   make(map[*conn]bool),
			timers:  make(map[*timer]bool),
			clients: make(map[string]*client),
		},
		chats: make(map[string]*chat),
	}
	h.sessions.host, h.terminals.host, h.canvases.host = h, h, h
	h.sessions.creating = make(map[string]chan struct{})
	h.changesets = changesetTable{h, make(map[string]*changeset)}
	h.mcp = mcpServers{host: h, signedIn: make(map[string]int)}
	h.resources = resources{h, files}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	for _, a := range cfg.Agents {
		info := a.Info()
		h.sessions.providers = append(h.sessions.providers, &provider{agent: a, name: info.Provider, info: info})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.sessions.restoreLocked(); err != nil {
		return nil, fmt.Errorf("sessions in %s: %w", cfg.Storage, err)
	}
	return h, nil
}

// Close closes every connection, stops every turn and terminal, and returns when all
// of the host's goroutines have ended. Later calls wait for the first.
func (h *Host) Close() error {
	h.mu.Lock()
	first := !h.closed
	if first {
		h.closed = true
		close(h.done)
		h.cancel()
		for _, ch := range h.chats {
			if ch.seat.conv != nil {
				conv := ch.seat.conv
				h.wg.Go(func() { _ = conv.Close() })
			}
		}
		for t := range h.timers {
			t.stopLocked()
		}
		for _, term := range h.terminals.all() {
			term.backend.kill()
		}
		for c := range h.conns { // queued messages are dropped, as when the host's process dies
			c.out.mute()
		}
		for c := range h.conns {
			c.end(errHostClosed)
		}
		if h.canvases.server != nil {
			_ = h.canvases.server.server.Close()
		}
	}
	h.mu.Unlock()
	h.wg.Wait()
	if !first {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.resources.files.close()
	for _, ch := range h.chats {
		err = errors.Join(err, ch.log.close())
	}
	if h.sessions.lock != nil {
		err = errors.Join(err, auth.CloseLocked(h.sessions.lock))
	}
	return err
}

// goLocked runs f in a goroutine for which Close waits. On a closed host it does
// nothing.
func (h *core) goLocked(f func()) {
	if !h.closed {
		h.wg.Go(f)
	}
}

// A timer calls a function once, while it holds the host's lock.
type timer struct {
	host    *core
	timer   *time.Timer
	stopped bool // guarded by host.mu
}

// afterLocked calls f after d with h.mu held, unless the timer is stopped or the host
// closes first.
func (h *core) afterLocked(d time.Duration, f func()) *timer {
	t := &timer{host: h}
	if h.closed {
		t.stopped = true
		return t
	}
	h.wg.Add(1)
	h.timers[t] = true
	t.timer = time.AfterFunc(d, func() {
		defer h.wg.Done()
		h.mu.Lock()
		defer h.mu.Unlock()
		if t.stopped {
			return
		}
		t.stopped = true
		delete(h.timers, t)
		f()
	})
	return t
}

// stopLocked prevents the call. It does nothing for a nil timer.
func (t *timer) stopLocked() {
	if t == nil || t.stopped {
		return
	}
	t.stopped = true
	delete(t.host.timers, t)
	if t.timer.Stop() {
		t.host.wg.Done()
	}
}

// A catalog is a map that keeps the order of insertion.
type catalog[T any] struct {
	keys   []string
	values map[string]T
}

func (c *catalog[T]) get(key string) (T, bool) {
	v, ok := c.values[key]
	return v, ok
}

func (c *catalog[T]) add(key string, v T) {
	if c.values == nil {
		c.values = make(map[string]T)
	}
	c.keys = append(c.keys, key)
	c.values[key] = v
}

func (c *catalog[T]) remove(key string) {
	delete(c.values, key)
	c.keys = slices.DeleteFunc(c.keys, func(k string) bool { return k == key })
}

func (c *catalog[T]) all() []T {
	values := make([]T, 0, len(c.keys))
	for _, key := range c.keys {
		values = append(values, c.values[key])
	}
	return values
}
