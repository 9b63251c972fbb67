package routing

import (
	"context"
	"errors"
	"math"
	"sync/atomic"

	"ahprelay/ahp"
)

// A RelayConn is one client's connection to a host, at the relay. The RelayEnd's
// mutex guards it.
type RelayConn struct {
	relay  *RelayEnd
	client ClientConn // nil once it is closed, by either side
	stream stream

	pending      fifo[pendingItem] // what a missing body holds up
	pendingBytes int               // sizes of pending, and pendingCost for each
	bytes        bool              // it carries no messages: see ByteConn
	opened       bool              // the client has been told that the host takes messages
	received     bool              // the host-agent's close has come
	sentClose    bool              // ours has left

	asks          map[uint64]func(response []byte) // requests of the relay's own
	lastAsk       uint64
	writtenCredit atomic.Int64 // credit of frames that were written, and not told yet

	aside      uint64 // what the message that is coming answers; 0: it is the client's
	asideData  []byte
	asideBytes int
}

// A pendingItem is something that a client is to be sent once the bodies before it
// are there: a frame, a row of bodies, the word that it is flushed, or the end.
type pendingItem struct {
	frame   Frame
	row     *row
	flushed bool
	end     *closing
	size    int // bytes of frame, or of what was there of row
}

// pendingCost is what a pendingItem counts against a bound besides its bytes.
const pendingCost = 64

type closing struct {
	code   ahp.CloseCode
	reason string
}

// Send queues one whole text message for the host, which it keeps. It waits
// while the host takes too little. The error is [ErrConnClosed] once the
// connection has ended. One goroutine at a time may Send.
func (c *RelayConn) Send(ctx context.Context, message []byte) error {
	return c.SendCounted(ctx, message, 0)
}

// SendCounted is Send for a message of which so many bytes are counted already:
// that is what [RelayEndConfig.Queued] is told less, unless there is an error.
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
	if err := c.queue(message, counted); err != nil {
		return err
	}
	c.relay.lines.Wake()
	return nil
}

func (c *RelayConn) queue(message []byte, counted int) error {
	r := c.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.client == nil {
		return ErrConnClosed
	}
	return r.mux.pushCounted(&c.stream, item{frame: message, whole: len(message)}, r.cfg.QueueLimit, counted)
}

// Written gives back credit, of frames that have been written to the client.
func (c *RelayConn) Written(credit int) {
	r := c.relay
	if c.writtenCredit.Add(int64(credit)) < int64(c.stream.window/creditShare) {
		return // it would be kept anyway
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := c.writtenCredit.Swap(0); c.client != nil && r.mux.written(&c.stream, int(n)) {
		r.lines.Wake()
	}
}

// Progress tells the host-agent that the client takes what it is sent, if that
// could be in doubt: because credit for it is due later, when more of it is
// written. Call it every few seconds while that is so.
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

// Flush asks for the event [Flushed], behind all that was sent.
func (c *RelayConn) Flush() {
	r := c.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.client != nil && r.mux.push(&c.stream, item{raw: appendRecord(nil, recordFlush, c.stream.conn)}, math.MaxInt) == nil {
		r.lines.Wake()
	}
}

// Queued returns how many bytes wait to leave for the host.
func (c *RelayConn) Queued() int {
	c.relay.mu.Lock()
	defer c.relay.mu.Unlock()
	return c.stream.queued
}

// Abort is Close, and drops what has not left for the host.
func (c *RelayConn) Abort(code ahp.CloseCode, reason string) {
	c.relay.mu.Lock()
	defer c.relay.mu.Unlock()
	c.client = nil
	c.relay.mux.drop(&c.stream, nil)
	c.endStream(code, reason)
}

// Close ends the connection because the client is gone, behind all that it
// has sent. Nothing more is delivered.
func (c *RelayConn) Close(code ahp.CloseCode, reason string) {
	c.relay.mu.Lock()
	defer c.relay.mu.Unlock()
	c.client = nil
	c.endStream(code, reason)
}

// deliver sends the client frames, behind what is pending.
func (c *RelayConn) deliver(frames []Frame) {
	if c.pending.len() == 0 {
		c.client.Deliver(frames)
		return
	}
	for _, f := range frames {
		c.addPending(pendingItem{frame: f, size: len(f.Data)})
	}
}

// addPending notes what the client is to be sent.
func (c *RelayConn) addPending(d pendingItem) {
	if c.client != nil {
		c.pending.push(d)
	}
	c.pendingGrew(d.size + pendingCost)
}

// pendingGrew notes that n bytes more are pending, and sends what is there.
func (c *RelayConn) pendingGrew(n int) {
	if c.client == nil {
		return
	}
	c.countPending(n)
	c.deliverPending()
	if c.pendingBytes > c.relay.cfg.PendingLimit {
		c.lose("too much waits for a missing body")
	}
}

// countPending notes that n bytes more are pending.
func (c *RelayConn) countPending(n int) {
	c.pendingBytes += n
	c.relay.cfg.Kept(n)
}

// deliverPending sends the client what is pending, up to the first missing body.
func (c *RelayConn) deliverPending() {
	for c.pending.len() > 0 && c.client != nil {
		d := c.pending.at(0)
		switch {
		case d.end != nil:
			c.finish(d.end.code, d.end.reason)
			return
		case d.flushed:
			c.client.Event(Flushed)
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

// flushed tells the client, behind what is pending.
func (c *RelayConn) flushed() {
	if c.pending.len() > 0 {
		c.addPending(pendingItem{flushed: true})
		return
	}
	c.client.Event(Flushed)
}

// closedByHost ends the connection as the host-agent says, behind what is
// pending.
func (c *RelayConn) closedByHost(code ahp.CloseCode, reason string) {
	if c.client != nil && c.pending.len() > 0 {
		c.addPending(pendingItem{end: &closing{code, reason}})
		return
	}
	c.finish(code, reason)
}

// finish ends the connection: the host-agent has closed its side, or is gone.
func (c *RelayConn) finish(code ahp.CloseCode, reason string) {
	c.received = true
	c.tell(code, reason)
	c.endStream(code, reason)
}

// lose ends the connection because the contract cannot be kept.
func (c *RelayConn) lose(reason string) {
	c.tell(ahp.CloseResync, reason)
	c.endStream(ahp.CloseResync, reason)
}

func (c *RelayConn) tell(code ahp.CloseCode, reason string) {
	if client := c.client; client != nil {
		c.client = nil
		client.Closed(code, reason)
	}
}

// endStream ends the direction to the host and forgets what is
// pending. From now on nothing that comes for it takes credit: if the host has
// ended the connection too, neither side's close may wait for credit of the
// other.
func (c *RelayConn) endStream(code ahp.CloseCode, reason string) {
	r := c.relay
	for c.pending.len() > 0 {
		if c.pending.pop().end != nil {
			c.received = true
		}
	}
	c.countPending(-c.pendingBytes)
	c.endAsks()
	if c.received { // nobody is left to take it
		r.mux.drop(&c.stream, nil)
	}
	if r.ended == nil {
		if !c.stream.ended {
			r.mux.say(appendRecord(nil, recordCredit, c.stream.conn, maxCredit))
		}
		r.mux.end(&c.stream, code, reason)
		r.lines.Wake()
	}
	c.stream.hasRoom()
	c.recycle()
}

// recycle frees the connection's number once nothing more can come or go
// under it.
func (c *RelayConn) recycle() {
	if c.received && c.sentClose && c.relay.conns[c.stream.conn] == c {
		delete(c.relay.conns, c.stream.conn)
		c.relay.free = append(c.relay.free, c.stream.conn)
	}
}
