package cli

import (
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Memory is how much memory this process may use.
type Memory struct {
	Bytes  int  // 0: not known
	Cgroup bool // for it and others of its cgroup, not for the whole machine
}

// Parts of the memory, in per cent. What is left over is the kernel's: buffers
// of connections are counted against a cgroup, too.
const (
	heapPercent      = 60 // Go's, garbage included
	mostQueued       = 50 // that may be asked for with --max-queued
	queuedPercent    = 25 // of a cgroup's that may wait for clients by default
	ofMachinePercent = 12 // the same of a machine's, where others want some too
)

// UseMemory finds out how much memory there is, and has Go collect garbage in
// time not to need more. Where GOMEMLIMIT is set, that stays.
func UseMemory(log *slog.Logger) Memory {
	m, err := readMemory(memlimit.FromCgroup, memlimit.FromSystem)
	if err != nil {
		log.Warn("not known how much memory there is; see --max-queued", "error", err)
		return m
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(int64(m.percent(heapPercent)))
	}
	log.Debug("memory", "bytes", m.Bytes, "of_cgroup", m.Cgroup)
	return m
}

// readMemory asks the cgroup first. One without a limit, and none at all, leave
// the machine's.
func readMemory(cgroup, machine memlimit.Provider) (Memory, error) {
	all, err := machine()
	if err != nil {
		all = math.MaxInt64
	}
	if own, cgroupErr := cgroup(); cgroupErr == nil && own < all {
		return Memory{Bytes: int(own), Cgroup: true}, nil
	}
	if err != nil || all == 0 {
		return Memory{}, fmt.Errorf("memory of this machine: %w", err)
	}
	return Memory{Bytes: int(all)}, nil
}

// percent returns a part, in bytes.
func (m Memory) percent(n int) int { return m.Bytes / 100 * n }

// Queued returns how many bytes may wait for clients: as --max-queued says, or
// if that is 0 as fits, and of a machine's memory at most so many.
func (m Memory) Queued(wanted, most int) (int, error) {
	switch {
	case m.Bytes == 0 && wanted == 0:
		return most, nil
	case wanted == 0 && m.Cgroup:
		return m.percent(queuedPercent), nil
	case wanted == 0:
		return min(m.percent(ofMachinePercent), most), nil
	case m.Bytes > 0 && wanted > m.percent(mostQueued):
		return 0, fmt.Errorf("--max-queued is %d bytes; of the %d bytes that this process may use, want at most %d: the rest is for connections, buffers of the kernel, and garbage",
			wanted, m.Bytes, m.percent(mostQueued))
	}
	return wanted, nil
}
