//go:build unix

package idle

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const reads = true

// tryRead reads once without blocking. It returns false if no bytes have arrived.
func (r *Reader) tryRead(fd uintptr) (done bool) {
	buf := r.buffers.Get().(*[]byte)
	n, err := unix.Read(int(fd), *buf)
	for err == unix.EINTR {
		n, err = unix.Read(int(fd), *buf)
	}
	if n > 0 {
		r.buf, r.n = buf, n
		return true
	}
	r.buffers.Put(buf)
	switch err {
	case unix.EAGAIN:
		return false
	case nil:
		r.err = io.EOF
	default:
		r.err = os.NewSyscallError("read", err)
	}
	return true
}
