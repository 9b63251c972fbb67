// Package memstore stores records in memory, with the methods of broker/store, which
// stores them for relays.
package memstore

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

// A Store holds records. Its zero value is empty and ready for use.
type Store struct {
	mu      sync.Mutex
	records map[string][]byte
}

// Update calls change with a record and stores the result. nil stands for a missing
// record.
func (s *Store) Update(key string, change func(old []byte) ([]byte, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed, err := change(s.records[key])
	switch {
	case err != nil:
		return err
	case changed == nil:
		delete(s.records, key)
	case s.records == nil:
		s.records = map[string][]byte{key: bytes.Clone(changed)}
	default:
		s.records[key] = bytes.Clone(changed)
	}
	return nil
}

// Get returns a record, or nil if it is missing.
func (s *Store) Get(key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.records[key]), nil
}

// All returns the records with keys that begin with prefix.
func (s *Store) All(prefix string) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string][]byte{}
	for key, record := range s.records {
		if strings.HasPrefix(key, prefix) {
			found[key] = bytes.Clone(record)
		}
	}
	return found, nil
}

// CatchUp does nothing: the Store has no other copies.
func (s *Store) CatchUp() error { return nil }

// A Copy is the copy of a Store that a different relay has in memory: its lists lack later changes
// until CatchUp. Its other methods use the Store itself.
type Copy struct {
	*Store
	Asked int // calls of CatchUp

	known Store
}

// All returns the records with keys that begin with prefix, as of the last call of CatchUp.
func (c *Copy) All(prefix string) (map[string][]byte, error) { return c.known.All(prefix) }

// CatchUp reads all records.
func (c *Copy) CatchUp() error {
	c.Asked++
	all, err := c.Store.All("")
	c.known.mu.Lock()
	defer c.known.mu.Unlock()
	c.known.records = all
	return err
}
