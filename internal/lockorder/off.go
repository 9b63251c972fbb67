//go:build !lockorder

package lockorder

import "sync"

// A Rank is a lock's place in the order of the package comment.
type Rank interface{ ~struct{} }

// A Mutex is a lock with a rank.
type Mutex[R Rank] = sync.Mutex
