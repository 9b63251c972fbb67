package loadgen

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Slots is the number of counters.
const Slots = 64

// A counter stands in a cache line of its own.
type counter struct {
	atomic.Int64
	_ [56]byte
}

// Counters are numbers that several processes share.
type Counters struct {
	memory []byte
	slots  *[Slots]counter
}

// OpenCounters returns the counters that a file holds, which is made if
// missing.
func OpenCounters(file string) (*Counters, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	size := int(unsafe.Sizeof([Slots]counter{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", file, err)
	}
	return &Counters{memory, (*[Slots]counter)(unsafe.Pointer(unsafe.SliceData(memory)))}, nil
}

// Close releases the memory. The counters must not be used afterwards.
func (c *Counters) Close() error { return unix.Munmap(c.memory) }
