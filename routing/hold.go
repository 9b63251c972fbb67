package routing

import (
	"errors"
	"os"
	"slices"
	"time"
)

// Backpressure: if a client reads more slowly than the host sends, the host-agent stops
// reading that client's connection to the host. For this, the connection's reader calls
// Wait before each read. The host's messages then stay in the host's own socket, as if
// the client were connected there directly. The queue's bound is lower while memory is
// short. While the host-agent is crowded (see crowdShare), the bound is also lower for
// clients that have not yet shown that they read. Before the reader reads a message
// longer than [Reserved], it calls Reserve, which waits for room. So the bound for all
// streams together is rarely exceeded.
//
// A credit record, even for 0 bytes, proves that the client makes progress. If a stream
// waits for [AgentEndConfig.Stall] without progress, Wait returns ErrStalled and the
// connection ends.

// ErrStalled reports that a client has read nothing for too long.
var ErrStalled = errors.New("client reads nothing")

// Reserved is the message length in bytes above which a reader must call
// [AgentConn.Reserve] before reading.
const Reserved = 64 << 10

// leastShare is the lowest queue bound of a connection while memory is short.
const leastShare = 4 << 10

// shortStall is how long a stream must have made no progress before it may be closed to
// make room for a large message (Reserve). Stock clients give up a silent connection after the same
// time.
const shortStall = 25 * time.Second

// total returns the bytes that wait for clients and for the host.
func (a *AgentEnd) total() int { return a.held + a.bodies.kept }

// allowance returns how many bytes may be queued for each connection, beside the message
// being sent. Above that, the host-agent stops reading the connection to the host. While
// memory is short, connections share a quarter of MaxQueued equally.
func (a *AgentEnd) allowance() int {
	if !a.short {
		return a.cfg.QueueLimit
	}
	return min(a.cfg.QueueLimit, max(leastShare, a.cfg.MaxQueued/4/max(a.conns, 1)))
}

// The host-agent is crowded while more than 1/crowdShare of MaxQueued is queued. For
// clients that have not yet shown that they read (unproven), it then stops reading the
// connections to the host.
const crowdShare = 32

func (a *AgentEnd) grown() {
	if a.total() > a.cfg.MaxQueued/crowdShare {
		a.crowded = true
	}
	if a.total()+a.reserved > a.cfg.MaxQueued/2 {
		a.short = true
	}
	a.relieve()
}

// eased runs after queues may have shrunk. It wakes connections that waited for memory,
// lets incomplete messages for the host continue, and grants turns to large messages.
func (a *AgentEnd) eased() {
	room := false
	if a.short && a.total()+a.reserved <= a.cfg.MaxQueued*3/8 {
		a.short, room = false, true
	}
	if a.crowded && a.total() <= a.cfg.MaxQueued/crowdShare*3/4 {
		a.crowded, room = false, true
	}
	if room {
		for c := range a.waiters {
			c.proceed()
		}
	}
	for _, c := range a.uploads {
		if c.kept > 0 {
			c.repay(0)
		}
	}
	for len(a.turns) > 0 && (a.turns[0].given || a.fits(a.turns[0].bytes)) {
		turn := a.turns[0]
		a.turns = a.turns[1:]
		if !turn.given {
			turn.give()
		}
	}
}

// fits reports whether n more bytes fit into MaxQueued. If nothing is queued, any
// message fits.
func (a *AgentEnd) fits(n int) bool {
	waits := a.total() + a.reserved
	return waits == 0 || waits+n <= a.cfg.MaxQueued
}

// over reports whether the connection's queue exceeds its allowance, multiplied by
// times. With times = 1, an unproven connection counts as over too.
func (c *AgentConn) over(times int) bool {
	most := c.link.agent.allowance()
	if c.bytes {
		most = min(most, bytesQueue)
	}
	return !c.stream.ended && (c.stream.behind() > times*most || times == 1 && c.unproven())
}

// unproven reports whether the agent is crowded and the queue exceeds the credit of a
// client that has not yet shown that it reads. A host may have megabytes for each of a
// thousand clients that read nothing. Reading all of these would delay the clients that
// do read.
func (c *AgentConn) unproven() bool {
	return c.link.agent.crowded && !c.bytes && c.credited < growAfter*c.link.credit && c.stream.queued > max(c.stream.credit, 0)
}

func (c *AgentConn) filled() {
	if !c.full.Load() && c.over(1) {
		c.full.Store(true)
	}
}

// drained wakes a connection's waiting callers if its queue is within the allowance.
func (l *agentLink) drained(s *stream) {
	if c := l.conns[s.conn]; c != nil && &c.stream == s && !c.over(1) {
		c.proceed()
	}
}

func (c *AgentConn) proceed() {
	c.stream.waits = false
	delete(c.link.agent.waiters, c)
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// wakened returns a channel that is closed by the next proceed.
func (c *AgentConn) wakened() <-chan struct{} {
	if c.room == nil {
		c.room = make(chan struct{})
	}
	c.stream.waits = true
	c.link.agent.waiters[c] = struct{}{}
	return c.room
}

// HeldBack reports whether Wait would probably block.
func (c *AgentConn) HeldBack() bool { return c.full.Load() }

// Wait returns when the host's next message on this connection may be read. Call it
// before each read, without locks. The error is [ErrStalled] if the client has read
// nothing for too long, and [ErrConnClosed] if the client has left or done is closed.
func (c *AgentConn) Wait(done <-chan struct{}) error {
	if !c.full.Load() {
		return nil
	}
	return c.wait(done, nil, 1)
}

// WaitToAnswer is Wait for a goroutine that answers the client's requests itself,
// without the host. It permits a queue of twice the allowance, so the client's requests
// are still answered while the host's messages wait.
func (c *AgentConn) WaitToAnswer(done <-chan struct{}) error {
	if !c.full.Load() {
		return nil
	}
	return c.wait(done, nil, 2)
}

func (c *AgentConn) wait(done, late <-chan struct{}, times int) error {
	for {
		room, patience, err := c.waitState(times)
		if room == nil {
			return err
		}
		select {
		case <-room:
		case <-time.After(patience):
		case <-done:
			err = ErrConnClosed
		case <-late:
			err = os.ErrDeadlineExceeded
		}
		if err != nil {
			return err
		}
	}
}

// waitState returns a channel to wait on, and the longest time to wait. The channel is
// nil if no wait is necessary, or if err reports that the connection has ended or stalled.
func (c *AgentConn) waitState(times int) (room <-chan struct{}, patience time.Duration, err error) {
	a := c.link.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case c.stream.ended:
		return nil, 0, ErrConnClosed
	case !c.over(times):
		if !c.over(1) {
			c.full.Store(false)
		}
		return nil, 0, nil
	}
	if c.bytes { // no stall limit: a person may have paused a film, and the queue is bounded
		return c.wakened(), a.cfg.Stall, nil
	}
	standing := c.stream.stalledFor(time.Now())
	if standing >= a.cfg.Stall {
		return nil, 0, ErrStalled
	}
	return c.wakened(), a.cfg.Stall - standing, nil
}

// A turn is the permission to read one large message.
type turn struct {
	conn  *AgentConn
	bytes int
	given bool // granted, or given up
	ready chan struct{}
}

func (t *turn) give() {
	t.given = true
	t.conn.holds.Store(true)
	t.conn.reserved += t.bytes
	t.conn.link.agent.reserved += t.bytes
	close(t.ready)
}

// Reserve waits for room for a message of n bytes that is about to be read from the
// host. Callers are served in order. The error is [ErrConnClosed] if the client has left
// or done is closed.
func (c *AgentConn) Reserve(done <-chan struct{}, n int) error {
	a := c.link.agent
	t := &turn{conn: c, bytes: n, ready: make(chan struct{})}
	a.mu.Lock()
	a.turns = append(a.turns, t)
	a.eased()
	a.mu.Unlock()
	look := time.Tick(time.Second)
	for {
		select {
		case <-t.ready:
			return nil
		case <-look:
			if t.ended() {
				return ErrConnClosed
			}
		case <-done:
			t.giveUp()
			return ErrConnClosed
		}
	}
}

// ended reports whether the connection of a waiting turn has ended. For the first turn,
// it also closes connections without progress, to make room.
func (t *turn) ended() bool {
	a := t.conn.link.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.conn.stream.ended {
		a.drop(t)
		return true
	}
	for !t.given && a.turns[0] == t {
		victim, standing := a.worst(time.Now())
		if victim == nil || standing < shortStall {
			break
		}
		victim.overload()
		a.eased()
	}
	return false
}

// giveUp cancels a turn. If the turn was granted meanwhile, the caller still calls
// Unreserve.
func (t *turn) giveUp() {
	a := t.conn.link.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(t)
}

func (a *AgentEnd) drop(t *turn) {
	if t.given {
		return // Unreserve follows
	}
	t.given = true
	a.eased()
}

// Unreserve ends a reservation after the message is read.
func (c *AgentConn) Unreserve() {
	if !c.holds.Load() {
		return
	}
	a := c.link.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reserved -= c.reserved
	c.reserved = 0
	c.holds.Store(false)
	a.eased()
}

// mayUpload reports whether the client may send more of an incomplete message for the
// host. While memory is short, only the oldest incomplete message may continue, and only
// if no complete message waits for the host or 3/4 of MaxQueued has room for the longest
// message.
func (a *AgentEnd) mayUpload(c *AgentConn) bool {
	switch {
	case c.partial == nil, a.total()+a.reserved <= a.cfg.MaxQueued/2:
		return true
	case a.uploads[0] != c:
		return false
	}
	return a.wholes == 0 || a.total()+a.cfg.MaxFrame-len(c.partial) <= a.cfg.MaxQueued*3/4
}

// endPartial removes a connection's incomplete message for the host.
func (a *AgentEnd) endPartial(c *AgentConn) {
	if c.partial != nil {
		a.uploads = slices.DeleteFunc(a.uploads, func(other *AgentConn) bool { return other == c })
		c.partial = nil
	}
}
