package hostagent

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacked ends a connection when the peer's machine has acknowledged neither data
// nor keep-alive probes for the time limit. The kernel acknowledges even if the peer's
// process is stopped. But once a process reads too little, its machine acknowledges no
// more data, so limitUnacked is only for connections with little data in flight.
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
