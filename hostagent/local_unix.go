//go:build unix

package hostagent

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// connPair returns two connected sockets.
func connPair() (net.Conn, net.Conn, error) {
	syscall.ForkLock.RLock() // no child process may inherit the sockets
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(pair[0])
		syscall.CloseOnExec(pair[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	a, errA := fileConn(pair[0])
	b, errB := fileConn(pair[1])
	if err := errors.Join(errA, errB); err != nil {
		for _, conn := range []net.Conn{a, b} {
			if conn != nil {
				_ = conn.Close()
			}
		}
		return nil, nil, err
	}
	return a, b, nil
}

// fileConn turns a socket into a connection.
func fileConn(fd int) (net.Conn, error) {
	file := os.NewFile(uintptr(fd), "local")
	defer file.Close() // the connection has a copy
	return net.FileConn(file)
}
