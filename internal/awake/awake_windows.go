package awake

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	kernel    = windows.NewLazySystemDLL("kernel32.dll")
	setState  = kernel.NewProc("SetThreadExecutionState")
	getSupply = kernel.NewProc("GetSystemPowerStatus")
)

// Flags of SetThreadExecutionState.
const (
	continuous     = 0x80000000
	systemRequired = 0x00000001
)

// Hold sets the execution state of a thread, which Windows forgets when the thread or
// the process ends.
func Hold(string) (release func(), err error) {
	held, done := make(chan bool), make(chan struct{})
	go func() {
		runtime.LockOSThread() // without an unlock, so the thread ends with the goroutine
		before, _, _ := setState.Call(continuous | systemRequired)
		held <- before != 0
		<-done
	}()
	if !<-held {
		close(done)
		return nil, errors.New("SetThreadExecutionState failed")
	}
	return func() { close(done) }, nil
}

// Mains reports whether the machine runs on mains power.
func Mains() bool {
	var status struct {
		Line, Battery, Percent, Saver byte
		Life, FullLife                uint32
	}
	ok, _, _ := getSupply.Call(uintptr(unsafe.Pointer(&status)))
	return ok == 0 || status.Line != 0
}
