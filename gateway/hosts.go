package gateway

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/gateway/canvas"
	"ahprelay/gateway/wire"
	"ahprelay/routing"
	"ahprelay/routing/audience"
)

// A hostKey identifies a host.
type hostKey struct{ tenant, name string }

// Timing of links.
const (
	// linkRetry is the pause before a failed link or refused connection is tried again.
	linkRetry = 500 * time.Millisecond

	// linkIdle is how long an unused link is kept.
	linkIdle = 30 * time.Second
)

// hosts keeps a link to each host that is in use, and updates waiting clients when a host
// changes.
type hosts struct {
	life     context.Context // ends with the server
	cfg      *Config
	lookup   func(tenant, host string) (registry.Host, bool)      // finds a host in the registry
	enrolled func(ctx context.Context, tenant, host string) error // [registry.Registry.Find]
	spawn    func(func()) bool                                    // starts a goroutine that the server waits for
	cutOff   *atomic.Bool                                         // Server.cutOff
	budget   *budget                                              // shared by all clients
	reports  *reports
	viewers  *audience.Memory // viewers that have been in an audience

	mu      sync.Mutex // guards the fields below; not held during calls to clients, but to lookup
	entries map[hostKey]*hostEntry
	closed  bool
}

// A hostEntry is a host that has users or a link.
type hostEntry struct {
	clients map[*client]bool
	guests  int           // other users of the link: see borrow
	changed chan struct{} // closed when the host or its link changes; nil: no borrower waits
	link    *hostLink
	moved   atomic.Int64 // when the host last accepted part of a client's large message, Unix time in ns
}

// used reports whether the host has clients or borrowers.
func (e *hostEntry) used() bool { return len(e.clients)+e.guests > 0 }

// A hostLink is a link to a host-agent.
type hostLink struct {
	agent  string
	cancel context.CancelCauseFunc
	idle   *time.Timer // ends an unused link; nil while it has users
	use    linkUse
	link   *link.RelayLink
}

// linkUse holds the properties of a link that its users need.
type linkUse struct {
	relay     *routing.RelayEnd // nil: the host-agent has not answered yet, or the link is ending
	audiences *audience.Pool    // for clients that share a connection to the host
	maxFrame  int               // longest message in bytes that a client may send
	canvases  bool              // the host-agent accepts streams to canvases and previews
	seals     bool              // the host-agent opens sealed connections
	moves     bool              // the host-agent keeps connections for clients that change relays
}

// Reasons for ending a link.
var (
	errAgentReplaced = errors.New("another host-agent serves the host now")
	errLinkIdle      = errors.New("no client uses the link")
	errRelayClosed   = errors.New("relay closed")
)

func newHosts(life context.Context, cfg *Config, known directory, spawn func(func()) bool) *hosts {
	return &hosts{life: life, cfg: cfg, lookup: known.Lookup, enrolled: known.Find, spawn: spawn, viewers: audience.NewMemory(), entries: map[hostKey]*hostEntry{}}
}

// join adds a client. From now on, the client is updated when its host changes.
func (h *hosts) join(c *client) {
	h.mu.Lock()
	e := h.entryLocked(c.host)
	e.clients[c] = true
	c.load.ofHost = &e.moved
	h.mu.Unlock()
	h.reports.add(c)
	c.reconsider()
}

// entryLocked returns a host's entry for a new user, and stops the timer that would end
// an unused link.
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

func (h *hosts) leave(c *client) {
	h.reports.remove(c)
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[c.host]
	delete(e.clients, c)
	h.leftLocked(c.host, e)
}

// leftLocked updates a host's entry after a user has left: an entry without a link is
// removed, and an unused link ends after linkIdle.
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

// borrow returns the link to a host for a user other than a client. It makes the link if
// necessary. Without an error, the caller must call release exactly once.
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
		if e.changed == nil {
			e.changed = make(chan struct{})
		}
		changed := e.changed
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
		case <-changed:
		case <-ctx.Done():
			release()
			return linkUse{}, nil, ctx.Err()
		}
	}
}

// endIdle ends a link that is still unused.
func (h *hosts) endIdle(key hostKey, l *hostLink) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[key]; e != nil && e.link == l && !e.used() {
		l.use.relay = nil // no new client gets the link
		l.cancel(errLinkIdle)
	}
}

// wait returns when a value arrives, the channel is closed, or ctx ends.
func wait[T any](ctx context.Context, happened <-chan T) {
	select {
	case <-ctx.Done():
	case <-happened:
	}
}

// retry reconsiders a client after linkRetry.
func (h *hosts) retry(c *client) {
	time.AfterFunc(linkRetry, func() {
		if c.ctx.Err() == nil {
			c.reconsider()
		}
	})
}

// online reports whether a host's agent and the AHP host are running.
func (h *hosts) online(key hostKey) bool {
	host, _ := h.lookup(key.tenant, key.name)
	return host.State == registry.Online
}

// find returns a host's state and link. It makes the link if the host is online and
// has users.
func (h *hosts) find(key hostKey) (registry.Host, linkUse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	host, _ := h.lookup(key.tenant, key.name) // under mu: an earlier result could end a newer link
	e := h.entries[key]
	if e == nil || h.closed {
		return host, linkUse{}
	}
	if l := e.link; l != nil {
		if l.agent == host.AgentInstance || host.AgentInstance == "" {
			return host, l.use
		}
		l.cancel(errAgentReplaced)
		return host, linkUse{} // runLink notifies the clients at its end
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

func (h *hosts) runLink(ctx context.Context, key hostKey, l *hostLink) {
	defer l.cancel(nil)
	feeds := h.newFeeder(key)
	var feed func(string, routing.Piece)
	if feeds != nil {
		feed = feeds.take
		h.spawn(func() { feeds.run(ctx) }) // spawn fails when the server ends, and then the link ends too
	}
	relay := routing.NewRelayEnd(routing.RelayEndConfig{
		Agent: l.agent, Encode: wire.EncodePiece, Append: wire.AppendWhole, EncodeIn: wire.EncodeIn, MaxFrame: h.cfg.MaxFrame, Queued: h.budget.add, Kept: h.budget.keep, Hold: h.budget.hold,
		Credit: h.cfg.firstCredit(), MostCredit: mostCredit, Lend: h.budget.lend,
		BodyLimit: h.cfg.ofMemory(32, 32<<20), ChunkLimit: h.cfg.ofMemory(16, 64<<20),
		Report: func(r routing.Report) { h.reports.accept(key, r) }, Feed: feed,
	})
	hello := relay.Hello()
	hello.Version = h.cfg.Version
	hello.Features = []string{link.FeatureAuthority, link.FeatureCanvas, link.FeaturePreview, link.FeatureSealed, link.FeatureTags, link.FeatureCrowds, link.FeatureMove}
	if feeds != nil {
		hello.Features = append(hello.Features, link.FeatureFeed)
	}
	log := h.cfg.Log.With("tenant", key.tenant, "host", key.name, "agent", l.agent)
	linked := false
	link := link.NewRelayLink(h.cfg.Bus, link.RelayLinkConfig{
		Tenant: key.tenant, Host: key.name, Agent: l.agent, Relay: h.cfg.Instance,
		Hello: hello, Fence: func() uint64 { return h.fence(key) }, Prove: h.cfg.Keys.Links().Prove, Link: link.Config{Resume: h.cfg.Resume}, Log: log,
	}, func(answer link.Hello, lines link.RelayLines) link.RelayTraffic {
		linked = true
		relay.Start(answer, lines)
		log.Info("link opened", "agent_version", answer.Version)
		h.use(key, l, linkUse{relay, h.newPool(key, relay), h.maxFrame(answer), answer.Has(link.FeatureCanvas), answer.Has(link.FeatureSealed), answer.Has(link.FeatureMove)})
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
	if ctx.Err() == nil { // else the relay itself ended the link
		wait(h.life, time.After(linkRetry))
	}
	h.drop(key, l)
	h.reconsiderAll(key)
}

// fence returns the fencing number in the host's latest known lease.
func (h *hosts) fence(key hostKey) uint64 {
	host, _ := h.lookup(key.tenant, key.name)
	return host.Fence
}

// outdated reports whether a link failed because the host-agent's lease is outdated.
// Clients then wait for the host-agent with the newer lease.
func outdated(err error) bool { return errors.Is(err, link.ErrOutdated) }

// newPool returns the pool for audiences at a link's host.
func (h *hosts) newPool(key hostKey, relay *routing.RelayEnd) *audience.Pool {
	return audience.New(audience.Config{
		Open: func(open routing.Open, client routing.ClientConn) (audience.Upstream, error) {
			return openTraced(h.cfg.Tracer, key, relay, open, client)
		},
		Encode: wire.EncodePiece, Decode: wire.DecodePieces, Deflate: wire.DeflatePiece, Life: h.life, Spawn: h.spawn,
		Queued: h.budget.add, Kept: h.budget.keep, Memory: h.viewers,
	})
}

// watching returns the number of audiences and of their viewers.
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

// maxFrame returns the longest message in bytes that a client may send to a host. A
// host-agent that gets a longer one ends the client's connection.
func (h *hosts) maxFrame(agent link.Hello) int {
	if agent.MaxFrame <= 0 {
		return h.cfg.MaxFrame
	}
	return min(agent.MaxFrame, h.cfg.MaxFrame)
}

// use makes a link available to clients after the host-agent's hello. It runs in the
// link's reader, so it starts a goroutine in which clients open their connections.
func (h *hosts) use(key hostKey, l *hostLink, use linkUse) {
	h.mu.Lock()
	l.use = use
	h.mu.Unlock()
	h.spawn(func() { h.reconsiderAll(key) })
}

// unreachable tells the waiting clients why the link failed.
func (h *hosts) unreachable(key hostKey, err error) {
	why := "its host-agent does not answer"
	var untrusted *link.UntrustedError
	if errors.Is(err, link.ErrIncompatible) || errors.Is(err, link.ErrRefused) || errors.As(err, &untrusted) {
		why = err.Error()
	}
	for _, c := range h.clientsOf(key) {
		c.unreachable(why)
	}
}

// drop removes a link that has ended.
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

// changed is the registry's callback for a changed host. It ends the link if the link's
// host-agent has released the host or was replaced. An expired lease does not end a link,
// because the link may still work, and it detects its own failure.
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
			e.link.cancel(errAgentReplaced) // the host stays online: clients reconnect
		}
	}
	h.mu.Unlock()
	if known {
		h.spawn(func() { h.reconsiderAll(key) })
	}
}

// reconsiderAll reconsiders all clients of a host, and wakes those that wait in borrow.
func (h *hosts) reconsiderAll(key hostKey) {
	h.mu.Lock()
	if e := h.entries[key]; e != nil && e.changed != nil {
		close(e.changed)
		e.changed = nil
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
	return slices.Collect(maps.Keys(e.clients))
}

// shed reduces the memory that links hold.
func (h *hosts) shed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.entries {
		if e.link != nil && e.link.use.relay != nil {
			e.link.use.relay.Shed()
		}
	}
}

func (h *hosts) all() []*client {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*client
	for _, e := range h.entries {
		list = slices.AppendSeq(list, maps.Keys(e.clients))
	}
	return list
}

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

// silent counts the hosts in use that do not answer.
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

// resumed makes all links in a tenant check for lost packets.
func (h *hosts) resumed(tenant string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, e := range h.entries {
		if key.tenant == tenant && e.link != nil && e.link.link != nil {
			e.link.link.Resumed()
		}
	}
}

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

// lend is borrow for package canvas. It fails while the relay is cut off, because
// requests from a canvas may change anything.
func (h *hosts) lend(ctx context.Context, tenant, host string) (canvas.Link, func(), error) {
	if h.cutOff.Load() {
		return canvas.Link{}, nil, canvas.ErrHostAway
	}
	link, release, err := h.borrow(ctx, hostKey{tenant, host})
	return canvas.Link{Relay: link.relay, Canvases: link.canvases, Sealed: link.seals}, release, err
}

// byToken returns the connected clients of a tenant, by token id.
func (h *hosts) byToken(tenant string) map[string][]peopleapi.Viewer {
	viewers := map[string][]peopleapi.Viewer{}
	for _, c := range h.all() {
		if who := c.token.now(); who.Tenant == tenant {
			viewers[who.ID] = append(viewers[who.ID], peopleapi.Viewer{Conn: c.id, Address: c.remote, Since: c.since.UTC()})
		}
	}
	return viewers
}

// A directory finds hosts for a Server. [registry.Registry] implements it.
type directory interface {
	Lookup(tenant, host string) (registry.Host, bool)
	Find(ctx context.Context, tenant, host string) error
}
