package routing

import (
	"bytes"
	"cmp"
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

// A HostConn is a host-agent's connection to the local host, on behalf of one client. Its
// methods are called under locks. They must not block, nor call back into the [AgentConn].
type HostConn interface {
	// Deliver queues a message for the host. Once the message is written, the host-agent
	// calls [AgentConn.Written] with its credit. The client's credit thus bounds the
	// queue.
	Deliver(message []byte, binary bool, credit int)

	// Flush makes the host-agent call [AgentConn.Flushed] once all messages delivered
	// before are written to the host.
	Flush()

	// Closed reports that the client's connection has ended; no message follows. The
	// host-agent still writes the queued messages, then closes its connection to the host.
	Closed(code ahp.CloseCode, reason string)
}

// A Mover is a [HostConn] that can continue on a different relay.
type Mover interface {
	// Move is Flush for a client that moves to a different relay. The host-agent keeps the
	// connection to the host if it can, and calls [AgentConn.Flushed] with the result.
	Move(m Move)
}

// A Move is a relay's request to keep the connection to the host, because the client will
// continue through a different relay.
type Move struct {
	Ticket string      // the secret with which the client continues
	Until  time.Time   // when the host-agent stops keeping the connection
	Holder auth.Holder // the client's token and device: a revocation of either ends the kept connection
}

// ErrConnClosed reports the use of a connection that has ended.
var ErrConnClosed = errors.New("connection closed")

// An AgentEndConfig sets the bounds of an [AgentEnd]. A zero field means its default.
type AgentEndConfig struct {
	Instance string // the host-agent's instance

	// Connect connects a client to the host. The link's reader calls it, so it must not
	// block: it returns at once, and later calls Opened or Close on conn.
	Connect func(conn *AgentConn, open Open) HostConn

	Credit     int // bytes a relay may send ahead on each connection; default 1 MiB
	MaxFrame   int // longest message in bytes; default 128 MiB
	QueueLimit int // bytes queued for each client, beside the message being sent, above which the host is not read for that client; default 8 MiB
	Window     int // bytes of recent bodies kept; default 8 MiB
	Pinned     int // bytes of bodies that wait for publication; also, for each link, bytes of bodies that the relay may still request; default 32 MiB

	// MaxQueued bounds the bytes queued for all clients and for the host, without the
	// window. Above it, the connection that has stalled for longest is closed. Default 512
	// MiB; at least twice MaxFrame.
	MaxQueued int

	// Delayed receives a sample of the delays between a message's arrival from the host
	// and its departure on a link. It must not block, nor call the AgentEnd. May be nil.
	Delayed func(time.Duration)

	// Sealed restricts sharing to sealed bodies: see Tagger.
	Sealed bool

	// Stall is how long a client may take no bytes while its queue is full and its host is
	// not read; the connection then ends. The default, 40 s, is the sum of 25 s,
	// after which stock clients give up a silent connection, and a resume window.
	Stall time.Duration
}

func (c AgentEndConfig) withDefaults() AgentEndConfig {
	c.Credit = cmp.Or(c.Credit, 1<<20)
	c.MaxFrame = cmp.Or(c.MaxFrame, 128<<20)
	c.QueueLimit = cmp.Or(c.QueueLimit, 8<<20)
	c.Window = cmp.Or(c.Window, 8<<20)
	c.Pinned = cmp.Or(c.Pinned, 32<<20)
	c.MaxQueued = cmp.Or(c.MaxQueued, 512<<20)
	c.Stall = cmp.Or(c.Stall, 40*time.Second)
	return c
}

// shareFrom is the expected number of receiving connections from which a notification is
// published as a body.
const shareFrom = 2

// maxBody bounds a shared message. A longer message is sent to each connection separately,
// in fragments.
const maxBody = 512 << 10

// An AgentEnd is the host-agent's end of all links. It takes the host's messages for each
// connection, and sends equal messages across each link only once. It implements
// [link.AgentTraffic] and is safe for concurrent use.
type AgentEnd struct {
	cfg AgentEndConfig

	mu       lockorder.Mutex[lockorder.Routing] // guards the fields below, the links and the connections
	bodies   bodyTable
	channels channelTable
	publish  fifo[*body]
	waiting  int     // bytes in publish
	queued   uint64  // bodies ever added to publish
	left     uint64  // bodies ever removed from publish
	together []*body // scratch

	leaving       []byte // the encoded message that NextBody has returned; nil: none
	leavingBodies int    // bodies in leaving
	links         []*agentLink
	conns         int
	long          longSeen
	held          int // bytes in the queues of all links except bodies, and of fragmented messages on their way to the host
	wholes        int // the part of held in complete messages for the host

	short    bool                    // set when more than 1/2 of MaxQueued is in use; cleared at 3/8
	crowded  bool                    // set when more than MaxQueued/crowdShare is in use; cleared at 3/4 of that
	waiters  map[*AgentConn]struct{} // connections whose reader waits because their queue is full
	turns    []*turn                 // large messages still to be read, next first
	reserved int                     // bytes of large messages being read
	uploads  []*AgentConn            // connections with an incomplete message for the host, oldest first
}

// NewAgentEnd returns an AgentEnd without links.
func NewAgentEnd(cfg AgentEndConfig) *AgentEnd {
	cfg = cfg.withDefaults()
	return &AgentEnd{cfg: cfg, bodies: newBodyTable(cfg.Window), channels: newChannelTable(), waiters: map[*AgentConn]struct{}{}}
}

// Hello returns the bounds and features announced to relays.
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
		conns: map[uint64]*AgentConn{}, crowds: map[uint64]*crowdLine{}, watches: map[uint64]*channelLink{},
		feeds: offer.Has(link.FeatureFeed) && !a.cfg.Sealed, knowsCrowds: offer.Has(link.FeatureCrowds),
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

// Stats are the sizes of an AgentEnd's queues.
type Stats struct {
	Links  int // to relays
	Queued int // bytes that wait for clients and for the host, and bodies that have left the window but are still needed
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
		for a.publish.len() > 0 && (*a.publish.at(0)).frame == nil { // the body has left the window, and its uses have ended
			a.skip()
		}
		if a.publish.len() == 0 {
			return "", nil
		}
		a.leaving, a.leavingBodies = a.nextBodies()
	}
	return (*a.publish.at(0)).channel.token, a.leaving
}

// nextBodies encodes the first bodies of the publish queue as one message, and returns
// their number. Several bodies share a message because each message has a cost at NATS and
// at relays beside its bytes.
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

func (a *AgentEnd) skip() {
	b := a.publish.pop()
	a.waiting -= b.size
	a.left++
}

// fromHost queues a host's message for one client. It reports whether to wake the link's
// writer.
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
	// With a single client, no message can be shared.
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

// notify queues consecutive notifications for one client. It returns how many it queued,
// and whether to wake the link's writer.
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

// bodyOf returns the body of a notification. It creates the body if the window has none.
func (a *AgentEnd) bodyOf(n *Notification) *body {
	if n.body == nil || n.body.old {
		if n.body = a.bodies.find(n.hash, n.message); n.body == nil {
			n.body = a.newBody(n.hash, n.message, n.channel)
			n.body.sum = n.sum
		}
	}
	return n.body
}

// newBody adds a message to the table. It publishes the message if several connections at
// subscribed relays will probably receive it.
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

// share publishes a body. From now on, relays subscribed to its channel get references to
// it.
func (a *AgentEnd) share(b *body) {
	if a.waiting > a.cfg.Pinned {
		return // publishing is too slow: send the bytes on each connection, whose bounds apply
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

// send queues a body for one connection: as a reference if the relay receives the
// published body, else as bytes. It reports whether to wake the link's writer.
func (a *AgentEnd) send(c *AgentConn, b *body, now time.Time) (due bool, err error) {
	arrival := b.arrival(c.link)
	arrival.count++
	on := arrival.on
	on.most[0] = max(on.most[0], arrival.count)
	if b.receivers() >= shareFrom || b.place != 0 { // a relay should receive a published body, not the same bytes on its link
		b.channel.watch(b.arrivals)
		if on.ready && b.place == 0 { // more connections receive the body than newBody expected
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

	full     atomic.Bool   // the queue is probably full: Wait checks
	room     chan struct{} // closed when Wait may return; nil: no caller waits
	holds    atomic.Bool   // reserved is not zero
	reserved int           // bytes of a host message being read
	credited int           // credit that the client has returned

	fed        time.Time // when the host last took messages, or the relay last sent a fragment
	partial    []byte    // collected fragments of a message
	whole      int       // bytes of complete fragmented messages, delivered but not written
	unwritten  int       // credit of delivered messages that are not written
	kept       int       // withheld credit of fragments, see repay
	received   bool      // the relay's close has arrived
	hostClosed bool      // the host connection has been closed

	crowd *crowdLine // the crowd that has the connection; nil: none

	report func() Report // makes the next report for the relay; nil: none is due
}

// Opened reports to the relay that the host accepts messages.
func (c *AgentConn) Opened() error { return c.signal(recordOpened) }

// Ready reports to the relay that the host has accepted initialize or reconnect. Call it
// before passing the host's answer to FromHost.
func (c *AgentConn) Ready() error { return c.signal(recordReady) }

// signal queues a record without fields.
func (c *AgentConn) signal(kind recordKind) error {
	c.link.agent.mu.Lock()
	defer c.link.agent.mu.Unlock()
	if c.stream.ended {
		return ErrConnClosed
	}
	// There are few such records, so no queue bound applies.
	if err := c.link.mux.push(&c.stream, item{raw: appendRecord(nil, kind, c.stream.conn)}, math.MaxInt); err != nil {
		return err
	}
	c.link.lines.Wake()
	return nil
}

// MaxLent is the longest message, in bytes, that an [AgentConn] copies. It keeps a longer
// message's memory itself.
const MaxLent = 16 << 10

// kept returns a copy of a message that is at most MaxLent bytes long, because its memory
// belongs to the caller. It returns a longer message itself.
func kept(message []byte) []byte {
	if len(message) <= MaxLent {
		return bytes.Clone(message)
	}
	return message
}

// FromHost takes one complete message from the host for this client. Messages longer than
// MaxLent are kept, shorter messages are copied. Channel is the channel of a notification,
// else nil. FromHost never blocks; the reader calls Wait before each read. The error is
// [ErrConnClosed] once the client has left.
func (c *AgentConn) FromHost(message []byte, binary bool, channel []byte) error {
	due, err := c.Take(message, binary, channel)
	if due {
		c.Send()
	}
	return err
}

// Take is FromHost for one of several messages that arrived together. If due is true for
// any of them, call Send after the last.
func (c *AgentConn) Take(message []byte, binary bool, channel []byte) (due bool, err error) {
	return c.link.agent.fromHost(c, message, binary, channel)
}

// Send wakes the link's writer after Take or Notify.
func (c *AgentConn) Send() { c.link.lines.Wake() }

// A Notification is a host's message for several connections. Its body is looked up once
// for all of them.
type Notification struct {
	message, channel []byte
	hash             uint64
	sum              *[32]byte // of a sealed body
	body             *body     // the body found last; nil: none. The agent's mutex guards it.
}

// NewNotification returns a notification. It keeps both slices, which must not change any
// more.
func NewNotification(message, channel []byte) *Notification {
	return &Notification{message: message, channel: channel, hash: bodyHash(message)}
}

// Message returns the message, which must not change.
func (n *Notification) Message() []byte { return n.message }

// Channel returns the channel of the notification.
func (n *Notification) Channel() []byte { return n.channel }

// Notify is Take for consecutive notifications. Even with an error, the first ones, as many
// as taken, are queued.
func (c *AgentConn) Notify(row []*Notification) (taken int, due bool, err error) {
	return c.link.agent.notify(c, row)
}

// Relay returns the instance of the client's relay.
func (c *AgentConn) Relay() string { return c.link.relay }

// Probe asks the relay whether the client is still connected.
func (c *AgentConn) Probe() {
	c.link.agent.mu.Lock()
	defer c.link.agent.mu.Unlock()
	if !c.stream.ended {
		// The record bypasses the stream: if the client is dead, its stream does not
		// move.
		c.link.mux.sendControl(appendRecord(nil, recordProbe, c.stream.conn))
		c.link.lines.Wake()
	}
}

// Flushed reports to the relay that all messages delivered before a Flush or Move are
// written to the host. Keeps reports that the connection to the host is kept for a Move;
// afterwards, FromHost must not be called.
func (c *AgentConn) Flushed(keeps bool) error {
	if keeps {
		return c.signal(recordMoved)
	}
	return c.signal(recordFlushed)
}

// Written returns the credit of messages that were written to the host.
func (c *AgentConn) Written(n int) {
	c.link.agent.mu.Lock()
	defer c.link.agent.mu.Unlock()
	c.unwritten -= n
	c.fed = time.Now()
	if c.unwritten == 0 {
		c.wrote()
	}
	c.repay(n)
	c.link.agent.eased()
}

// wrote subtracts the complete fragmented messages from the agent's queued bytes.
func (c *AgentConn) wrote() {
	c.link.agent.held -= c.whole
	c.link.agent.wholes -= c.whole
	c.whole = 0
}

// repay returns n bytes of credit to the relay. It also returns the withheld credit of
// fragments, if the host has all complete messages and the incomplete message may continue.
func (c *AgentConn) repay(n int) {
	if c.unwritten == 0 && c.link.agent.mayUpload(c) {
		n += c.kept
		c.kept = 0
	}
	if c.link.mux.written(&c.stream, n) {
		c.link.lines.Wake()
	}
}

// Close ends the connection after all messages that FromHost has taken.
func (c *AgentConn) Close(code ahp.CloseCode, reason string) {
	c.link.agent.mu.Lock()
	defer c.link.agent.mu.Unlock()
	c.end(code, reason)
}

// Abort ends the connection at once and drops unsent messages.
func (c *AgentConn) Abort(code ahp.CloseCode, reason string) {
	c.link.agent.mu.Lock()
	defer c.link.agent.mu.Unlock()
	c.link.mux.drop(&c.stream, c.link.agent.bodies.release)
	c.end(code, reason)
}

func (c *AgentConn) end(code ahp.CloseCode, reason string) {
	if !c.stream.ended {
		c.link.mux.end(&c.stream, code, reason)
		c.counted(-1)
		leaveCrowd(c)
		c.link.lines.Wake()
	}
	c.proceed()
	c.forget()
}

// counted adds n to the number of connections. Byte streams do not count.
func (c *AgentConn) counted(n int) {
	if !c.bytes {
		c.link.agent.conns += n
	}
}

// closeHost closes the connection to the host, once.
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

// refer adds a reference to the link's batch, or to the connection's queue. It reports
// whether to wake the link's writer.
func (c *AgentConn) refer(b *body, a *arrival, now time.Time) (due bool, err error) {
	batch := &c.link.mux.batch
	if c.stream.items.len() > 0 || c.stream.barred > 0 || batch.full() || !c.link.mux.mayRefer(&c.stream) {
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

func decodeOpen(data []byte) (Open, error) {
	var open Open
	if err := json.Unmarshal(data, &open); err != nil {
		return open, fmt.Errorf("%w: open: %w", link.ErrBadPacket, err)
	}
	return open, nil
}

// CloseAll ends all connections after all messages that FromHost has taken.
func (a *AgentEnd) CloseAll(code ahp.CloseCode, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.links {
		for _, c := range l.conns {
			c.end(code, reason)
		}
	}
}
