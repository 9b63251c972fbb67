//go:build !lockorder

package lockorder

import "sync"

// A Mutex is one of the list.
type Mutex[R Rank] = sync.Mutex

// Enter says that something of the list is held from now on that is no mutex.
func Enter[R Rank]() {}

// Leave says that it is held no more.
func Leave[R Rank]() {}
