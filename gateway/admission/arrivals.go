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

// When all host-agents return at once, a relay that works on all of them finishes none
// before they give up, and its work is lost. So only a few logins are worked on at a time,
// some wait, and the rest are told when to return: at the rate at which logins have
// completed. Tenants take turns.

const (
	// arrivalsEach is the number of arrivals worked on at a time, for each processor.
	arrivalsEach = 16

	// arrivalPatience bounds the wait for a turn. A host-agent gives up after
	// broker.DialTimeout, and its login takes time, too.
	arrivalPatience = 2 * time.Second

	// maxReturn bounds the time until a refused arrival may return.
	maxReturn = 30 * time.Second

	// firstRate is the assumed rate of completions per second for each processor.
	firstRate = 100

	// rateWindow is the least time over which the rate is measured.
	rateWindow = 250 * time.Millisecond

	maxArrivals = 1 << 16 // waiting, of a tenant
)

// Arrivals admits host-agents that come at the same time.
type Arrivals struct {
	atOnce int
	turns  *fair.Turns

	mu      sync.Mutex // guards the fields below
	working int
	waiting map[string]int       // by tenant
	booked  map[string]time.Time // when the last refused arrival of a tenant returns
	rate    float64              // completions per second while all turns are taken
	since   time.Time            // start of the current measurement; zero: none
	counted int                  // completions since then
}

// NewArrivals returns an Arrivals for this process's processors.
func NewArrivals() *Arrivals {
	processors := runtime.GOMAXPROCS(0)
	return newArrivals(arrivalsEach*processors, firstRate*float64(processors))
}

func newArrivals(atOnce int, rate float64) *Arrivals {
	return &Arrivals{
		atOnce: atOnce, turns: fair.New(maxArrivals, atOnce, atOnce), rate: rate,
		waiting: map[string]int{}, booked: map[string]time.Time{},
	}
}

// Enter waits for a tenant's turn. The caller calls done when the arrival has completed or
// failed; later calls do nothing. A nil done means that the arrival may return after the
// given time.
func (a *Arrivals) Enter(ctx context.Context, tenant string) (done func(), after time.Duration) {
	if after := a.queue(tenant); after > 0 {
		return nil, after
	}
	ctx, cancel := context.WithTimeout(ctx, arrivalPatience)
	defer cancel()
	end, err := a.turns.Take(ctx, "all", tenant)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting[tenant]--; a.waiting[tenant] == 0 {
		delete(a.waiting, tenant)
	}
	if err != nil {
		return nil, a.bookLocked(tenant)
	}
	if a.working++; a.working == a.atOnce && a.since.IsZero() {
		a.since, a.counted = time.Now(), 0
	}
	return sync.OnceFunc(func() { a.left(); end() }), 0
}

// queue counts an arrival as waiting, or returns when it may return.
func (a *Arrivals) queue(tenant string) (after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if (a.working >= a.atOnce || len(a.waiting) > 0) && a.waitLocked(tenant) > arrivalPatience {
		return a.bookLocked(tenant)
	}
	a.waiting[tenant]++
	return 0
}

// waitLocked returns how long a tenant's next arrival would wait.
func (a *Arrivals) waitLocked(tenant string) time.Duration {
	tenants := len(a.waiting)
	if a.waiting[tenant] == 0 {
		tenants++
	}
	return time.Duration(float64((a.waiting[tenant]+1)*tenants) / a.rate * float64(time.Second))
}

// bookLocked returns the time until a refused arrival may return. Refused arrivals return
// one after the other, at the tenant's part of the rate. Those without a place before
// maxReturn return at a random time before it, and are then told anew.
func (a *Arrivals) bookLocked(tenant string) time.Duration {
	now := time.Now()
	if _, known := a.booked[tenant]; !known {
		maps.DeleteFunc(a.booked, func(_ string, last time.Time) bool { return now.After(last) })
		a.booked[tenant] = now
	}
	next := now.Add(a.waitLocked(tenant))
	if last := a.booked[tenant]; last.After(next) {
		next = last
	}
	if next.Sub(now) > maxReturn {
		return maxReturn/2 + rand.N(maxReturn/2)
	}
	a.booked[tenant] = next.Add(time.Duration(float64(len(a.booked)) / a.rate * float64(time.Second)))
	return next.Sub(now)
}

// left counts the end of an arrival's work.
func (a *Arrivals) left() {
	a.mu.Lock()
	defer a.mu.Unlock()
	full := a.working == a.atOnce
	a.working--
	if a.since.IsZero() {
		return
	}
	a.counted++
	took := time.Since(a.since)
	if took >= rateWindow && a.counted >= a.atOnce/2 {
		a.rate = (a.rate + float64(a.counted)/took.Seconds()) / 2
		a.since, a.counted = time.Now(), 0
	}
	if !full && a.working < a.atOnce/2 { // arrivals are lacking, so this shows no rate
		a.since = time.Time{}
	}
}
