//go:build !unix || solaris || aix

package broker

import "os"

// lockFile does not lock where the system has no flock.
func lockFile(*os.File) error { return nil }
