package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/gateway/wire"
	"ahprelay/internal/clock"
)

// Large messages from clients must not exhaust memory. The length of a message is unknown
// until its end. So beyond wire.KeepBuffer, the reader requests memory in steps, and does
// not read from the socket until the request is granted. A request is granted only if
// enough memory remains for the most advanced message to grow to the maximum. Then at
// least one message can always complete, and its memory is available to the next. (This
// is the banker's algorithm for one resource with equal claims.) Clients are not closed
// because they wait for memory.
//
// No memory is reserved for a client that stalls in the middle of its message. Such a
// client is closed only if others need its memory to continue: see [relief.takeTurns].

const (
	// leastPace is the number of bytes between two checks that counts as progress. After
	// turnTime without progress, no memory is reserved for the rest of the message.
	leastPace = 1 << 10
	turnTime  = time.Second

	// stopTime is the time without progress after which a client counts as stopped. If the
	// relay did not read before, the client gets as much time in addition: meanwhile its
	// TCP doubled its retry interval, and may need equally long to continue.
	stopTime = 3 * time.Second

	// uploadLook is the interval between progress checks.
	uploadLook = 100 * time.Millisecond

	// stillTime is how long a client's messages may wait for a slow host before the
	// client may be closed to free memory.
	stillTime = 10 * time.Second
)

// errCut ends the read of a client that is being closed.
var errCut = errors.New("client is closed")

// uploads schedules the large messages being read.
type uploads struct {
	budget *budget
	claim  int64         // longest message in bytes
	waits  atomic.Int32  // number of waiting messages
	eased  chan struct{} // wakes takeTurns when memory is freed while messages wait; capacity 1

	mu   sync.Mutex // guards the fields below, and those of each upload
	line []*upload  // large messages under way, oldest first
	went time.Time  // when a request was last granted
	look time.Time  // when check was last called
}

// An upload is a client's large message that is being read.
type upload struct {
	conn     *wire.Conn
	held     int64         // bytes granted
	wants    int64         // bytes requested in addition; 0: the message does not wait
	ready    chan struct{} // closed when the request is granted, or the client is closed
	over     bool          // the client is closed
	asked    time.Time     // when the latest wait began
	waited   time.Duration // duration of the latest wait or, if longer, half the previous value; at most stillTime
	moved    time.Time     // when the message last made progress or waited
	received uint64        // bytes received when moved was set
}

// more waits until n more bytes may be read. It returns [errCut] when the client is
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
	wait(ctx, ready)
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.over || u.wants > 0 {
		return errCut
	}
	return nil
}

// end removes a message from the schedule, and returns its granted bytes.
func (t *uploads) end(u *upload) (held int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = slices.DeleteFunc(t.line, func(other *upload) bool { return other == u })
	t.waitsNoMoreLocked(u)
	held, u.held = u.held, 0
	t.giveLocked(time.Now())
	return held
}

// stop makes the reader of a closed client fail with errCut. The reader then calls end.
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

// state returns a message's granted bytes, the time of its last progress or wait, and the
// time from which its pause counts toward stopTime. Both times are zero if there is no
// message. A message that waits for its first grant has 0 bytes.
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

// give grants the requests for which there is memory.
func (t *uploads) give(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.giveLocked(now)
}

// giveLocked grants memory to the most advanced message first, because a reserve is kept
// for that message. The other messages get memory in their order, so a small message
// does not overtake a large one.
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

// giveOne grants the most advanced message's request when all messages wait although
// hardly anything else is queued. Connections and kernel buffers can use so much memory
// that the usual reservation never fits. locked is true if this request does not fit
// either, and no request was granted for stillTime.
func (t *uploads) giveOne(now time.Time) (locked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waits := t.budget.used.Load()
	for _, u := range t.line {
		if u.wants == 0 {
			return false // that message may complete, or its client be closed
		}
		waits -= u.held
	}
	u := t.firstLocked(now)
	if u == nil || waits > t.budget.limit/16 {
		return false // more memory becomes free when queued data leaves
	}
	if t.budget.excess()+u.wants <= 0 {
		t.goOnLocked(u, now)
		return false
	}
	return now.Sub(t.went) >= stillTime
}

// firstLocked returns the most advanced message that waits or makes progress, or nil.
func (t *uploads) firstLocked(now time.Time) (first *upload) {
	for _, u := range t.line {
		if (u.wants > 0 || now.Sub(u.moved) < turnTime) && (first == nil || u.held > first.held) {
			first = u
		}
	}
	return first
}

// lacksLocked returns how many bytes must be freed before a message can continue. It is 0
// if nothing else is queued.
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

// check updates each message's progress, and grants requests. It returns how many bytes
// the next waiting message lacks, and whether any message has made progress lately.
func (t *uploads) check(now time.Time) (lacks int64, moves bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	moves = now.Sub(t.went) < turnTime
	late := max(0, now.Sub(t.look)-2*uploadLook) // time in which the relay itself did not run
	t.look = now
	for _, u := range t.line {
		u.moved = clock.Earlier(u.moved.Add(late), now)
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

// unread reports whether the kernel has bytes that the relay has not read yet.
func (u *upload) unread() bool {
	if u.conn.Conn == nil {
		return false
	}
	_, unread := wire.Queued(u.conn.Conn)
	return unread > 0
}
