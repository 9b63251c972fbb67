package broker

import (
	"context"
	"time"
)

// Detection of sleep.
const (
	clockEvery = time.Second     // interval of clock comparisons
	clockJump  = 5 * time.Second // lead over monotonic time that means sleep, or a clock that was set
)

// watchClock compares wall time with monotonic time, which stops while the machine
// sleeps, until ctx ends. It calls jumped when wall time has gained: the servers have
// closed the old network connections by then. A clock that was set forward looks the
// same. Wall is the wall clock; nil means the system's.
func watchClock(ctx context.Context, wall func() time.Time, jumped func(by time.Duration)) {
	if wall == nil {
		wall = time.Now
	}
	// Round removes the monotonic reading, which Sub would prefer.
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

// redialAfterSleep reconnects each time the machine has slept, until ctx ends.
func (c *Conn) redialAfterSleep(ctx context.Context, wall func() time.Time) {
	watchClock(ctx, wall, func(by time.Duration) {
		if c.events.Woke != nil {
			c.events.Woke(by)
		}
		c.Redial()
	})
}
