//go:build lockorder && amd64

package lockorder

import "sync/atomic"

// goroutine tells this goroutine from all others that run: where the runtime keeps it. Its number
// would take a stack trace, which makes tests many times slower.
func goroutine() uintptr

// holders are what goroutines hold, a bit for each place of the list. Of one that has ended it stays
// for the next that the runtime keeps there, so nobody waits for anybody, and what is looked
// up brings no order between goroutines that would hide a race.
var holders [1 << 18]struct {
	of   atomic.Uintptr
	held uint64 // owned by the goroutine
}

// holding returns what this goroutine holds.
func holding() *uint64 {
	id := goroutine()
	for i := id * 0x9E3779B97F4A7C15 >> 46; ; i++ {
		h := &holders[i%uintptr(len(holders))]
		if of := h.of.Load(); of == id || of == 0 && h.of.CompareAndSwap(0, id) {
			return &h.held
		}
	}
}
