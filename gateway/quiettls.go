package gateway

import (
	"errors"
	"net"
	"sync"

	"ahprelay/internal/ablation"
	"ahprelay/internal/idle"
)

// A TLS connection on which nothing happens waits in crypto/tls, whose stack is twice as
// deep as that of one without TLS, and stays. So the wait is taken out of there: below
// TLS there is nothing to read, which TLS takes for a timeout, until somebody has waited
// for it, and put there what came.

// A quiet is what is below the TLS of a client's connection. One goroutine at a time may
// use it.
type quiet struct {
	reader *idle.Reader

	buf  *[]byte // of quietBuffers, while there is something
	left []byte  // of it
	err  error   // that ended the wait; TLS is told once
}

// quietBuffers hold what has come until TLS takes it.
var quietBuffers = sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}

// errNothing reports that nothing has come. TLS goes on after an error that says it is
// temporary.
var errNothing net.Error = nothingError{}

type nothingError struct{}

func (nothingError) Error() string   { return "nothing has come" }
func (nothingError) Timeout() bool   { return true }
func (nothingError) Temporary() bool { return true }

// Read returns what has come, or errNothing.
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

// wait returns when something has come, or nothing will.
func (c *quiet) wait() {
	var n int
	if c.buf, n, c.err = c.reader.Read(); c.err == nil {
		c.left = (*c.buf)[:n]
	}
}

// beQuiet has a connection with TLS wait with a small stack. It is called before
// anybody reads.
func (c *lockedConn) beQuiet() {
	below, ok := kernelConn(c.Conn).(*pacedConn)
	if !ok || !c.isTLS() || ablation.SmallStacks {
		return
	}
	if reader := idle.NewReader(below.Conn, &quietBuffers); reader != nil {
		c.quiet = &quiet{reader: reader}
		below.quiet = c.quiet
	}
}

// readQuietly reads from the TLS above.
func (c *quiet) readQuietly(conn net.Conn, p []byte) (n int, err error) {
	for {
		idle.Deep(func() { n, err = conn.Read(p) })
		if n > 0 || !errors.Is(err, errNothing) {
			return n, err
		}
		c.wait()
	}
}
