package cli

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Memory is the memory available to this process.
type Memory struct {
	Bytes  int  // 0: unknown
	Cgroup bool // for this process's cgroup, not for the whole machine
}

// Parts of the memory, in per cent. The kernel needs the rest, because its socket
// buffers count against a cgroup.
const (
	heapPercent      = 60 // Go's, garbage included
	mostQueued       = 50 // upper limit for --max-queued
	queuedPercent    = 25 // default for --max-queued in a cgroup
	ofMachinePercent = 12 // default on a machine, which also runs other programs
)

// UseMemory measures the memory and sets Go's memory limit. An existing GOMEMLIMIT
// stays.
func UseMemory(log *slog.Logger) Memory {
	m, err := readMemory(memlimit.FromCgroup, memlimit.FromSystem)
	if err != nil {
		log.Warn("memory size unknown", "hint", "set --max-queued", "error", err)
		return m
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(int64(m.percent(heapPercent)))
	}
	log.Debug("memory measured", "bytes", m.Bytes, "of_cgroup", m.Cgroup)
	return m
}

// readMemory returns the cgroup's limit if it is below the machine's memory, and otherwise
// the machine's memory.
func readMemory(cgroup, machine memlimit.Provider) (Memory, error) {
	all, err := machine()
	if err != nil {
		all = math.MaxInt64
	}
	if own, cgroupErr := cgroup(); cgroupErr == nil && own < all {
		return Memory{Bytes: int(own), Cgroup: true}, nil
	}
	if err != nil || all == 0 {
		return Memory{}, fmt.Errorf("this machine's memory: %w", cmp.Or(err, errors.New("the system reports 0 bytes")))
	}
	return Memory{Bytes: int(all)}, nil
}

// percent returns n per cent of the memory, in bytes.
func (m Memory) percent(n int) int { return m.Bytes / 100 * n }

// Queued returns the bytes that may be queued for clients: wanted, or a default if wanted
// is 0. Outside of cgroups, the default is at most most. More than half of the memory is
// an error.
func (m Memory) Queued(wanted, most int) (int, error) {
	switch {
	case m.Bytes == 0 && wanted == 0:
		return most, nil
	case wanted == 0 && m.Cgroup:
		return m.percent(queuedPercent), nil
	case wanted == 0:
		return min(m.percent(ofMachinePercent), most), nil
	case m.Bytes > 0 && wanted > m.percent(mostQueued):
		return 0, fmt.Errorf("--max-queued is %d bytes; of the %d bytes available to this process, want at most %d: connections, kernel buffers and garbage need the rest",
			wanted, m.Bytes, m.percent(mostQueued))
	}
	return wanted, nil
}
