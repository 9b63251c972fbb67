package fair_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"ahprelay/internal/fair"
)

// A worker is a tenant's connection. It works in steps, and rests after each as long as Spend
// demands.
type worker struct {
	tenant string
	step   time.Duration
	pause  time.Duration // pause before each step; 0: none
}

// work makes the worker work for the duration d. It returns the time spent working, and the longest
// rest.
func (w worker) work(s *fair.Shares, d time.Duration) (done, longest time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(w.pause)
		time.Sleep(w.step)
		done += w.step
		rest := s.Spend(w.tenant, w.step)
		longest = max(longest, rest)
		time.Sleep(rest)
	}
	return done, longest
}

// TestSharesBoundWhoContends runs busy tenants with several connections each, beside a tenant with
// little work. Together, the busy tenants must use the whole rate in equal parts, and each of their
// connections must get a part. The tenant with little work must never rest.
func TestSharesBoundWhoContends(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const d = 2 * time.Second
		rate := rapid.Float64Range(0.1, 2).Draw(rt, "rate")
		tenants := rapid.IntRange(1, 3).Draw(rt, "tenants")
		conns := make([]int, tenants)
		steps := make([]time.Duration, tenants)
		for i := range tenants {
			conns[i] = rapid.IntRange(4, 8).Draw(rt, "connections")
			steps[i] = time.Duration(rapid.IntRange(400, 1000).Draw(rt, "step")) * time.Microsecond
		}
		synctest.Test(t, func(t *testing.T) {
			s := fair.NewShares(rate)
			used := make([]chan time.Duration, tenants)
			for i := range tenants {
				used[i] = make(chan time.Duration, conns[i])
				for range conns[i] {
					go func() {
						time.Sleep(d / 4) // by then, the tenant with little work is active
						done, _ := worker{tenant: fmt.Sprint(i), step: steps[i]}.work(s, d)
						used[i] <- done
					}()
				}
			}
			light := worker{tenant: "light", step: 20 * time.Microsecond, pause: 20 * time.Millisecond}
			if _, rest := light.work(s, d+d/4); rest > 0 {
				t.Errorf("the tenant with little work rested for %v; want 0", rest)
			}
			for i := range tenants {
				sum, least := time.Duration(0), d
				for range conns[i] {
					done := <-used[i]
					sum, least = sum+done, min(least, done)
				}
				want := rate * float64(d) / float64(tenants)
				want = min(want, float64(conns[i])*float64(d)) // a connection cannot work for longer than d
				if got := float64(sum); got < 0.85*want || got > 1.15*want {
					t.Errorf("tenant %d of %d worked for %v with a rate of %.2f; want %v", i, tenants, sum, rate, time.Duration(want))
				}
				if fair := sum / time.Duration(conns[i]); least < fair/4 {
					t.Errorf("a connection of tenant %d worked for %v; want at least a quarter of the average %v", i, least, fair)
				}
			}
		})
	})
}

// TestTenantAloneNeverRests runs one busy tenant, beside 50 tenants that work for a moment every 4
// s. The busy tenant must never rest.
func TestTenantAloneNeverRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.NewShares(0.1)
		for i := range 50 {
			go worker{tenant: fmt.Sprint("idle-", i), step: 20 * time.Microsecond, pause: 4 * time.Second}.work(s, time.Minute)
		}
		if _, rest := (worker{tenant: "busy", step: time.Millisecond}).work(s, time.Minute); rest > 0 {
			t.Errorf("a tenant whose rivals are idle rested for %v; want 0", rest)
		}
		time.Sleep(10 * time.Second) // by then, all goroutines have ended
	})
}

// TestRestsEndWithTheContention runs a busy tenant beside another: the busy tenant must rest. When
// the other has ended, the busy tenant may rest for at most a second more, however much it was
// charged.
func TestRestsEndWithTheContention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.NewShares(0.5)
		busy := worker{tenant: "busy", step: time.Millisecond}
		go worker{tenant: "other", step: time.Microsecond, pause: 10 * time.Millisecond}.work(s, 5*time.Second)
		if _, rest := busy.work(s, 5*time.Second); rest == 0 {
			t.Error("the busy tenant never rested beside a second one; want rests")
		}
		for range 10_000 {
			s.Charge("busy", time.Millisecond)
		}
		if rest := s.Spend("busy", time.Millisecond); rest > time.Second {
			t.Errorf("a rest of %v; want at most a second", rest)
		}
		time.Sleep(2 * time.Second)
		if _, rest := busy.work(s, 5*time.Second); rest > 0 {
			t.Errorf("the tenant rested for %v while alone; want 0", rest)
		}
	})
}

// TestSharesForgetTenants lets 10,000 tenants work once, each after the other. Only the latest may
// be remembered.
func TestSharesForgetTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fair.NewShares(1)
		for i := range 10_000 {
			s.Spend(fmt.Sprint(i), time.Millisecond)
			time.Sleep(100 * time.Millisecond)
		}
		if n := s.Known(); n > 100 {
			t.Errorf("%d tenants are known; want at most 100", n)
		}
	})
}

func BenchmarkSpendAlone(b *testing.B) {
	s := fair.NewShares(1)
	for b.Loop() {
		s.Spend("acme", 10*time.Microsecond)
	}
}
