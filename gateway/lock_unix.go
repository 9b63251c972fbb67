//go:build unix && !solaris && !aix

package gateway

import (
	"os"
	"syscall"
)

func lockFile(f *os.File) (locked bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return err == nil, err
}
