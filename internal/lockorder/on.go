//go:build lockorder

package lockorder

import (
	"fmt"
	"math/bits"
	"sync"
)

// A Rank is a lock's place in the order of the package comment.
type Rank interface {
	rank() int
	name() string
}

func (Client) rank() int   { return 1 }
func (HostConn) rank() int { return 2 }
func (Audience) rank() int { return 3 }
func (Routing) rank() int  { return 4 }
func (Link) rank() int     { return 5 }
func (Outbox) rank() int   { return 6 }

func (Client) name() string   { return "Client" }
func (HostConn) name() string { return "HostConn" }
func (Audience) name() string { return "Audience" }
func (Routing) name() string  { return "Routing" }
func (Link) name() string     { return "Link" }
func (Outbox) name() string   { return "Outbox" }

// A Mutex is a lock with a rank.
type Mutex[R Rank] struct{ mu sync.Mutex }

// Lock locks m. It panics if the goroutine holds a lock of the same rank or a later one.
func (m *Mutex[R]) Lock() {
	enter[R]()
	m.mu.Lock()
}

// Unlock unlocks m. It panics if the goroutine does not hold it.
func (m *Mutex[R]) Unlock() {
	m.mu.Unlock()
	leave[R]()
}

// enter records that the goroutine holds a lock of the rank.
func enter[R Rank]() {
	var next R
	if has := take(holding(), next.rank()); has != nil {
		panic(fmt.Sprintf("lockorder: %s is locked while %s is held; package lockorder has the order", next.name(), has.name()))
	}
}

// leave removes the record made by enter.
func leave[R Rank]() {
	var last R
	if !give(holding(), last.rank()) {
		panic("lockorder: " + last.name() + " is unlocked by a goroutine that has not locked it")
	}
}

// take adds a rank to the set of held locks. If the set already has this rank or a later one,
// take adds nothing and returns the last rank in the set. When the runtime reuses a goroutine's
// descriptor, two goroutines successively use the same set; it is empty in between, so there is
// no race.
//
//go:norace
func take(held *uint64, rank int) (has Rank) {
	if *held>>rank != 0 {
		return list[bits.Len64(*held)-1]
	}
	*held |= 1 << rank
	return nil
}

// give removes a rank from the set, and reports whether it was in the set.
//
//go:norace
func give(held *uint64, rank int) bool {
	had := *held&(1<<rank) != 0
	*held &^= 1 << rank
	return had
}

// list has the ranks, indexed by number.
var list = []Rank{nil, Client{}, HostConn{}, Audience{}, Routing{}, Link{}, Outbox{}}
