// Package retryafter writes and reads the HTTP header field Retry-After as seconds.
package retryafter

import (
	"math"
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

// Of returns the time in a header, and at most the given time. Without a number above 0,
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
