package procs

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Within calls f on a thread in a network namespace. Files and sockets that f opens
// stay in this namespace.
func Within(netns string, f func()) error {
	runtime.LockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer here.Close()
	there, err := os.Open("/run/netns/" + netns)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	f()
	if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
		return err // the locked thread ends with its goroutine
	}
	runtime.UnlockOSThread()
	return nil
}
