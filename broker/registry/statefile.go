package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"ahprelay/internal/atomicfile"
	"ahprelay/internal/signal"
)

// Delays before a write, so that several changes are written together.
const (
	saveSoon = time.Second     // delay before changes are saved that must survive a crash
	saveLate = 5 * time.Second // delay before other changes are saved

	// Writing may take at most 1/saveShare of the time. Changes are in the store
	// too, so a delay is acceptable.
	saveShare = 50
)

const keptVersion = 2

// A keptState is a relay's view in its state file. A relay starts from it while the
// store is unreachable, and fills new stores from it.
type keptState struct {
	Version int         `json:"version"`
	Store   string      `json:"store"` // id of the bucket
	Hosts   []hostState `json:"hosts"`

	Regions map[string]string `json:"regions,omitempty"` // home regions of hosts other than this relay's region, by host key
}

func (s *keptState) homeOf(key, region string) {
	if s.Regions == nil {
		s.Regions = map[string]string{}
	}
	s.Regions[key] = region
}

// A stateFile saves a relay's view as JSON (keptState) between runs. It is always
// replaced as a whole.
type stateFile struct {
	path string // "": none
	log  *slog.Logger
	wake chan struct{} // wakes run

	mu   sync.Mutex
	due  time.Time     // when to write next; zero: nothing has changed
	took time.Duration // duration of the last write

	failed bool // the last write has failed; owned by the caller of save
}

func newStateFile(path string, log *slog.Logger) *stateFile {
	return &stateFile{path: path, log: log, wake: make(chan struct{}, 1)}
}

// load reads the file, which may be missing. It renames a damaged file; hosts become
// known again when their host-agents connect.
func (f *stateFile) load() (keptState, error) {
	kept, damaged, err := f.read()
	if err == nil || !damaged {
		return kept, err
	}
	aside := f.path + ".damaged"
	if err := os.Rename(f.path, aside); err != nil {
		return keptState{}, err
	}
	f.log.Error("state file damaged and renamed", "file", aside, "error", err)
	return keptState{}, nil
}

// read reads the file, and reports whether an error is due to its contents.
func (f *stateFile) read() (kept keptState, damaged bool, err error) {
	if f.path == "" {
		return kept, false, nil
	}
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, false, nil
	}
	if err != nil {
		return kept, false, err
	}
	if err = json.Unmarshal(data, &kept); err == nil && kept.Version != keptVersion {
		err = fmt.Errorf("version %d; want %d", kept.Version, keptVersion)
	}
	for i := range kept.Hosts {
		if err == nil {
			err = kept.Hosts[i].check()
		}
	}
	if err != nil {
		return keptState{}, true, err
	}
	return kept, false, nil
}

// changed schedules a write, after saveSoon or saveLate.
func (f *stateFile) changed(soon bool) {
	wait := saveLate
	if soon {
		wait = saveSoon
	}
	f.mu.Lock()
	due := time.Now().Add(max(wait, saveShare*f.took))
	news := f.due.IsZero() || due.Before(f.due)
	if news {
		f.due = due
	}
	f.mu.Unlock()
	if news {
		signal.Send(f.wake)
	}
}

// run writes the value of state whenever a write is due, until ctx ends.
func (f *stateFile) run(ctx context.Context, state func() any) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-timer.C:
		}
		f.mu.Lock()
		wait := time.Until(f.due)
		if f.due.IsZero() {
			wait = time.Hour
		}
		write := wait <= 0
		if write {
			f.due, wait = time.Time{}, time.Hour
		}
		f.mu.Unlock()
		timer.Reset(wait)
		if write {
			f.save(state())
		}
	}
}

func (f *stateFile) save(kept any) {
	if f.path == "" {
		return
	}
	start := time.Now()
	err := atomicfile.ReplaceJSON(f.path, kept, "\t")
	f.mu.Lock()
	f.took = time.Since(start)
	f.mu.Unlock()
	if err != nil {
		if !f.failed {
			f.log.Error("state file not written", "effect", "trying again", "file", f.path, "error", err)
		}
		f.changed(false)
	}
	f.failed = err != nil
}
