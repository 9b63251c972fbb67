package hostagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// A runFile records the instance of a host-agent for the next host-agent of the same
// host. The running host-agent holds the file's lock. A host-agent that gets the lock
// knows that the previous one has ended, even if it was killed. The new host-agent then
// releases the host for the previous one, in case no sentinel has done so.
//
// The lock proves only that the process which had this file open, under this kernel
// since its boot, has ended. So the note contains the file's inode and the kernel's
// boot id: a copied file has a different inode, and another machine, which may share
// the file system, has a different boot id. A host-agent without such proof waits until
// the lease expires. Relays require no proof, because whoever has the host's
// credentials may take over the host anyway.
//
// A host-agent that gets the host while the previous one still runs, for example with
// --take-over, replaces the file. The previous one notices that before it writes to the
// state directory: see fence.
//
// A host-agent does not start while a running one for a different relay has the file: both
// would write the same state.
//
// The zero runFile has no file, and records nothing.
type runFile struct {
	f        *os.File
	relays   []string // base URLs of this host-agent's relays
	previous []string // instances that have ended, but may not have released the host
}

// A runNote is the JSON in a runFile.
type runNote struct {
	Boot      string   `json:"boot"`
	Inode     uint64   `json:"inode"`
	Instances []string `json:"instances"` // the running instance, and ended ones that may not have released the host
	Relays    []string `json:"relays"`    // base URLs of the running instance's relays
}

// Bounds of a runNote.
const (
	maxRunNote  = 16 << 10 // longest note, in bytes
	maxPrevious = 8        // most instances in previous
)

// errRunning reports that a running process holds the file's lock, and errOtherRelay that it serves
// the host at a different relay.
var (
	errRunning    = errors.New("a host-agent for this host is already running on this machine")
	errOtherRelay = errors.New("a host-agent for a host of this name at another relay is running on this machine")
)

func runPath(dir, tenant, host string) string {
	return filepath.Join(dir, "host-agent."+tenant+"."+host+".json")
}

// openRunFile opens or creates the file of a host at these relays, and locks it. The error is
// errOtherRelay or errRunning if a running host-agent has it.
func openRunFile(dir, tenant, host string, relays ...string) (*runFile, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	path := runPath(dir, tenant, host)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	r := &runFile{f: f, relays: relays}
	locked, err := auth.LockFile(f)
	there := r.note()
	ours := func(url string) bool { return slices.Contains(relays, url) }
	switch {
	case err != nil && len(there.Relays) > 0 && !slices.ContainsFunc(there.Relays, ours):
		return nil, errors.Join(fmt.Errorf("%w: %s is in use for %s; choose another directory with --state-dir", errOtherRelay, path, strings.Join(there.Relays, " ")), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", errRunning, path, err), f.Close())
	case !locked:
		return nil, errors.Join(fmt.Errorf("state directory: this system has no locks for %s", path), f.Close())
	}
	r.previous = r.proven(there)
	return r, nil
}

// note returns the note in the file. It is empty if a process died while writing.
func (r *runFile) note() (note runNote) {
	data, err := io.ReadAll(io.NewSectionReader(r.f, 0, maxRunNote))
	if err != nil || json.Unmarshal(data, &note) != nil {
		return runNote{}
	}
	return note
}

// proven returns the instances in the file's note. The lock proves that they have ended.
func (r *runFile) proven(note runNote) []string {
	if here, ok := r.here(); !ok || note.Boot != here.Boot || note.Inode != here.Inode {
		return nil
	}
	bad := func(name string) bool { return ahp.CheckName("instance", name) != nil }
	previous := slices.DeleteFunc(note.Instances, bad)
	return previous[:min(len(previous), maxPrevious)]
}

// here returns an empty note for this file and kernel, or false if they cannot be
// identified.
func (r *runFile) here() (runNote, bool) {
	boot := bootID()
	inode, ok := inodeOf(r.f)
	return runNote{Boot: boot, Inode: inode}, ok && boot != ""
}

// begins records the instance name of this host-agent before it runs. Ended instances
// that may not have released the host stay in the file.
func (r *runFile) begins(instance string) error {
	return r.write(append([]string{instance}, r.previous...))
}

// holds records that this instance has the host, so no ended instance can hold it.
func (r *runFile) holds(instance string) error {
	r.previous = nil
	return r.write([]string{instance})
}

// released records that the host is released.
func (r *runFile) released() error { return r.write(nil) }

// write replaces the note without a new file, so inode and lock stay.
func (r *runFile) write(instances []string) error {
	note, ok := r.here()
	if !ok {
		return nil
	}
	note.Instances, note.Relays = instances[:min(len(instances), maxPrevious)], r.relays
	data, err := json.Marshal(note)
	if err == nil {
		err = r.f.Truncate(0)
	}
	if err == nil {
		_, err = r.f.WriteAt(data, 0)
	}
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// close releases the lock for a successor.
func (r *runFile) close() { _ = auth.CloseLocked(r.f) }

// A run records this host-agent's instance in a runFile, and logs errors.
type run struct {
	*runFile
	instance string
	log      *slog.Logger
}

// enter records that this host-agent starts. It returns an error if that would damage the state of
// a host at a different relay.
func (a *Agent) enter() error {
	a.run = run{runFile: &runFile{}, instance: a.instance, log: a.cfg.Log}
	if a.cfg.StateDir == "" {
		return nil
	}
	file, err := openRunFile(a.cfg.StateDir, a.tenant, a.host, a.cfg.Relays...)
	switch {
	case errors.Is(err, errOtherRelay):
		return err
	case err != nil:
		a.run.check(err)
		return nil
	}
	a.run.runFile = file
	a.run.check(a.run.begins(a.instance))
	return nil
}

// got records that this host-agent has the host, and reads the state that a previous one has left. From
// then on, the previous one writes no state.
func got(a *Agent) error {
	if a.run.f == nil && a.cfg.StateDir != "" { // a host-agent that is running, or stopped by a signal, has the file
		if os.Remove(runPath(a.cfg.StateDir, a.tenant, a.host)) == nil {
			if err := a.enter(); err != nil {
				return err
			}
		}
	}
	a.run.holds()
	return reread(a)
}

// fence is the [atomicfile.Fence] of the state directory. It returns an error if a successor has replaced
// the file, so that this host-agent, for example after a SIGCONT, does not write its old state over the
// successor's. A write that has begun before continues.
func (r *run) fence() error {
	if r.runFile == nil || r.f == nil {
		return nil
	}
	own, err := r.f.Stat()
	if err != nil {
		return err
	}
	if present, err := os.Stat(r.f.Name()); err == nil && !os.SameFile(own, present) {
		return fmt.Errorf("a different host-agent has the host now: it has replaced %s", r.f.Name())
	}
	return nil
}

func (r *run) holds() { r.check(r.runFile.holds(r.instance)) }

func (r *run) released() { r.check(r.runFile.released()) }

// check logs an error. The error is not fatal: after a crash, the next host-agent only
// has to wait for the lease.
func (r *run) check(err error) {
	if err != nil {
		r.log.Warn("run file unavailable", "effect", "after a crash with its sentinel, a new host-agent waits for the lease", "error", err)
	}
}
