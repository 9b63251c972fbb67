package admission

import (
	"context"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

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

// goodput has host-agents arrive at the given rate for 10 s, and returns how many
// logins completed per second. If arrivals is nil, the backend begins each login at
// once.
func goodput(t *testing.T, arrivals *Arrivals, perSecond int) (rate float64) {
	synctest.Test(t, func(t *testing.T) {
		const long = 10 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		var b slowBackend
		var running sync.WaitGroup
		running.Go(func() { b.run(ctx) })
		var mu sync.Mutex
		online := 0
		for i := range perSecond * int(long/time.Second) {
			time.Sleep(time.Second / time.Duration(perSecond))
			running.Go(func() {
				for ctx.Err() == nil {
					wait, came := arrive(ctx, &b, arrivals, i)
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
func arrive(ctx context.Context, b *slowBackend, arrivals *Arrivals, agent int) (wait time.Duration, came bool) {
	ctx, cancel := context.WithTimeout(ctx, agentWaits)
	defer cancel()
	if arrivals == nil {
		return time.Second, b.login(ctx)
	}
	done, after := arrivals.Enter(ctx, "fleet", strconv.Itoa(agent))
	if done == nil {
		return after, false
	}
	came = b.login(ctx)
	done(came)
	return time.Second, came
}

// wantMostOnline starts a crowd of host-agents, whose logins share one processor. agent returns the
// function with which a host-agent makes an attempt to come online. Nine of ten must be online within
// a multiple of the time that all logins take.
func wantMostOnline(t *testing.T, crowd int, multiple time.Duration, agent func(b *slowBackend, i int) func(context.Context) bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		limit := multiple * time.Duration(crowd) * loginWork
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		var b slowBackend
		var backend, running sync.WaitGroup
		backend.Go(func() { b.run(ctx) })
		var online atomic.Int32
		for i := range crowd {
			attempt := agent(&b, i)
			running.Go(func() {
				for ctx.Err() == nil {
					if attempt(ctx) {
						online.Add(1)
						return
					}
				}
			})
		}
		running.Wait()
		if n := online.Load(); int(n) < crowd*9/10 {
			t.Errorf("%d host-agents are online after %v; want nine of ten of %d", n, limit, crowd)
		}
		cancel()
		backend.Wait()
	})
}

// TestCrowdComesOnlineThoughRefusalsCostWork starts a crowd of host-agents at four relays
// that share one processor. A refusal costs a fifth of a login there. A refused host-agent
// asks a second relay, and then waits. Nine of ten must be online within five times the
// time that all logins take. If refused host-agents did not wait longer each
// time (retryafter.Pause), refusals would take all of the processor.
func TestCrowdComesOnlineThoughRefusalsCostWork(t *testing.T) {
	t.Parallel()
	var arrivals []*Arrivals
	for range 4 {
		arrivals = append(arrivals, newArrivals(32, 200))
	}
	wantMostOnline(t, 2400, 5, func(b *slowBackend, i int) func(context.Context) bool {
		refusals := 0
		return func(ctx context.Context) bool { return comeOnline(ctx, b, arrivals, i, &refusals) }
	})
}

// comeOnline makes attempts at two relays. If both refuse it, it pauses as a host-agent
// does. refusals is the number of consecutive refusals.
func comeOnline(ctx context.Context, b *slowBackend, relays []*Arrivals, agent int, refusals *int) bool {
	wait := time.Duration(math.MaxInt64)
	for n := range 2 {
		attempt, cancel := context.WithTimeout(ctx, agentWaits)
		done, after := relays[(agent+n)%len(relays)].Enter(attempt, "fleet", strconv.Itoa(agent))
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

// arriveSlowly makes an attempt to log in with a pause between two steps, and reports whether the
// login completed.
func arriveSlowly(ctx context.Context, t *testing.T, b *slowBackend, a *Arrivals, agent int, pause time.Duration) bool {
	done, after := a.Enter(ctx, "fleet", strconv.Itoa(agent))
	if done != nil {
		after = pause
	}
	select {
	case <-time.After(after):
	case <-ctx.Done():
		return false
	}
	if done == nil {
		return false
	}
	if done, after = a.Enter(ctx, "fleet", strconv.Itoa(agent)); done == nil {
		t.Errorf("a host-agent with a place is refused for %v", after)
		return false
	}
	attempt, giveUp := context.WithTimeout(ctx, agentWaits)
	defer giveUp()
	came := b.login(attempt)
	done(came)
	return came
}

// TestSlowHostAgentsGetMorePlaces starts a crowd of host-agents that pause for three seconds
// between their steps. With the first number of places, the relay would wait for them most of the
// time, and all would be online after ten times as long as the logins take.
func TestSlowHostAgentsGetMorePlaces(t *testing.T) {
	t.Parallel()
	a := newArrivals(32, 200)
	wantMostOnline(t, 3000, 3, func(b *slowBackend, i int) func(context.Context) bool {
		return func(ctx context.Context) bool { return arriveSlowly(ctx, t, b, a, i, 3*time.Second) }
	})
}

// TestDistantHostAgentsAfterNearOnes starts a crowd of host-agents without a pause between their
// steps, and 15 seconds later one of host-agents that pause for three seconds. The relay must not take
// the longer time for overload: with the least number of places, these would need almost 20 minutes.
func TestDistantHostAgentsAfterNearOnes(t *testing.T) {
	t.Parallel()
	const near = 1200
	a := newArrivals(32, 200)
	wantMostOnline(t, near+3000, 3, func(b *slowBackend, i int) func(context.Context) bool {
		if i < near {
			return func(ctx context.Context) bool { return arriveSlowly(ctx, t, b, a, i, 0) }
		}
		began := time.Now()
		return func(ctx context.Context) bool {
			time.Sleep(time.Until(began.Add(15 * time.Second)))
			return arriveSlowly(ctx, t, b, a, i, 3*time.Second)
		}
	})
}

// TestFailingHostAgentTakesNoPlaces starts a crowd of host-agents that pause between their steps, and
// one of a different tenant that gives up each of its arrivals at once, again and again. The relay must
// not take its failures for overload: with the least number of places, the crowd would need six minutes.
func TestFailingHostAgentTakesNoPlaces(t *testing.T) {
	t.Parallel()
	a := newArrivals(32, 200)
	const failing = 80 * time.Second
	wantMostOnline(t, 3000, 3, func(b *slowBackend, i int) func(context.Context) bool {
		return func(ctx context.Context) bool {
			if i > 0 {
				return arriveSlowly(ctx, t, b, a, i, time.Second)
			}
			ctx, cancel := context.WithTimeout(ctx, failing)
			defer cancel()
			for ctx.Err() == nil {
				done, _ := a.Enter(ctx, "other", "fails")
				if done != nil {
					done(false)
				}
				time.Sleep(10 * time.Millisecond)
			}
			return true
		}
	})
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
// refused host-agents are told at least 60 different times to wait.
func TestOneTenantsRushDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newArrivals(4, 10)
		var working []func(bool)
		for i := range 4 {
			done, after := a.Enter(t.Context(), "crowd", strconv.Itoa(i))
			if done == nil {
				t.Fatalf("Enter tells a host-agent to return in %v while turns are free; want a turn", after)
			}
			working = append(working, done)
		}
		calm := false
		times := map[time.Duration]int{}
		var mu sync.Mutex
		come := func(tenant, host string) {
			done, after := a.Enter(t.Context(), tenant, host)
			mu.Lock()
			defer mu.Unlock()
			if done == nil {
				times[after]++
				return
			}
			calm = calm || tenant == "calm"
			working = append(working, done)
		}
		for i := range 100 {
			go come("crowd", strconv.Itoa(4+i))
		}
		synctest.Wait()
		go come("calm", "laptop")
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
		if len(times) < 60 {
			t.Errorf("refused arrivals return at %d different times: %v; want at least 60", len(times), times)
		}
	})
}

// TestFormerSlownessIsForgotten lets few logins complete while the machine is busy. Later,
// host-agents that arrive together are not refused for that.
func TestFormerSlownessIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const atOnce, crowd = 4, 50
		a := newArrivals(atOnce, 100)
		host := 0
		var mu sync.Mutex
		enter := func(most int) (done []func(bool), refused int) {
			for range most {
				mu.Lock()
				host++
				name := strconv.Itoa(host)
				mu.Unlock()
				end, after := a.Enter(t.Context(), "fleet", name)
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
			time.Sleep(arrivalStep - time.Second)
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

// TestFullBelievesNoName asks Full about host-agents whose tokens nothing has verified, while all
// places are taken and many wait. Full must refuse only those that Enter has told to return later,
// with the rest of that time, and must change nothing: neither the return time of a host-agent, nor
// that of those which Enter refuses later.
func TestFullBelievesNoName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newArrivals(4, 10)
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 60 {
			go func() { _, _ = a.Enter(ctx, "crowd", strconv.Itoa(i)) }()
		}
		synctest.Wait()
		if !a.Crowded() {
			t.Error("Crowded = false although all places are taken; want true")
		}
		_, after := a.Enter(ctx, "crowd", "laptop")
		for i := range 10_000 {
			if after := a.Full("crowd", "forged-"+strconv.Itoa(i)); after != 0 {
				t.Fatalf("Full refuses a host-agent that has no return time, for %v; want 0", after)
			}
			if again := a.Full("crowd", "laptop"); again != after {
				t.Fatalf("Full refuses the host-agent for %v; want the rest of its time, %v", again, after)
			}
		}
		if _, next := a.Enter(ctx, "crowd", "next"); next > after+time.Second {
			t.Errorf("after requests in the names of others, Enter refuses the next host-agent for %v; want about %v", next, after)
		}
		a.mu.Lock()
		due := time.Until(a.booked[arriving{"crowd", "laptop"}])
		a.mu.Unlock()
		time.Sleep(due - returnSlack)
		if after := a.Full("crowd", "laptop"); after != 0 {
			t.Errorf("Full refuses a host-agent that returns on time, for %v; want 0", after)
		}
		cancel()
	})
}

// TestPlaceLastsForAllSteps takes all places. Host-agents with a place must enter their further
// steps at once, also while others wait, and a completed arrival must free its place for one of
// these.
func TestPlaceLastsForAllSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const places = 4
		a := newArrivals(places, 10)
		for i := range places {
			if done, after := a.Enter(t.Context(), "fleet", strconv.Itoa(i)); done == nil {
				t.Fatalf("Enter refuses host-agent %d for %v; want a place", i, after)
			}
		}
		began := make(chan bool, 1)
		go func() {
			done, _ := a.Enter(t.Context(), "fleet", "late")
			began <- done != nil
		}()
		synctest.Wait()
		now := time.Now()
		var done func(bool)
		for range 2 {
			if done, _ = a.Enter(t.Context(), "fleet", "0"); done == nil || time.Since(now) > 0 {
				t.Fatal("Enter refuses or delays the next step of a host-agent with a place")
			}
		}
		if synctest.Wait(); len(began) > 0 {
			t.Fatalf("a further host-agent has begun beside %d; want it to wait", places)
		}
		done(true)
		if !<-began {
			t.Error("the waiting host-agent is refused although an arrival has completed; want a place")
		}
	})
}

// TestPlaceEnds has a host-agent repeat a step for ever. It must lose its place after longestArrival,
// so that host-agents which do not complete their arrival cannot keep all places.
func TestPlaceEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newArrivals(1, 10)
		for began := time.Now(); time.Since(began) < longestArrival; time.Sleep(time.Second) {
			if done, after := a.Enter(t.Context(), "fleet", "stays"); done == nil {
				t.Fatalf("after %v, the host-agent is refused for %v; want it to keep its place", time.Since(began), after)
			}
		}
		if synctest.Wait(); a.Crowded() {
			t.Errorf("a host-agent keeps its place for longer than %v; want the place free", longestArrival)
		}
	})
}

// TestPromisedReturnGoesFirst refuses a host-agent while all places are taken and others wait. If it
// returns too early, it must get the same time again. When it returns at its time, it may wait for a
// place, and a newcomer may not, because bookings of others are still open.
func TestPromisedReturnGoesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rate, waiting, booked = 10, 21, 80
		ctx, cancel := context.WithCancel(t.Context())
		a := newArrivals(2, rate)
		var running sync.WaitGroup
		var places []string
		for i := range 2 {
			places = append(places, "place-"+strconv.Itoa(i))
			_, _ = a.Enter(ctx, "fleet", places[i])
		}
		for i := range waiting {
			running.Go(func() { _, _ = a.Enter(ctx, "fleet", strconv.Itoa(i)) })
		}
		synctest.Wait()
		_, after := a.Enter(ctx, "fleet", "promised")
		if after <= arrivalPatience {
			t.Fatalf("Enter returns %v for a host-agent behind %d; want a later time", after, waiting)
		}
		for i := range booked {
			if _, after := a.Enter(ctx, "fleet", "booked-"+strconv.Itoa(i)); after == 0 {
				t.Fatal("Enter admits a host-agent behind others who are refused")
			}
		}
		time.Sleep(time.Second)
		if _, again := a.Enter(ctx, "fleet", "promised"); again != after-time.Second {
			t.Errorf("a host-agent that returns after a second is told %v; want the rest of %v", again, after)
		}
		for _, host := range places {
			_, _ = a.Enter(ctx, "fleet", host) // takes its next step, and keeps its place
		}
		time.Sleep(after - time.Second)
		running.Wait()
		if after := a.refused("newcomer"); after <= arrivalPatience {
			t.Errorf("a newcomer is told %v while bookings are open; want a later time", after)
		}
		if after := a.refused("promised"); after != 0 {
			t.Errorf("a host-agent that returns at its time is told %v; want that it may wait", after)
		}
		cancel()
	})
}

// refused returns the time after which a host-agent of the tenant fleet may return, or 0 if it may
// wait for a place now.
func (a *Arrivals) refused(host string) (after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refuseLocked(arriving{"fleet", host})
}

// TestFailuresTakePlaces has all arrivals fail, again and again. The number of places must fall to its
// least, and no further.
func TestFailuresTakePlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const first = 16
		a := newArrivals(first, 100)
		host := 0
		for range 10 {
			var done []func(bool)
			for range a.atOnce {
				host++
				d, after := a.Enter(t.Context(), "fleet", strconv.Itoa(host))
				if d == nil {
					t.Fatalf("Enter refuses a host-agent for %v while places are free; want a place", after)
				}
				done = append(done, d)
			}
			time.Sleep(slowWindow)
			for _, d := range done {
				d(false)
			}
		}
		if a.atOnce != first/fewest {
			t.Errorf("after ten rounds of failures, there are %d places; want %d", a.atOnce, first/fewest)
		}
	})
}

// TestNoPlaceLeaks has host-agents begin steps, complete, fail or vanish in any order. There must
// never be more host-agents with places than there were places, and all places must be free some time
// after the last step.
func TestNoPlaceLeaks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		places := rapid.IntRange(1, 4).Draw(r, "places")
		steps := rapid.SliceOfN(rapid.IntRange(0, 6*4*4-1), 1, 60).Draw(r, "steps")
		synctest.Test(t, func(t *testing.T) {
			a := newArrivals(places, 10)
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			highest := places
			for _, step := range steps {
				host, ends, pause := step%6, step/6%4, time.Duration(step/24)*time.Second
				running.Go(func() {
					attempt, giveUp := context.WithTimeout(ctx, time.Second)
					defer giveUp()
					if done, _ := a.Enter(attempt, strconv.Itoa(host%2), strconv.Itoa(host)); done != nil && ends > 1 {
						done(ends == 2)
						done(true)
					}
				})
				time.Sleep(pause)
				synctest.Wait()
				a.mu.Lock()
				if highest = max(highest, a.atOnce); len(a.places) > highest {
					t.Errorf("%d host-agents have places; want at most %d", len(a.places), highest)
				}
				a.mu.Unlock()
			}
			running.Wait()
			cancel()
			time.Sleep(arrivalStep + 2*rateLife) // then there are as many places as at first
			synctest.Wait()
			for i := range places {
				if done, after := a.Enter(t.Context(), "fleet", strconv.Itoa(i)); done == nil {
					t.Errorf("of %d places, %d are free after all host-agents have gone (return in %v); want all", places, i, after)
				} else {
					defer done(true)
				}
			}
			if len(a.waiting) > 0 {
				t.Errorf("%v arrivals count as waiting; want none", a.waiting)
			}
		})
	})
}
