package wire

import (
	"cmp"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// notSentLowWater limits the bytes that the kernel holds unsent for a client that
	// does not read. By default, the kernel holds 4 MB. A lower limit would not help,
	// because the kernel still holds a segment, which may be 64 KiB.
	notSentLowWater = 32 << 10

	// receiveBuffer limits the bytes that the kernel holds for the relay to read. By
	// default, the kernel accepts 6 MB from each client. The kernel doubles the value for
	// its own use. With this limit, a connection with a delay of 50 ms carries 10 MB/s.
	receiveBuffer = 512 << 10

	// longestRetry limits the retransmission interval, in milliseconds. By default the
	// interval grows to the length of an outage, up to 2 minutes, and after the outage
	// the connection stays silent for that long.
	longestRetry = 5000
)

// setOptions limits how much the kernel buffers for a connection, and how long TCP waits
// after an outage before it sends again.
func setOptions(conn net.Conn) {
	control(conn, func(fd int) { // older kernels lack some options
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowWater)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, longestRetry)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	})
}

// KernelQueued returns the number of bytes in the kernel: written but not acknowledged,
// and received but not read.
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

func roundTrip(conn *net.TCPConn) (way time.Duration, ok bool) {
	control(conn, func(fd int) {
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.Rtt > 0 {
			way, ok = time.Duration(info.Rtt)*time.Microsecond, true
		}
	})
	return way, ok
}

// An attempt is a write of the bytes that the kernel accepts.
type attempt struct {
	bytes []byte
	wait  bool // until the kernel accepts some
	n     int
	err   error
	try   func(fd uintptr) (done bool)
}

var attempts = sync.Pool{New: func() any {
	a := &attempt{}
	a.try = func(fd uintptr) bool {
		a.n, a.err = unix.Write(int(fd), a.bytes)
		return !a.wait || a.err != unix.EAGAIN
	}
	return a
}}

// write writes the bytes that the kernel accepts. With wait, it waits for that until the write deadline.
func write(raw syscall.RawConn, p []byte, wait bool) (n int, err error) {
	a := attempts.Get().(*attempt)
	defer attempts.Put(a)
	a.bytes, a.wait, a.n, a.err = p, wait, 0, nil
	err = cmp.Or(raw.Write(a.try), a.err)
	a.bytes = nil
	if err == unix.EINTR {
		err = nil
	}
	return max(a.n, 0), err
}

// writeNow writes the bytes that the kernel accepts at once, and returns their number. An error of the connection is
// left to the next write.
func writeNow(raw syscall.RawConn, p []byte) int {
	n, _ := write(raw, p, false)
	return n
}

// writeSoon writes p to conn until the write deadline. If raw is not nil, it returns as soon as the kernel has accepted
// some bytes.
func writeSoon(conn net.Conn, raw syscall.RawConn, p []byte) (int, error) {
	if raw == nil {
		return conn.Write(p)
	}
	return write(raw, p, true)
}
