package loadgen

import (
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A loop reads many sockets in a single thread. It reads each TLS connection in its own
// goroutine.
type loop struct {
	epoll int
	wake  int // an eventfd, to which close writes
	done  sync.WaitGroup

	mu      sync.Mutex // held while received bytes are handled
	readers map[int]*reader
	failed  error
}

// readSize is the most bytes that the loop reads at once.
const readSize = 256 << 10

func newLoop() (*loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, errors.Join(err, unix.Close(epoll))
	}
	l := &loop{epoll: epoll, wake: wake, readers: map[int]*reader{}}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)}); err != nil {
		return nil, errors.Join(err, unix.Close(epoll), unix.Close(wake))
	}
	l.done.Go(l.run)
	return l, nil
}

// close ends the loop. All readers must have closed their connections.
func (l *loop) close() {
	_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	l.done.Wait()
	_ = errors.Join(unix.Close(l.epoll), unix.Close(l.wake))
}

// add makes the loop read a reader's connection.
func (l *loop) add(r *reader, ws *wsConn) error {
	if err := ws.SetDeadline(time.Time{}); err != nil {
		return err
	}
	r.sealing = ws.sealing
	if c, ok := ws.Conn.(*tls.Conn); ok {
		return l.addTLS(r, ws, c)
	}
	fd, rest, err := ws.detach()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.fd = fd
	used, err := r.takeCounted(rest, time.Now().UnixNano())
	if err != nil {
		r.end(err)
		return err
	}
	r.rest = rest[used:]
	l.readers[fd] = r
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (l *loop) addTLS(r *reader, ws *wsConn, c *tls.Conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.tls, r.rest = c, ws.buf[ws.start:ws.end]
	l.done.Go(func() { l.readTLS(r, c) })
	return nil
}

// tlsReadSize is the most bytes that are read at once from a TLS connection.
const tlsReadSize = 64 << 10

// readTLS reads a TLS connection until it ends.
func (l *loop) readTLS(r *reader, c *tls.Conn) {
	buf := make([]byte, tlsReadSize)
	for {
		n, err := c.Read(buf)
		l.mu.Lock()
		if r.tls != c { // the reader has closed the connection
			l.mu.Unlock()
			return
		}
		b := append(r.rest, buf[:n]...)
		used, bad := r.takeCounted(b, time.Now().UnixNano())
		r.rest = append(r.rest[:0], b[used:]...)
		if err = cmp.Or(bad, err); err != nil {
			r.end(err)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
	}
}

// pause makes the loop stop reading a reader's connection, or read it again.
func (l *loop) pause(r *reader, on bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.fd < 0 {
		return errors.New("the connection has ended")
	}
	events := uint32(unix.EPOLLIN)
	if on {
		events = 0
	}
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_MOD, r.fd, &unix.EpollEvent{Events: events, Fd: int32(r.fd)})
}

func (l *loop) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	events := make([]unix.EpollEvent, 256)
	buf := make([]byte, readSize)
	for {
		n, err := unix.EpollWait(l.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			l.mu.Lock()
			l.failed = err
			l.mu.Unlock()
			return
		}
		for _, e := range events[:max(0, n)] {
			if int(e.Fd) == l.wake {
				return
			}
			l.read(int(e.Fd), buf)
		}
	}
}

// read reads the bytes that have arrived at a socket.
func (l *loop) read(fd int, buf []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.readers[fd]
	if r == nil || r.fd != fd {
		return
	}
	k := copy(buf, r.rest) // an incomplete frame; a frame is far smaller than buf
	n, err := unix.Read(fd, buf[k:])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return
	case err == nil && n == 0:
		err = io.EOF
	}
	if err == nil {
		var used int
		used, err = r.takeCounted(buf[:k+n], time.Now().UnixNano())
		r.rest = append(r.rest[:0], buf[used:k+n]...)
	}
	if err != nil {
		delete(l.readers, fd)
		r.end(err)
	}
}
