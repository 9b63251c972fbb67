package procs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A Cgroup limits the memory of the processes in it. The kernel's memory for these
// processes counts.
type Cgroup struct {
	dir string
	v2  bool
}

var cgroups atomic.Int64

// cgroupParent returns the directory in which cgroups can be made, and whether they
// have version 2.
func cgroupParent() (dir string, v2 bool, err error) {
	if os.Getuid() != 0 {
		return "", false, errors.New("a cgroup of one's own needs root")
	}
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		return "/sys/fs/cgroup/memory", false, nil // cgroups of version 1
	}
	if !strings.Contains(string(controllers), "memory") {
		return "", false, errors.New("no memory controller here")
	}
	return "/sys/fs/cgroup", true, nil
}

// CanCgroup returns why cgroups cannot be made on this machine, or nil.
func CanCgroup() error {
	g, err := NewCgroup(1 << 30)
	if err != nil {
		return err
	}
	return g.Remove()
}

// NewCgroup makes a cgroup that limits memory to a number of bytes.
func NewCgroup(bytes int) (*Cgroup, error) {
	parent, v2, err := cgroupParent()
	if err != nil {
		return nil, err
	}
	g := &Cgroup{v2: v2, dir: filepath.Join(parent, fmt.Sprintf("ahp-test-%d-%d", os.Getpid(), cgroups.Add(1)))}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, fmt.Errorf("cgroups cannot be made here: %w", err)
	}
	files := []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"}
	limits := []int{bytes, bytes}
	if g.v2 {
		files, limits = []string{"memory.max", "memory.swap.max"}, []int{bytes, 0}
	}
	for i, file := range files {
		err := os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.Itoa(limits[i])), 0o644)
		if err != nil && !errors.Is(err, os.ErrNotExist) && i == 0 { // a kernel without swap has no limit for swap
			return nil, errors.Join(fmt.Errorf("limits cannot be set here: %w", err), g.Remove())
		}
	}
	return g, nil
}

// Remove waits until the processes in the cgroup have ended, and removes the cgroup.
func (g *Cgroup) Remove() (err error) {
	for range 100 { // a killed process may take a moment to end
		if err = os.Remove(g.dir); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// In makes the process run in a cgroup from its next start on.
func (p *Process) In(g *Cgroup) {
	p.args = append([]string{"-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs"), p.program}, p.args...)
	p.program = "/bin/sh"
}

// Peak returns the most memory that the cgroup has used at a time, in bytes.
func (g *Cgroup) Peak() (int, error) {
	file := "memory.max_usage_in_bytes"
	if g.v2 {
		file = "memory.peak"
	}
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// Kills returns how many processes in the cgroup the kernel has killed because memory
// was short.
func (g *Cgroup) Kills() (n int, err error) {
	file := "memory.oom_control"
	if g.v2 {
		file = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "oom_kill %d", &n); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s does not report kills: %q", file, text)
}
