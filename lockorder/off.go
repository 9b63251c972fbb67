//go:build !lockorder

package lockorder

import "sync"

// A Mutex is one of the list.
type Mutex[R Rank] = sync.Mutex
