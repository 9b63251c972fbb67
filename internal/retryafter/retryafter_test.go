package retryafter

import (
	"net/http"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestReaderWaitsAtLeastAsLong writes a duration into a header with Set, and reads it with Of. The
// result must be at least as long, and less than a second longer.
func TestReaderWaitsAtLeastAsLong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		after := time.Duration(rapid.Int64Range(0, int64(100*time.Hour)).Draw(t, "after"))
		header := http.Header{}
		seconds := Set(header, after)
		got := Of(header, 200*time.Hour)
		if got < after || got-max(after, 1) >= time.Second || got != time.Duration(seconds)*time.Second {
			t.Errorf("%v was written as %v, and read as %v; want at least the time, at most a second more", after, header, got)
		}
	})
}

// FuzzOf reads arbitrary headers. The result must be at least 0, and at most the given bound.
func FuzzOf(f *testing.F) {
	const most = time.Minute
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "-5": 0, "x": 0, "1.5": 0, "7": 7 * time.Second, "60": most, "61": most, "9223372036854775807": most, "92233720368547758070": 0,
		"Fri, 27 Nov 2026 01:20:05 GMT": 0,
	} {
		f.Add(value)
		if got := Of(http.Header{field: {value}}, most); got != want {
			f.Errorf("%q is %v; want %v", value, got, want)
		}
	}
	f.Fuzz(func(t *testing.T, value string) {
		if got := Of(http.Header{field: {value}}, most); got < 0 || got > most {
			t.Errorf("Of(%q) = %v; want 0 to the most", value, got)
		}
	})
}

// TestPausesGrow has a busy server refuse a client again and again. The client must never return
// more than a second earlier than it may. At first it must return at its time. Later it pauses up to
// twice as long after each further refusal, at most Longest.
func TestPausesGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		after := time.Duration(rapid.IntRange(1, 120).Draw(t, "after")) * time.Second
		refusals := rapid.IntRange(1, 50).Draw(t, "refusals")
		least, most := after-time.Second, after
		if refusals > kept {
			most = min(after<<min(refusals-kept, 10), Longest)
		}
		if got := Pause(after, refusals); got < least || got > most {
			t.Errorf("a pause of %v after %d refusals for %v; want %v to %v", got, refusals, after, least, most)
		}
	})
}
