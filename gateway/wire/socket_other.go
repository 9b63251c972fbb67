//go:build !linux

package wire

import (
	"net"
	"syscall"
	"time"
)

func setOptions(net.Conn) {}

// KernelQueued returns 0, because this system does not tell how many bytes the kernel holds.
func KernelQueued(net.Conn) (written, unread int) { return 0, 0 }

// roundTrip returns false, because the time is unknown on this system.
func roundTrip(*net.TCPConn) (time.Duration, bool) { return 0, false }

func writeNow(syscall.RawConn, []byte) int { return 0 }

func writeSoon(conn net.Conn, _ syscall.RawConn, p []byte) (int, error) { return conn.Write(p) }
