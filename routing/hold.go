package routing

import (
	"errors"
	"os"
	"slices"
	"time"
)

// A stream whose client takes less than the host says is held back at its
// source: whoever reads the host's connection for it asks Wait before each read,
// and so stops reading. What the host says meanwhile stays in the host's own
// socket, as it would if the client were connected there. How much may wait in a
// stream until then is less when memory is short, and what is longer than
// [Reserved] waits for its turn before it is read (Reserve). So hardly anything
// is ever over the bound for all streams together.
//
// Progress is what the relay says of its client: credit, if only of 0 bytes. A
// stream that is held back and makes none for the time [AgentEndConfig.Stall] is
// over: Wait says so.

// ErrStalled reports a client that has taken nothing for too long.
var ErrStalled = errors.New("client takes nothing")

// Reserved is the length from which a message has to have room, by
// [AgentConn.Reserve], before it is read, in bytes.
const Reserved = 64 << 10

// leastShare is what may be queued for a connection however short memory is.
const leastShare = 4 << 10

// shortStall is how long a stream may make no progress while others wait for
// room: as long as stock clients wait for a connection that says nothing.
const shortStall = 25 * time.Second

// total is how many bytes wait for clients and host.
func (a *AgentEnd) total() int { return a.held + a.bodies.kept }

// allowance is how much may be queued behind the message being sent, for each
// connection, before its source is held back. In the second half of the memory
// there is, connections have equal shares of a quarter of it.
func (a *AgentEnd) allowance() int {
	if !a.short {
		return a.cfg.QueueLimit
	}
	return min(a.cfg.QueueLimit, max(leastShare, a.cfg.MaxQueued/4/max(a.conns, 1)))
}

// grown is called when more waits.
func (a *AgentEnd) grown() {
	if a.total()+a.reserved > a.cfg.MaxQueued/2 {
		a.short = true
	}
	a.relieve()
}

// eased is called when less waits, or may: those go on that were held back
// because memory was short, and those have their turn that wait for room.
func (a *AgentEnd) eased() {
	if a.short && a.total()+a.reserved <= a.cfg.MaxQueued*3/8 {
		a.short = false
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

// fits reports whether there is room for a message of so many bytes. One fits
// always, if nothing else is there.
func (a *AgentEnd) fits(n int) bool {
	waits := a.total() + a.reserved
	return waits == 0 || waits+n <= a.cfg.MaxQueued
}

// over reports whether more is queued than so many times what a connection is
// allowed.
func (c *AgentConn) over(times int) bool {
	most := c.link.agent.allowance()
	if c.bytes {
		most = min(most, bytesQueue)
	}
	return !c.stream.ended && c.stream.behind() > times*most
}

// filled notes that something was queued.
func (c *AgentConn) filled() {
	if !c.full.Load() && c.over(1) {
		c.full.Store(true)
	}
}

// drained has those go on that wait for room in a stream, if there is some.
func (l *agentLink) drained(s *stream) {
	if c := l.conns[s.conn]; c != nil && &c.stream == s && !c.over(1) {
		c.proceed()
	}
}

// proceed wakes all that wait on account of the connection.
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

// HeldBack reports whether Wait is likely to wait.
func (c *AgentConn) HeldBack() bool { return c.full.Load() }

// Wait returns when more of what the host says on this connection may be read.
// Call it before each read, and never under a lock. The error is [ErrStalled]
// if the client has taken nothing for too long, and [ErrConnClosed] once it is
// gone, or done is closed.
func (c *AgentConn) Wait(done <-chan struct{}) error {
	if !c.full.Load() {
		return nil
	}
	return c.wait(done, nil, 1)
}

// WaitToAnswer is Wait for whoever answers what the client asks in place of the
// host. It waits only if the answers themselves have become too many: while the
// host's messages wait, what the client sends goes on.
func (c *AgentConn) WaitToAnswer(done <-chan struct{}) error {
	if !c.full.Load() {
		return nil
	}
	return c.wait(done, nil, 2)
}

func (c *AgentConn) wait(done, late <-chan struct{}, times int) error {
	for {
		room, patience, err := c.look(times)
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

// look returns what to wait for, and how long at most; nil if the connection may
// go on, or has ended.
func (c *AgentConn) look(times int) (room <-chan struct{}, patience time.Duration, err error) {
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
	if c.bytes { // somebody may have stopped a film: what waits has its bound
		return c.wakened(), a.cfg.Stall, nil
	}
	standing := c.stream.standing(time.Now())
	if standing >= a.cfg.Stall {
		return nil, 0, ErrStalled
	}
	return c.wakened(), a.cfg.Stall - standing, nil
}

// A turn is a large message's, to be read.
type turn struct {
	conn  *AgentConn
	bytes int
	given bool // or given up
	ready chan struct{}
}

// give says that there is room.
func (t *turn) give() {
	t.given = true
	t.conn.reserve(t.bytes)
	close(t.ready)
}

func (c *AgentConn) reserve(n int) {
	c.holds.Store(true)
	c.reserved += n
	c.link.agent.reserved += n
}

// Reserve waits until there is room for a message of n bytes from the host, which
// is about to be read. Several have turns in the order in which they ask. The
// errors are those of Wait.
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
			if c.waitsNoMore(t) {
				return ErrConnClosed
			}
		case <-done:
			c.giveUp(t)
			return ErrConnClosed
		}
	}
}

// waitsNoMore reports whether the connection has ended that waits for its turn.
// If it is next, it has room made: of streams that stand still.
func (c *AgentConn) waitsNoMore(t *turn) (ended bool) {
	a := c.link.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.stream.ended {
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

// giveUp takes back a turn, and what was reserved if it was given meanwhile.
func (c *AgentConn) giveUp(t *turn) {
	c.link.agent.mu.Lock()
	defer c.link.agent.mu.Unlock()
	c.link.agent.drop(t)
}

func (a *AgentEnd) drop(t *turn) {
	if t.given {
		return // Unreserve follows
	}
	t.given = true
	a.eased()
}

// Unreserve says that what was reserved is read, and passed on or not wanted.
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

// mayUpload reports whether more is to come of a message that comes in fragments
// for the host. When memory is short, the oldest of them goes on alone, and only
// if the host takes what is whole.
func (a *AgentEnd) mayUpload(c *AgentConn) bool {
	switch {
	case c.partial == nil, a.total()+a.reserved <= a.cfg.MaxQueued/2:
		return true
	case a.uploads[0] != c:
		return false
	}
	return a.wholes == 0 || a.total()+a.cfg.MaxFrame-len(c.partial) <= a.cfg.MaxQueued*3/4
}

// endPartial takes a connection out of those with a message that is not whole.
func (c *AgentConn) endPartial() {
	if c.partial != nil {
		a := c.link.agent
		a.uploads = slices.DeleteFunc(a.uploads, func(other *AgentConn) bool { return other == c })
		c.partial = nil
	}
}
