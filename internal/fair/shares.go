package fair

import (
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// activeTime is how long a tenant counts as active after a step that followed another
	// within this time. So a tenant which
	// only sends heartbeats, with longer pauses in between, is hardly ever active.
	activeTime = time.Second

	// freeTime is how much work a tenant may do after a pause before it must rest.
	freeTime = 10 * time.Millisecond

	// leastRest is the shortest rest, because timers are not more precise.
	leastRest = time.Millisecond

	// longestRest bounds a rest, and so a tenant's debt.
	longestRest = time.Second
)

// Shares limit the processor time spent on a tenant's input while a different tenant is
// active. Each connection reports how long a finished step took, and then rests until the
// tenant has paid for that time. So a step never waits for another tenant's step, and a
// connection with little work hardly rests.
//
// Together, all tenants in debt pay at a fixed rate, in equal parts. The only active tenant
// never rests.
type Shares struct {
	rate float64 // processors

	mu      sync.Mutex // guards the fields below
	tenants map[string]*account
	sweepAt int         // len(tenants) at which inactive tenants are forgotten
	debtors []*account  // tenants in debt at the last call of debtorsLocked
	latest  [2]activity // of the two most recently active tenants
}

// An account records a tenant's processor time.
type account struct {
	worked time.Time // when its last step ended
	paid   time.Time // until when the tenant's work is paid; in the future for a tenant in debt
}

// An activity is a step of an active tenant.
type activity struct {
	of *account
	at time.Time
}

// NewShares returns Shares in which tenants in debt may use the given number of
// processors.
func NewShares(processors float64) *Shares {
	return &Shares{rate: processors, tenants: map[string]*account{}, sweepAt: 16}
}

// Spend reports how long a tenant's step took. The caller must rest for the returned time
// before the next step.
func (s *Shares) Spend(tenant string, took time.Duration) (rest time.Duration) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[tenant]
	if t == nil {
		s.forgetLocked(now)
		t = &account{}
		s.tenants[tenant] = t
	}
	if now.Sub(t.worked) < activeTime {
		s.noteLocked(activity{t, now})
	}
	t.worked = now
	s.chargeLocked(t, took, now)
	if rest = t.paid.Sub(now); rest < leastRest {
		return 0
	}
	return rest
}

// Charge adds work caused by a tenant's steps. The tenant rests for it after its next
// step.
func (s *Shares) Charge(tenant string, took time.Duration) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tenants[tenant]; t != nil {
		s.chargeLocked(t, took, now)
	}
}

// Contended reports whether a different tenant is active.
func (s *Shares) Contended(tenant string) bool {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contendedLocked(s.tenants[tenant], now)
}

// chargeLocked charges work to a tenant if a different tenant is active.
func (s *Shares) chargeLocked(t *account, took time.Duration, now time.Time) {
	contended := s.contendedLocked(t, now)
	if earliest := now.Add(-freeTime); !contended || t.paid.Before(earliest) {
		t.paid = earliest
	}
	if !contended {
		return
	}
	t.paid = t.paid.Add(time.Duration(float64(took) * float64(s.debtorsLocked(t, now)) / s.rate))
	if last := now.Add(longestRest); t.paid.After(last) {
		t.paid = last
	}
}

func (s *Shares) noteLocked(a activity) {
	if s.latest[0].of != a.of {
		s.latest[1] = s.latest[0]
	}
	s.latest[0] = a
}

// contendedLocked reports whether a tenant other than t is active.
func (s *Shares) contendedLocked(t *account, now time.Time) bool {
	return slices.ContainsFunc(s.latest[:], func(a activity) bool { return a.of != nil && a.of != t && now.Sub(a.at) < activeTime })
}

// debtorsLocked returns the number of tenants in debt, including t.
func (s *Shares) debtorsLocked(t *account, now time.Time) int {
	if !slices.Contains(s.debtors, t) {
		s.debtors = append(s.debtors, t)
	}
	s.debtors = slices.DeleteFunc(s.debtors, func(d *account) bool { return d != t && !d.paid.After(now) })
	return len(s.debtors)
}

func (s *Shares) forgetLocked(now time.Time) {
	if len(s.tenants) < s.sweepAt {
		return
	}
	maps.DeleteFunc(s.tenants, func(_ string, t *account) bool { return now.Sub(t.worked) >= activeTime && !t.paid.After(now) })
	s.sweepAt = 2*len(s.tenants) + 16
}
