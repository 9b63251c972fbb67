//go:build !linux

package hostagent

import (
	"net"
	"time"
)

// limitUnacked ends a connection when the peer's machine does not acknowledge
// keep-alive probes for the time limit. How long data in flight is sent again depends
// on the system.
func limitUnacked(conn *net.TCPConn, limit time.Duration) { probeEvery(conn, limit) }
