//go:build lockorder

package lockorder

import (
	"fmt"
	"math/bits"
	"sync"
)

// A Mutex is one of the list.
type Mutex[R Rank] struct{ mu sync.Mutex }

// Lock takes it, if it is its turn.
func (m *Mutex[R]) Lock() {
	enter[R]()
	m.mu.Lock()
}

// Unlock lets go of it.
func (m *Mutex[R]) Unlock() {
	m.mu.Unlock()
	leave[R]()
}

// enter says that something of the list is held from now on.
func enter[R Rank]() {
	var next R
	if has := take(holding(), next.rank()); has != nil {
		panic(fmt.Sprintf("lockorder: %s is taken while %s is held; see the list in package lockorder", next.name(), has.name()))
	}
}

// leave says that it is held no more.
func leave[R Rank]() {
	var last R
	if !give(holding(), last.rank()) {
		panic("lockorder: " + last.name() + " is let go of by a goroutine that has not taken it")
	}
}

// take notes a place in what a goroutine holds, unless it holds one that does not stand
// before that. Goroutines that the runtime keeps at one place one after the other share what
// they hold, which is nothing when the first of them ends: no race.
//
//go:norace
func take(held *uint64, rank int) (has Rank) {
	if *held>>rank != 0 {
		return list[bits.Len64(*held)-1]
	}
	*held |= 1 << rank
	return nil
}

// give takes it out again, and reports whether it was there.
//
//go:norace
func give(held *uint64, rank int) bool {
	had := *held&(1<<rank) != 0
	*held &^= 1 << rank
	return had
}

// list is all places, each where its number is.
var list = []Rank{nil, Client{}, HostConn{}, Audience{}, Routing{}, Link{}, Outbox{}}
