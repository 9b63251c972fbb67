//go:build unix && !solaris && !aix

package auth

import (
	"os"
	"syscall"
)

// LockFile locks a file for this process, until f is closed or the process ends.
// It does not wait: an error says that another process has it. Where the system
// has no such locks, locked is false, and there is no error.
func LockFile(f *os.File) (locked bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return err == nil, err
}
