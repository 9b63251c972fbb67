package procs

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// KernelSlack is the timer slack of a process on Linux by default. The kernel may wake
// a thread this much later than the thread has asked for.
const KernelSlack = 50 * time.Microsecond

// TimerSlack returns the timer slack of the calling thread.
func TimerSlack() (time.Duration, error) {
	n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0, fmt.Errorf("read the timer slack: %w", err)
	}
	return time.Duration(n), nil
}

// StartWithSlack calls start, which starts a process. The process gets the timer slack;
// with 0, it has the slack of the calling thread.
func StartWithSlack(slack time.Duration, start func() error) error {
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
	defer func() { _ = setSlack(own) }() // cannot fail, because the thread had this slack before
	return start()
}

func setSlack(slack time.Duration) error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0); err != nil {
		return fmt.Errorf("set the timer slack to %v: %w", slack, err)
	}
	return nil
}

// RestartWithSlack replaces this program by a new run of itself, in the same process.
// All threads and child processes of the new run have the timer slack. If the calling
// thread has this slack already, RestartWithSlack returns nil and does nothing.
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
