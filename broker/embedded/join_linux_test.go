package embedded

import (
	"crypto/tls"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestLostPacketIsNoAbsence asks a server whether it has data, and loses the first packet of the
// connection. The kernel repeats the packet after 1 s. The server must not count as one without data.
func TestLostPacketIsNoAbsence(t *testing.T) {
	t.Parallel()
	l := listenWithoutRoom(t)
	address := l.Addr().String()
	for range 2 { // fill the queue, so that the kernel drops the packets of further connections
		c, err := net.DialTimeout("tcp", address, 100*time.Millisecond)
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	time.AfterFunc(500*time.Millisecond, func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	})
	if s := (&Server{others: []string{address}}); !s.othersHaveData(&tls.Config{InsecureSkipVerify: true}) {
		t.Error("a server whose first packet is lost counts as one without data; want that it may have data")
	}
}

// listenWithoutRoom returns a listener with room for a single connection that is not accepted yet.
func listenWithoutRoom(t *testing.T) net.Listener {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
