package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"ahprelay/auth"
)

// How long changes wait to be written, so that many are written together.
const (
	saveSoon = time.Second     // what must outlive a crash
	saveLate = 5 * time.Second // what can be lost

	// saveShare bounds the share of the time that is spent writing: what changes is
	// in the store too.
	saveShare = 50
)

// keptVersion is the form of the file.
const keptVersion = 2

// A keptState is what a relay keeps of what it knows: for the time that the store is
// away, and for another store, which begins with it.
type keptState struct {
	Version int         `json:"version"`
	Store   string      `json:"store"` // the bucket that this came from
	Hosts   []hostState `json:"hosts"`

	Regions map[string]string `json:"regions,omitempty"` // of hosts that others than this relay's own decide of, by their keys
}

// homeOf notes which region decides of a host.
func (s *keptState) homeOf(key, region string) {
	if s.Regions == nil {
		s.Regions = map[string]string{}
	}
	s.Regions[key] = region
}

// A stateFile keeps what a relay knows from one run to the next, replaced as a whole: of
// hosts, a keptState. Relays that had no store wrote a JSON array of hosts.
type stateFile struct {
	path string // "": nothing is kept
	log  *slog.Logger
	wake chan struct{} // holds one

	mu   sync.Mutex
	due  time.Time     // when to write; zero: nothing has changed
	took time.Duration // the last time
}

func newStateFile(path string, log *slog.Logger) *stateFile {
	return &stateFile{path: path, log: log, wake: make(chan struct{}, 1)}
}

// load reads the file; nothing if there is none. One that cannot be understood
// is put aside: hosts are known again when their host-agents connect.
func (f *stateFile) load() (keptState, error) {
	kept, damaged, err := f.read()
	if err == nil || !damaged {
		return kept, err
	}
	aside := f.path + ".damaged"
	if err := os.Rename(f.path, aside); err != nil {
		return keptState{}, err
	}
	f.log.Error("what was known of hosts cannot be read, and was put aside", "file", aside, "error", err)
	return keptState{}, nil
}

// read reads the file, and says whether an error is one of what is in it.
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
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		err = json.Unmarshal(data, &kept.Hosts)
	} else if err = json.Unmarshal(data, &kept); err == nil && kept.Version != keptVersion {
		err = fmt.Errorf("is of version %d; want %d", kept.Version, keptVersion)
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

// changed says that there is something to write.
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
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// run writes what state returns when it is due, until ctx ends.
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

// save replaces the file.
func (f *stateFile) save(kept any) {
	if f.path == "" {
		return
	}
	start := time.Now()
	err := replaceJSON(f.path, kept)
	f.mu.Lock()
	f.took = time.Since(start)
	f.mu.Unlock()
	if err != nil {
		f.log.Error("what is known cannot be kept for the next start", "file", f.path, "error", err)
		f.changed(false) // try again
	}
}

// replaceJSON puts a value into a file in the place of what was there, so that
// a crash leaves one of the two.
func replaceJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "\t")
	if err != nil {
		return err
	}
	return auth.ReplaceFile(path, append(data, '\n'), 0o600)
}
