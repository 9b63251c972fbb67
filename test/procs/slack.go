package procs

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// KernelSlack is the timer slack that Linux gives a process unless told
// otherwise: the kernel may wake a thread this much later than asked for.
const KernelSlack = 50 * time.Microsecond

// TimerSlack returns the timer slack of the calling thread.
func TimerSlack() (time.Duration, error) {
	n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0, fmt.Errorf("read the timer slack: %w", err)
	}
	return time.Duration(n), nil
}

// startWithSlack calls start, which starts a process with the given timer
// slack. With 0, the process inherits the slack of the calling thread.
func startWithSlack(slack time.Duration, start func() error) error {
	if slack == 0 {
		return start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := TimerSlack()
	if err != nil {
		return err
	}
	if err := setSlack(slack); err != nil {
		return err
	}
	defer func() { _ = setSlack(own) }() // cannot fail: it was set before
	return start()
}

func setSlack(slack time.Duration) error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0); err != nil {
		return fmt.Errorf("set the timer slack to %v: %w", slack, err)
	}
	return nil
}

// RestartWithSlack replaces this program by a new run of itself in the same
// process, so all of its threads and child processes have the timer slack. If
// the calling thread has that slack already, it only returns nil.
func RestartWithSlack(slack time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if own, err := TimerSlack(); err != nil || own == slack {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if err := setSlack(slack); err != nil {
		return err
	}
	return syscall.Exec(program, os.Args, os.Environ())
}
