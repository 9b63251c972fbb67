package registry

import (
	"sync"
	"time"
)

// maxExpected bounds how much longer hosts stay online because relays expect host-agents:
// hosts of a silent relay, counted in beats, and hosts whose host-agent is silent.
const maxExpected = 2 * time.Minute

// Arrivals are the host-agents that a relay has refused and told to return. While a relay
// expects some, all relays list the hosts of silent relays and host-agents as they were, for
// at most two more minutes. The zero value expects none.
type Arrivals struct {
	mu    sync.Mutex // guards until
	until time.Time  // the last return time, by the monotonic clock
}

// Expect records that a host-agent was told to return at a time.
func (a *Arrivals) Expect(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at.After(a.until) {
		a.until = at
	}
}

// Expected reports whether a return time is still to come.
func (a *Arrivals) Expected() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Until(a.until) > 0
}
