//go:build lockorder && !amd64

package lockorder

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
)

// holders maps the number of a goroutine to the locks that it holds: bit n stands for rank n.
var holders sync.Map

// holding returns the set of locks that this goroutine holds.
func holding() *uint64 {
	held, _ := holders.LoadOrStore(goroutine(), new(uint64))
	return held.(*uint64)
}

// goroutine returns the number of this goroutine, read from its stack trace.
func goroutine() uintptr {
	var buf [64]byte
	text := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(text, []byte(" "))
	id, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		panic("lockorder: unexpected stack trace: " + err.Error())
	}
	return uintptr(id)
}
