// Package idle reduces the memory of idle connections: they need no buffer, and their
// goroutine has a small stack.
//
// An idle client takes 14.8 KiB at a relay (18.8 with a deep stack), and 13.1 KiB at a
// host-agent (25.9 with a buffer). `make bench ARGS=ablate` measures this.
package idle

import (
	"net"
	"sync"
	"syscall"

	"ahprelay/internal/ablation"
)

// A Reader reads from a network connection. While it waits for bytes, it holds no buffer
// of its pool. It is not safe for concurrent use.
type Reader struct {
	raw     syscall.RawConn
	buffers *sync.Pool // of *[]byte
	try     func(fd uintptr) (done bool)

	// The result of the last try.
	buf *[]byte
	n   int
	err error
}

// NewReader returns a Reader for conn, or nil if conn is no socket or the system does
// not support it. The pool contains non-empty *[]byte.
func NewReader(conn net.Conn, buffers *sync.Pool) *Reader {
	system, ok := conn.(syscall.Conn)
	if !ok || !reads || ablation.LateBuffers {
		return nil
	}
	raw, err := system.SyscallConn()
	if err != nil {
		return nil
	}
	r := &Reader{raw: raw, buffers: buffers}
	r.try = r.tryRead
	return r
}

// Read waits for bytes, and returns a buffer from the pool and the number of bytes in
// it. Errors are those of [net.Conn.Read]; buf is then nil. A read deadline or Close
// ends the wait.
func (r *Reader) Read() (buf *[]byte, n int, err error) {
	err = r.raw.Read(r.try)
	buf, n = r.buf, r.n
	if err == nil {
		err = r.err
	}
	r.buf, r.n, r.err = nil, 0, nil
	return buf, n, err
}

// Deep calls f in a new goroutine and waits for it. The large stack which f needs is
// then freed.
func Deep(f func()) {
	if ablation.SmallStacks {
		f()
		return
	}
	var done sync.WaitGroup
	done.Go(f)
	done.Wait()
}
