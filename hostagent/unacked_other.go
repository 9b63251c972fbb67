//go:build !linux

package hostagent

import (
	"net"
	"time"
)

// limitUnacked ends a connection whose other machine does not acknowledge the
// kernel's probes for a time. If bytes are under way when the machine goes, it is
// the system that says how long they are sent again.
func limitUnacked(conn *net.TCPConn, limit time.Duration) { probeEvery(conn, limit) }
