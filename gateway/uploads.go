package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Large messages of clients take turns. Nobody knows how long one is before it
// has come, so what is beyond keepBuffer is asked for step by step, and who asks
// waits, with its socket unread, until there is room. There is room as long as
// the message that has come furthest could still become as long as one may be:
// so one of them can always be ended, and with what it gives back another. (It
// is the banker's algorithm, for one kind of thing of which all may want as
// much.) What clients send never makes memory short in that way, and nobody is
// closed for having waited.
//
// For a client that stalls in the middle of its message no room is kept. Only if
// the others cannot go on without what it holds, it is closed: see
// [relief.takeTurns].

const (
	// leastPace is how many bytes a client has to bring between two looks to be
	// on the way, and turnTime after how long without that no room is kept for
	// what is left of its message.
	leastPace = 1 << 10
	turnTime  = 2 * time.Second

	// uploadLook is how often that is looked at.
	uploadLook = time.Second

	// stillTime is how long a client stands still that is closed for a large
	// message that waits.
	stillTime = 10 * time.Second
)

// errCut ends the reading of a client that is being closed.
var errCut = errors.New("client is closed")

// uploads are the large messages that are being read.
type uploads struct {
	budget *budget
	claim  int64         // bytes that one of them takes at most
	waits  atomic.Int32  // how many of them wait
	eased  chan struct{} // holds one: less is in use, and somebody waits

	mu   sync.Mutex // guards the fields below, and those of all uploads
	line []*upload  // the one that began first is in front
	went time.Time  // when one of them last was let go on
}

// An upload is a large message of a client that is being read.
type upload struct {
	conn     *lockedConn
	held     int64         // bytes that it may take
	wants    int64         // more that it waits for; 0: it does not wait
	ready    chan struct{} // closed when it may go on, or is over
	over     bool          // the client is closed
	moved    time.Time     // when it last was on its way, or waited
	received uint64        // bytes that had come then
}

// more waits until n bytes more may be read. The error is [errCut] once the
// client is closed.
func (t *uploads) more(ctx context.Context, u *upload, n int) error {
	t.mu.Lock()
	if u.over {
		t.mu.Unlock()
		return errCut
	}
	if u.held == 0 {
		u.received = u.conn.taken.Load()
		t.line = append(t.line, u)
	}
	u.wants, u.ready = int64(n), make(chan struct{})
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

// end takes a message out of the line, and returns how many bytes it holds.
func (t *uploads) end(u *upload) (held int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = slices.DeleteFunc(t.line, func(other *upload) bool { return other == u })
	t.waitsNoMoreLocked(u)
	held, u.held = u.held, 0
	t.giveLocked(time.Now())
	return held
}

// stop ends the message that a client is sending, and lets it begin no more:
// the client is closed. Its reader takes it out of the line.
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

// state returns how many bytes a message holds, and when it was last on its way,
// or waited: the zero Time if none is being read. One that waits for its first turn holds
// none.
func (t *uploads) state(u *upload, now time.Time) (held int, moved time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case u.wants > 0:
		moved = now
	case u.held > 0:
		moved = u.moved
	}
	return int(u.held), moved
}

// give has those go on for which there is room.
func (t *uploads) give(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.giveLocked(now)
}

// giveLocked asks first the one that has come furthest, for which room is kept,
// and then the others in their order: none overtakes another for wanting less.
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
	t.waitsNoMoreLocked(u)
}

// giveOne has the message go on that has come furthest, if there is any memory for
// it, all others wait too, and hardly anything else does: what is in use beside, by
// connections and by kernels for those that wait, leaves less than was kept for one.
// It reports whether there is none, and for stillTime none of them went on.
func (t *uploads) giveOne(now time.Time) (locked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waits := t.budget.used.Load()
	for _, u := range t.line {
		if u.wants == 0 {
			return false // it may end, or is closed
		}
		waits -= u.held
	}
	u := t.firstLocked(now)
	if u == nil || waits > t.budget.limit/16 {
		return false // what else waits leaves
	}
	if t.budget.excess()+u.wants <= 0 {
		t.goOnLocked(u, now)
		return false
	}
	return now.Sub(t.went) >= stillTime
}

// firstLocked returns the message that has come furthest, of those that wait or are on
// their way; nil if there is none.
func (t *uploads) firstLocked(now time.Time) (first *upload) {
	for _, u := range t.line {
		if (u.wants > 0 || now.Sub(u.moved) < turnTime) && (first == nil || u.held > first.held) {
			first = u
		}
	}
	return first
}

// lacksLocked is how many bytes less would have to be in use for a message to go
// on. Where nothing but that message waits, there is always room.
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

// look notes which messages are on their way, and has those go on that can. If
// some wait and none is on its way, to give back what it takes, it returns how
// many bytes the next one lacks.
func (t *uploads) look(now time.Time) (lacks int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, u := range t.line {
		if heard := u.conn.taken.Load(); u.wants > 0 || heard-u.received >= leastPace {
			u.moved, u.received = now, heard
		}
	}
	t.giveLocked(now)
	for _, u := range t.line {
		switch {
		case u.wants > 0 && lacks == 0:
			lacks = t.lacksLocked(u, t.firstLocked(now))
		case u.wants == 0 && now.Sub(u.moved) < turnTime:
			return 0
		}
	}
	return lacks
}
