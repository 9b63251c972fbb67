package broker

import (
	"context"
	"time"
)

// When a machine has slept.
const (
	clockEvery = time.Second     // how often the clocks are compared
	clockJump  = 5 * time.Second // ahead of monotonic time by more than this: it slept, or somebody set the clock
)

// watchClock compares wall time with monotonic time, which stands still while the
// machine sleeps, until ctx ends. It calls jumped when wall time has got ahead:
// what the process knows of its network connections is then that old, and the
// servers have given them up. A clock that was set forward looks the same. Wall is
// the wall clock; nil means the system's.
func watchClock(ctx context.Context, wall func() time.Time, jumped func(by time.Duration)) {
	if wall == nil {
		wall = time.Now
	}
	// Round takes the monotonic reading away, which Sub would prefer.
	then, wallThen := time.Now(), wall().Round(0)
	tick := time.NewTicker(clockEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, wallNow := time.Now(), wall().Round(0)
		if by := wallNow.Sub(wallThen) - now.Sub(then); by > clockJump {
			jumped(by)
		}
		then, wallThen = now, wallNow
	}
}

// redialAfterSleep has the connection made anew each time that the machine has
// slept, until ctx ends.
func (c *Conn) redialAfterSleep(ctx context.Context, wall func() time.Time) {
	watchClock(ctx, wall, func(by time.Duration) {
		if c.events.Woke != nil {
			c.events.Woke(by)
		}
		c.Redial()
	})
}
