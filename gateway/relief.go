package gateway

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A relief sees to it that the memory for all clients is enough: it closes those that take
// theirs and do not go on, and gives those their turn that send large messages.
type relief struct {
	life   context.Context // the server's
	budget *budget
	hosts  *hosts
}

// relieve makes room whenever memory is short, until the server ends. Sources are
// held back meanwhile: so those that take what they are sent get on, and those
// that take nothing are soon known, and closed.
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
	// reliefShare is the part of the limit from which on memory is short.
	reliefShare = 4

	// provenTime is how long a client has stood still that takes nothing, as far
	// as can be told, and patience how long sources are held back at most to know.
	provenTime = 1500 * time.Millisecond
	patience   = 2500 * time.Millisecond

	// lookTime is how often that is looked at, and shortTime how often if nothing
	// was to be had.
	lookTime  = 10 * time.Millisecond
	shortTime = 100 * time.Millisecond
)

// makeRoom closes clients until memory is no longer short: those that have stood
// still for provenTime, and only if all of the memory is in use, or patience has
// not helped, any others.
func (r *relief) makeRoom() {
	release := sync.OnceFunc(r.budget.holdBack())
	defer release()
	r.hosts.shed()
	for _, c := range r.hosts.all() {
		c.load.noteLoad(c.toHost())
	}
	for began := time.Now(); r.budget.pressure() > 0 && r.life.Err() == nil; {
		now := time.Now()
		r.overload(now, r.budget.pressure(), provenTime, false)
		if r.budget.excess() > 0 || now.Sub(began) >= patience {
			left := r.overload(now, r.budget.pressure(), 0, r.budget.excess() > 0)
			r.budget.short.Store(left > 0)
			if left > 0 || now.Sub(began) >= patience {
				release()
				wait(r.life, time.After(shortTime))
				return
			}
		}
		wait(r.life, time.After(lookTime)) // what was given up has a moment to go
	}
}

// reliefSteps are how many bytes must wait on a client's account for it to be
// closed: those with less come after all that have more. Hardly anything is won
// by closing one that waits for its host with a small request.
var reliefSteps = []int{4 << 10, 1}

// A burden is what waits on account of a client, and since when nothing of it
// has moved.
type burden struct {
	*client
	bytes   int
	since   time.Time
	inTurns bool // it sends a large message, which goes on, or waits for others or its host, for less than stillTime; or it only waits to be read
}

// burdenOf returns what waits on account of a client, as noteMoved has just seen it.
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

// overload closes clients that have stood still for that long, until so many
// bytes will be free: of those with something to win, first those that have stood
// still for longest, and among those that move the ones that have most. Those that
// take turns are closed only if turns is set. It returns how many bytes are still to
// be found.
func (r *relief) overload(now time.Time, want int64, still time.Duration, turns bool) (left int64) {
	clients := r.hosts.all()
	for _, c := range clients {
		c.load.noteMoved(now, c.toHost())
	}
	var burdens []burden
	for _, c := range clients {
		b := burdenOf(c, now)
		if c.load.cut.Load() {
			want -= int64(b.bytes) // it is going
		} else if b.bytes > 0 && now.Sub(b.since) >= still && (!b.inTurns || turns) {
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
		b.overload(now.Sub(b.since))
		want -= int64(b.bytes)
	}
	return want
}

func reliefStep(bytes int) int {
	return slices.IndexFunc(reliefSteps, func(least int) bool { return bytes >= least })
}

// takeTurns has large messages go on until the server ends. While some wait and
// none is on its way, those are closed on whose account something waits that has
// stood still for stillTime: so one that has stalled does not stop the others for
// ever. If there is none, and memory is so short that none can go on, one that waits
// is closed.
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
			if lacks := t.look(now); lacks > 0 && r.overload(now, lacks, stillTime, false) > 0 && t.giveOne(now) {
				r.overload(now, lacks, 0, true)
			}
		}
	}
}
