//go:build !linux

package gateway

import (
	"net"
	"syscall"
	"time"
)

// setOptions does nothing where there are no such socket options.
func setOptions(net.Conn) {}

// kernelQueued is not known here.
func kernelQueued(net.Conn) (written, unread int) { return 0, 0 }

// roundTrip is not known here.
func roundTrip(*net.TCPConn) (time.Duration, bool) { return 0, false }

// writeNow writes nothing.
func writeNow(syscall.RawConn, []byte) int { return 0 }
