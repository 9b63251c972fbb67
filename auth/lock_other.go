//go:build !unix || solaris || aix

package auth

import "os"

// LockFile does not lock on systems without flock.
func LockFile(*os.File) (locked bool, err error) { return false, nil }

// CloseLocked closes a file given to [LockFile].
func CloseLocked(f *os.File) error { return f.Close() }
