package loadgen

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Slots is the number of counters in a file.
const Slots = 64

// A counter has a cache line of its own, so that processes do not slow each other down.
type counter struct {
	atomic.Int64
	_ [56]byte
}

// Counters are numbers in memory that several processes share.
type Counters struct {
	memory []byte
	slots  *[Slots]counter
}

// OpenCounters maps the counters in a file. It makes the file if it is missing.
func OpenCounters(file string) (*Counters, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays without the file's descriptor
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

// Close unmaps the memory. Nothing may use the counters afterwards.
func (c *Counters) Close() error { return unix.Munmap(c.memory) }
