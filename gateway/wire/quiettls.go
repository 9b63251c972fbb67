package wire

import (
	"errors"
	"net"
	"sync"

	"ahprelay/internal/ablation"
	"ahprelay/internal/idle"
)

// An idle TLS connection waits inside crypto/tls, with a stack twice as deep as without
// TLS, and stacks do not shrink soon. So the wait happens outside. If the connection below
// TLS has no bytes, it returns a temporary error, which ends TLS's read. Then quiet waits
// with a small stack, stores the received bytes, and lets TLS read again.

// A quiet is the connection below a client's TLS. Only one goroutine at a time may use
// it.
type quiet struct {
	reader *idle.Reader

	buf  *[]byte // from quietBuffers; nil if there are no bytes
	left []byte  // the unread part of buf
	err  error   // error from the wait, which Read returns once
}

// quietBuffers hold received bytes until TLS reads them.
var quietBuffers = sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}

// errNothing reports that no bytes are available. After a temporary error, TLS can
// continue.
var errNothing net.Error = nothingError{}

type nothingError struct{}

func (nothingError) Error() string   { return "no bytes received yet" }
func (nothingError) Timeout() bool   { return true }
func (nothingError) Temporary() bool { return true }

// Read returns received bytes, or errNothing if there are none.
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

// wait returns when bytes have arrived or the read has failed.
func (c *quiet) wait() {
	var n int
	if c.buf, n, c.err = c.reader.Read(); c.err == nil {
		c.left = (*c.buf)[:n]
	}
}

// WaitQuietly makes a TLS connection wait with a small stack. The caller calls it before
// the first read.
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

// readQuietly reads from conn, the TLS connection above.
func (c *quiet) readQuietly(conn net.Conn, p []byte) (n int, err error) {
	for {
		idle.Deep(func() { n, err = conn.Read(p) })
		if n > 0 || !errors.Is(err, errNothing) {
			return n, err
		}
		c.wait()
	}
}
