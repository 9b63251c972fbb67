//go:build lockorder

package lockorder

import (
	"fmt"
	"slices"
	"sync"
)

// A Mutex is one of the list.
type Mutex[R Rank] struct{ mu sync.Mutex }

// Lock takes it, if it is its turn.
func (m *Mutex[R]) Lock() {
	Enter[R]()
	m.mu.Lock()
}

// Unlock lets go of it.
func (m *Mutex[R]) Unlock() {
	m.mu.Unlock()
	Leave[R]()
}

// held is what goroutines hold, by what tells them apart while they run. Each has its own alone.
var held sync.Map

// Enter says that something of the list is held from now on.
func Enter[R Rank]() {
	var next R
	id := goroutine()
	var mine []Rank
	if v, ok := held.Load(id); ok {
		mine = v.([]Rank)
	}
	for _, has := range mine {
		if has.rank() >= next.rank() {
			panic(fmt.Sprintf("lockorder: %s is taken while %s is held; see the list in package lockorder", next.name(), has.name()))
		}
	}
	held.Store(id, append(slices.Clip(mine), next))
}

// Leave says that it is held no more.
func Leave[R Rank]() {
	var last R
	id := goroutine()
	v, _ := held.Load(id)
	mine, _ := v.([]Rank)
	i := slices.IndexFunc(mine, func(r Rank) bool { return r.rank() == last.rank() })
	switch {
	case i < 0:
		panic("lockorder: " + last.name() + " is let go of by a goroutine that has not taken it")
	case len(mine) == 1:
		held.Delete(id)
	default:
		held.Store(id, slices.Delete(slices.Clone(mine), i, i+1))
	}
}
