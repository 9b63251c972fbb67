//go:build lockorder && !amd64

package lockorder

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
)

// holders are what goroutines hold, by their numbers: a bit for each place of the list.
var holders sync.Map

// holding returns what this goroutine holds.
func holding() *uint64 {
	held, _ := holders.LoadOrStore(goroutine(), new(uint64))
	return held.(*uint64)
}

// goroutine returns the number of this goroutine, which stands in its stack trace.
func goroutine() uintptr {
	var buf [64]byte
	text := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(text, []byte(" "))
	id, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		panic("lockorder: a stack trace begins otherwise: " + err.Error())
	}
	return uintptr(id)
}
