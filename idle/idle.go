// Package idle has connections on which nothing happens cost little: no buffer,
// and a goroutine with a small stack.
//
// Of 2,000 idle clients each takes 14.8 KiB of a relay, and 18.8 with a deep stack;
// 13.1 KiB of a host-agent, and 25.9 with a buffer. Where memory is not given
// back (package giveback) it is 19.3 and 20.6. Each is measured by `make bench ARGS=ablate`, as is what
// other packages say of what they do for speed.
package idle

import (
	"net"
	"sync"
	"syscall"

	"ahprelay/without"
)

// A Reader reads from a connection of the kernel's. It takes a buffer when there
// is something to put into it, and not before. It is not safe for concurrent use.
type Reader struct {
	raw     syscall.RawConn
	buffers *sync.Pool // of *[]byte
	try     func(fd uintptr) (done bool)

	// What the last try came to.
	buf *[]byte
	n   int
	err error
}

// NewReader returns a Reader for a connection, or nil if it is not the kernel's
// or this system has no way to. Buffers are *[]byte, and not empty.
func NewReader(conn net.Conn, buffers *sync.Pool) *Reader {
	system, ok := conn.(syscall.Conn)
	if !ok || !reads || without.LateBuffers {
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

// Read waits until there is something to read, and returns how much of it is in
// which of the buffers. An error, as [net.Conn.Read] returns it, comes without a
// buffer. A read deadline, or Close, ends it too.
func (r *Reader) Read() (buf *[]byte, n int, err error) {
	err = r.raw.Read(r.try)
	buf, n = r.buf, r.n
	if err == nil {
		err = r.err
	}
	r.buf, r.n, r.err = nil, 0, nil
	return buf, n, err
}

// Deep calls f in another goroutine, and returns when f does: the stack that f
// needs is not kept.
func Deep(f func()) {
	if without.SmallStacks {
		f()
		return
	}
	var done sync.WaitGroup
	done.Go(f)
	done.Wait()
}
