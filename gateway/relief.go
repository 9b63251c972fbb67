package gateway

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A relief keeps memory for clients within its limit: it closes clients that hold
// memory without progress, and schedules large messages.
type relief struct {
	life   context.Context // the server's
	budget *budget
	hosts  *hosts
}

// A client that reads never queues behind clients that do not: as soon as it waits for
// memory, the clients that have not read for longest are closed. It may wait for the proof
// (unreadTime), and behind clients that read slowly.

// relieve frees memory whenever it is short, until the server ends. Meanwhile it holds
// sources back: clients that read catch up, and clients that do not read become known
// soon, and are closed.
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
	// reliefShare is the part of the limit kept free: memory is short above the rest.
	reliefShare = 4

	// unreadTime is the standstill that proves that a client does not read: longer than
	// the pause of a line that loses a packet. Patience bounds the time for which
	// sources are held back.
	unreadTime = 400 * time.Millisecond
	patience   = 1500 * time.Millisecond

	// spareShare is the part of the limit freed at a time, beyond the need, as long as
	// clients that do not read have it: sources are then held back rarely.
	spareShare = 8

	// lookTime is the interval of checks, and shortTime the interval after nothing
	// could be freed.
	lookTime  = 10 * time.Millisecond
	shortTime = 100 * time.Millisecond
)

// makeRoom closes clients until memory is no longer short: first those that do not read.
// It closes others only if all memory is in use, or after patience.
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

// reliefSteps groups clients by the bytes on their account: a client is closed only
// after all in larger groups. Closing a client with one small request waiting for its
// host frees hardly anything.
var reliefSteps = []int{4 << 10, 1}

// A burden is the bytes on a client's account, and the start of their standstill.
type burden struct {
	*client
	bytes   int
	since   time.Time
	unread  time.Duration // for which the client has not read
	stopped time.Duration // for which it has stopped in the middle of a large message
	inTurns bool          // it sends a large message that moves or has waited less than stillTime, or its data only waits to be read
}

// Rules about which clients may be closed.
func isAny(burden, time.Time) bool            { return true }
func isNotInTurns(b burden, _ time.Time) bool { return !b.inTurns }
func isUnread(b burden, _ time.Time) bool     { return !b.inTurns && b.unread >= unreadTime }

// isStill selects clients without progress. The host is not the client's fault, so a
// client that waits for it has more time.
func isStill(b burden, now time.Time) bool {
	return isUnread(b, now) || !b.inTurns && (b.stopped >= stopTime || now.Sub(b.since) >= stillTime)
}

// burdenOf returns a client's burden. Call noteMoved first.
func burdenOf(c *client, now time.Time) burden {
	c.mu.Lock()
	pending := c.pending.bytes
	c.mu.Unlock()
	b := burden{client: c, since: now}
	c.load.weigh(&b, pending, c.out.held(), now)
	return b
}

func (b *burden) standsFrom(since time.Time) {
	if since.Before(b.since) {
		b.since = since
	}
}

// overload closes clients that the rule selects, until want bytes will be free. Within a
// step it begins with the longest standstill, and among moving clients with the most
// bytes. It returns the bytes still missing.
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
		if d := reliefStep(a.bytes) - reliefStep(b.bytes); d != 0 {
			return d
		}
		if d := a.since.Compare(b.since); d != 0 {
			return d
		}
		return b.bytes - a.bytes
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

// takeTurns schedules large messages until the server ends. While some wait, it closes
// clients that do not read, and if none moves, other clients without progress too. If
// there are none, and memory is too short for any message, it closes one waiting client.
func (r *relief) takeTurns() {
	t := &r.budget.uploads
	tick := time.NewTicker(uploadLook)
	defer tick.Stop()
	for {
		select {
		case <-r.life.Done():
			return
		case <-t.eased:
			t.give(time.Now())
		case now := <-tick.C:
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
