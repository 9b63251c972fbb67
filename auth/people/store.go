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

	// Get returns a record, nil for none.
	Get(key string) ([]byte, error)

	// All returns the records whose keys begin with a prefix, by their keys.
	All(prefix string) (map[string][]byte, error)
}

// MaxRecords bounds a store.
const MaxRecords = 16 << 10

// Why a store changes nothing.
var (
	ErrFull = errors.New("there is no room for more people, devices or requests")
	ErrAway = errors.New("what the relays know of people cannot be changed now: their store is away; try again later")
)

// storeRecord is beside the records in a file, and names the store that they are a copy
// of.
const storeRecord = "store"

// ReadRecords reads a file of records, which need not be there, and the name of the store that
// they are a copy of, "" for none.
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
	if err != nil { // to begin anew would give the relay to whoever comes first
		return nil, "", fmt.Errorf("people and devices: %s: %w; put it back from a copy, or remove it and begin anew with relay setup-link", path, err)
	}
	_ = json.Unmarshal(records[storeRecord], &store) // of another form: not known
	delete(records, storeRecord)
	return records, store, nil
}

// NameStore puts the name of a store beside records that are a copy of what it has.
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

// OpenFileStore reads a file, which need not be there. "" keeps records in memory.
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
