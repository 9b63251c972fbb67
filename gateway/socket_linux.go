package gateway

import (
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// notSentLowWater is how much the kernel takes of what a client does not read,
	// in bytes, beyond what is on its way: without it, 4 MB. With less the kernel
	// still takes one segment of its own, which may be 64 KiB.
	notSentLowWater = 32 << 10

	// receiveBuffer is how much the kernel takes of what a client sends and the
	// relay does not read yet, in bytes; it counts twice as much for its own use.
	// Left alone, it goes on to take 6 MB of each client whose source is held back.
	// A line with 50 ms from end to end carries 10 MB/s with it.
	receiveBuffer = 512 << 10

	// longestRetry is how often at least the kernel sends again what has been
	// lost, in milliseconds. Else it waits for as long again as the line was away,
	// up to 2 minutes, before a client hears anything.
	longestRetry = 5000
)

// setOptions bounds what the kernel holds for a client that has stopped
// reading, and of one that is not read, and how long it waits for one that was away.
func setOptions(conn net.Conn) {
	control(conn, func(fd int) { // an older kernel does without
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowWater)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, longestRetry)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	})
}

// kernelQueued returns how many bytes the kernel holds of what was written and of
// what is not read, of a connection.
func kernelQueued(conn net.Conn) (written, unread int) {
	control(conn, func(fd int) { // what fails says 0
		written, _ = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		unread, _ = unix.IoctlGetInt(fd, unix.SIOCINQ)
	})
	return written, unread
}

// control calls f with the descriptor of a TCP connection.
func control(conn net.Conn, f func(fd int)) {
	tcp := tcpConn(conn)
	if tcp == nil {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) }) // fails if it is closed
	}
}

// roundTrip returns how long the way to the other side and back takes.
func roundTrip(conn *net.TCPConn) (way time.Duration, ok bool) {
	control(conn, func(fd int) {
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.Rtt > 0 {
			way, ok = time.Duration(info.Rtt)*time.Microsecond, true
		}
	})
	return way, ok
}

// An attempt is one to write without waiting.
type attempt struct {
	bytes []byte
	n     int
	try   func(fd uintptr) (done bool)
}

var attempts = sync.Pool{New: func() any {
	a := &attempt{}
	a.try = func(fd uintptr) bool {
		a.n, _ = unix.Write(int(fd), a.bytes) // what fails is tried again
		return true
	}
	return a
}}

// writeNow writes what the kernel takes of p at once, and returns how much that is.
func writeNow(raw syscall.RawConn, p []byte) int {
	a := attempts.Get().(*attempt)
	defer attempts.Put(a)
	a.bytes, a.n = p, 0
	_ = raw.Write(a.try) // fails if it is closed
	a.bytes = nil
	return max(a.n, 0)
}
