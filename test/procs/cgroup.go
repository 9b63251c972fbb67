package stalled

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A cgroup bounds the memory of the processes in it.
type cgroup struct {
	dir string
	v2  bool
}

// newCgroup makes a cgroup, or skips the test where that cannot be done.
func newCgroup(t *testing.T, bytes int) *cgroup {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a cgroup of one's own needs root")
	}
	g := &cgroup{}
	parent := "/sys/fs/cgroup/memory" // version 1
	if controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		if !strings.Contains(string(controllers), "memory") {
			t.Skip("no memory controller here")
		}
		g.v2, parent = true, "/sys/fs/cgroup"
	}
	g.dir = filepath.Join(parent, fmt.Sprintf("ahp-stalled-%d", os.Getpid()))
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Skipf("cgroups cannot be made here: %v", err)
	}
	t.Cleanup(func() {
		for range 100 { // a process that was killed may take a moment to leave
			if os.Remove(g.dir) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%s is left behind", g.dir)
	})
	limits := map[string]int{"memory.limit_in_bytes": bytes, "memory.memsw.limit_in_bytes": bytes}
	if g.v2 {
		limits = map[string]int{"memory.max": bytes, "memory.swap.max": 0}
	}
	for _, file := range []string{"memory.max", "memory.swap.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"} {
		limit, ours := limits[file]
		err := os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.Itoa(limit)), 0o644)
		if ours && err != nil && !errors.Is(err, os.ErrNotExist) { // without swap, there is no limit of it
			t.Skipf("limits cannot be set here: %v", err)
		}
	}
	return g
}

// wrap makes a script in dir that runs program in the cgroup, and returns its name.
func (g *cgroup) wrap(t *testing.T, dir, program string) (name string) {
	t.Helper()
	name = filepath.Base(program) + "-in-cgroup"
	script := fmt.Sprintf("#!/bin/sh\necho $$ > %s/cgroup.procs || exit 1\nexec %s \"$@\"\n", g.dir, program)
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// peak is the most memory that was in use, the kernel's included, in bytes.
func (g *cgroup) peak(t *testing.T) int {
	t.Helper()
	file := "memory.max_usage_in_bytes"
	if g.v2 {
		file = "memory.peak"
	}
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		t.Logf("not known how much memory was in use: %v", err)
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Error(err)
	}
	return n
}

// kills is how many processes the kernel has killed for want of memory.
func (g *cgroup) kills(t *testing.T) (n int) {
	t.Helper()
	file := "memory.oom_control"
	if g.v2 {
		file = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "oom_kill %d", &n); err == nil {
			return n
		}
	}
	t.Errorf("%s does not tell how many were killed: %q", file, text)
	return 0
}
