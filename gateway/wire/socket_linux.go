package wire

import (
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// notSentLowWater bounds the kernel's unsent bytes for a client that does not
	// read. Without it, the kernel holds 4 MB. With a lower value it would still hold
	// a segment, which may be 64 KiB.
	notSentLowWater = 32 << 10

	// receiveBuffer bounds the unread bytes in the kernel; the kernel counts twice as
	// much for its own use. Without it, the kernel accepts 6 MB from each client that
	// the relay does not read. With it, a line with 50 ms delay carries 10 MB/s.
	receiveBuffer = 512 << 10

	// longestRetry bounds the retransmission interval, in milliseconds. By default
	// the interval grows to the length of an outage, up to 2 minutes, and a client
	// stays silent for that long after the outage.
	longestRetry = 5000
)

// setOptions bounds the kernel's buffers for a client that does not read and for one
// that is not read, and the delay after an outage.
func setOptions(conn net.Conn) {
	control(conn, func(fd int) { // older kernels lack some options
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowWater)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, longestRetry)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	})
}

// KernelQueued returns a connection's bytes in the kernel: written and unacknowledged,
// and unread.
func KernelQueued(conn net.Conn) (written, unread int) {
	control(conn, func(fd int) { // 0 after an error
		written, _ = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		unread, _ = unix.IoctlGetInt(fd, unix.SIOCINQ)
	})
	return written, unread
}

// control calls f with a TCP connection's file descriptor.
func control(conn net.Conn, f func(fd int)) {
	tcp := tcpConn(conn)
	if tcp == nil {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) }) // fails if the connection is closed
	}
}

// roundTrip returns the round-trip time to the peer.
func roundTrip(conn *net.TCPConn) (way time.Duration, ok bool) {
	control(conn, func(fd int) {
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.Rtt > 0 {
			way, ok = time.Duration(info.Rtt)*time.Microsecond, true
		}
	})
	return way, ok
}

// An attempt is a write that does not block.
type attempt struct {
	bytes []byte
	n     int
	try   func(fd uintptr) (done bool)
}

var attempts = sync.Pool{New: func() any {
	a := &attempt{}
	a.try = func(fd uintptr) bool {
		a.n, _ = unix.Write(int(fd), a.bytes) // the caller retries the rest
		return true
	}
	return a
}}

// writeNow writes the bytes that the kernel accepts at once, and returns their number.
func writeNow(raw syscall.RawConn, p []byte) int {
	a := attempts.Get().(*attempt)
	defer attempts.Put(a)
	a.bytes, a.n = p, 0
	_ = raw.Write(a.try) // fails if the connection is closed
	a.bytes = nil
	return max(a.n, 0)
}
