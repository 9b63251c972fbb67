// Package idle makes idle connections cheap: they need no buffer, and a goroutine with
// a small stack.
//
// An idle client takes 14.8 KiB of a relay (18.8 with a deep stack) and 13.1 KiB of a
// host-agent (25.9 with a buffer). `make bench ARGS=ablate` measures both, and the
// gain of every other mechanism for speed.
package idle

import (
	"net"
	"sync"
	"syscall"

	"ahprelay/internal/ablation"
)

// A Reader reads from a connection of the kernel. It takes a buffer from its pool only
// when bytes have arrived. It is not safe for concurrent use.
type Reader struct {
	raw     syscall.RawConn
	buffers *sync.Pool // of *[]byte
	try     func(fd uintptr) (done bool)

	// The result of the last try.
	buf *[]byte
	n   int
	err error
}

// NewReader returns a Reader for conn, or nil if conn is not a connection of the
// kernel or the system cannot wait without a buffer. The pool holds non-empty *[]byte.
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

// Read waits for bytes, and returns a buffer of the pool with their number. An error,
// as from [net.Conn.Read], comes without a buffer. A read deadline or Close ends the
// wait.
func (r *Reader) Read() (buf *[]byte, n int, err error) {
	err = r.raw.Read(r.try)
	buf, n = r.buf, r.n
	if err == nil {
		err = r.err
	}
	r.buf, r.n, r.err = nil, 0, nil
	return buf, n, err
}

// Deep calls f in a new goroutine and returns when f does, so the stack that f needs
// is freed.
func Deep(f func()) {
	if ablation.SmallStacks {
		f()
		return
	}
	var done sync.WaitGroup
	done.Go(f)
	done.Wait()
}
