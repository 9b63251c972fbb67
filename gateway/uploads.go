package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/gateway/wire"
)

// Large messages from clients take turns. The length of a message is unknown until its
// end, so the reader requests memory beyond wire.KeepBuffer step by step, and waits with
// the socket unread until there is room. There is room as long as the most advanced
// message could still grow to the maximum: so one message can always be completed, and
// then, with its memory returned, the next. (This is the banker's algorithm, for one
// resource with equal claims.) Messages from clients therefore never make memory
// short, and no client is closed for waiting.
//
// No room is kept for a client that stalls in the middle of its message. It is closed
// only if the others cannot go on without its memory, like clients that do not read: see
// [relief.takeTurns].

const (
	// leastPace is the number of bytes between two checks that count as progress.
	// After turnTime without progress, no room is kept for the rest of the message.
	leastPace = 1 << 10
	turnTime  = time.Second

	// stopTime is the standstill in the middle of a message that proves that the client
	// has stopped, beyond the time for which the relay last left its socket unread: the
	// client's kernel doubles its intervals meanwhile, and may need as long again to
	// go on.
	stopTime = 3 * time.Second

	// uploadLook is the interval of these checks.
	uploadLook = 100 * time.Millisecond

	// stillTime is the standstill after which a client whose messages wait for a slow
	// host is closed in favour of a waiting large message.
	stillTime = 10 * time.Second
)

// errCut ends the reading of a client that is being closed.
var errCut = errors.New("client is closed")

// uploads schedules the large messages being read.
type uploads struct {
	budget *budget
	claim  int64         // most bytes for one message
	waits  atomic.Int32  // messages that wait
	eased  chan struct{} // signals freed memory while messages wait; holds one

	mu   sync.Mutex // guards the fields below, and those of each upload
	line []*upload  // in order of their beginning
	went time.Time  // when a message was last given room
	look time.Time  // when check was last called
}

// An upload is a client's large message being read.
type upload struct {
	conn     *wire.Conn
	held     int64         // bytes granted
	wants    int64         // further bytes requested; 0: it does not wait
	ready    chan struct{} // closed when the request is granted, or the client is closed
	over     bool          // the client is closed
	asked    time.Time     // when it last began to wait
	waited   time.Duration // its last wait, up to stillTime
	moved    time.Time     // when it last made progress or waited
	received uint64        // bytes received by then
}

// more waits until n more bytes may be read. It returns [errCut] once the client is
// closed.
func (t *uploads) more(ctx context.Context, u *upload, n int) error {
	t.mu.Lock()
	if u.over {
		t.mu.Unlock()
		return errCut
	}
	if u.held == 0 {
		u.received = u.conn.Taken.Load()
		t.line = append(t.line, u)
	}
	u.wants, u.ready, u.asked = int64(n), make(chan struct{}), time.Now()
	ready := u.ready
	t.waits.Add(1)
	t.giveLocked(time.Now())
	t.mu.Unlock()
	select {
	case <-ready:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.over || u.wants > 0 {
		return errCut
	}
	return nil
}

// end removes a message from the line, and returns its granted bytes.
func (t *uploads) end(u *upload) (held int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = slices.DeleteFunc(t.line, func(other *upload) bool { return other == u })
	t.waitsNoMoreLocked(u)
	held, u.held = u.held, 0
	t.giveLocked(time.Now())
	return held
}

// stop ends the current message of a closed client, and refuses new ones. The client's
// reader removes it from the line.
func (t *uploads) stop(u *upload) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u.over = true
	t.waitsNoMoreLocked(u)
}

func (t *uploads) waitsNoMoreLocked(u *upload) {
	if u.wants > 0 {
		u.wants = 0
		t.waits.Add(-1)
		close(u.ready)
	}
}

// state returns a message's granted bytes, when it last made progress or waited, and
// since when it has stopped: zero times without a message. A message waiting for its
// first turn has no bytes.
func (t *uploads) state(u *upload, now time.Time) (held int, moved, stopped time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case u.wants > 0:
		moved = now
	case u.held > 0:
		moved = u.moved
	}
	if !moved.IsZero() {
		stopped = moved.Add(u.waited)
	}
	return int(u.held), moved, stopped
}

// give grants the requests for which there is room.
func (t *uploads) give(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.giveLocked(now)
}

// giveLocked considers the most advanced message first, which has room reserved, and
// then the others in order: a smaller request does not overtake.
func (t *uploads) giveLocked(now time.Time) {
	for t.waits.Load() > 0 {
		first := t.firstLocked(now)
		if first == nil || first.wants == 0 || t.lacksLocked(first, first) > 0 {
			i := slices.IndexFunc(t.line, func(u *upload) bool { return u.wants > 0 })
			if i < 0 || t.lacksLocked(t.line[i], first) > 0 {
				return
			}
			first = t.line[i]
		}
		t.goOnLocked(first, now)
	}
}

func (t *uploads) goOnLocked(u *upload, now time.Time) {
	u.held += u.wants
	t.budget.add(int(u.wants))
	u.moved, t.went = now, now
	u.waited = min(max(u.waited/2, now.Sub(u.asked)), stillTime)
	t.waitsNoMoreLocked(u)
}

// giveOne grants the most advanced message's request if there is memory for it, all
// others wait too, and hardly anything else is queued: connections and kernel buffers
// may leave less room than was reserved. It reports whether there is no memory, and no
// message went on for stillTime.
func (t *uploads) giveOne(now time.Time) (locked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waits := t.budget.used.Load()
	for _, u := range t.line {
		if u.wants == 0 {
			return false // it may end, or its client is closed
		}
		waits -= u.held
	}
	u := t.firstLocked(now)
	if u == nil || waits > t.budget.limit/16 {
		return false // other queued data will leave
	}
	if t.budget.excess()+u.wants <= 0 {
		t.goOnLocked(u, now)
		return false
	}
	return now.Sub(t.went) >= stillTime
}

// firstLocked returns the most advanced message among those that wait or make
// progress, or nil.
func (t *uploads) firstLocked(now time.Time) (first *upload) {
	for _, u := range t.line {
		if (u.wants > 0 || now.Sub(u.moved) < turnTime) && (first == nil || u.held > first.held) {
			first = u
		}
	}
	return first
}

// lacksLocked returns the bytes to free before a message can go on; 0 if only that
// message is queued.
func (t *uploads) lacksLocked(u, first *upload) int64 {
	furthest := u.held + u.wants
	if first != nil {
		furthest = max(furthest, first.held)
	}
	if t.budget.used.Load() == u.held {
		return 0
	}
	return t.budget.pressure() + u.wants + max(0, t.claim-furthest)
}

// check records which messages make progress, and grants requests. It returns the bytes
// that the next waiting message lacks, and whether any message has made progress lately.
func (t *uploads) check(now time.Time) (lacks int64, moves bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	moves = now.Sub(t.went) < turnTime
	late := max(0, now.Sub(t.look)-2*uploadLook) // the relay itself stood still
	t.look = now
	for _, u := range t.line {
		u.moved = earlier(u.moved.Add(late), now)
		heard := u.conn.Taken.Load()
		if u.wants > 0 || heard-u.received >= leastPace || u.unread() {
			u.moved, u.received = now, heard
		}
	}
	t.giveLocked(now)
	for _, u := range t.line {
		switch {
		case u.wants > 0 && lacks == 0:
			lacks = t.lacksLocked(u, t.firstLocked(now))
		case u.wants == 0 && now.Sub(u.moved) < turnTime:
			moves = true
		}
	}
	return lacks, moves
}

// unread reports whether the kernel has bytes that the relay has yet to read.
func (u *upload) unread() bool {
	if u.conn.Conn == nil {
		return false
	}
	_, unread := wire.Queued(u.conn.Conn)
	return unread > 0
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
