package calm

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// How much later than asked for the kernel may wake a thread, in nanoseconds.
const (
	slack = 1_000_000
	usual = 50_000 // the kernel's default
)

// now is the slack of the calling thread.
func now() int {
	n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0
	}
	return n
}

func set(n uintptr) error { return unix.Prctl(unix.PR_SET_TIMERSLACK, n, 0, 0, 0) }

func down() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if now() >= slack { // it is the second time, or somebody wants more
		return
	}
	program, err := os.Executable()
	if err != nil || set(slack) != nil || now() < slack {
		return
	}
	_ = syscall.Exec(program, os.Args, os.Environ()) // returns only if it fails
	_ = set(usual)
}

func usually(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if had := now(); had >= slack && set(usual) == nil {
		defer func() { _ = set(uintptr(had)) }()
	}
	return start()
}
