package broker

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestJumpsOfTheClockAreSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64 // how far the wall clock is ahead of monotonic time
		var jumps []time.Duration
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			watchClock(ctx, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }, func(by time.Duration) { jumps = append(jumps, by) })
		}()
		for _, by := range []time.Duration{
			0,
			clockJump,               // no jump: not more than clockJump
			clockJump + time.Second, // a jump: the machine slept
			0,
			-time.Hour, // no jump: the clock was set back
			8 * time.Hour,
			time.Second, time.Second, time.Second, time.Second, time.Second, time.Second, // no jump: slow correction
		} {
			time.Sleep(clockEvery / 2)
			synctest.Wait()
			ahead.Add(int64(by))
			time.Sleep(clockEvery / 2)
			synctest.Wait()
		}
		cancel()
		<-ended
		if want := []time.Duration{clockJump + time.Second, 8 * time.Hour}; !slices.Equal(jumps, want) {
			t.Errorf("jumps %v; want %v", jumps, want)
		}
	})
}
