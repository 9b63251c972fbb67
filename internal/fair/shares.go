package fair

import (
	"slices"
	"sync"
	"time"
)

const (
	// activeTime is how long a tenant counts as active after a step. A tenant whose steps
	// are further apart, such as signs of life, is never active.
	activeTime = time.Second

	// freeTime is the work, in units of a tenant's rate, that needs no rest after a pause.
	freeTime = 10 * time.Millisecond

	// leastRest is the shortest rest: a timer is not more exact.
	leastRest = time.Millisecond

	// longestRest bounds a rest, and with it the debt of a tenant.
	longestRest = time.Second
)

// Shares bound the processor time that a tenant's input may use while another tenant is
// active. Each connection reports the steps of its work when they are done, and rests
// before the next one until the tenant's time is paid for. So a step never waits for
// another tenant's, and a connection with little to do hardly rests.
//
// All tenants that are in debt use a fixed rate together, in equal parts. A tenant that is
// active alone never rests.
type Shares struct {
	rate float64 // processor time in a unit of time

	mu      sync.Mutex // guards the fields below
	tenants map[string]*account
	sweepAt int         // len(tenants) from which on the inactive are forgotten
	debtors []*account  // those that were in debt when debtorsLocked last looked
	latest  [2]activity // of the two tenants that were active last
}

// An account is a tenant's.
type account struct {
	worked time.Time // when its last step was done
	paid   time.Time // until when its time is paid for: in debt if that is to come
}

// An activity is a step of an active tenant.
type activity struct {
	of *account
	at time.Time
}

// NewShares returns Shares in which tenants in debt use so many processors together.
func NewShares(processors float64) *Shares {
	return &Shares{rate: processors, tenants: map[string]*account{}, sweepAt: 16}
}

// Spend reports that a step of the tenant's took so long. The caller rests for the
// returned time before the next step; zero: it need not.
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

// Charge adds work that followed from steps of the tenant's. Whoever takes the next step
// rests for it.
func (s *Shares) Charge(tenant string, took time.Duration) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tenants[tenant]; t != nil {
		s.chargeLocked(t, took, now)
	}
}

// Contended reports whether a tenant other than this one is active.
func (s *Shares) Contended(tenant string) bool {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contendedLocked(s.tenants[tenant], now)
}

// chargeLocked has a tenant pay for work, if another is active.
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

// noteLocked notes who is active.
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

// debtorsLocked returns how many tenants are in debt, with t.
func (s *Shares) debtorsLocked(t *account, now time.Time) int {
	if !slices.Contains(s.debtors, t) {
		s.debtors = append(s.debtors, t)
	}
	s.debtors = slices.DeleteFunc(s.debtors, func(d *account) bool { return d != t && !d.paid.After(now) })
	return len(s.debtors)
}

// forgetLocked forgets the tenants that are not active.
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
