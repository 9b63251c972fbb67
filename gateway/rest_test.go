package gateway

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/internal/fair"
)

// A client of one tenant sends messages without a pause, and a client of another
// tenant now and then. The relay reads the busy client at its tenant's share, and the
// other without delay.
func TestClientsOfABusyTenantRest(t *testing.T) {
	const rate, step, d = 0.05, 50 * time.Microsecond, 4 * time.Second
	synctest.Test(t, func(t *testing.T) {
		shares := fair.NewShares(rate)
		from := func(tenant string, step time.Duration) *client {
			return &client{host: hostKey{tenant: tenant}, shares: shares, ctx: t.Context(), worked: step}
		}
		quiet, busy := from("quiet", step), from("busy", step)
		over := make(chan int)
		go func() {
			n := 0
			time.Sleep(d / 4) // the other tenant is active by then
			for end := time.Now().Add(d); time.Now().Before(end); n++ {
				time.Sleep(step)
				busy.rest()
			}
			over <- n
		}()
		for end := time.Now().Add(d + d/4); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			began := time.Now()
			quiet.rest()
			if took := time.Since(began); took > 0 {
				t.Fatalf("a message of the other tenant waited %v", took)
			}
		}
		if n, want := <-over, int(rate*float64(d/step)); n > want*5/4 || n < want*3/4 {
			t.Errorf("%d messages were read; want about %d", n, want)
		}
		if busy.load.slowed.Load() || busy.load.stuck.Load() {
			t.Error("the client counts as one that waits when it has rested")
		}
	})
}

// A client that rests is closed.
func TestRestEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shares := fair.NewShares(0.01)
		ctx, cancel := context.WithCancel(t.Context())
		c := &client{host: hostKey{tenant: "busy"}, shares: shares, ctx: ctx, worked: time.Second}
		for range 3 {
			shares.Spend("quiet", time.Microsecond)
			c.rest()
			time.Sleep(time.Millisecond)
		}
		for range 100 {
			shares.Charge("busy", time.Millisecond)
		}
		time.AfterFunc(time.Millisecond, cancel)
		began := time.Now()
		c.rest()
		if took := time.Since(began); took != time.Millisecond {
			t.Errorf("the rest ended after %v; want it to end with the client", took)
		}
	})
}
