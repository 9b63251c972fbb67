//go:build !unix || solaris || aix

package auth

import "os"

// LockFile does not lock on systems without flock.
func LockFile(*os.File) (locked bool, err error) { return false, nil }
