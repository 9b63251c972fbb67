package people

import "errors"

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
