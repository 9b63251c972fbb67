package broker

import (
	"testing"
	"time"

	"ahprelay/internal/clock"
	"ahprelay/test/clocks"
)

// TestPauseIsNoLongerAfterTheClockIsSetBack has a relay ask for a pause of 5 s before the next attempt,
// and then the system's clock is set back by an hour. The pause must not last for an hour.
func TestPauseIsNoLongerAfterTheClockIsSetBack(t *testing.T) {
	c := &Conn{urls: []string{"wss://relay.invalid"}, after: make([]clock.Time, 1)}
	c.obey(&busyError{after: 5 * time.Second})
	if wait := c.turnToReady(clocks.Set(t, time.Now(), -time.Hour)); wait <= 3*time.Second || wait > 5*time.Second {
		t.Errorf("the next attempt comes in %v; want 4 s to 5 s", wait)
	}
}
