package routing

import (
	"context"
	"errors"
	"math"
	"sync/atomic"

	"ahprelay/ahp"
)

// A RelayConn is one client's connection to a host, at the relay. The RelayEnd's mutex guards it.
type RelayConn struct {
	relay  *RelayEnd
	client ClientConn // nil once either side has closed
	stream stream

	pending      fifo[pendingItem] // items that wait for a missing body
	pendingBytes int               // sizes of pending, plus pendingCost for each item
	bytes        bool              // carries a byte stream: see ByteConn
	binary       bool              // its messages are binary
	opened       bool              // the client has received the event Opened
	received     bool              // the host-agent's close has arrived
	sentClose    bool              // the relay's close has left

	crowd *relayCrowd // the crowd that has the connection; nil: none

	window int // the stream's initial window; immutable
	taken  int // bytes that the client has read since it last began to return lent credit
	giving int // lent credit still to return as the client reads

	writtenCredit atomic.Int64 // credit of written frames, not yet passed to the mux
}

// A pendingItem waits for missing bodies. It is a frame, a row, an event, or the connection's
// end.
type pendingItem struct {
	frame Frame
	row   *row
	event *Event
	end   *closing
	size  int // bytes of frame, or of the row's bodies so far
}

// pendingCost is added to each pendingItem's size in bounds.
const pendingCost = 64

type closing struct {
	code   ahp.CloseCode
	reason string
}

// Send queues one complete message for the host, and keeps it. The message is text, or binary on
// a sealed connection. Send waits while the queue is full. The error is [ErrConnClosed] once the
// connection has ended. Only one goroutine at a time may call Send.
func (c *RelayConn) Send(ctx context.Context, message []byte) error {
	return c.SendCounted(ctx, message, 0)
}

// SendCounted is Send for a message of which the caller has already added counted bytes to
// [RelayEndConfig.Queued]. If it succeeds, Queued receives the difference.
func (c *RelayConn) SendCounted(ctx context.Context, message []byte, counted int) error {
	for {
		err := c.trySend(message, counted)
		if !errors.Is(err, ErrQueueFull) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.stream.room:
		}
	}
}

func (c *RelayConn) trySend(message []byte, counted int) error {
	r := c.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.client == nil {
		return ErrConnClosed
	}
	if err := r.mux.pushCounted(&c.stream, item{frame: message, whole: len(message), binary: c.binary}, r.cfg.QueueLimit, counted); err != nil {
		return err
	}
	r.lines.Wake()
	return nil
}

// Written returns the credit of frames that are written to the client.
func (c *RelayConn) Written(credit int) {
	r := c.relay
	if c.writtenCredit.Add(int64(credit)) < int64(c.window/creditShare) {
		return // too little for a credit record
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := int(c.writtenCredit.Swap(0))
	if c.client == nil {
		return
	}
	c.adapt(n)
	if r.mux.written(&c.stream, n) {
		r.lines.Wake()
	}
}

// adapt changes the connection's window after its client has read n bytes. Once the client has
// read growAfter initial windows, the window grows by n, and so doubles in each round trip, until
// MostCredit. If no more credit can be lent, each reading client returns half of its lent credit.
// The window shrinks only as the client reads, so credit that the host-agent already has stays
// valid.
func (c *RelayConn) adapt(n int) {
	most := c.relay.cfg.MostCredit
	if c.bytes {
		most = min(most, bytesWindow)
	}
	c.taken += n
	switch more := min(n, most-c.stream.window); {
	case c.giving > 0:
		less := min(n, c.giving)
		c.giving -= less
		c.stream.widen(-less)
		c.relay.cfg.Lend(-less)
	case c.taken < growAfter*c.window:
	case c.relay.cfg.Lend(more): // more is 0 at the maximum: Lend then only reports
		c.stream.widen(more)
	default:
		if c.giving = (c.stream.window - c.window) / 2; c.giving > 0 {
			c.taken = 0 // a client without lent credit asks again at once
		}
	}
}

// growAfter is how many initial windows a client must read before it counts as reading: then its
// window grows. The kernel accepts some data even if the client reads nothing; growAfter windows
// are more than that.
const growAfter = 4

func (c *RelayConn) giveBack() {
	if lent := c.stream.window - c.window; lent > 0 {
		c.stream.window = c.window
		c.relay.cfg.Lend(-lent)
	}
}

// Progress informs the host-agent that the client reads, even if too little for a credit record.
// It does nothing while the host-agent has more than half of its credit. Call it every few seconds
// while the client takes queued data.
func (c *RelayConn) Progress() {
	r := c.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.client == nil || c.stream.uncredited < c.stream.window/2 {
		return
	}
	r.mux.returnCredit(&c.stream, int(c.writtenCredit.Swap(0)))
	r.lines.Wake()
}

// Flush requests the event [Flushed]. The request follows all messages sent before.
func (c *RelayConn) Flush() { c.request(appendRecord(nil, recordFlush, c.stream.conn)) }

// Move is Flush for a client that moves to a different relay. The host-agent keeps the connection
// to the host under a ticket, and that relay's [Open] names the ticket. The client gets the event
// [Moved], or [Flushed] if the host-agent cannot keep the connection. Afterwards the relay must
// call Close with [ahp.CloseShuttingDown], otherwise the connection is not kept. That Close
// states two facts: the client has received all messages before the event, and all the client's
// messages precede the Close. Relays call Move only for host-agents with [link.FeatureMove].
func (c *RelayConn) Move(m Move) {
	c.request(appendMove(nil, c.stream.conn, m))
}

// request queues a record after all messages sent before.
func (c *RelayConn) request(record []byte) {
	r := c.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.client != nil && r.mux.push(&c.stream, item{raw: record}, math.MaxInt) == nil {
		r.lines.Wake()
	}
}

// Queued returns the bytes queued for the host.
func (c *RelayConn) Queued() int {
	c.relay.mu.Lock()
	defer c.relay.mu.Unlock()
	return c.stream.queued
}

// Abort is Close, but drops unsent messages.
func (c *RelayConn) Abort(code ahp.CloseCode, reason string) {
	c.relay.mu.Lock()
	defer c.relay.mu.Unlock()
	c.client = nil
	c.relay.mux.drop(&c.stream, nil)
	c.endStream(code, reason)
}

// Close ends the connection after its queued messages, because the client has left. Nothing more
// is delivered to the client.
func (c *RelayConn) Close(code ahp.CloseCode, reason string) {
	c.relay.mu.Lock()
	defer c.relay.mu.Unlock()
	c.client = nil
	c.endStream(code, reason)
}

// deliver delivers frames to the client, after all pending items.
func (c *RelayConn) deliver(frames []Frame) {
	if c.pending.len() == 0 {
		c.client.Deliver(frames)
		return
	}
	for _, f := range frames {
		c.addPending(pendingItem{frame: f, size: len(f.Data)})
	}
}

func (c *RelayConn) addPending(d pendingItem) {
	if c.client != nil {
		c.pending.push(d)
	}
	c.pendingGrew(d.size + pendingCost)
}

// pendingGrew adds n to the pending bytes, checks their bound, and delivers items that are
// complete.
func (c *RelayConn) pendingGrew(n int) {
	if c.client == nil {
		return
	}
	c.countPending(n)
	c.deliverPending()
	if c.pendingBytes > c.relay.cfg.PendingLimit {
		c.lose("too many bytes wait for a missing body")
	}
}

func (c *RelayConn) countPending(n int) {
	c.pendingBytes += n
	c.relay.cfg.Kept(n)
}

// deliverPending delivers pending items up to the first that lacks a body.
func (c *RelayConn) deliverPending() {
	for c.pending.len() > 0 && c.client != nil {
		d := c.pending.at(0)
		switch {
		case d.end != nil:
			c.finish(d.end.code, d.end.reason)
			return
		case d.event != nil:
			c.client.Event(*d.event)
		case d.row == nil:
			c.client.Deliver([]Frame{d.frame})
		case d.row.missing > 0:
			return
		default:
			d.size = d.row.bytes
			c.stream.uncredited += creditOf(d.row.frames)
			c.client.Deliver(d.row.frames)
		}
		c.countPending(-d.size - pendingCost)
		c.pending.pop()
	}
}

func (c *RelayConn) late(e Event) {
	if c.pending.len() > 0 {
		c.addPending(pendingItem{event: &e})
		return
	}
	c.client.Event(e)
}

// closedByHost ends the connection after all pending items, as the host-agent requested.
func (c *RelayConn) closedByHost(code ahp.CloseCode, reason string) {
	if c.client != nil && c.pending.len() > 0 {
		c.addPending(pendingItem{end: &closing{code, reason}})
		return
	}
	c.finish(code, reason)
}

// finish ends the connection because the host-agent has closed it, or the link has ended.
func (c *RelayConn) finish(code ahp.CloseCode, reason string) {
	c.received = true
	c.closeClient(code, reason)
	c.endStream(code, reason)
}

// lose ends the connection because messages are missing.
func (c *RelayConn) lose(reason string) {
	c.closeClient(ahp.CloseResync, reason)
	c.endStream(ahp.CloseResync, reason)
}

// closeClient reports the end to the client, once.
func (c *RelayConn) closeClient(code ahp.CloseCode, reason string) {
	if client := c.client; client != nil {
		c.client = nil
		client.Closed(code, reason)
	}
}

// endStream ends the direction to the host and drops pending items. It gives the host-agent
// unlimited credit: if both sides close at once, neither close record may wait for the peer's
// credit.
func (c *RelayConn) endStream(code ahp.CloseCode, reason string) {
	r := c.relay
	for c.pending.len() > 0 {
		if c.pending.pop().end != nil {
			c.received = true
		}
	}
	c.countPending(-c.pendingBytes)
	c.leaveCrowd()
	c.giveBack()
	if c.received { // the host-agent no longer reads
		r.mux.drop(&c.stream, nil)
	}
	if r.ended == nil {
		if !c.stream.ended {
			r.mux.sendControl(appendRecord(nil, recordCredit, c.stream.conn, maxCredit))
		}
		r.mux.end(&c.stream, code, reason)
		r.lines.Wake()
	}
	c.stream.hasRoom()
	c.recycle()
}

// recycle frees the connection's number once the relay's close record has left and the host-agent's
// has arrived: no later record can then mean this connection.
func (c *RelayConn) recycle() {
	if c.received && c.sentClose && c.relay.conns[c.stream.conn] == c {
		delete(c.relay.conns, c.stream.conn)
		c.relay.numbers.free = append(c.relay.numbers.free, c.stream.conn)
	}
}
