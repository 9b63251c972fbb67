package gateway

import (
	"net"

	"golang.org/x/sys/unix"
)

// notSentLowWater is how much the kernel takes of what a client does not read,
// in bytes, beyond what is on its way: without it, 4 MB.
const notSentLowWater = 128 << 10

// setNotSentLowWater bounds what the kernel holds for a client that has stopped
// reading.
func setNotSentLowWater(conn net.Conn) {
	conn = kernelConn(conn)
	if paced, ok := conn.(*pacedConn); ok {
		conn = paced.Conn
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // an older kernel does without
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowWater)
	})
}
