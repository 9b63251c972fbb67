//go:build unix && !solaris && !aix

package auth

import (
	"os"
	"syscall"
)

// LockFile locks a file until f is closed or the process ends. It does not wait: it
// returns an error if another process has the lock. On systems without such locks, locked
// is false and err is nil.
func LockFile(f *os.File) (locked bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return err == nil, err
}
