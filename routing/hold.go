package routing

import (
	"errors"
	"os"
	"slices"
	"time"
)

// A stream whose client reads more slowly than the host sends is held back at its
// source: the reader of the host's connection calls Wait before each read, and so
// stops reading. The host's messages then stay in the host's own socket, as if the
// client were connected there. The bound is lower when memory is short, and for the
// clients of a crowd that have not yet shown that they read. A message
// longer than [Reserved] waits for its turn before it is read (Reserve). The bound for
// all streams together is therefore rarely exceeded.
//
// The relay proves its client's progress with credit, even of 0 bytes. A stream that
// is held back without progress for [AgentEndConfig.Stall] is over, and Wait reports
// that.

// ErrStalled reports a client that has read nothing for too long.
var ErrStalled = errors.New("client reads nothing")

// Reserved is the length in bytes from which a message needs [AgentConn.Reserve]
// before it is read.
const Reserved = 64 << 10

// leastShare is the queue bound of a connection however short memory is.
const leastShare = 4 << 10

// shortStall is the time without progress after which a stream may be closed because
// other streams need its room. It equals the time after which stock clients give up a
// silent connection.
const shortStall = 25 * time.Second

// total returns the bytes that wait for clients and host.
func (a *AgentEnd) total() int { return a.held + a.bodies.kept }

// allowance returns the bytes that may wait behind the message being sent, for each
// connection, before its source is held back. While memory is short, connections share
// a quarter of MaxQueued equally.
func (a *AgentEnd) allowance() int {
	if !a.short {
		return a.cfg.QueueLimit
	}
	return min(a.cfg.QueueLimit, max(leastShare, a.cfg.MaxQueued/4/max(a.conns, 1)))
}

// crowdShare is the part of MaxQueued from which the queues are a crowd's: sources of
// clients that have not shown that they read are then held back at once.
const crowdShare = 32

// grown is called after queues have grown.
func (a *AgentEnd) grown() {
	if a.total() > a.cfg.MaxQueued/crowdShare {
		a.crowded = true
	}
	if a.total()+a.reserved > a.cfg.MaxQueued/2 {
		a.short = true
	}
	a.relieve()
}

// eased is called when queues may have shrunk. It resumes the connections that were
// held back because of the others, and grants turns to large messages.
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

// fits reports whether there is room for n more bytes. Any message fits if nothing
// else waits.
func (a *AgentEnd) fits(n int) bool {
	waits := a.total() + a.reserved
	return waits == 0 || waits+n <= a.cfg.MaxQueued
}

// over reports whether the queue exceeds the given multiple of the connection's
// allowance.
func (c *AgentConn) over(times int) bool {
	most := c.link.agent.allowance()
	if c.bytes {
		most = min(most, bytesQueue)
	}
	return !c.stream.ended && (c.stream.behind() > times*most || times == 1 && c.unproven())
}

// unproven reports whether, in a crowd, the stream waits for the credit of a client that
// has not shown that it reads. A host may have megabytes for each of a thousand clients
// that read nothing, and while the host-agent reads them, clients that read must wait.
func (c *AgentConn) unproven() bool {
	return c.link.agent.crowded && !c.bytes && c.credited < growAfter*c.link.credit && c.stream.queued > max(c.stream.credit, 0)
}

// filled records that the queue has grown.
func (c *AgentConn) filled() {
	if !c.full.Load() && c.over(1) {
		c.full.Store(true)
	}
}

// drained resumes callers that wait for room in a stream, if there is room.
func (l *agentLink) drained(s *stream) {
	if c := l.conns[s.conn]; c != nil && &c.stream == s && !c.over(1) {
		c.proceed()
	}
}

// proceed wakes all callers that wait for the connection.
func (c *AgentConn) proceed() {
	c.stream.waits = false
	delete(c.link.agent.waiters, c)
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// wakened returns a channel that is closed when the connection may go on.
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
// before each read, and never under a lock. The error is [ErrStalled] if the client
// has read nothing for too long, and [ErrConnClosed] once the client is gone or done
// is closed.
func (c *AgentConn) Wait(done <-chan struct{}) error {
	if !c.full.Load() {
		return nil
	}
	return c.wait(done, nil, 1)
}

// WaitToAnswer is Wait for a goroutine that answers requests in place of the host. It
// waits only if the answers themselves exceed the bound, so requests continue while
// the host's messages wait.
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
		timer := time.NewTimer(patience)
		select {
		case <-room:
		case <-timer.C:
		case <-done:
			err = ErrConnClosed
		case <-late:
			err = os.ErrDeadlineExceeded
		}
		timer.Stop()
		if err != nil {
			return err
		}
	}
}

// waitState returns a channel to wait for, and the longest wait. The channel is nil if
// the connection may go on or has ended.
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
	if c.bytes { // a person may have paused a film: the queue is bounded anyway
		return c.wakened(), a.cfg.Stall, nil
	}
	standing := c.stream.stalledFor(time.Now())
	if standing >= a.cfg.Stall {
		return nil, 0, ErrStalled
	}
	return c.wakened(), a.cfg.Stall - standing, nil
}

// A turn is a large message's permission to be read.
type turn struct {
	conn  *AgentConn
	bytes int
	given bool // or given up
	ready chan struct{}
}

// give grants the turn.
func (t *turn) give() {
	t.given = true
	t.conn.holds.Store(true)
	t.conn.reserved += t.bytes
	t.conn.link.agent.reserved += t.bytes
	close(t.ready)
}

// Reserve waits for room for a message with n bytes that is about to be read from the
// host. Callers take turns in order. The errors are Wait's.
func (c *AgentConn) Reserve(done <-chan struct{}, n int) error {
	a := c.link.agent
	t := &turn{conn: c, bytes: n, ready: make(chan struct{})}
	a.mu.Lock()
	a.turns = append(a.turns, t)
	a.eased()
	a.mu.Unlock()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-t.ready:
			return nil
		case <-look.C:
			if t.ended() {
				return ErrConnClosed
			}
		case <-done:
			t.giveUp()
			return ErrConnClosed
		}
	}
}

// ended reports whether the connection that waits for its turn has ended. It makes
// room for the first turn by closing connections without progress.
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

// giveUp cancels a turn. If it was granted meanwhile, Unreserve follows.
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

// Unreserve releases a reservation after the message is read.
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

// mayUpload reports whether an incomplete message for the host may continue. When
// memory is short, only the oldest continues, and only if the host takes the complete
// messages.
func (a *AgentEnd) mayUpload(c *AgentConn) bool {
	switch {
	case c.partial == nil, a.total()+a.reserved <= a.cfg.MaxQueued/2:
		return true
	case a.uploads[0] != c:
		return false
	}
	return a.wholes == 0 || a.total()+a.cfg.MaxFrame-len(c.partial) <= a.cfg.MaxQueued*3/4
}

// endPartial ends the collection of a connection's message for the host.
func (a *AgentEnd) endPartial(c *AgentConn) {
	if c.partial != nil {
		a.uploads = slices.DeleteFunc(a.uploads, func(other *AgentConn) bool { return other == c })
		c.partial = nil
	}
}
