package clock

import (
	"testing"
	"time"
)

// TestTimeKeepsTheMonotonicReading stores a time. The stored time must be the same instant, with a
// reading of the monotonic clock: without it, a change of the system's clock would move the time.
func TestTimeKeepsTheMonotonicReading(t *testing.T) {
	var stored Time
	if at := stored.Get(); !at.IsZero() {
		t.Errorf("without an event, the time is %v; want the zero time", at)
	}
	now := time.Now()
	stored.Set(now)
	if at := stored.Get(); at == at.Round(0) || !at.Equal(now) || at.Sub(now) != 0 {
		t.Errorf("the stored time is %v; want %v with its monotonic reading", at, now)
	}
	stored.Set(time.Time{})
	if at := stored.Get(); !at.IsZero() {
		t.Errorf("after the zero time, the time is %v; want the zero time", at)
	}
}
