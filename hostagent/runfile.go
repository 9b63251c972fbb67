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

// A runFile is where a host-agent notes which instance it is, for its successor.
// It is locked by the host-agent that runs. A successor that gets the lock knows
// that its predecessor has ended, however that died, and so gives the host up in
// its name, where there was no sentinel left to do it.
//
// What that proves is that the process is gone which had this very file open, on
// this kernel since it started: the note names the file's inode and the kernel's boot.
// A copy has another inode, another machine another boot; a lock on what machines
// share proves nothing between them. Whoever has only a copy, or no file, waits
// for the lease. Relays have no proof, and want none: whoever has a host's
// credentials may take it over.
type runFile struct {
	f      *os.File
	former []string // instances that have ended, and may not have given the host up
}

// A runNote is what is in a runFile, as JSON.
type runNote struct {
	Boot      string   `json:"boot"`
	Inode     uint64   `json:"inode"`
	Instances []string `json:"instances"` // the one that runs, and those before it that may hold the host
}

// Bounds of a runNote.
const (
	maxRunNote = 4 << 10 // bytes
	maxFormer  = 8       // instances
)

// errRunning reports that the process that has the file's lock runs.
var errRunning = errors.New("another host-agent of this host runs on this machine")

// openRunFile locks the file of a host, which is made if there is none.
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
	r.former = r.read()
	return r, nil
}

// read returns the instances that the file proves to have ended.
func (r *runFile) read() []string {
	here, ok := r.here()
	if !ok {
		return nil
	}
	data, err := io.ReadAll(io.NewSectionReader(r.f, 0, maxRunNote))
	var note runNote
	if err != nil || json.Unmarshal(data, &note) != nil { // as of one who died while it wrote
		return nil
	}
	if note.Boot != here.Boot || note.Inode != here.Inode {
		return nil
	}
	bad := func(name string) bool { return ahp.CheckName("instance", name) != nil }
	former := slices.DeleteFunc(note.Instances, bad)
	return former[:min(len(former), maxFormer)]
}

// here returns a note of this file and kernel, or false if there is no telling
// them from others.
func (r *runFile) here() (runNote, bool) {
	boot := bootID()
	inode, ok := inodeOf(r.f)
	return runNote{Boot: boot, Inode: inode}, ok && boot != ""
}

// note writes that an instance is about to run.
func (r *runFile) note(instance string) error {
	return r.write(append([]string{instance}, r.former...))
}

// holds writes that it is this instance and no other that has the host.
func (r *runFile) holds(instance string) error {
	r.former = nil
	return r.write([]string{instance})
}

// released writes that nobody has the host.
func (r *runFile) released() error { return r.write(nil) }

// write puts a note in place of the one before. The file stays the same one,
// and locked.
func (r *runFile) write(instances []string) error {
	note, ok := r.here()
	if !ok {
		return nil
	}
	note.Instances = instances[:min(len(instances), maxFormer)]
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

// close lets a successor have the file.
func (r *runFile) close() { _ = r.f.Close() }

// A run is what a host-agent notes of itself. Without a file it notes nothing.
type run struct {
	file     *runFile // nil: none
	instance string
	log      *slog.Logger
}

// enter notes that this host-agent is about to run.
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

// former returns the instances that have ended and may still have the host.
func (r *run) former() []string {
	if r.file == nil {
		return nil
	}
	return r.file.former
}

// holds notes that this instance has the host.
func (r *run) holds() {
	if r.file != nil {
		r.check(r.file.holds(r.instance))
	}
}

// released notes that it has given the host up.
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

// check tells of what makes a successor wait, and nothing worse.
func (r *run) check(err error) {
	if err != nil {
		r.log.Warn("if this host-agent crashed together with its sentinel, the next one would wait for its lease", "error", err)
	}
}
