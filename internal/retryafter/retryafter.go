// Package retryafter writes and reads the HTTP header field Retry-After as seconds.
package retryafter

import (
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

const field = "Retry-After"

// Set writes a time in whole seconds, at least one, and returns what it has written.
func Set(header http.Header, after time.Duration) (seconds int) {
	seconds = max(1, int(math.Ceil(after.Seconds())))
	header.Set(field, strconv.Itoa(seconds))
	return seconds
}

// Of returns the time in a header, but at most the given time. Without a number above 0,
// it returns 0.
func Of(header http.Header, most time.Duration) time.Duration {
	seconds, err := strconv.ParseInt(header.Get(field), 10, 64)
	switch {
	case err != nil || seconds <= 0:
		return 0
	case seconds > int64(most/time.Second):
		return most
	}
	return time.Duration(seconds) * time.Second
}

// Longest is the longest pause of a client that a busy server has refused repeatedly.
const Longest = 4 * time.Minute

// kept is the number of refusals after which a client still returns at the given time.
const kept = 3

// Pause returns how long a client waits after a busy server has refused it. after is the time
// in the header, and refusals the number of consecutive refusals. Up to kept refusals, the
// pause is after less a random part of a second, because servers round up to whole seconds.
// Each further refusal doubles the bound of a random addition; the pause stays at most
// Longest. Without the addition, a crowd that is always refused would return so soon that
// refusals would leave the server no time for other work.
func Pause(after time.Duration, refusals int) time.Duration {
	more := min(after<<min(max(refusals-kept, 0), 10), Longest) - after
	return after - rand.N(time.Second) + rand.N(max(more, 1))
}
