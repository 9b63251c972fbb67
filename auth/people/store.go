package people

import "errors"

// A Store keeps records. It is safe for concurrent use.
type Store interface {
	// Update replaces a record by the result of change. nil means a missing record.
	// change may be called several times, and must not keep its argument. If it returns
	// an error, Update returns that error and changes nothing.
	Update(key string, change func(old []byte) ([]byte, error)) error

	// Get returns a record, or nil if it is missing.
	Get(key string) ([]byte, error)

	// All returns all records whose key has the prefix, by key. It may lack changes that a
	// different relay has just made.
	All(prefix string) (map[string][]byte, error)

	// CatchUp returns when All includes every change that was made before, at any relay.
	CatchUp() error
}

// MaxRecords is the largest number of records in a store. A tenant may have as many as are
// free.
const MaxRecords = 32 << 10

// Reasons why a store refuses a change.
var (
	ErrFull = errors.New("too many people, devices or requests in the store")
	ErrAway = errors.New("the relays' store of people is unreachable; try again later")
)
