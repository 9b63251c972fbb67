package procs

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// WithoutChown calls call on a thread that may not change owners of files, although it is root's, as in
// a container without this capability.
func WithoutChown(call func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread, which loses the right, ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var rights [2]unix.CapUserData
		err := unix.Capget(&header, &rights[0])
		if err == nil {
			rights[0].Effective &^= 1 << unix.CAP_CHOWN
			err = unix.Capset(&header, &rights[0])
		}
		if err == nil {
			err = call()
		}
		done <- err
	}()
	return <-done
}
