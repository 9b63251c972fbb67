package admission

import (
	"context"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"ahprelay/internal/fair"
)

// When all host-agents return at once, a relay that served all of them together would be
// too slow for each: they would time out, and their work would be lost. An arrival has
// several steps, from the request for a challenge to the login at the NATS server. If the
// relay admitted each step separately, the first steps of new arrivals would delay the last
// steps of others. So a host-agent gets a place before its first step, and keeps it until
// its login is complete. Some host-agents wait for a place. The relay refuses the others,
// and gives each a time at which to return (a booking), which depends on the rate of
// completed arrivals. Host-agents that return on time go before those that come for the
// first time. Tenants take turns.
//
// The relay learns how many places it needs. Slow or distant host-agents keep a place for long
// without using the relay, so it needs more. While more places do not prolong the arrivals, it
// adds some. It removes some if arrivals take much longer than before, or fail after long, because
// the relay works on too many at a time.

const (
	// arrivalsEach is the number of places for each processor at first. Later, there are between
	// 1/fewest of these and most times as many.
	arrivalsEach = 64
	fewest       = 4
	most         = 16

	// While an arrival takes at most growBelow percent of the time that it took with the best
	// number of places, the relay adds places. If it takes shrinkAbove times as long, or none
	// completes, the relay removes some. If an arrival then still takes more than helped percent
	// of that, the relay was not the reason: the host-agents that arrive now are slower or
	// farther away.
	growBelow   = 130
	shrinkAbove = 2
	helped      = 75

	// arrivalPatience is the longest wait for a place. It is shorter than
	// broker.DialTimeout, after which a host-agent gives up, because the login takes time
	// too.
	arrivalPatience = 2 * time.Second

	// arrivalStep is how long a host-agent keeps its place without a further step, and
	// longestArrival with any number of steps.
	arrivalStep    = 5 * time.Second
	longestArrival = 4 * arrivalStep

	// maxReturn is the longest time after which a refused arrival may return.
	maxReturn = 2 * time.Minute

	// soonReturn is the longest time that a refused host-agent is given as a whole. Of a longer
	// time, it is given half: the relay may have places earlier than it expects, and refuses
	// the host-agent again otherwise.
	soonReturn = 8 * time.Second

	// returnSlack is how early a host-agent may return and still be on time. The relay
	// gives the time in whole seconds, and a host-agent subtracts a random part of a second.
	returnSlack = time.Second

	// firstRate is the assumed number of completions per second for each processor until
	// the rate is measured. When the measurement is older than rateLife, the rate is at
	// least firstRate again, because the machine may have been busy with something else.
	firstRate = 100
	rateLife  = 10 * time.Second

	// The rate is measured over a time between rateWindow and slowWindow. leastRate is the
	// lowest rate.
	rateWindow = 250 * time.Millisecond
	slowWindow = 2 * time.Second
	leastRate  = 1

	// slowly is the smallest factor by which a measurement changes the pace of bookings.
	// While a crowd arrives, refusals take time, and the rate is low. If the pace fell as
	// fast as the rate, places would stay free later.
	slowly = 0.9

	// maxArrivals is the number of waiting arrivals for each tenant, and of bookings.
	maxArrivals = 1 << 16
)

// Arrivals admits host-agents that arrive at the same time.
type Arrivals struct {
	first     int     // number of places at first
	firstRate float64 // completions per second
	turns     *fair.Turns

	mu      sync.Mutex // guards the fields below
	atOnce  int        // number of places
	places  map[arriving]*place
	waiting map[string]int         // number of host-agents that wait for a place, by tenant
	booked  map[arriving]time.Time // when refused host-agents are to return
	last    map[string]time.Time   // the next time to book, by tenant; without an entry, now
	tidied  time.Time              // when missed bookings were last forgotten
	rate    float64                // completions per second while all places are taken
	pace    float64                // bookings per second
	rated   time.Time              // when the rate was measured; zero: not measured within rateLife
	current measurement
	resized time.Time     // when atOnce last changed
	best    time.Duration // shortest time for each completed arrival since it was last forgotten; 0: none
	slow    time.Duration // time for each completed arrival because of which places were removed; 0: none were, or some were added since
}

// A measurement counts arrivals since a time, while all places are taken.
type measurement struct {
	since     time.Time     // zero: nothing is measured now
	completed int           // arrivals
	spent     time.Duration // total time of the arrivals, also of those that have failed
}

// arriving identifies a host-agent by its tenant and host.
type arriving struct{ tenant, host string }

// A place belongs to a host-agent that has begun to arrive.
type place struct {
	since time.Time            // when the host-agent got it
	done  func(completed bool) // may be called repeatedly
	late  *time.Timer          // calls done after arrivalStep, or after longestArrival
}

// NewArrivals returns an Arrivals for the number of processors that this process may use.
func NewArrivals() *Arrivals {
	processors := runtime.GOMAXPROCS(0)
	return newArrivals(arrivalsEach*processors, firstRate*float64(processors))
}

func newArrivals(atOnce int, rate float64) *Arrivals {
	return &Arrivals{
		first: atOnce, atOnce: atOnce, firstRate: rate, turns: fair.New(maxArrivals, atOnce, atOnce), rate: rate, pace: rate,
		places: map[arriving]*place{}, waiting: map[string]int{}, booked: map[arriving]time.Time{}, last: map[string]time.Time{},
	}
}

// Enter begins a step of a host-agent's arrival. Before the first step, it waits for a
// place. The place is free again when done is called, because the arrival has completed
// (true) or failed (false), after arrivalStep without a further step, or after longestArrival.
// Repeated calls of done have no effect. If done is nil, the arrival is refused and may return after the
// given time.
func (a *Arrivals) Enter(ctx context.Context, tenant, host string) (done func(completed bool), after time.Duration) {
	who := arriving{tenant, host}
	if done, after = a.queue(who); done != nil || after > 0 {
		return done, after
	}
	ctx, cancel := context.WithTimeout(ctx, arrivalPatience)
	defer cancel()
	free, err := a.turns.Take(ctx, "all", tenant)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting[tenant]--; a.waiting[tenant] == 0 {
		delete(a.waiting, tenant)
	}
	if err != nil {
		return nil, a.bookLocked(who)
	}
	delete(a.booked, who)
	if p := a.places[who]; p != nil { // a different request of this host has got a place
		free()
		return p.done, 0
	}
	var once sync.Once
	p := &place{since: time.Now()}
	p.done = func(completed bool) { once.Do(func() { a.left(who, completed); free() }) }
	p.late = time.AfterFunc(arrivalStep, func() { p.done(false) })
	if a.places[who] = p; len(a.places) >= a.atOnce && a.current.since.IsZero() {
		a.current = measurement{since: time.Now()}
	}
	return p.done, 0
}

// Crowded reports whether all places are taken.
func (a *Arrivals) Crowded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.places) >= a.atOnce
}

// Full returns the time after which a host-agent may return if it was refused before and
// returns too early, and otherwise 0. The caller need not have verified the tenant and host,
// because Full changes nothing.
func (a *Arrivals) Full(tenant, host string) (after time.Duration) {
	who := arriving{tenant, host}
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Until(a.booked[who]) <= returnSlack {
		return 0
	}
	return a.refuseLocked(who)
}

// queue returns done for a host-agent with a place, or the time after which a refused one
// may return. Otherwise it counts the host-agent as waiting.
func (a *Arrivals) queue(who arriving) (done func(completed bool), after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.places[who]; p != nil {
		p.late.Reset(min(arrivalStep, longestArrival-time.Since(p.since)))
		return p.done, 0
	}
	if !a.rated.IsZero() && time.Since(a.rated) > rateLife {
		a.rate, a.rated = max(a.rate, a.firstRate), time.Time{}
		a.pace = a.rate
		a.best, a.slow = 0, 0
		a.resizeLocked(a.first)
	}
	if after := a.refuseLocked(who); after > 0 {
		return nil, after
	}
	a.waiting[who.tenant]++
	return nil, 0
}

// refuseLocked returns 0 if a host-agent may wait for a place, and otherwise the time
// after which it may return. It may wait if a place is free, or if it would get a place
// within arrivalPatience. A host-agent that returns too early may not wait. Neither may one
// without a booking, while its tenant's bookings reach beyond arrivalPatience.
func (a *Arrivals) refuseLocked(who arriving) (after time.Duration) {
	if a.places[who] != nil || len(a.places) < a.atOnce && len(a.waiting) == 0 {
		return 0
	}
	now := time.Now()
	if at, booked := a.booked[who]; booked {
		if early := at.Sub(now); early > returnSlack {
			return told(early)
		}
	} else if a.last[who.tenant].Sub(now) > arrivalPatience {
		return a.bookLocked(who)
	}
	if a.waitLocked(who.tenant) > arrivalPatience {
		return a.bookLocked(who)
	}
	return 0
}

// waitLocked estimates how long a tenant's next arrival would wait.
func (a *Arrivals) waitLocked(tenant string) time.Duration {
	tenants := len(a.waiting)
	if a.waiting[tenant] == 0 {
		tenants++
	}
	return time.Duration(float64((a.waiting[tenant]+1)*tenants) / a.rate * float64(time.Second))
}

// bookLocked returns the time after which a refused arrival may return. It spreads a
// tenant's refused arrivals at the tenant's share of the pace. A host-agent that returned
// on time and is refused again gets an early time. If the time exceeds maxReturn, or there
// are too many bookings, bookLocked returns a random time without a booking.
func (a *Arrivals) bookLocked(who arriving) time.Duration {
	now := time.Now()
	if now.Sub(a.tidied) > rateLife {
		a.tidied = now
		maps.DeleteFunc(a.booked, func(_ arriving, at time.Time) bool { return now.Sub(at) > arrivalPatience+returnSlack })
		maps.DeleteFunc(a.last, func(_ string, last time.Time) bool { return now.After(last) })
	}
	next := now.Add(a.waitLocked(who.tenant))
	if at, booked := a.booked[who]; booked && at.Sub(now) <= returnSlack {
		next = next.Add(returnSlack + rand.N(arrivalPatience))
		a.booked[who] = next
		return told(next.Sub(now))
	}
	if last := a.last[who.tenant]; last.After(next) {
		next = last
	}
	if next.Sub(now) > maxReturn || len(a.booked) >= maxArrivals {
		return maxReturn/2 + rand.N(maxReturn/2)
	}
	a.booked[who] = next
	a.last[who.tenant] = next // so that len(a.last) below counts this tenant
	a.last[who.tenant] = next.Add(time.Duration(float64(len(a.last)) / a.pace * float64(time.Second)))
	return told(next.Sub(now))
}

// told returns the time that a refused host-agent with a booking is given.
func told(booked time.Duration) time.Duration {
	if booked <= soonReturn {
		return booked
	}
	return booked / 2
}

// left records that an arrival has completed or failed. Only completions count for the
// rate. Otherwise each login that is lost because the relay is too slow would raise it.
func (a *Arrivals) left(who arriving, completed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	full := len(a.places) >= a.atOnce
	p := a.places[who]
	p.late.Stop()
	delete(a.places, who)
	m := &a.current
	if m.since.IsZero() {
		return
	}
	m.spent += time.Since(p.since)
	if completed {
		m.completed++
	}
	took := time.Since(m.since)
	if took >= rateWindow && m.completed >= a.atOnce/2 || took >= slowWindow {
		a.rate = max((a.rate+float64(m.completed)/took.Seconds())/2, leastRate)
		a.pace = max(a.rate, a.pace*slowly)
		a.adaptLocked(full)
		a.rated = time.Now()
		*m = measurement{since: a.rated}
	}
	if !full && len(a.places) < a.atOnce/2 { // too few host-agents arrive to measure the rate
		m.since = time.Time{}
	}
}

// adaptLocked changes the number of places after a measurement. Failed arrivals count by the
// time for which they kept a place. One that fails at once, as often as its host-agent likes,
// shows nothing about the relay.
func (a *Arrivals) adaptLocked(full bool) {
	if a.current.completed == 0 {
		a.resizeLocked(a.atOnce / 2)
		return
	}
	each := a.current.spent / time.Duration(a.current.completed)
	if a.best == 0 || each < a.best {
		a.best = each
	}
	switch {
	case time.Since(a.resized) < each: // the last change has not had its effect yet
	case each > shrinkAbove*a.best && (a.slow == 0 || each < a.slow*helped/100):
		a.slow = each
		a.resizeLocked(a.atOnce / 2)
	case each > shrinkAbove*a.best:
		a.best, a.slow = each, 0
	case full && each < a.best*growBelow/100:
		a.slow = 0
		a.resizeLocked(a.atOnce*3/2 + 1)
	}
}

// resizeLocked changes the number of places within its bounds.
func (a *Arrivals) resizeLocked(places int) {
	a.resized = time.Now()
	a.atOnce = min(max(places, a.first/fewest, 1), a.first*most)
	a.turns.Resize(a.atOnce, a.atOnce)
}
