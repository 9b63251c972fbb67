package mcpdoor

import (
	"testing"
	"time"
)

// ShortenCalls lowers the time for a host's answers during a test.
func ShortenCalls(t *testing.T, to time.Duration) {
	before := callTime
	callTime = to
	t.Cleanup(func() { callTime = before })
}
