package fair

import (
	"slices"
	"sync"
	"time"
)

const (
	// activeTime is how long a tenant counts as active after a step. A tenant with longer
	// pauses between its steps is never active, for example if it only sends signs of
	// life.
	activeTime = time.Second

	// freeTime is the work, in units of a tenant's rate, that needs no rest after a pause.
	freeTime = 10 * time.Millisecond

	// leastRest is the shortest rest: a timer is not more exact.
	leastRest = time.Millisecond

	// longestRest bounds a rest, and with it the debt of a tenant.
	longestRest = time.Second
)

// Shares bound the processor time that a tenant's input may use while another tenant
// is active. Each connection reports its finished steps, and rests before its next
// step until the tenant's time is paid for. A step thus never waits for a different
// tenant's step, and a connection with little work hardly rests.
//
// All tenants in debt together use a fixed rate, in equal parts. A tenant that is
// active alone never rests.
type Shares struct {
	rate float64 // processor time in a unit of time

	mu      sync.Mutex // guards the fields below
	tenants map[string]*account
	sweepAt int         // len(tenants) at which inactive tenants are forgotten
	debtors []*account  // tenants in debt at the last call of debtorsLocked
	latest  [2]activity // of the two most recently active tenants
}

// An account is a tenant's processor time.
type account struct {
	worked time.Time // when its last step ended
	paid   time.Time // the end of its paid time: in the future for a tenant in debt
}

// An activity is a step of an active tenant.
type activity struct {
	of *account
	at time.Time
}

// NewShares returns Shares with the given number of processors for tenants in debt.
func NewShares(processors float64) *Shares {
	return &Shares{rate: processors, tenants: map[string]*account{}, sweepAt: 16}
}

// Spend reports the duration of a tenant's step. The caller rests for the returned
// time before the next step.
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

// Charge adds work that followed from a tenant's steps. The tenant's next step rests
// for it.
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

// noteLocked records an activity.
func (s *Shares) noteLocked(a activity) {
	if s.latest[0].of != a.of {
		s.latest[1] = s.latest[0]
	}
	s.latest[0] = a
}

// contendedLocked reports whether a tenant other than t is active.
func (s *Shares) contendedLocked(t *account, now time.Time) bool {
	for _, a := range s.latest {
		if a.of != nil && a.of != t && now.Sub(a.at) < activeTime {
			return true
		}
	}
	return false
}

// debtorsLocked returns the number of tenants in debt, including t.
func (s *Shares) debtorsLocked(t *account, now time.Time) int {
	if !slices.Contains(s.debtors, t) {
		s.debtors = append(s.debtors, t)
	}
	s.debtors = slices.DeleteFunc(s.debtors, func(d *account) bool { return d != t && !d.paid.After(now) })
	return len(s.debtors)
}

// forgetLocked forgets inactive tenants.
func (s *Shares) forgetLocked(now time.Time) {
	if len(s.tenants) < s.sweepAt {
		return
	}
	for name, t := range s.tenants {
		if now.Sub(t.worked) >= activeTime && !t.paid.After(now) {
			delete(s.tenants, name)
		}
	}
	s.sweepAt = 2*len(s.tenants) + 16
}
