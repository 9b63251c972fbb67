package gateway

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// A relief frees memory when the budget is short: it closes clients, first those that hold
// memory without progress. It also schedules large messages.
type relief struct {
	life   context.Context // the server's
	budget *budget
	hosts  *hosts
}

// Clients that read must not suffer from clients that do not read. When memory is short,
// relief closes the clients that have not read for longest. A client counts as not reading
// after unreadTime. A client that reads may still have to wait for clients that read slowly.

// relieve frees memory whenever it is short, until the server ends. While it frees memory,
// it blocks data from hosts. So the queues of clients that read become empty, and the other
// clients can be recognized and closed.
func (r *relief) relieve() {
	for {
		select {
		case <-r.life.Done():
			return
		case <-r.budget.over:
		}
		if r.budget.pressure() > 0 {
			r.makeRoom()
			r.budget.alarm()
		}
	}
}

const (
	// reliefShare divides the limit: memory is short when less than this part is free.
	reliefShare = 4

	// unreadTime is the time without progress after which a client counts as not reading.
	// It is longer than the pause after a lost packet. After data from hosts was blocked
	// for the time patience, other clients are closed too.
	unreadTime = 400 * time.Millisecond
	patience   = 1500 * time.Millisecond

	// spareShare divides the limit. relief frees this part in addition to the needed bytes,
	// so that it runs less often. It takes these bytes only from clients without progress.
	spareShare = 8

	// lookTime is the interval between checks, and shortTime the interval if too
	// little could be freed.
	lookTime  = 10 * time.Millisecond
	shortTime = 100 * time.Millisecond
)

// makeRoom closes clients until memory is no longer short. It first closes clients without
// progress, and others only if the limit is exceeded, or after the time patience.
func (r *relief) makeRoom() {
	release := sync.OnceFunc(r.budget.holdBack())
	defer release()
	r.hosts.shed()
	for _, c := range r.hosts.all() {
		c.load.noteLoad(c.toHost())
	}
	for began := time.Now(); r.budget.pressure() > 0 && r.life.Err() == nil; {
		now := time.Now()
		r.overload(now, r.budget.pressure()+r.budget.limit/spareShare, isStill)
		if r.budget.excess() > 0 || now.Sub(began) >= patience {
			victims := isNotInTurns
			if r.budget.excess() > 0 {
				victims = isAny
			}
			left := r.overload(now, r.budget.pressure(), victims)
			r.budget.short.Store(left > 0)
			if left > 0 || now.Sub(began) >= patience {
				release()
				wait(r.life, time.After(shortTime))
				return
			}
		}
		wait(r.life, time.After(lookTime)) // closed clients need a moment to end
	}
}

// reliefSteps groups clients by the bytes that they hold. The group with more bytes is
// closed first, because closing a client with one small pending request frees hardly
// anything.
var reliefSteps = []int{4 << 10, 1}

// A burden describes the memory that a client holds.
type burden struct {
	*client
	bytes   int
	since   time.Time
	unread  time.Duration // how long the client has not read
	stopped time.Duration // how long the client has paused in the middle of a large message
	inTurns bool          // the client's messages are slowed, its large message makes progress or has waited less than stillTime, or the relay has yet to read its data
}

// Rules that select the clients to close.
func isAny(burden, time.Time) bool            { return true }
func isNotInTurns(b burden, _ time.Time) bool { return !b.inTurns }
func isUnread(b burden, _ time.Time) bool     { return !b.inTurns && b.unread >= unreadTime }

// isStill selects clients without progress. A client that only waits for its host gets
// more time, because the delay is not the client's fault.
func isStill(b burden, now time.Time) bool {
	return isUnread(b, now) || !b.inTurns && (b.stopped >= stopTime || now.Sub(b.since) >= stillTime)
}

// burdenOf returns a client's burden. The caller must call noteMoved first.
func burdenOf(c *client, now time.Time) burden {
	c.mu.Lock()
	pending := c.pending.bytes
	c.mu.Unlock()
	b := burden{client: c, since: now}
	c.load.weigh(&b, pending, c.out.held(), now)
	return b
}

// overload closes clients selected by the rule may, until want bytes will be free. Within
// a group, it first closes those that have made no progress for longest, and then those
// that hold the most bytes. It returns the number of bytes still missing.
func (r *relief) overload(now time.Time, want int64, may func(burden, time.Time) bool) (left int64) {
	clients := r.hosts.all()
	for _, c := range clients {
		c.load.noteMoved(now, c.toHost())
	}
	var burdens []burden
	for _, c := range clients {
		b := burdenOf(c, now)
		if c.load.cut.Load() {
			want -= int64(b.bytes) // already closing
		} else if b.bytes > 0 && may(b, now) {
			burdens = append(burdens, b)
		}
	}
	slices.SortFunc(burdens, func(a, b burden) int {
		return cmp.Or(reliefStep(a.bytes)-reliefStep(b.bytes), a.since.Compare(b.since), b.bytes-a.bytes)
	})
	for _, b := range burdens {
		if want <= 0 {
			break
		}
		b.overload(now.Sub(b.since), b.unread >= unreadTime)
		want -= int64(b.bytes)
	}
	return want
}

func reliefStep(bytes int) int {
	return slices.IndexFunc(reliefSteps, func(least int) bool { return bytes >= least })
}

// takeTurns schedules large messages until the server ends. While a message waits, it
// closes clients that do not read. If no message makes progress, it also closes other
// clients without progress. If these free too little and no message can continue
// (giveOne), it closes any clients.
func (r *relief) takeTurns() {
	t := &r.budget.uploads
	tick := time.Tick(uploadLook)
	for {
		select {
		case <-r.life.Done():
			return
		case <-t.eased:
			t.give(time.Now())
		case now := <-tick:
			lacks, moves := t.check(now)
			switch {
			case lacks <= 0:
			case moves:
				r.overload(now, lacks, isUnread)
			case r.overload(now, lacks, isStill) > 0 && t.giveOne(now):
				r.overload(now, lacks, isAny)
			}
		}
	}
}
