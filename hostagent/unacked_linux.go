package hostagent

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacked ends a connection whose other machine has acknowledged nothing
// for a time, neither bytes nor the kernel's own probes. That is the kernel's
// word: a process that is stopped, or reads nothing, has a kernel that goes on
// acknowledging. But one that takes no more bytes would be cut off as well, so
// this is for connections on which few are under way.
func limitUnacked(conn *net.TCPConn, limit time.Duration) {
	probeEvery(conn, limit)
	raw, err := conn.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
}
