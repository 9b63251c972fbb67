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

	"ahprelay/ahp"
	"ahprelay/auth"
)

// A runFile records a host-agent's instance for its successor. The running host-agent
// holds the file's lock. A successor that gets the lock knows that its predecessor has
// ended, however it died. It then releases the host on the predecessor's behalf, in
// case no sentinel was left to do so.
//
// The lock proves that the process that had this very file open, on this kernel since
// its boot, is gone. The note therefore contains the file's inode and the kernel's
// boot id: a copy has a different inode, another machine has a different boot, and a
// lock on a file system shared by machines proves nothing. A host-agent with a copy,
// or without the file, waits for the lease. Relays require no proof, because a holder
// of the host's credentials may take over the host anyway.
type runFile struct {
	f        *os.File
	previous []string // instances that have ended, and may still hold the host
}

// A runNote is the JSON in a runFile.
type runNote struct {
	Boot      string   `json:"boot"`
	Inode     uint64   `json:"inode"`
	Instances []string `json:"instances"` // the running instance, and earlier ones that may hold the host
}

// Bounds of a runNote.
const (
	maxRunNote  = 4 << 10 // bytes
	maxPrevious = 8       // instances
)

// errRunning reports that a running process holds the file's lock.
var errRunning = errors.New("a host-agent for this host is already running on this machine")

// openRunFile opens or creates a host's file, and locks it.
func openRunFile(dir, tenant, host string) (*runFile, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	path := filepath.Join(dir, "host-agent."+tenant+"."+host+".json")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	locked, err := auth.LockFile(f)
	switch {
	case err != nil:
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", errRunning, path, err), f.Close())
	case !locked:
		return nil, errors.Join(fmt.Errorf("state directory: this system has no locks for %s", path), f.Close())
	}
	r := &runFile{f: f}
	r.previous = r.read()
	return r, nil
}

// read returns the instances that have ended, as proved by the file.
func (r *runFile) read() []string {
	here, ok := r.here()
	if !ok {
		return nil
	}
	data, err := io.ReadAll(io.NewSectionReader(r.f, 0, maxRunNote))
	var note runNote
	if err != nil || json.Unmarshal(data, &note) != nil { // left by a process that died while writing
		return nil
	}
	if note.Boot != here.Boot || note.Inode != here.Inode {
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

// note records that this host-agent, with a new instance name, is about to run. Earlier
// instances that may still hold the host stay in the file.
func (r *runFile) note(instance string) error {
	return r.write(append([]string{instance}, r.previous...))
}

// holds records this instance as the host's only holder.
func (r *runFile) holds(instance string) error {
	r.previous = nil
	return r.write([]string{instance})
}

// released records the host's release.
func (r *runFile) released() error { return r.write(nil) }

// write replaces the note in place, so the file keeps its inode and its lock.
func (r *runFile) write(instances []string) error {
	note, ok := r.here()
	if !ok {
		return nil
	}
	note.Instances = instances[:min(len(instances), maxPrevious)]
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
func (r *runFile) close() { _ = r.f.Close() }

// A run records this host-agent's instance. Without a file it records nothing.
type run struct {
	file     *runFile // nil for none
	instance string
	log      *slog.Logger
}

// enter records this host-agent's start.
func (a *Agent) enter() *run {
	r := &run{instance: a.instance, log: a.cfg.Log}
	if a.cfg.StateDir == "" {
		return r
	}
	file, err := openRunFile(a.cfg.StateDir, a.tenant, a.host)
	if err != nil {
		r.check(err)
		return r
	}
	r.file = file
	r.check(file.note(r.instance))
	return r
}

// previous returns the instances that have ended and may still hold the host.
func (r *run) previous() []string {
	if r.file == nil {
		return nil
	}
	return r.file.previous
}

// holds records this instance as holder.
func (r *run) holds() {
	if r.file != nil {
		r.check(r.file.holds(r.instance))
	}
}

// released records the host's release.
func (r *run) released() {
	if r.file != nil {
		r.check(r.file.released())
	}
}

func (r *run) close() {
	if r.file != nil {
		r.file.close()
	}
}

// check logs an error. It is not fatal: a successor only has to wait.
func (r *run) check(err error) {
	if err != nil {
		r.log.Warn("run file unavailable: after a crash with its sentinel, a new host-agent must wait for the lease", "error", err)
	}
}
