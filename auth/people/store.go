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
	// Update replaces a record by the result of change; nil stands for a missing
	// record. Change may be called several times, and must not keep its argument. If
	// change returns an error, Update returns it and changes nothing.
	Update(key string, change func(old []byte) ([]byte, error)) error

	// Get returns a record, nil if it is missing.
	Get(key string) ([]byte, error)

	// All returns the records with a key prefix, by their keys.
	All(prefix string) (map[string][]byte, error)
}

// MaxRecords bounds a store.
const MaxRecords = 16 << 10

// Reasons why a store refuses a change.
var (
	ErrFull = errors.New("too many people, devices or requests in the store")
	ErrAway = errors.New("the relays' store of people is unreachable; try again later")
)

// storeRecord is an entry beside the records in a file. It names the store from which
// they were copied.
const storeRecord = "store"

// ReadRecords reads a file of records, which may be missing, and the name of the store
// from which it was copied, "" for none.
func ReadRecords(path string) (records map[string]json.RawMessage, store string, err error) {
	records = map[string]json.RawMessage{}
	if path == "" {
		return records, "", nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return records, "", nil
	}
	if err == nil {
		err = json.Unmarshal(data, &records)
	}
	if err != nil { // starting empty would give the relay to the first visitor
		return nil, "", fmt.Errorf("people and devices: %s: %w; restore it from a backup, or remove it and start again with relay setup-link", path, err)
	}
	_ = json.Unmarshal(records[storeRecord], &store) // in a different format: unknown
	delete(records, storeRecord)
	return records, store, nil
}

// NameStore adds the name of the store from which records were copied.
func NameStore(records map[string]json.RawMessage, store string) {
	if name, err := json.Marshal(store); err == nil {
		records[storeRecord] = name
	}
}

// A FileStore keeps records in a file, which is replaced as a whole.
type FileStore struct {
	path string

	mu      sync.Mutex // guards records, and the file
	records map[string]json.RawMessage
}

// OpenFileStore reads a file, which may be missing. An empty path keeps the records in
// memory.
func OpenFileStore(path string) (*FileStore, error) {
	records, _, err := ReadRecords(path)
	if err != nil {
		return nil, err
	}
	return &FileStore{path: path, records: records}, nil
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
	case !had && len(s.records) >= MaxRecords:
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

// Get implements [Store].
func (s *FileStore) Get(key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.records[key]), nil
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
