package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// When a network connection is given up.
const (
	// idleTimeout: nothing arrived for that long, although the other side was asked for
	// a sign of life after askAfter. With the wait before the next attempt,
	// a frozen link is redialled within 7 s.
	idleTimeout = 6500 * time.Millisecond

	// askAfter: nothing arrived for that long, so the other side is asked. Where something
	// is said anyway, nobody is: what a link or a lease says tells as well as a ping does
	// that the line works.
	askAfter = 4 * time.Second

	// writeTimeout: the kernel took no byte for that long.
	writeTimeout = 5 * time.Second

	// writePiece is how much must get out in a writeTimeout, in bytes. A link
	// slower than 105 kbit/s with full buffers counts as frozen.
	writePiece = 64 << 10
)

// A netConn is a network connection that fails when it makes no progress, and
// only then.
//
// The library measures otherwise, and would cut slow connections off: it gives
// up when a pong is late, though the pong may wait behind a large message, and
// when one whole write takes too long. And it goes on after a write that
// failed, without what it had to write; here that is the end. So between the
// handshakes, for which it sets deadlines on both directions at once, its
// deadlines are ignored.
type netConn struct {
	net.Conn
	live atomic.Bool // no handshake under way
	stop func() bool // ends the wait for the end of the Conn

	began time.Time
	heard atomic.Int64 // when something last arrived, or the handshake ended, ns since began
}

// newNetConn takes over c, which is closed when life ends. There is a handshake
// to follow within the timeout.
func newNetConn(life context.Context, c net.Conn, timeout time.Duration) (*netConn, error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	stop := context.AfterFunc(life, func() { _ = c.Close() })
	return &netConn{Conn: c, stop: stop, began: time.Now()}, nil
}

// SetDeadline begins a handshake, or ends it if t is zero.
func (c *netConn) SetDeadline(t time.Time) error {
	c.live.Store(t.IsZero())
	if !t.IsZero() {
		return c.Conn.SetDeadline(t)
	}
	c.hear()
	// A Read may be waiting already.
	return errors.Join(c.Conn.SetWriteDeadline(t), c.Conn.SetReadDeadline(time.Now().Add(idleTimeout)))
}

// SetReadDeadline counts during handshakes only.
func (c *netConn) SetReadDeadline(t time.Time) error {
	if c.live.Load() {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline counts during handshakes only.
func (c *netConn) SetWriteDeadline(t time.Time) error {
	if c.live.Load() {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// Read returns an error if nothing arrives for idleTimeout.
func (c *netConn) Read(p []byte) (int, error) {
	if c.live.Load() {
		if err := c.Conn.SetReadDeadline(time.Now().Add(idleTimeout)); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.hear()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && c.live.Load() {
		err = fmt.Errorf("nothing received for %v: %w", idleTimeout, err)
		_ = c.Close() // a TLS connection would try to say goodbye first
	}
	return n, err
}

func (c *netConn) hear() { c.heard.Store(int64(time.Since(c.began))) }

// silent returns for how long nothing has arrived.
func (c *netConn) silent() time.Duration { return time.Since(c.began) - time.Duration(c.heard.Load()) }

// Write returns an error if a piece cannot be written for writeTimeout. After
// any error the connection is closed.
func (c *netConn) Write(p []byte) (written int, err error) {
	for len(p) > 0 && err == nil {
		if c.live.Load() {
			err = c.Conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		}
		var n int
		if err == nil {
			n, err = c.Conn.Write(p[:min(len(p), writePiece)])
		}
		written, p = written+n, p[n:]
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("nothing sent for %v: %w", writeTimeout, err)
	}
	if err != nil {
		_ = c.Close()
	}
	return written, err
}

// Close closes the connection.
func (c *netConn) Close() error {
	c.stop()
	return c.Conn.Close()
}
