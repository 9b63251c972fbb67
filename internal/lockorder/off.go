//go:build !lockorder

package lockorder

import "sync"

// A Rank is a place in the list.
type Rank interface{ ~struct{} }

// A Mutex is a lock of the list.
type Mutex[R Rank] = sync.Mutex
