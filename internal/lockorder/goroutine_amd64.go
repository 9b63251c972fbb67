//go:build lockorder && amd64

package lockorder

import "sync/atomic"

// goroutine returns the address of the goroutine's descriptor in the runtime, which identifies
// the goroutine while it runs. Its number would need a stack trace, which makes tests many times
// slower.
func goroutine() uintptr

// holders is a hash table from goroutines to the locks which they hold; bit n stands for rank n.
// Entries are never removed, and a later goroutine with the same descriptor reuses one. Goroutines
// thus never wait for each other, and lookups do not order memory accesses. Such an order could hide
// data races.
var holders [1 << 18]struct {
	of   atomic.Uintptr
	held uint64 // owned by the goroutine
}

// holding returns the set of locks that this goroutine holds.
func holding() *uint64 {
	id := goroutine()
	for i := id * 0x9E3779B97F4A7C15 >> 46; ; i++ {
		h := &holders[i%uintptr(len(holders))]
		if of := h.of.Load(); of == id || of == 0 && h.of.CompareAndSwap(0, id) {
			return &h.held
		}
	}
}
