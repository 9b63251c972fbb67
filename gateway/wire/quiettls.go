package wire

import (
	"errors"
	"net"
	"sync"

	"ahprelay/internal/ablation"
	"ahprelay/internal/idle"
)

// An idle TLS connection waits inside crypto/tls, with a stack twice as deep as
// without TLS, and stacks do not shrink soon. So the wait happens outside: the
// connection below TLS reports a timeout whenever it has no bytes. quiet then waits
// with a small stack, stores the received bytes, and TLS reads again.

// A quiet is the connection below a client's TLS. One goroutine at a time may use it.
type quiet struct {
	reader *idle.Reader

	buf  *[]byte // from quietBuffers, while it has bytes
	left []byte  // the unread part of buf
	err  error   // ended the wait; reported to TLS once
}

// quietBuffers hold received bytes until TLS reads them.
var quietBuffers = sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}

// errNothing reports that no bytes are available. TLS continues after a temporary
// error.
var errNothing net.Error = nothingError{}

type nothingError struct{}

func (nothingError) Error() string   { return "nothing has come" }
func (nothingError) Timeout() bool   { return true }
func (nothingError) Temporary() bool { return true }

// Read returns received bytes, or errNothing.
func (c *quiet) Read(p []byte) (int, error) {
	if len(c.left) == 0 {
		if err := c.err; err != nil {
			c.err = nil
			return 0, err
		}
		return 0, errNothing
	}
	n := copy(p, c.left)
	if c.left = c.left[n:]; len(c.left) == 0 {
		quietBuffers.Put(c.buf)
		c.buf = nil
	}
	return n, nil
}

// wait returns when bytes have arrived, or reading has failed.
func (c *quiet) wait() {
	var n int
	if c.buf, n, c.err = c.reader.Read(); c.err == nil {
		c.left = (*c.buf)[:n]
	}
}

// WaitQuietly makes a TLS connection wait with a small stack. Call it before the first
// read.
func (c *Conn) WaitQuietly() {
	below, ok := KernelConn(c.Conn).(*pacedConn)
	if !ok || !c.IsTLS() || ablation.SmallStacks {
		return
	}
	if reader := idle.NewReader(below.Conn, &quietBuffers); reader != nil {
		c.quiet = &quiet{reader: reader}
		below.quiet = c.quiet
	}
}

// readQuietly reads from the TLS connection above.
func (c *quiet) readQuietly(conn net.Conn, p []byte) (n int, err error) {
	for {
		idle.Deep(func() { n, err = conn.Read(p) })
		if n > 0 || !errors.Is(err, errNothing) {
			return n, err
		}
		c.wait()
	}
}
