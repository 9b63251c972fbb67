// Package clocks makes times as they are read after the system's clock was set.
package clocks

import (
	"testing"
	"time"
	"unsafe"
)

// Set returns the time at, as it is read after the system's clock was set forward by a whole number of
// seconds, or back if by is negative: its reading of the monotonic clock is unchanged. It skips the test
// if package time stores times in a different form. In a synctest bubble, times have no such reading.
func Set(t testing.TB, at time.Time, by time.Duration) time.Time {
	t.Helper()
	moved := at
	*(*uint64)(unsafe.Pointer(&moved)) += uint64(by/time.Second) << 30 // the seconds follow 30 bits of nanoseconds
	if moved.Sub(at) != 0 || moved.Round(0).Sub(at.Round(0)) != by {
		t.Skip("package time stores times in a different form")
	}
	return moved
}
