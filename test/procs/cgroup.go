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

// A Cgroup limits the memory of its processes, including the kernel's memory for
// them.
type Cgroup struct {
	dir string
	v2  bool
}

var cgroups atomic.Int64

// cgroupParent returns the directory below which cgroups are made.
func cgroupParent() (dir string, v2 bool, err error) {
	if os.Getuid() != 0 {
		return "", false, errors.New("a cgroup of one's own needs root")
	}
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		return "/sys/fs/cgroup/memory", false, nil // version 1
	}
	if !strings.Contains(string(controllers), "memory") {
		return "", false, errors.New("no memory controller here")
	}
	return "/sys/fs/cgroup", true, nil
}

// CanCgroup reports why cgroups cannot be made here.
func CanCgroup() error {
	g, err := NewCgroup(1 << 30)
	if err != nil {
		return err
	}
	return g.Remove()
}

// NewCgroup makes a cgroup with the given memory limit, in bytes.
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
		if err != nil && !errors.Is(err, os.ErrNotExist) && i == 0 { // without swap, the kernel has no limit for it
			return nil, errors.Join(fmt.Errorf("limits cannot be set here: %w", err), g.Remove())
		}
	}
	return g, nil
}

// Remove removes the cgroup after its processes have ended.
func (g *Cgroup) Remove() (err error) {
	for range 100 { // a killed process may need a moment to end
		if err = os.Remove(g.dir); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// In makes the process run in a cgroup.
func (p *Process) In(g *Cgroup) {
	p.args = append([]string{"-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs"), p.program}, p.args...)
	p.program = "/bin/sh"
}

// Peak returns the most memory that was in use, in bytes.
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

// Kills returns how many processes the kernel has killed for lack of memory.
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
