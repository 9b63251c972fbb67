//go:build !linux

package hostagent

import (
	"net"
	"time"
)

// limitUnacked ends a connection when the other machine does not acknowledge the
// kernel's probes for a time. Bytes in flight are sent again for as long as the system
// decides.
func limitUnacked(conn *net.TCPConn, limit time.Duration) { probeEvery(conn, limit) }
