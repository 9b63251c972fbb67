package gateway

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/internal/fair"
)

// A client in one tenant sends messages without a pause, and a client in a second
// tenant sends a message now and then. The relay delays the busy client to its tenant's
// share, and reads the quiet client without delay.
func TestClientsOfABusyTenantRest(t *testing.T) {
	const rate, step, d = 0.05, 50 * time.Microsecond, 4 * time.Second
	synctest.Test(t, func(t *testing.T) {
		shares := fair.NewShares(rate)
		quiet, busy := &load{ctx: t.Context()}, &load{ctx: t.Context()}
		over := make(chan int)
		go func() {
			n := 0
			time.Sleep(d / 4) // the quiet tenant is active by then
			for end := time.Now().Add(d); time.Now().Before(end); n++ {
				time.Sleep(step)
				busy.rest(shares, "busy", step)
			}
			over <- n
		}()
		for end := time.Now().Add(d + d/4); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			began := time.Now()
			quiet.rest(shares, "quiet", step)
			if took := time.Since(began); took > 0 {
				t.Fatalf("a message of the quiet tenant waited %v; want no wait", took)
			}
		}
		if n, want := <-over, int(rate*float64(d/step)); n > want*5/4 || n < want*3/4 {
			t.Errorf("the relay read %d messages from the busy tenant; want about %d", n, want)
		}
		if busy.slowed.Load() || busy.stuck.Load() {
			t.Error("a client whose reading was paused counts as slow or stuck; want neither")
		}
	})
}

// A delayed client ends. The relay ends the delay at once.
func TestRestEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shares := fair.NewShares(0.01)
		ctx, cancel := context.WithCancel(t.Context())
		l := &load{ctx: ctx}
		for range 3 {
			shares.Spend("quiet", time.Microsecond)
			l.rest(shares, "busy", time.Second)
			time.Sleep(time.Millisecond)
		}
		for range 100 {
			shares.Charge("busy", time.Millisecond)
		}
		time.AfterFunc(time.Millisecond, cancel)
		began := time.Now()
		l.rest(shares, "busy", time.Second)
		if took := time.Since(began); took != time.Millisecond {
			t.Errorf("the pause in reading ended after %v; want it to end with the client's connection", took)
		}
	})
}
