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
// too slow for each: they would time out, and their logins would be wasted work. So the
// relay processes a few logins at a time, and lets some wait. It refuses the rest with the
// time at which to return, which depends on the rate of completed logins. Tenants take
// turns.

const (
	// arrivalsEach is the number of arrivals processed at a time, for each processor.
	arrivalsEach = 16

	// arrivalPatience is the longest wait for a turn. It is shorter than
	// broker.DialTimeout, after which a host-agent gives up, because the login takes time
	// too.
	arrivalPatience = 2 * time.Second

	// maxReturn is the longest time after which a refused arrival may return.
	maxReturn = 30 * time.Second

	// firstRate is the assumed number of completions per second for each processor, until
	// the rate is measured, and again when the measurement is older than rateLife: the
	// machine may have been busy with something else.
	firstRate = 100
	rateLife  = 10 * time.Second

	// rateWindow is the shortest time over which the rate is measured, and slowWindow the
	// longest. leastRate is the lowest rate.
	rateWindow = 250 * time.Millisecond
	slowWindow = 2 * time.Second
	leastRate  = 1

	maxArrivals = 1 << 16 // waiting arrivals for each tenant
)

// Arrivals admits host-agents that arrive at the same time.
type Arrivals struct {
	atOnce    int
	firstRate float64 // completions per second
	turns     *fair.Turns

	mu      sync.Mutex // guards the fields below
	working int
	waiting map[string]int       // by tenant
	booked  map[string]time.Time // when a tenant's last refused arrival is to return, by tenant
	rate    float64              // completions per second while all turns are taken
	rated   time.Time            // when the rate was measured; zero: it is the first rate, or above
	since   time.Time            // start of the current measurement; zero: none
	counted int                  // completions since then
}

// NewArrivals returns an Arrivals for the number of processors that this process may use.
func NewArrivals() *Arrivals {
	processors := runtime.GOMAXPROCS(0)
	return newArrivals(arrivalsEach*processors, firstRate*float64(processors))
}

func newArrivals(atOnce int, rate float64) *Arrivals {
	return &Arrivals{
		atOnce: atOnce, firstRate: rate, turns: fair.New(maxArrivals, atOnce, atOnce), rate: rate,
		waiting: map[string]int{}, booked: map[string]time.Time{},
	}
}

// Enter waits for a tenant's turn. The caller must call done when the arrival has
// completed (true) or failed (false); further calls have no effect. If done is nil, the
// arrival is refused and may return after the given time.
func (a *Arrivals) Enter(ctx context.Context, tenant string) (done func(completed bool), after time.Duration) {
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
	var once sync.Once
	return func(completed bool) { once.Do(func() { a.left(completed); end() }) }, 0
}

// Crowded reports whether as many arrivals are processed as fit.
func (a *Arrivals) Crowded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.working >= a.atOnce
}

// Full returns 0 unless so many of a tenant's arrivals wait that Enter would refuse the
// next one. It then returns the time after which that one may return. The tenant may be
// a mere claim: for a tenant without waiting arrivals, Full changes nothing.
func (a *Arrivals) Full(tenant string) (after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.working < a.atOnce || a.waiting[tenant] == 0 || a.waitLocked(tenant) <= arrivalPatience {
		return 0
	}
	return a.bookLocked(tenant)
}

// queue counts an arrival as waiting and returns 0. If the wait would be too long, it
// returns the time after which the arrival may return.
func (a *Arrivals) queue(tenant string) (after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.rated.IsZero() && time.Since(a.rated) > rateLife {
		a.rate, a.rated = max(a.rate, a.firstRate), time.Time{}
	}
	if (a.working >= a.atOnce || len(a.waiting) > 0) && a.waitLocked(tenant) > arrivalPatience {
		return a.bookLocked(tenant)
	}
	a.waiting[tenant]++
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
// tenant's refused arrivals at the tenant's share of the rate. If that time exceeds
// maxReturn, it returns a shorter random time, after which the arrival will be refused
// again.
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

// left records that an arrival has completed or failed. Failures are no completions: a
// relay that is too slow for its host-agents would count each lost login as done.
func (a *Arrivals) left(completed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	full := a.working == a.atOnce
	a.working--
	if a.since.IsZero() {
		return
	}
	if completed {
		a.counted++
	}
	took := time.Since(a.since)
	if took >= rateWindow && a.counted >= a.atOnce/2 || took >= slowWindow {
		a.rate = max((a.rate+float64(a.counted)/took.Seconds())/2, leastRate)
		a.rated = time.Now()
		a.since, a.counted = a.rated, 0
	}
	if !full && a.working < a.atOnce/2 { // arrivals are lacking, so this shows no rate
		a.since = time.Time{}
	}
}
