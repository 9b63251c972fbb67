package cli

import (
	"errors"
	"math"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const mib = 1 << 20

func fails(err error) memlimit.Provider { return func() (uint64, error) { return 0, err } }

func TestSmallerMemoryLimitCounts(t *testing.T) {
	for name, test := range map[string]struct {
		cgroup, machine memlimit.Provider
		want            Memory
		bad             bool
	}{
		"cgroup":                     {memlimit.Limit(512 * mib), memlimit.Limit(8192 * mib), Memory{512 * mib, true}, false},
		"cgroup without a limit":     {fails(memlimit.ErrNoLimit), memlimit.Limit(8192 * mib), Memory{8192 * mib, false}, false},
		"cgroup above the machine":   {memlimit.Limit(math.MaxInt64), memlimit.Limit(8192 * mib), Memory{8192 * mib, false}, false},
		"no cgroups":                 {fails(memlimit.ErrCgroupsNotSupported), memlimit.Limit(8192 * mib), Memory{8192 * mib, false}, false},
		"cgroup, unknown machine":    {memlimit.Limit(512 * mib), fails(errors.New("no")), Memory{512 * mib, true}, false},
		"nothing is known":           {fails(memlimit.ErrNoCgroup), fails(errors.New("no")), Memory{}, true},
		"the machine says that 0 is": {fails(memlimit.ErrNoCgroup), memlimit.Limit(0), Memory{}, true},
	} {
		got, err := readMemory(test.cgroup, test.machine)
		if got != test.want || (err != nil) != test.bad {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, test.want)
		}
	}
}

func TestQueueFitsIntoMemory(t *testing.T) {
	const most = 1024 * mib
	for name, test := range map[string]struct {
		memory       Memory
		wanted, want int // size that the flag demands, and the resulting size; 0: refused
	}{
		"a cgroup's part":           {Memory{512 * mib, true}, 0, 128 * mib},
		"a large cgroup's":          {Memory{65536 * mib, true}, 0, 16384 * mib},
		"a machine's":               {Memory{4096 * mib, false}, 0, 491 * mib},
		"a large machine's":         {Memory{65536 * mib, false}, 0, most},
		"unknown":                   {Memory{}, 0, most},
		"as wanted":                 {Memory{512 * mib, true}, 200 * mib, 200 * mib},
		"as wanted, without limits": {Memory{}, 65536 * mib, 65536 * mib},
		"too much":                  {Memory{512 * mib, true}, 300 * mib, 0},
	} {
		got, err := test.memory.Queued(test.wanted, most)
		if got/mib != test.want/mib && got/mib != test.want/mib-1 || (err != nil) != (test.want == 0) {
			t.Errorf("%s: %d MiB, %v; want %d", name, got/mib, err, test.want/mib)
		}
	}
}
