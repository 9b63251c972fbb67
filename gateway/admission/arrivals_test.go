package admission

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/internal/retryafter"
)

// A slowBackend stands for a NATS server with a single processor. The processor works
// on each waiting login for a slice, in rotation, and a login completes after
// loginWork. If its host-agent gives up before, the work is lost.
type slowBackend struct {
	mu   sync.Mutex
	jobs []*job
}

type job struct {
	left time.Duration
	done chan struct{}
}

const (
	loginWork  = 10 * time.Millisecond
	slice      = 2 * time.Millisecond
	agentWaits = 5 * time.Second
)

// run works on the waiting logins until ctx ends.
func (b *slowBackend) run(ctx context.Context) {
	for ctx.Err() == nil {
		b.mu.Lock()
		var j *job
		rest := slice
		if len(b.jobs) > 0 {
			j = b.jobs[0]
			b.jobs = b.jobs[1:]
			rest = min(slice, j.left)
		}
		b.mu.Unlock()
		time.Sleep(rest)
		b.mu.Lock()
		if j != nil {
			if j.left -= rest; j.left > 0 {
				b.jobs = append(b.jobs, j)
			} else {
				close(j.done)
			}
		}
		b.mu.Unlock()
	}
}

// login queues a login. It reports whether the login completes before ctx ends, when
// the host-agent gives up.
func (b *slowBackend) login(ctx context.Context) bool { return b.work(ctx, loginWork) }

func (b *slowBackend) work(ctx context.Context, long time.Duration) bool {
	j := &job{long, make(chan struct{})}
	b.mu.Lock()
	b.jobs = append(b.jobs, j)
	b.mu.Unlock()
	select {
	case <-j.done:
		return true
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.jobs {
		if other == j {
			b.jobs = append(b.jobs[:i:i], b.jobs[i+1:]...)
			break
		}
	}
	return false
}

// goodput has host-agents arrive at the given rate for 20 s, and returns how many
// logins completed per second. If arrivals is nil, the backend begins each login at
// once.
func goodput(t *testing.T, arrivals *Arrivals, perSecond int) (rate float64) {
	synctest.Test(t, func(t *testing.T) {
		const long = 20 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		var b slowBackend
		var running sync.WaitGroup
		running.Go(func() { b.run(ctx) })
		var mu sync.Mutex
		online := 0
		for range perSecond * int(long/time.Second) {
			time.Sleep(time.Second / time.Duration(perSecond))
			running.Go(func() {
				for ctx.Err() == nil {
					wait, came := arrive(ctx, &b, arrivals)
					if came && ctx.Err() == nil {
						mu.Lock()
						online++
						mu.Unlock()
						return
					}
					select {
					case <-time.After(wait):
					case <-ctx.Done():
					}
				}
			})
		}
		cancel()
		running.Wait()
		rate = float64(online) / long.Seconds()
	})
	return rate
}

// arrive makes a host-agent's attempt to log in. It reports whether the login
// completed, and returns the wait before the next attempt.
func arrive(ctx context.Context, b *slowBackend, arrivals *Arrivals) (wait time.Duration, came bool) {
	ctx, cancel := context.WithTimeout(ctx, agentWaits)
	defer cancel()
	if arrivals == nil {
		return time.Second, b.login(ctx)
	}
	done, after := arrivals.Enter(ctx, "fleet")
	if done == nil {
		return after, false
	}
	came = b.login(ctx)
	done(came)
	return time.Second, came
}

// TestCrowdComesOnlineThoughRefusalsCostWork starts a crowd of host-agents at four relays
// that share one processor. A refusal costs a fifth of a login there. A refused host-agent
// asks a second relay, and then waits. Nine of ten must be online within five times the
// time that all logins take. If refused host-agents did not wait longer each
// time (retryafter.Pause), refusals would take all of the processor.
func TestCrowdComesOnlineThoughRefusalsCostWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const crowd, relays = 6000, 4
		const least = crowd * loginWork
		ctx, cancel := context.WithTimeout(t.Context(), 5*least)
		defer cancel()
		var b slowBackend
		var backend, running sync.WaitGroup
		backend.Go(func() { b.run(ctx) })
		var arrivals []*Arrivals
		for range relays {
			arrivals = append(arrivals, newArrivals(32, 200))
		}
		var online atomic.Int32
		for i := range crowd {
			running.Go(func() {
				for refusals := 0; ctx.Err() == nil; {
					if comeOnline(ctx, &b, arrivals, i, &refusals) {
						online.Add(1)
						return
					}
				}
			})
		}
		running.Wait()
		if n := online.Load(); n < crowd*9/10 {
			t.Errorf("%d host-agents are online after %v; want nine of ten of %d", n, 5*least, crowd)
		}
		cancel()
		backend.Wait()
	})
}

// comeOnline makes attempts at two relays. If both refuse it, it pauses as a host-agent
// does. refusals is the number of consecutive refusals.
func comeOnline(ctx context.Context, b *slowBackend, relays []*Arrivals, agent int, refusals *int) bool {
	wait := time.Duration(math.MaxInt64)
	for n := range 2 {
		attempt, cancel := context.WithTimeout(ctx, agentWaits)
		done, after := relays[(agent+n)%len(relays)].Enter(attempt, "fleet")
		came := done != nil && b.login(attempt)
		if done != nil {
			done(came)
		} else if b.work(attempt, loginWork/5) {
			wait = min(wait, after)
		}
		cancel()
		if came {
			return true
		}
	}
	if wait == math.MaxInt64 {
		wait = 3 * time.Second
	} else {
		*refusals++
		wait = retryafter.Pause(wait, *refusals)
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	return false
}

// TestOverloadCompletesLogins: host-agents arrive four times as fast as the backend can
// serve them. With an Arrivals, logins complete at 80 % of the backend's peak rate or
// more; without, at less than half.
func TestOverloadCompletesLogins(t *testing.T) {
	t.Parallel()
	const most = float64(time.Second / loginWork)
	peak := goodput(t, newArrivals(32, 400), int(most))
	admitted := newArrivals(32, 400)
	over := goodput(t, admitted, 4*int(most))
	without := goodput(t, nil, 4*int(most))
	t.Logf("%.0f logins/s at the peak, %.0f at four times as many arrivals, %.0f without admission; measured %.0f/s", peak, over, without, admitted.rate)
	if admitted.rate > 1.5*most || admitted.rate < most/1.5 {
		t.Errorf("the relay measured %.0f completed logins/s; want about %.0f", admitted.rate, most)
	}
	if over < 0.8*peak {
		t.Errorf("with four times as many arrivals, %.0f logins/s complete; want at least 80 %% of %.0f", over, peak)
	}
	if without > 0.5*peak {
		t.Errorf("without admission, %.0f logins/s complete; want at most half of %.0f: the test's backend shows no overload", without, peak)
	}
}

// All four places for logins are taken, and 100 host-agents of a tenant wait. When two
// logins end, a waiting host-agent of a different tenant gets the second place. The
// refused host-agents are told at least 80 different times to wait.
func TestOneTenantsRushDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newArrivals(4, 10)
		var working []func(bool)
		for range 4 {
			done, after := a.Enter(t.Context(), "crowd")
			if done == nil {
				t.Fatalf("Enter tells a host-agent to return in %v while turns are free; want a turn", after)
			}
			working = append(working, done)
		}
		calm := false
		times := map[time.Duration]int{}
		var mu sync.Mutex
		come := func(tenant string) {
			done, after := a.Enter(t.Context(), tenant)
			mu.Lock()
			defer mu.Unlock()
			if done == nil {
				times[after]++
				return
			}
			calm = calm || tenant == "calm"
			working = append(working, done)
		}
		for range 100 {
			go come("crowd")
		}
		synctest.Wait()
		go come("calm")
		synctest.Wait()
		mu.Lock()
		first, second := working[0], working[1]
		mu.Unlock()
		first(true)
		second(true)
		synctest.Wait()
		mu.Lock()
		if !calm {
			t.Error("another tenant's host-agent waits for the crowd; want it served within its deadline")
		}
		mu.Unlock()
		time.Sleep(2 * arrivalPatience)
		mu.Lock()
		defer mu.Unlock()
		if len(times) < 80 {
			t.Errorf("refused arrivals return at %d different times: %v; want at least 80", len(times), times)
		}
	})
}

// TestFormerSlownessIsForgotten lets few logins complete while the machine is busy. Later,
// host-agents that arrive together are not refused for that.
func TestFormerSlownessIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const atOnce, crowd = 4, 50
		a := newArrivals(atOnce, 100)
		enter := func(most int) (done []func(bool), refused int) {
			for range most {
				end, after := a.Enter(t.Context(), "fleet")
				if end == nil {
					refused++
					t.Logf("refused for %v", after)
					continue
				}
				done = append(done, end)
			}
			return done, refused
		}
		for range 20 {
			slow, _ := enter(atOnce)
			time.Sleep(10 * time.Second)
			for _, end := range slow {
				end(true)
			}
		}
		time.Sleep(2 * rateLife)
		var running sync.WaitGroup
		refusals := make(chan int, crowd)
		for range crowd {
			running.Go(func() {
				done, refused := enter(1)
				refusals <- refused
				time.Sleep(loginWork)
				for _, end := range done {
					end(true)
				}
			})
		}
		running.Wait()
		close(refusals)
		for refused := range refusals {
			if refused > 0 {
				t.Fatal("Enter refuses host-agents because of an earlier slow time; want all admitted")
			}
		}
	})
}

// TestFullSparesOtherTenants lets so many arrivals of a tenant wait that further ones are refused.
// Full must refuse this tenant's next arrivals, each until a later time, and no other tenant's. Once
// the waiting arrivals have entered, it refuses none.
func TestFullSparesOtherTenants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newArrivals(4, 10)
		var turns sync.WaitGroup
		release := make(chan struct{})
		for range 60 {
			turns.Go(func() {
				if done, _ := a.Enter(t.Context(), "crowd"); done != nil {
					<-release
					done(true)
				}
			})
		}
		synctest.Wait()
		if !a.Crowded() {
			t.Error("Crowded = false although all turns are taken; want true")
		}
		var last time.Duration
		for range 10 {
			after := a.Full("crowd")
			if after <= last {
				t.Errorf("Full delays an arrival by %v and the previous one by %v; want a longer delay for each further arrival", after, last)
			}
			last = after
		}
		if after := a.Full("calm"); after != 0 {
			t.Errorf("Full delays a different tenant by %v; want 0", after)
		}
		if _, booked := a.booked["calm"]; booked {
			t.Error("the tenant calm, whose name nothing has proved, has an entry; want none")
		}
		close(release)
		turns.Wait()
		if after := a.Full("crowd"); after != 0 || a.Crowded() {
			t.Errorf("Full returns %v, or Crowded true, although no arrival waits; want 0 and false", after)
		}
	})
}
