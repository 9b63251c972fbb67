package registry

import (
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/test/clocks"
)

// TestExpectationEndsAfterTheClockIsSet has a relay refuse a host-agent while the system's clock is an hour
// ahead, and then the clock is set right. The relay must not expect the host-agent for an hour.
func TestExpectationEndsAfterTheClockIsSet(t *testing.T) {
	var a Arrivals
	a.Expect(clocks.Set(t, time.Now(), time.Hour).Add(time.Millisecond))
	time.Sleep(2 * time.Millisecond)
	if a.Expected() {
		t.Error("after the return time, the relay expects a host-agent; want none")
	}
}

// TestExpectationEnds: a relay must expect host-agents until the latest of their return
// times.
func TestExpectationEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Arrivals
		if a.Expected() {
			t.Error("a relay that has refused no host-agent expects one; want none")
		}
		a.Expect(time.Now().Add(30 * time.Second))
		a.Expect(time.Now().Add(10 * time.Second))
		time.Sleep(20 * time.Second)
		if !a.Expected() {
			t.Error("10 s before the latest return time, the relay expects no host-agent; want one")
		}
		time.Sleep(11 * time.Second)
		if a.Expected() {
			t.Error("after the latest return time, the relay expects a host-agent; want none")
		}
	})
}
