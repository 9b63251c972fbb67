//go:build !lockorder

package lockorder

import (
	"sync"
	"testing"
)

func TestMutexIsTheStandardLibrarysWithoutTheTag(t *testing.T) {
	var m Mutex[Client]
	var _ *sync.Mutex = &m
}
