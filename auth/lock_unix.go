//go:build unix && !solaris && !aix

package auth

import (
	"errors"
	"os"
	"syscall"
)

// flock is replaced by tests.
var flock = syscall.Flock

// LockFile locks a file until [CloseLocked] or the process ends. It does not wait: it
// returns an error if another process has the lock. On systems and file systems without
// such locks, locked is false and err is nil.
func LockFile(f *os.File) (locked bool, err error) {
	err = flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENOLCK) { // such as Lustre, and NFS without its lock service
		return false, nil
	}
	return err == nil, err
}

// CloseLocked unlocks and closes a file that [LockFile] has locked. Close alone is not
// enough: a child process that is just being started keeps the lock until its program runs.
func CloseLocked(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}
