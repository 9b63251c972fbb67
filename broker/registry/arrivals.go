package registry

import (
	"sync/atomic"
	"time"
)

// maxExpected bounds how much longer hosts stay online because relays expect host-agents:
// hosts of a silent relay, counted in beats, and hosts whose host-agent is silent.
const maxExpected = 2 * time.Minute

// Arrivals are the host-agents that a relay has refused and told to return. While a relay
// expects some, all relays list the hosts of silent relays and host-agents as they were, for
// at most two more minutes. The zero value expects none.
type Arrivals struct {
	until atomic.Int64 // the last return time, in Unix nanoseconds
}

// Expect records that a host-agent was told to return at a time.
func (a *Arrivals) Expect(at time.Time) {
	for {
		last := a.until.Load()
		if at.UnixNano() <= last || a.until.CompareAndSwap(last, at.UnixNano()) {
			return
		}
	}
}

// Expected reports whether a return time is still to come.
func (a *Arrivals) Expected() bool { return time.Now().UnixNano() < a.until.Load() }
