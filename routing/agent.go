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
	"ahprelay/broker/link"
	"ahprelay/internal/lockorder"
)

// A HostConn is a host-agent's connection to the local host, on behalf of one
// client. Its methods are called by a link's reader and must not block, nor
// call back into the [AgentConn].
type HostConn interface {
	// Deliver queues a message for the host. Once it is written, the host-agent
	// calls [AgentConn.Written] with the credit that it holds: that bounds what
	// is queued.
	Deliver(message []byte, binary bool, credit int)

	// Flush has the host-agent call [AgentConn.Flushed] once all that was
	// delivered before is written to the host.
	Flush()

	// Ask queues a request of the relay's own for the host, whose response
	// [AgentConn.Answer] takes.
	Ask(ask uint64, request []byte)

	// Closed says that the client is gone: nothing more comes. What is queued
	// is still to be written, and then the local connection to be closed.
	Closed(code ahp.CloseCode, reason string)
}

// ErrConnClosed reports the use of a connection that has ended.
var ErrConnClosed = errors.New("connection closed")

// An AgentEndConfig sets the bounds of an [AgentEnd]. The zero value of a field
// means its default.
type AgentEndConfig struct {
	Instance string // of the host-agent

	// Connect makes the connection to the host for a client. It is called by
	// a link's reader and must not block: it returns at once, and calls
	// Opened or Close on conn later.
	Connect func(conn *AgentConn, open Open) HostConn

	Credit     int // bytes that a relay may send ahead on each connection; default 1 MiB
	MaxFrame   int // bytes of the longest message; default 32 MiB
	QueueLimit int // bytes queued from the host behind the message being sent, for each connection, before that is held back; default 8 MiB
	Window     int // bytes of bodies kept; default 8 MiB
	Pinned     int // bytes of bodies that wait to be published, or that a relay may still ask for, for each link; default 32 MiB

	// ShareFrom is on how many connections the host is likely to send a
	// notification that is published for all of them. Default 2. With 1, all
	// notifications are on the subjects of their channels, at a price: see
	// BenchmarkSingleViewer.
	ShareFrom int

	// MaxQueued bounds what waits for all clients and for the host together,
	// bytes, beside the window: over it, the connection is closed that has
	// stood still for longest. Default 512 MiB; at least twice MaxFrame.
	MaxQueued int

	// Delayed is told how long messages of the host's have waited here until
	// they left on a link, of a part of them. It must not block, nor call the
	// AgentEnd. Default: nobody is told.
	Delayed func(time.Duration)

	// Stall is how long a client may take nothing while its host is held back.
	// Default 40 s: stock clients give up after 25, and for a resume window
	// nothing may be heard of one.
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
	def(&c.ShareFrom, 2)
	if c.Stall == 0 {
		c.Stall = 40 * time.Second
	}
	return c
}

// maxBody is the longest frame that is shared. Longer ones are sent to each
// connection, in fragments.
const maxBody = 512 << 10

// An AgentEnd is the host-agent's end of all that the links carry: it takes what
// the host sends on each connection, and has equal bytes cross only once. It
// implements [link.AgentTraffic] and is safe for concurrent use.
type AgentEnd struct {
	cfg AgentEndConfig

	mu       lockorder.Mutex[lockorder.Routing] // guards all that follows, and the links and connections
	bodies   bodyTable
	channels channelTable
	publish  fifo[*body]
	waiting  int     // bytes in publish
	queued   uint64  // how many bodies have been put in there
	left     uint64  // and taken out
	together []*body // scratch

	leaving       []byte // message of the first of publish that NextBody has returned; nil: none
	leavingBodies int    // how many bodies are in there
	links         []*agentLink
	conns         int
	held          int // bytes of frames in the queues of all streams, and of fragmented messages on their way to the host
	wholes        int // of those, bytes of messages that are whole

	short    bool                    // more than half of the memory there is, is in use
	waiters  map[*AgentConn]struct{} // that somebody waits for, held back
	turns    []*turn                 // large messages that are to be read, next first
	reserved int                     // bytes of those that are being read
	uploads  []*AgentConn            // with a message on its way to the host that is not whole, oldest first
}

// NewAgentEnd returns an AgentEnd without links.
func NewAgentEnd(cfg AgentEndConfig) *AgentEnd {
	cfg = cfg.withDefaults()
	return &AgentEnd{cfg: cfg, bodies: newBodyTable(cfg.Window), channels: newChannelTable(), waiters: map[*AgentConn]struct{}{}}
}

// Hello returns the bounds to announce to relays.
func (a *AgentEnd) Hello() link.Hello {
	return link.Hello{Credit: a.cfg.Credit, MaxFrame: a.cfg.MaxFrame, RefsCost: true}
}

// Accept implements [link.AgentTraffic].
func (a *AgentEnd) Accept(relay string, offer link.Hello, lines link.Lines) link.Traffic {
	l := &agentLink{
		agent: a, relay: relay, lines: lines, credit: min(offer.Credit, maxCredit),
		conns: map[uint64]*AgentConn{}, watches: map[uint64]*channelLink{}, takesReports: offer.Reports, takesSeveral: offer.Bodies,
	}
	l.mux.count = func(n int) { a.held += n }
	l.mux.refsCost, l.mux.drained, l.mux.delay.tell = offer.RefsCost, l.drained, a.cfg.Delayed
	l.mux.chunks.limit = max(0, offer.Chunks)
	l.mux.batch.room = a.cfg.Pinned
	l.mux.batch.floor = a.bodies.floor
	l.mux.batch.left = func() uint64 { return a.left }
	a.mu.Lock()
	defer a.mu.Unlock()
	a.links = append(a.links, l)
	if !l.takesSeveral {
		a.leaving, a.leavingBodies = nil, 0 // it may hold several
	}
	return l
}

// Stats are what an AgentEnd holds.
type Stats struct {
	Links  int // to relays
	Queued int // bytes that wait for clients and for the host, and bodies out of the window that are needed
	Window int // bytes of bodies that came last, kept to be found again
}

// Stats returns what the AgentEnd holds now.
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
		for a.publish.len() > 0 && (*a.publish.at(0)).frame == nil { // out of the window and out of use already
			a.skip()
		}
		if a.publish.len() == 0 {
			return "", nil
		}
		a.leaving, a.leavingBodies = a.nextBodies()
	}
	return (*a.publish.at(0)).channel.token, a.leaving
}

// nextBodies returns a message of the first bodies that are to be published, and of how
// many: of as many as may be in one, because each is more work to NATS and to relays than
// what is in it.
func (a *AgentEnd) nextBodies() (message []byte, n int) {
	first := *a.publish.at(0)
	together := append(a.together[:0], first)
	defer func() { clear(together) }()
	for bytes := len(first.frame); a.allTakeSeveral() && len(together) < a.publish.len(); {
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
	message = make([]byte, 0, len(first.frame)+len(a.cfg.Instance)+16)
	return appendBody(message, a.cfg.Instance, first.number, first.frame), 1
}

// allTakeSeveral reports whether all relays take several bodies in one message. Where all
// notifications are published somebody else may read them, who is to find one in each.
func (a *AgentEnd) allTakeSeveral() bool {
	return a.cfg.ShareFrom > 1 && !slices.ContainsFunc(a.links, func(l *agentLink) bool { return !l.takesSeveral })
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

// skip takes a body out of those to publish.
func (a *AgentEnd) skip() {
	b := a.publish.pop()
	a.waiting -= b.size
	a.left++
}

// fromHost takes a message that the host sent on one connection, and returns
// whether the link's writer is to look.
func (a *AgentEnd) fromHost(c *AgentConn, message []byte, binary bool, channel []byte) (due bool, err error) {
	share := !binary && len(channel) > 0 && len(message) <= maxBody
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
	// A client that is alone gains nothing from bodies.
	if !share || a.conns < a.cfg.ShareFrom {
		return true, c.queue(item{frame: kept(message), whole: len(message), binary: binary})
	}
	b := a.bodies.find(hash, message)
	if b == nil {
		b = a.newBody(hash, kept(message), channel)
	}
	return a.send(c, b, time.Now())
}

// notify takes notifications that the host sent on one connection, one after the
// other, and returns how many, and whether the link's writer is to look.
func (a *AgentEnd) notify(c *AgentConn, row []*Notification) (taken int, due bool, err error) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.stream.ended {
		return 0, false, ErrConnClosed
	}
	defer a.grown()
	for i, n := range row {
		look := true
		if len(n.channel) == 0 || len(n.message) > maxBody || a.conns < a.cfg.ShareFrom {
			err = c.queue(item{frame: n.message, whole: len(n.message)})
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

// bodyOf returns the body of a notification, which may be new.
func (a *AgentEnd) bodyOf(n *Notification) *body {
	if n.body == nil || n.body.old {
		if n.body = a.bodies.find(n.hash, n.message); n.body == nil {
			n.body = a.newBody(n.hash, n.message, n.channel)
		}
	}
	return n.body
}

// newBody puts a message that was not seen before into the table, and has it
// published if more than one connection is likely to be sent it by relays
// that listen.
func (a *AgentEnd) newBody(hash uint64, message, uri []byte) *body {
	ch, forgotten := a.channels.channel(uri)
	if forgotten != nil {
		forgotten.forget()
	}
	ch.age(time.Now())
	b := a.bodies.add(hash, message, ch)
	if ch.receivers() >= a.cfg.ShareFrom {
		a.share(b)
	}
	return b
}

// share has a body published, and references sent to the relays that listen.
func (a *AgentEnd) share(b *body) {
	if a.waiting > a.cfg.Pinned {
		return // the network takes too little: queues fill, and that has an end
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

// send queues a body for one connection: a reference if its relay hears the
// body, else the bytes. It returns whether the link's writer is to look.
func (a *AgentEnd) send(c *AgentConn, b *body, now time.Time) (due bool, err error) {
	arrival := b.arrival(c.link)
	arrival.count++
	on := arrival.on
	on.most[0] = max(on.most[0], arrival.count)
	if b.receivers() >= a.cfg.ShareFrom || b.place != 0 { // it crosses anyway: nobody is to get it twice
		b.channel.ask(b.arrivals)
		if on.ready && b.place == 0 { // more than were likely
			a.share(b)
		}
	}
	if !arrival.shared {
		return true, c.queue(item{frame: b.frame, whole: len(b.frame)})
	}
	return c.refer(b, arrival, now)
}

// forgetLink removes a link that ended from all channels.
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
	bytes  bool // it carries no messages: see ByteConn

	full     atomic.Bool   // held back, as far as is known: Wait looks
	room     chan struct{} // closed when it is held back no more; nil: nobody waits
	holds    atomic.Bool   // something is reserved
	reserved int           // bytes of a message of the host's that is being read

	fed       time.Time // when the host, or its part, last took something of such messages, or the relay brought some
	partial   []byte    // of a message that comes in fragments
	whole     int       // bytes of such messages that were delivered and not written
	unwritten int       // credit of messages that were delivered and not written
	kept      int       // credit of fragments, until all that was delivered is written
	received  bool      // the relay's close
	told      bool      // the host has been told that the client is gone

	report func() Report // what the relay is to be told; nil: nothing
}

// Opened tells the relay that the host takes messages.
func (c *AgentConn) Opened() error { return c.tell(recordOpened) }

// Ready tells the relay that the host has accepted the client's initialize or
// reconnect. Call it before FromHost takes that answer.
func (c *AgentConn) Ready() error { return c.tell(recordReady) }

func (c *AgentConn) tell(kind recordKind) error {
	return c.link.with(func() error {
		if c.stream.ended {
			return ErrConnClosed
		}
		// There are few of them, and they take no room.
		if err := c.link.mux.push(&c.stream, item{raw: appendRecord(nil, kind, c.stream.conn)}, math.MaxInt); err != nil {
			return err
		}
		c.link.lines.Wake()
		return nil
	})
}

// MaxLent is how long a message may be, in bytes, of which an [AgentConn] keeps
// a copy if at all; a longer one it keeps as it is.
const MaxLent = 16 << 10

// kept returns a message that may be kept.
func kept(message []byte) []byte {
	if len(message) <= MaxLent {
		return bytes.Clone(message)
	}
	return message
}

// FromHost takes one whole message that the host sent on this connection. See
// MaxLent for what becomes of it. Channel is its channel if it is a notification, else nil. It
// never waits: whoever reads the host asks Wait before. The error is
// [ErrConnClosed] once the client is gone.
func (c *AgentConn) FromHost(message []byte, binary bool, channel []byte) error {
	due, err := c.Take(message, binary, channel)
	if due {
		c.Send()
	}
	return err
}

// Take is FromHost for one of several messages that have come together: if it is
// due, Send is to be called behind the last of them.
func (c *AgentConn) Take(message []byte, binary bool, channel []byte) (due bool, err error) {
	return c.link.agent.fromHost(c, message, binary, channel)
}

// Send has what was taken leave.
func (c *AgentConn) Send() { c.link.lines.Wake() }

// A Notification is a message of the host's that it may send on several
// connections. It is looked up once for all of them.
type Notification struct {
	message, channel []byte
	hash             uint64
	body             *body // that it was last; nil: none. The agent's mutex guards it
}

// NewNotification returns a notification of one [AgentEnd]'s host. It keeps both
// slices, which may not change any more.
func NewNotification(message, channel []byte) *Notification {
	return &Notification{message: message, channel: channel, hash: bodyHash(message)}
}

// Notify is Take for notifications in a row. If it fails, those that were
// taken are the first of them.
func (c *AgentConn) Notify(row []*Notification) (taken int, due bool, err error) {
	return c.link.agent.notify(c, row)
}

// Relay returns the instance of the relay that the client is connected to.
func (c *AgentConn) Relay() string { return c.link.relay }

// Probe asks the relay whether the client is still there.
func (c *AgentConn) Probe() {
	_ = c.link.with(func() error {
		if !c.stream.ended {
			// Nothing may hold it up: what is queued for a client that is not
			// there does not move.
			c.link.mux.say(appendRecord(nil, recordProbe, c.stream.conn))
			c.link.lines.Wake()
		}
		return nil
	})
}

// Flushed tells the relay that what was delivered before a Flush has been
// written to the host.
func (c *AgentConn) Flushed() error { return c.tell(recordFlushed) }

// Written gives back credit, of messages that have been written to the host.
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

// wrote counts messages no more that came in fragments, and were whole.
func (c *AgentConn) wrote() {
	c.link.agent.held -= c.whole
	c.link.agent.wholes -= c.whole
	c.whole = 0
}

// repay gives back credit n, and what was kept of it if the host has all that
// was delivered and the message has its turn.
func (c *AgentConn) repay(n int) {
	if c.unwritten == 0 && c.link.agent.mayUpload(c) {
		n += c.kept
		c.kept = 0
	}
	if c.link.mux.written(&c.stream, n) {
		c.link.lines.Wake()
	}
}

// Close ends the connection behind all that FromHost has taken.
func (c *AgentConn) Close(code ahp.CloseCode, reason string) {
	_ = c.link.with(func() error {
		c.end(code, reason)
		return nil
	})
}

// Abort ends the connection at once: what has not been sent is dropped.
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

// counted counts the connection among those that clients have.
func (c *AgentConn) counted(n int) {
	if !c.bytes {
		c.link.agent.conns += n
	}
}

// tellHost says that the client is gone.
func (c *AgentConn) tellHost(code ahp.CloseCode, reason string) {
	if !c.told {
		c.told = true
		c.host.Closed(code, reason)
	}
}

// forget drops a connection that has ended in both directions.
func (c *AgentConn) forget() {
	if c.stream.ended && c.received && c.link.conns[c.stream.conn] == c {
		delete(c.link.conns, c.stream.conn)
	}
}

// queue puts an item at the end of the connection's queue. The link's writer is
// to look then.
func (c *AgentConn) queue(it item) error {
	err := c.link.mux.push(&c.stream, it, math.MaxInt)
	c.link.mux.delay.pushed(&c.stream)
	c.filled()
	return err
}

// refer queues a reference: straight into the batch if nothing is queued
// before it. It returns whether the link's writer is to look.
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

// decodeOpen reads what a relay tells of a client.
func decodeOpen(data []byte) (Open, error) {
	var open Open
	if err := json.Unmarshal(data, &open); err != nil {
		return open, fmt.Errorf("%w: open: %w", link.ErrBadPacket, err)
	}
	return open, nil
}

// CloseAll ends all connections behind all that FromHost has taken.
func (a *AgentEnd) CloseAll(code ahp.CloseCode, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.links {
		for _, c := range l.conns {
			c.end(code, reason)
		}
	}
}
