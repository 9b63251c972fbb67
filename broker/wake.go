package broker

import (
	"context"
	"time"

	"ahprelay/internal/clock"
)

// Detection of sleep.
const (
	clockEvery = time.Second     // interval of clock comparisons
	clockJump  = 5 * time.Second // if wall time gains this much, the machine slept or its clock was set
)

// watchClock detects that the machine has slept, until ctx ends. It compares wall
// time with monotonic time, which stops during sleep, and calls jumped if wall time
// has gained: servers have then closed the old network connections. A clock that was
// set forward has the same effect. Wall returns the wall time; nil means the
// system's.
func watchClock(ctx context.Context, wall func() time.Time, jumped func(by time.Duration)) {
	if wall == nil {
		wall = time.Now
	}
	// Round removes the monotonic reading, which Sub would otherwise use.
	then, wallThen := time.Now(), wall().Round(0)
	for clock.Sleep(ctx, clockEvery) {
		now, wallNow := time.Now(), wall().Round(0)
		if by := wallNow.Sub(wallThen) - now.Sub(then); by > clockJump {
			jumped(by)
		}
		then, wallThen = now, wallNow
	}
}

// redialAfterSleep reconnects each time the machine has slept, until ctx ends.
func (c *Conn) redialAfterSleep(ctx context.Context, wall func() time.Time) {
	watchClock(ctx, wall, func(by time.Duration) {
		if c.events.Woke != nil {
			c.events.Woke(by)
		}
		c.Redial()
	})
}
