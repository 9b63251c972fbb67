//go:build unix

package idle

import "golang.org/x/sys/unix"

const waits = true

// readable reports whether a read would not wait.
func readable(fd uintptr) bool {
	var b [1]byte
	for {
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return err != unix.EAGAIN
		}
	}
}
