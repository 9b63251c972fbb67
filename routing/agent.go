package routing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/internal/lockorder"
)

// A HostConn is a host-agent's connection to the local host, on behalf of one client.
// A link's reader calls its methods. They must not block, nor call back into the
// [AgentConn].
type HostConn interface {
	// Deliver queues a message for the host. Once it is written, the host-agent calls
	// [AgentConn.Written] with the message's credit. That bounds the queue.
	Deliver(message []byte, binary bool, credit int)

	// Flush makes the host-agent call [AgentConn.Flushed] once every message delivered
	// before is written to the host.
	Flush()

	// Closed reports that the client is gone: no message follows. The host-agent still
	// writes what is queued, then closes the local connection.
	Closed(code ahp.CloseCode, reason string)
}

// A Mover is a [HostConn] that can continue on a different relay.
type Mover interface {
	// Move is Flush, but the host-agent keeps the connection to the host, if it can, and
	// tells [AgentConn.Flushed] whether it does.
	Move(m Move)
}

// A Move is a relay's request to keep a connection for a client that continues elsewhere.
type Move struct {
	Ticket string      // of the client
	Until  time.Time   // the connection is kept no longer
	Holder auth.Holder // whose revocation ends it
}

// ErrConnClosed reports the use of a connection that has ended.
var ErrConnClosed = errors.New("connection closed")

// An AgentEndConfig sets the bounds of an [AgentEnd]. A zero field means its default.
type AgentEndConfig struct {
	Instance string // the host-agent's instance

	// Connect connects a client to the host. A link's reader calls it, so it must not
	// block: it returns at once, and calls Opened or Close on conn later.
	Connect func(conn *AgentConn, open Open) HostConn

	Credit     int // bytes a relay may send ahead on each connection; default 1 MiB
	MaxFrame   int // longest message in bytes; default 128 MiB
	QueueLimit int // bytes queued for each client behind the message being sent, before the host is held back; default 8 MiB
	Window     int // bytes of recent bodies kept; default 8 MiB
	Pinned     int // for each link, bytes of bodies still to be published or possibly requested by the relay; default 32 MiB

	// MaxQueued bounds the bytes queued for all clients and for the host, beside the
	// window. Beyond it, the connection without progress for longest is closed.
	// Default 512 MiB; at least twice MaxFrame.
	MaxQueued int

	// Delayed receives the time between a host message's arrival and its departure on
	// a link, for a sample of messages. It must not block, nor call the AgentEnd. May
	// be nil.
	Delayed func(time.Duration)

	// Sealed makes connections share sealed bodies only: see Tagger.
	Sealed bool

	// Stall is the longest time a client may take nothing while its host is held back.
	// Default 40 s: stock clients give up after 25 s, and a dropped line may be silent
	// for a resume window.
	Stall time.Duration
}

func (c AgentEndConfig) withDefaults() AgentEndConfig {
	def := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&c.Credit, 1<<20)
	def(&c.MaxFrame, 128<<20)
	def(&c.QueueLimit, 8<<20)
	def(&c.Window, 8<<20)
	def(&c.Pinned, 32<<20)
	def(&c.MaxQueued, 512<<20)
	if c.Stall == 0 {
		c.Stall = 40 * time.Second
	}
	return c
}

// shareFrom is the number of connections to which a notification must be likely to go
// before it is published.
const shareFrom = 2

// maxBody bounds a shared message. A longer message goes to each connection
// separately, in fragments.
const maxBody = 512 << 10

// An AgentEnd is the host-agent's end of all links. It takes the host's messages on
// each connection, and sends equal bytes across each link only once. It implements
// [link.AgentTraffic] and is safe for concurrent use.
type AgentEnd struct {
	cfg AgentEndConfig

	mu       lockorder.Mutex[lockorder.Routing] // guards the fields below, the links and the connections
	bodies   bodyTable
	channels channelTable
	publish  fifo[*body]
	waiting  int     // bytes in publish
	queued   uint64  // bodies ever put into publish
	left     uint64  // bodies ever taken out of publish
	together []*body // scratch

	leaving       []byte // the message that NextBody has returned for the front of publish; nil: none
	leavingBodies int    // bodies in leaving
	links         []*agentLink
	conns         int
	long          longSeen
	held          int // bytes in the queues of all streams, and of fragmented messages on their way to the host
	wholes        int // bytes of held in complete messages

	short    bool                    // more than half of MaxQueued is in use
	crowded  bool                    // more than crowdShare's part of it is in use
	waiters  map[*AgentConn]struct{} // held back, with a waiting caller
	turns    []*turn                 // large messages still to be read, next first
	reserved int                     // bytes of large messages being read
	uploads  []*AgentConn            // connections with an incomplete message for the host, oldest first
}

// NewAgentEnd returns an AgentEnd without links.
func NewAgentEnd(cfg AgentEndConfig) *AgentEnd {
	cfg = cfg.withDefaults()
	return &AgentEnd{cfg: cfg, bodies: newBodyTable(cfg.Window), channels: newChannelTable(), waiters: map[*AgentConn]struct{}{}}
}

// Hello returns the bounds announced to relays.
func (a *AgentEnd) Hello() link.Hello {
	hello := link.Hello{Credit: a.cfg.Credit, MaxFrame: a.cfg.MaxFrame}
	if a.cfg.Sealed {
		hello.Features = []string{link.FeatureSealed, link.FeatureTags}
	}
	return hello
}

// Accept implements [link.AgentTraffic].
func (a *AgentEnd) Accept(relay string, offer link.Hello, lines link.Lines) link.Traffic {
	l := &agentLink{
		agent: a, relay: relay, lines: lines, credit: min(offer.Credit, maxCredit),
		conns: map[uint64]*AgentConn{}, watches: map[uint64]*channelLink{},
		feeds: offer.Has(link.FeatureFeed) && !a.cfg.Sealed, tags: offer.Has(link.FeatureTags) && a.cfg.Sealed,
	}
	l.mux.batch.tagged = a.cfg.Sealed
	l.mux.count = func(n int) { a.held += n }
	l.mux.drained, l.mux.delay.report = l.drained, a.cfg.Delayed
	l.mux.chunks.limit = max(0, offer.Chunks)
	l.mux.batch.room = a.cfg.Pinned
	l.mux.batch.floor = a.bodies.floor
	l.mux.batch.left = func() uint64 { return a.left }
	a.mu.Lock()
	defer a.mu.Unlock()
	a.links = append(a.links, l)
	return l
}

// Stats are the bytes and links held by an AgentEnd.
type Stats struct {
	Links  int // to relays
	Queued int // bytes that wait for clients and for the host, and bodies still needed outside of the window
	Window int // bytes of recent bodies, kept for comparison
}

// Stats returns the current figures.
func (a *AgentEnd) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Stats{Links: len(a.links), Queued: a.total(), Window: a.bodies.bytes}
}

// NextBody implements [link.AgentTraffic].
func (a *AgentEnd) NextBody() (token string, payload []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaving == nil {
		for a.publish.len() > 0 && (*a.publish.at(0)).frame == nil { // outside of the window and no longer needed
			a.skip()
		}
		if a.publish.len() == 0 {
			return "", nil
		}
		a.leaving, a.leavingBodies = a.nextBodies()
	}
	return (*a.publish.at(0)).channel.token, a.leaving
}

// nextBodies returns a message with the first bodies to publish, and their number. It puts
// many bodies into one message, because a message costs NATS and relays more than its
// bytes.
func (a *AgentEnd) nextBodies() (message []byte, n int) {
	first := *a.publish.at(0)
	together := append(a.together[:0], first)
	defer func() { clear(together) }()
	for bytes := len(first.frame); len(together) < a.publish.len(); {
		b := *a.publish.at(len(together))
		if bytes += len(b.frame); b.frame == nil || b.channel != first.channel || bytes > mostTogether {
			break
		}
		together = append(together, b)
	}
	a.together = together
	if len(together) > 1 {
		return encodeBodies(a.cfg.Instance, together), len(together)
	}
	return encodeBody(a.cfg.Instance, first.number, first.frame), 1
}

// Published implements [link.AgentTraffic].
func (a *AgentEnd) Published() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ; a.leavingBodies > 0; a.leavingBodies-- {
		a.skip()
	}
	a.leaving = nil
}

// skip removes the first body from the publish queue.
func (a *AgentEnd) skip() {
	b := a.publish.pop()
	a.waiting -= b.size
	a.left++
}

// fromHost takes a message from the host on one connection, and reports whether to
// wake the link's writer.
func (a *AgentEnd) fromHost(c *AgentConn, message []byte, binary bool, channel []byte) (due bool, err error) {
	share := !binary && len(channel) > 0 && len(message) <= maxBody && !a.cfg.Sealed
	var hash uint64
	if share {
		hash = bodyHash(message)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.stream.ended {
		return false, ErrConnClosed
	}
	defer a.grown()
	// Sharing gains nothing for a single client.
	if !share || a.conns < shareFrom {
		it := item{frame: kept(message), whole: len(message), binary: binary}
		if !binary && len(channel) > 0 {
			it.fed = a.feedOnce(c.link, channel, message)
		}
		return true, c.queue(it)
	}
	b := a.bodies.find(hash, message)
	if b == nil {
		b = a.newBody(hash, kept(message), channel)
	}
	return a.send(c, b, time.Now())
}

// notify takes consecutive notifications from the host on one connection. It returns
// how many it took, and whether to wake the link's writer.
func (a *AgentEnd) notify(c *AgentConn, row []*Notification) (taken int, due bool, err error) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.stream.ended {
		return 0, false, ErrConnClosed
	}
	defer a.grown()
	for i, n := range row {
		var look bool
		if len(n.channel) == 0 || len(n.message) > maxBody || a.conns < shareFrom {
			if look = true; n.sum != nil {
				err = queueSealed(c, n.message, n.sum)
			} else {
				err = c.queue(item{frame: n.message, whole: len(n.message), fed: a.feedOnce(c.link, n.channel, n.message)})
			}
		} else {
			look, err = a.send(c, a.bodyOf(n), now)
		}
		if err != nil {
			return i, due, err
		}
		due = due || look
	}
	return len(row), due, nil
}

// bodyOf returns the body for a notification, and creates it if necessary.
func (a *AgentEnd) bodyOf(n *Notification) *body {
	if n.body == nil || n.body.old {
		if n.body = a.bodies.find(n.hash, n.message); n.body == nil {
			n.body = a.newBody(n.hash, n.message, n.channel)
			n.body.sum = n.sum
		}
	}
	return n.body
}

// newBody adds a new message to the table. It publishes the message if several
// connections of listening relays are likely to receive it.
func (a *AgentEnd) newBody(hash uint64, message, uri []byte) *body {
	ch, forgotten := a.channels.channel(uri)
	if forgotten != nil {
		forgotten.forget()
	}
	ch.age(time.Now())
	b := a.bodies.add(hash, message, ch)
	if ch.receivers() >= shareFrom {
		a.share(b)
	}
	return b
}

// share publishes a body, and makes listening relays receive references to it.
func (a *AgentEnd) share(b *body) {
	if a.waiting > a.cfg.Pinned {
		return // the network is too slow: queues fill up, and their bounds apply
	}
	for _, on := range b.channel.links {
		if on.ready {
			b.arrival(on.link).shared = true
		}
	}
	a.queued++
	b.place = a.queued
	a.publish.push(b)
	a.waiting += b.size
}

// send queues a body for one connection: a reference if the relay hears the body, else
// its bytes. It reports whether to wake the link's writer.
func (a *AgentEnd) send(c *AgentConn, b *body, now time.Time) (due bool, err error) {
	arrival := b.arrival(c.link)
	arrival.count++
	on := arrival.on
	on.most[0] = max(on.most[0], arrival.count)
	if b.receivers() >= shareFrom || b.place != 0 { // the body crosses anyway, and must not cross twice
		b.channel.watch(b.arrivals)
		if on.ready && b.place == 0 { // more connections than expected
			a.share(b)
		}
	}
	if !arrival.shared && b.sum != nil {
		return true, queueSealed(c, b.frame, b.sum)
	}
	if !arrival.shared {
		it := item{frame: b.frame, whole: len(b.frame)}
		if !b.fed && b.place == 0 {
			it.fed = a.feed(b.channel.on(c.link), b.channel)
			b.fed = it.fed != 0
		}
		return true, c.queue(it)
	}
	return c.refer(b, arrival, now)
}

// forgetLink removes an ended link, also from all channels.
func (a *AgentEnd) forgetLink(link *agentLink) {
	a.links = slices.DeleteFunc(a.links, func(l *agentLink) bool { return l == link })
	for _, ch := range a.channels.byURI {
		for i, l := range ch.links {
			if l.link == link {
				ch.links = append(ch.links[:i], ch.links[i+1:]...)
				break
			}
		}
	}
}

// An AgentConn is one client's connection, at the host-agent.
type AgentConn struct {
	link   *agentLink
	stream stream
	host   HostConn
	bytes  bool // carries bytes in place of messages: see ByteConn

	full     atomic.Bool   // probably held back: Wait checks
	room     chan struct{} // closed when the connection may go on; nil: no caller waits
	holds    atomic.Bool   // reserved is not zero
	reserved int           // bytes of a host message being read
	credited int           // credit that the client has returned

	fed        time.Time // last progress of fragmented messages: the host took bytes, or the relay sent some
	partial    []byte    // collected fragments of a message
	whole      int       // bytes of complete fragmented messages, delivered but not written
	unwritten  int       // credit of delivered messages that are not written
	kept       int       // credit of fragments, withheld until everything delivered is written
	received   bool      // the relay's close has arrived
	hostClosed bool      // the host connection has been closed

	report func() Report // makes the next report for the relay; nil: none is due
}

// Opened tells the relay that the host accepts messages.
func (c *AgentConn) Opened() error { return c.signal(recordOpened) }

// Ready tells the relay that the host has accepted initialize or reconnect. Call it
// before FromHost takes the answer.
func (c *AgentConn) Ready() error { return c.signal(recordReady) }

// signal queues a record without fields.
func (c *AgentConn) signal(kind recordKind) error {
	return c.link.with(func() error {
		if c.stream.ended {
			return ErrConnClosed
		}
		// These records are few, so no bound applies.
		if err := c.link.mux.push(&c.stream, item{raw: appendRecord(nil, kind, c.stream.conn)}, math.MaxInt); err != nil {
			return err
		}
		c.link.lines.Wake()
		return nil
	})
}

// MaxLent is the longest message, in bytes, that an [AgentConn] copies in order to
// keep it. A longer message is kept as it is.
const MaxLent = 16 << 10

// kept returns a message that the caller's buffer does not share.
func kept(message []byte) []byte {
	if len(message) <= MaxLent {
		return bytes.Clone(message)
	}
	return message
}

// FromHost takes one complete message from the host on this connection. See MaxLent
// for its ownership. Channel is a notification's channel, else nil. FromHost never
// blocks: the reader calls Wait before each read. The error is [ErrConnClosed] once
// the client is gone.
func (c *AgentConn) FromHost(message []byte, binary bool, channel []byte) error {
	due, err := c.Take(message, binary, channel)
	if due {
		c.Send()
	}
	return err
}

// Take is FromHost for one of several messages that arrived together. If due, call
// Send after the last message.
func (c *AgentConn) Take(message []byte, binary bool, channel []byte) (due bool, err error) {
	return c.link.agent.fromHost(c, message, binary, channel)
}

// Send wakes the link's writer for the messages taken.
func (c *AgentConn) Send() { c.link.lines.Wake() }

// A Notification is a host message that may go to several connections. Its body is
// looked up once for all of them.
type Notification struct {
	message, channel []byte
	hash             uint64
	sum              *[32]byte // of a sealed body
	body             *body     // the body it was last; nil: none. The agent's mutex guards it.
}

// NewNotification returns a notification from an [AgentEnd]'s host. It keeps both
// slices, which must not change any more.
func NewNotification(message, channel []byte) *Notification {
	return &Notification{message: message, channel: channel, hash: bodyHash(message)}
}

// Message returns the message, which must not change.
func (n *Notification) Message() []byte { return n.message }

// Channel returns the channel of the notification.
func (n *Notification) Channel() []byte { return n.channel }

// Notify is Take for consecutive notifications. After an error, the first taken
// notifications were queued.
func (c *AgentConn) Notify(row []*Notification) (taken int, due bool, err error) {
	return c.link.agent.notify(c, row)
}

// Relay returns the instance of the client's relay.
func (c *AgentConn) Relay() string { return c.link.relay }

// Probe asks the relay whether the client is still connected.
func (c *AgentConn) Probe() {
	_ = c.link.with(func() error {
		if !c.stream.ended {
			// The record bypasses the stream, because a dead client's queue does not
			// move.
			c.link.mux.sendControl(appendRecord(nil, recordProbe, c.stream.conn))
			c.link.lines.Wake()
		}
		return nil
	})
}

// Flushed tells the relay that every message delivered before a Flush or Move is written
// to the host. If the host-agent keeps the connection for a Move, FromHost must take
// no more messages.
func (c *AgentConn) Flushed(keeps bool) error {
	if keeps {
		return c.signal(recordMoved)
	}
	return c.signal(recordFlushed)
}

// Written returns the credit of messages written to the host.
func (c *AgentConn) Written(n int) {
	_ = c.link.with(func() error {
		c.unwritten -= n
		c.fed = time.Now()
		if c.unwritten == 0 {
			c.wrote()
		}
		c.repay(n)
		c.link.agent.eased()
		return nil
	})
}

// wrote stops counting complete fragmented messages.
func (c *AgentConn) wrote() {
	c.link.agent.held -= c.whole
	c.link.agent.wholes -= c.whole
	c.whole = 0
}

// repay returns credit n. It adds withheld credit once the host has everything
// delivered and the message has its turn.
func (c *AgentConn) repay(n int) {
	if c.unwritten == 0 && c.link.agent.mayUpload(c) {
		n += c.kept
		c.kept = 0
	}
	if c.link.mux.written(&c.stream, n) {
		c.link.lines.Wake()
	}
}

// Close ends the connection after everything that FromHost has taken.
func (c *AgentConn) Close(code ahp.CloseCode, reason string) {
	_ = c.link.with(func() error {
		c.end(code, reason)
		return nil
	})
}

// Abort ends the connection at once, and drops unsent messages.
func (c *AgentConn) Abort(code ahp.CloseCode, reason string) {
	_ = c.link.with(func() error {
		c.link.mux.drop(&c.stream, c.link.agent.bodies.release)
		c.end(code, reason)
		return nil
	})
}

func (c *AgentConn) end(code ahp.CloseCode, reason string) {
	if !c.stream.ended {
		c.link.mux.end(&c.stream, code, reason)
		c.counted(-1)
		c.link.lines.Wake()
	}
	c.proceed()
	c.forget()
}

// counted adds n to the number of client connections.
func (c *AgentConn) counted(n int) {
	if !c.bytes {
		c.link.agent.conns += n
	}
}

// closeHost closes the host connection, because the client is gone.
func (c *AgentConn) closeHost(code ahp.CloseCode, reason string) {
	if !c.hostClosed {
		c.hostClosed = true
		c.host.Closed(code, reason)
	}
}

// forget removes a connection that has ended in both directions.
func (c *AgentConn) forget() {
	if c.stream.ended && c.received && c.link.conns[c.stream.conn] == c {
		delete(c.link.conns, c.stream.conn)
	}
}

// queue appends an item to the connection's queue. The caller wakes the link's writer.
func (c *AgentConn) queue(it item) error {
	err := c.link.mux.push(&c.stream, it, math.MaxInt)
	c.link.mux.delay.pushed(&c.stream)
	c.filled()
	return err
}

// refer queues a reference, or adds it to the batch if the queue is empty. It reports
// whether to wake the link's writer.
func (c *AgentConn) refer(b *body, a *arrival, now time.Time) (due bool, err error) {
	batch := &c.link.mux.batch
	if c.stream.items.len() > 0 || batch.full() || !c.link.mux.mayRefer(&c.stream) {
		if err := c.queue(item{body: b}); err != nil {
			return false, err
		}
		b.uses++
		return true, nil
	}
	first := len(batch.streams) == 0
	c.link.mux.refer(&c.stream, b)
	batch.expect(a, now)
	return first || batch.missing == 0 || batch.full(), nil
}

// decodeOpen decodes a relay's open record.
func decodeOpen(data []byte) (Open, error) {
	var open Open
	if err := json.Unmarshal(data, &open); err != nil {
		return open, fmt.Errorf("%w: open: %w", link.ErrBadPacket, err)
	}
	return open, nil
}

// CloseAll ends all connections after everything that FromHost has taken.
func (a *AgentEnd) CloseAll(code ahp.CloseCode, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.links {
		for _, c := range l.conns {
			c.end(code, reason)
		}
	}
}
