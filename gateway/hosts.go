package gateway

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/gateway/canvas"
	"ahprelay/routing"
	"ahprelay/routing/audience"
)

// A hostKey names a host.
type hostKey struct{ tenant, name string }

// Times of links.
const (
	// linkRetry is the wait before a link that ended is made anew.
	linkRetry = 500 * time.Millisecond

	// linkIdle is how long a link without clients is kept.
	linkIdle = 30 * time.Second
)

// hosts has a link to each host that clients want, and tells the clients that
// wait for one.
type hosts struct {
	life    context.Context // the server's
	cfg     *Config
	lookup  func(tenant, host string) (registry.Host, bool) // what the registry knows
	spawn   func(func()) bool                               // starts a goroutine that the server waits for
	budget  *budget                                         // of all clients
	reports *reports
	viewers *audience.Memory // who has been in an audience

	mu      sync.Mutex // guards all that follows; not held while clients are called
	entries map[hostKey]*hostEntry
	closed  bool
}

// A hostEntry is a host that has clients or a link.
type hostEntry struct {
	clients map[*client]bool
	guests  int           // others that use the link: see borrow
	told    chan struct{} // closed when clients are told of the host; nil: no guest waits for that
	link    *hostLink
	moved   atomic.Int64 // when some of a client's large message last left for it, Unix time in ns
}

// used reports whether somebody wants the link.
func (e *hostEntry) used() bool { return len(e.clients)+e.guests > 0 }

// A hostLink is the link to the host-agent instance that serves a host.
type hostLink struct {
	agent  string
	cancel context.CancelCauseFunc
	idle   *time.Timer // ends a link without clients; nil while there are some
	use    linkUse
	link   *link.RelayLink
}

// linkUse is what clients need of a link.
type linkUse struct {
	relay     *routing.RelayEnd // nil until the host-agent has answered
	audiences *audience.Pool    // of clients that share a connection to the host
	maxFrame  int               // bytes of the longest message that it takes
	sees      bool              // the host-agent sees to what clients may do
	canvases  bool              // it takes streams to canvases
	previews  bool              // and to previews
}

// Reasons for the relay to end a link.
var (
	errAgentReplaced = errors.New("another host-agent serves the host now")
	errLinkIdle      = errors.New("no client uses the link")
	errRelayClosed   = errors.New("relay closed")
)

func newHosts(life context.Context, cfg *Config, lookup func(tenant, host string) (registry.Host, bool), spawn func(func()) bool) *hosts {
	return &hosts{life: life, cfg: cfg, lookup: lookup, spawn: spawn, viewers: audience.NewMemory(), entries: map[hostKey]*hostEntry{}}
}

// join adds a client, which is told of its host from now on.
func (h *hosts) join(c *client) {
	h.mu.Lock()
	e := h.entryLocked(c.host)
	e.clients[c] = true
	c.load.ofHost = &e.moved
	h.mu.Unlock()
	h.reports.add(c)
	c.reconsider()
}

// entryLocked returns a host's entry for somebody who uses it.
func (h *hosts) entryLocked(key hostKey) *hostEntry {
	e := h.entries[key]
	if e == nil {
		e = &hostEntry{clients: map[*client]bool{}}
		h.entries[key] = e
	}
	if e.link != nil && e.link.idle != nil {
		e.link.idle.Stop()
		e.link.idle = nil
	}
	return e
}

// leave removes a client.
func (h *hosts) leave(c *client) {
	h.reports.remove(c)
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[c.host]
	delete(e.clients, c)
	h.leftLocked(c.host, e)
}

// leftLocked sees to the entry of a host that somebody has left.
func (h *hosts) leftLocked(key hostKey, e *hostEntry) {
	if e.used() {
		return
	}
	if e.link == nil {
		delete(h.entries, key)
		return
	}
	l := e.link
	l.idle = time.AfterFunc(linkIdle, func() { h.endIdle(key, l) })
}

// borrow returns the link to a host for somebody who is no client of it, which is
// made if need be. It is kept until release is called, once.
func (h *hosts) borrow(ctx context.Context, key hostKey) (_ linkUse, release func(), err error) {
	h.mu.Lock()
	e := h.entryLocked(key)
	e.guests++
	h.mu.Unlock()
	release = func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		e.guests--
		h.leftLocked(key, e)
	}
	for {
		h.mu.Lock()
		if e.told == nil {
			e.told = make(chan struct{})
		}
		told := e.told
		h.mu.Unlock()
		host, link := h.find(key)
		switch {
		case link.relay != nil:
			return link, release, nil
		case host.State != registry.Online:
			release()
			return linkUse{}, nil, canvas.ErrHostAway
		}
		select {
		case <-told:
		case <-ctx.Done():
			release()
			return linkUse{}, nil, ctx.Err()
		}
	}
}

// endIdle ends a link if there are still no clients.
func (h *hosts) endIdle(key hostKey, l *hostLink) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[key]; e != nil && e.link == l && !e.used() {
		l.use.relay = nil // nobody comes back to it
		l.cancel(errLinkIdle)
	}
}

// retry reconsiders a client whose attempt to open a connection failed, after
// a moment.
func (h *hosts) retry(c *client) {
	time.AfterFunc(linkRetry, func() {
		if c.ctx.Err() == nil {
			c.reconsider()
		}
	})
}

// find returns how a host is, and the link to it. If the host is online and
// has clients, a link is made.
func (h *hosts) find(key hostKey) (registry.Host, linkUse) {
	host, _ := h.lookup(key.tenant, key.name)
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[key]
	if e == nil || h.closed {
		return host, linkUse{}
	}
	if l := e.link; l != nil {
		if l.agent == host.AgentInstance || host.AgentInstance == "" {
			return host, l.use
		}
		l.cancel(errAgentReplaced)
		return host, linkUse{} // runLink tells the clients when it has ended
	}
	if host.State == registry.Online && e.used() {
		ctx, cancel := context.WithCancelCause(h.life)
		l := &hostLink{agent: host.AgentInstance, cancel: cancel}
		if h.spawn(func() { h.runLink(ctx, key, l) }) {
			e.link = l
		} else {
			cancel(errRelayClosed)
		}
	}
	return host, linkUse{}
}

// runLink keeps one link until it ends.
func (h *hosts) runLink(ctx context.Context, key hostKey, l *hostLink) {
	defer l.cancel(nil)
	relay := routing.NewRelayEnd(routing.RelayEndConfig{
		Agent: l.agent, Encode: encodePiece, Append: appendText, EncodeIn: encodeIn, MaxFrame: h.cfg.MaxFrame, Queued: h.budget.add, Kept: h.budget.keep, Hold: h.budget.hold,
		BodyLimit: h.cfg.ofMemory(32, 32<<20), ChunkLimit: h.cfg.ofMemory(16, 64<<20),
		Report: func(r routing.Report) { h.reports.accept(key, r) },
	})
	hello := relay.Hello()
	hello.Version = h.cfg.Version
	hello.Features = []string{link.FeatureAuthority, link.FeatureCanvas, link.FeaturePreview}
	log := h.cfg.Log.With("tenant", key.tenant, "host", key.name, "agent", l.agent)
	linked := false
	link := link.NewRelayLink(h.cfg.Bus, link.RelayLinkConfig{
		Tenant: key.tenant, Host: key.name, Agent: l.agent, Relay: h.cfg.Instance,
		Hello: hello, Fence: func() uint64 { return h.fence(key) }, Prove: h.cfg.Keys.ProveLink, Link: link.Config{Resume: h.cfg.Resume}, Log: log,
	}, func(answer link.Hello, lines link.RelayLines) link.RelayTraffic {
		linked = true
		relay.Start(answer, lines)
		log.Info("linked", "agent_version", answer.Version)
		h.use(key, l, linkUse{relay, h.newPool(key, relay), h.maxFrame(answer), answer.Has(link.FeatureAuthority), answer.Has(link.FeatureCanvas), answer.Has(link.FeaturePreview)})
		return relay
	})
	h.mu.Lock()
	l.link = link
	h.mu.Unlock()
	err := link.Run(ctx)
	log.Info("link ended", "reason", err)
	if !linked && ctx.Err() == nil && !outdated(err) {
		h.unreachable(key, err)
	}
	if ctx.Err() == nil { // else the relay itself wanted that
		select {
		case <-time.After(linkRetry):
		case <-h.life.Done():
		}
	}
	h.drop(key, l)
	h.tellAll(key)
}

// fence returns the number of the newest lease of a host that is known.
func (h *hosts) fence(key hostKey) uint64 {
	host, _ := h.lookup(key.tenant, key.name)
	return host.Fence
}

// outdated reports whether a link came to nothing because its host-agent is not the
// newest: the newest is known, and clients wait for that one.
func outdated(err error) bool { return errors.Is(err, link.ErrOutdated) }

// newPool returns the place for audiences of a link's host.
func (h *hosts) newPool(key hostKey, relay *routing.RelayEnd) *audience.Pool {
	return audience.New(audience.Config{
		Open: func(open routing.Open, client routing.ClientConn) (audience.Upstream, error) {
			return openTraced(h.cfg.Tracer, key, relay, open, client)
		},
		Encode: encodePiece, Decode: decodePieces, Deflate: deflatePiece, Life: h.life, Spawn: h.spawn,
		Queued: h.budget.add, Kept: h.budget.keep, Memory: h.viewers,
	})
}

// watching returns how many audiences there are, and how many are in them.
func (h *hosts) watching() (audiences, viewers int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.entries {
		if e.link != nil && e.link.use.audiences != nil {
			a, v := e.link.use.audiences.Stats()
			audiences, viewers = audiences+a, viewers+v
		}
	}
	return audiences, viewers
}

// maxFrame is the longest message that a client may send to a host, in bytes:
// a host-agent takes a longer one for a fault of the relay, and ends the link.
func (h *hosts) maxFrame(agent link.Hello) int {
	if agent.MaxFrame <= 0 {
		return h.cfg.MaxFrame
	}
	return min(agent.MaxFrame, h.cfg.MaxFrame)
}

// use makes a link known that the host-agent has answered on. The link's
// reader calls it: clients open their connections from another goroutine.
func (h *hosts) use(key hostKey, l *hostLink, use linkUse) {
	h.mu.Lock()
	l.use = use
	h.mu.Unlock()
	h.spawn(func() { h.tellAll(key) })
}

// unreachable tells the clients that wait why there is no link.
func (h *hosts) unreachable(key hostKey, err error) {
	why := "its host-agent does not answer"
	var untrusted *link.UntrustedError
	if errors.Is(err, link.ErrIncompatible) || errors.As(err, &untrusted) {
		why = err.Error()
	}
	for _, c := range h.clientsOf(key) {
		c.unreachable(why)
	}
}

// drop forgets a link that has ended.
func (h *hosts) drop(key hostKey, l *hostLink) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[key]
	e.link = nil
	if l.idle != nil {
		l.idle.Stop()
	}
	if !e.used() {
		delete(h.entries, key)
	}
}

// changed is called by the registry when a host has changed. The link to a
// host-agent instance that gave the host up, or that another has come after, ends at
// once; if a lease only ran out, the link may still work, and notices itself if it
// does not.
func (h *hosts) changed(host registry.Host) {
	key := hostKey{host.Tenant, host.Name}
	h.mu.Lock()
	e := h.entries[key]
	known := e != nil
	if known && e.link != nil {
		switch agent := e.link.agent; {
		case agent == host.Released:
			e.link.cancel(&link.AgentGoneError{Reason: host.Reason})
		case host.AgentInstance != "" && agent != host.AgentInstance:
			e.link.cancel(errAgentReplaced) // the host is there: clients come again
		}
	}
	h.mu.Unlock()
	if known {
		h.spawn(func() { h.tellAll(key) })
	}
}

// tellAll reconsiders all clients of a host, and has its guests look.
func (h *hosts) tellAll(key hostKey) {
	h.mu.Lock()
	if e := h.entries[key]; e != nil && e.told != nil {
		close(e.told)
		e.told = nil
	}
	h.mu.Unlock()
	for _, c := range h.clientsOf(key) {
		c.reconsider()
	}
}

func (h *hosts) clientsOf(key hostKey) []*client {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[key]
	if e == nil {
		return nil
	}
	list := make([]*client, 0, len(e.clients))
	for c := range e.clients {
		list = append(list, c)
	}
	return list
}

// shed has all links hold less.
func (h *hosts) shed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.entries {
		if e.link != nil && e.link.use.relay != nil {
			e.link.use.relay.Shed()
		}
	}
}

// all returns all clients.
func (h *hosts) all() []*client {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*client
	for _, e := range h.entries {
		for c := range e.clients {
			list = append(list, c)
		}
	}
	return list
}

// links returns how many links there are.
func (h *hosts) links() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.entries {
		if e.link != nil {
			n++
		}
	}
	return n
}

// silent returns how many hosts with clients do not answer.
func (h *hosts) silent() (n int) {
	h.mu.Lock()
	var used []hostKey
	for key, e := range h.entries {
		if len(e.clients) > 0 {
			used = append(used, key)
		}
	}
	h.mu.Unlock()
	for _, key := range used {
		if host, _ := h.lookup(key.tenant, key.name); !host.Silent.IsZero() {
			n++
		}
	}
	return n
}

// resumed tells all links of a tenant that the connection to NATS was away.
func (h *hosts) resumed(tenant string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, e := range h.entries {
		if key.tenant == tenant && e.link != nil && e.link.link != nil {
			e.link.link.Resumed()
		}
	}
}

// close ends all links.
func (h *hosts) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, e := range h.entries {
		if e.link != nil {
			e.link.cancel(errRelayClosed)
		}
	}
}

// lend is borrow, for canvases by URL.
func (h *hosts) lend(ctx context.Context, tenant, host string) (canvas.Link, func(), error) {
	link, release, err := h.borrow(ctx, hostKey{tenant, host})
	return canvas.Link{Relay: link.relay, Canvases: link.canvases, Previews: link.previews}, release, err
}

// byToken returns who of a tenant is connected, by the tokens that they have.
func (h *hosts) byToken(tenant string) map[string][]peopleapi.Viewer {
	viewers := map[string][]peopleapi.Viewer{}
	for _, c := range h.all() {
		if who := c.token.now(); who.Tenant == tenant {
			viewers[who.ID] = append(viewers[who.ID], peopleapi.Viewer{Conn: c.id, Address: c.remote, Since: c.since.UTC()})
		}
	}
	return viewers
}
