package people

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"ahprelay/auth"
)

// A Store keeps records. It is safe for concurrent use.
type Store interface {
	// Update puts in the place of a record what change makes of it; nil stands for none.
	// Change may be called more than once, and must not keep what it is given. Its error is returned,
	// and nothing is changed then.
	Update(key string, change func(old []byte) ([]byte, error)) error

	// All returns the records whose keys begin with a prefix, by their keys.
	All(prefix string) (map[string][]byte, error)
}

// maxRecords bounds a store.
const maxRecords = 16 << 10

// ErrFull reports a store that has no room for more.
var ErrFull = errors.New("there is no room for more people, devices or requests")

// A FileStore keeps records in a file, which is replaced as a whole.
type FileStore struct {
	path string

	mu      sync.Mutex // guards records, and the file
	records map[string]json.RawMessage
}

// OpenFileStore reads a file, which need not be there. "" keeps records in memory.
func OpenFileStore(path string) (*FileStore, error) {
	s := &FileStore{path: path, records: map[string]json.RawMessage{}}
	if path == "" {
		return s, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s.records)
	}
	if err != nil { // to begin anew would give the relay to whoever comes first
		return nil, fmt.Errorf("people and devices: %s: %w; put it back from a copy, or remove it and begin anew with relay setup-link", path, err)
	}
	return s, nil
}

// Update implements [Store].
func (s *FileStore) Update(key string, change func(old []byte) ([]byte, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, had := s.records[key]
	changed, err := change(old)
	switch {
	case err != nil:
		return err
	case changed == nil && !had || changed != nil && string(changed) == string(old):
		return nil
	case !had && len(s.records) >= maxRecords:
		return ErrFull
	}
	next := maps.Clone(s.records)
	if changed == nil {
		delete(next, key)
	} else {
		next[key] = changed
	}
	if err := s.write(next); err != nil {
		return err
	}
	s.records = next
	return nil
}

func (s *FileStore) write(records map[string]json.RawMessage) error {
	if s.path == "" {
		return nil
	}
	data, err := json.MarshalIndent(records, "", "\t")
	if err != nil {
		return err
	}
	return auth.ReplaceFile(s.path, append(data, '\n'), 0o600)
}

// All implements [Store].
func (s *FileStore) All(prefix string) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string][]byte{}
	for key, record := range s.records {
		if strings.HasPrefix(key, prefix) {
			found[key] = slices.Clone(record)
		}
	}
	return found, nil
}
