package broker

import (
	"testing"
	"time"
	"unsafe"

	"ahprelay/internal/clock"
)

// setBack returns the time t as it is read after the system's clock was set back: its reading of the
// monotonic clock is unchanged.
func setBack(t *testing.T, at time.Time, by time.Duration) time.Time {
	t.Helper()
	back := at
	*(*uint64)(unsafe.Pointer(&back)) -= uint64(by/time.Second) << 30 // the seconds follow 30 bits of nanoseconds
	if back.Sub(at) != 0 || back.Round(0).Sub(at.Round(0)) != -by {
		t.Skip("package time stores times in a different form")
	}
	return back
}

// TestPauseIsNoLongerAfterTheClockIsSetBack has a relay ask for a pause of 5 s before the next attempt,
// and then the system's clock is set back by an hour. The pause must not last for an hour.
func TestPauseIsNoLongerAfterTheClockIsSetBack(t *testing.T) {
	c := &Conn{urls: []string{"wss://relay.invalid"}, after: make([]clock.Time, 1)}
	c.obey(&busyError{after: 5 * time.Second})
	if wait := c.turnToReady(setBack(t, time.Now(), time.Hour)); wait <= 3*time.Second || wait > 5*time.Second {
		t.Errorf("the next attempt comes in %v; want 4 s to 5 s", wait)
	}
}
