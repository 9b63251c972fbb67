// Package clock stores times of events for several goroutines, compares times, and pauses.
package clock

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"
)

// A Time is the time of an event, by the monotonic clock: the event does not move when the system's
// clock is set. The zero Time is no event. A Time is safe for concurrent use.
type Time struct{ ns atomic.Int64 } // since began; 0: no event

var began = time.Now()

// Set stores a time that [time.Now] has returned, or one derived from it. The zero time means that
// there is no event.
func (t *Time) Set(at time.Time) {
	ns := int64(0)
	if !at.IsZero() {
		ns = cmp.Or(int64(at.Sub(began)), 1)
	}
	t.ns.Store(ns)
}

// Get returns the time, with its reading of the monotonic clock, or the zero time if there is no event.
func (t *Time) Get() time.Time {
	ns := t.ns.Load()
	if ns == 0 {
		return time.Time{}
	}
	return began.Add(time.Duration(ns))
}

// Sleep pauses for a time. It returns false as soon as ctx has ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Earlier returns the earlier of two times.
func Earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
