package hostagent

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacked ends a connection when the other machine has acknowledged neither bytes
// nor the kernel's probes for a time. A stopped or blocked process has a kernel that
// still acknowledges. A process that accepts no more bytes would also be cut off, so
// this is for connections with little data in flight.
func limitUnacked(conn *net.TCPConn, limit time.Duration) {
	probeEvery(conn, limit)
	raw, err := conn.SyscallConn()
	if err != nil {
		return // the connection is closed
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
}
