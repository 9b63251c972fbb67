//go:build !lockorder

package lockorder

import (
	"sync"
	"testing"
)

// TestCostsNothing has a Mutex be the standard library's in programs.
func TestCostsNothing(t *testing.T) {
	var m Mutex[Client]
	var _ *sync.Mutex = &m
}
