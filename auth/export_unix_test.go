//go:build unix && !solaris && !aix

package auth

// ReplaceFlock puts a function in place of the system call flock, until restore.
func ReplaceFlock(by func(fd, how int) error) (restore func()) {
	was := flock
	flock = by
	return func() { flock = was }
}
