package faults

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"ahprelay/test/load"
	"ahprelay/test/procs"
)

// A balancer gives each client the next relay that is ready, like a load balancer. For
// this, it requests each relay's /readyz, and records when a relay was not ready.
type balancer struct {
	relays []string // base URLs
	cancel context.CancelFunc
	polls  sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	ready []bool
	since []time.Time     // time of each relay's last change
	away  []time.Duration // longest time that each relay was not ready
	times []int           // how often each relay was not ready
	next  int             // relay that pick returned last
}

// pollEvery is the time between a balancer's requests to a relay.
const pollEvery = 50 * time.Millisecond

// balance starts a balancer in front of relays that are ready. The method stop ends it.
func balance(relays []string) *balancer {
	ctx, cancel := context.WithCancel(context.Background())
	b := &balancer{
		relays: relays, cancel: cancel, ready: make([]bool, len(relays)), since: make([]time.Time, len(relays)),
		away: make([]time.Duration, len(relays)), times: make([]int, len(relays)),
	}
	for i := range relays {
		b.ready[i] = true
		b.polls.Go(func() {
			for ctx.Err() == nil {
				b.note(i, procs.Ready(http.DefaultClient, relays[i]) == nil)
				load.Pause(ctx, pollEvery)
			}
		})
	}
	return b
}

// stop ends the balancer.
func (b *balancer) stop() {
	b.cancel()
	b.polls.Wait()
}

// note records whether relay i is ready now.
func (b *balancer) note(i int, ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ready == b.ready[i] {
		return
	}
	now := time.Now()
	if ready {
		b.away[i] = max(b.away[i], now.Sub(b.since[i]))
	} else {
		b.times[i]++
	}
	b.ready[i], b.since[i] = ready, now
}

// pick returns the host's URL at the next relay that is ready.
func (b *balancer) pick() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range b.relays {
		b.next = (b.next + 1) % len(b.relays)
		if b.ready[b.next] {
			break
		}
	}
	return "ws" + strings.TrimPrefix(b.relays[b.next], "http") + "/ahp/" + procs.Host
}

// judge adds the balancer's figures to the result of a row in which each relay is
// replaced once. It reports each relay that was not ready any other number of times.
func (b *balancer) judge(r *Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.Note += fmt.Sprintf("; relays were not ready for %v", b.away)
	for i, times := range b.times {
		if times != 1 {
			r.broken("relay %d was not ready %d times; want 1", i, times)
		}
	}
}
