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

// A network connection's limits.
const (
	// idleTimeout ends a connection on which no bytes have arrived for this long,
	// although the peer was probed after askAfter. Together with the delay before the
	// next attempt, a frozen connection is replaced within 7 s.
	idleTimeout = 6500 * time.Millisecond

	// finalRead is the end of idleTimeout. In it, Read tries once more: if this process
	// was paused, bytes that arrived in time wait in the kernel.
	finalRead = 50 * time.Millisecond

	// askAfter is the silence after which the peer is probed. No ping is sent while
	// there is other traffic, because any message proves that the connection is alive.
	askAfter = 4 * time.Second

	// writeTimeout ends a connection if the kernel takes longer to accept a piece of a
	// write (writePiece).
	writeTimeout = 5 * time.Second

	// writePiece is the size of a piece in bytes. If the kernel's buffers are full, a
	// connection slower than 105 kbit/s counts as frozen.
	writePiece = 64 << 10
)

// A netConn is a network connection that fails only if no bytes arrive, or pieces of
// writes take too long.
//
// The library's own deadlines would end slow connections that work: it expects a pong
// in time, although the pong may wait behind a large message, and it limits the time
// for a whole write. After a failed write, the library would also continue without the
// lost bytes; a netConn is closed instead. A netConn therefore ignores deadlines,
// except during handshakes, when the library sets the deadlines for both directions.
type netConn struct {
	net.Conn
	live atomic.Bool // the handshake is complete
	stop func() bool // cancels the AfterFunc that closes c when life ends

	began time.Time
	heard atomic.Int64 // when bytes last arrived or the handshake ended; ns since began
}

// newNetConn wraps c, and closes it when life ends. The handshake must complete within
// the timeout.
func newNetConn(life context.Context, c net.Conn, timeout time.Duration) (*netConn, error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	stop := context.AfterFunc(life, func() { _ = c.Close() })
	return &netConn{Conn: c, stop: stop, began: time.Now()}, nil
}

// SetDeadline marks the begin of a handshake, or its end if t is zero.
func (c *netConn) SetDeadline(t time.Time) error {
	c.live.Store(t.IsZero())
	if !t.IsZero() {
		return c.Conn.SetDeadline(t)
	}
	c.hear()
	// This also applies to a Read that already waits.
	return errors.Join(c.Conn.SetWriteDeadline(t), c.Conn.SetReadDeadline(time.Now().Add(idleTimeout-finalRead)))
}

// SetReadDeadline has an effect only during handshakes.
func (c *netConn) SetReadDeadline(t time.Time) error {
	if c.live.Load() {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline has an effect only during handshakes.
func (c *netConn) SetWriteDeadline(t time.Time) error {
	if c.live.Load() {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// Read fails after idleTimeout without bytes.
func (c *netConn) Read(p []byte) (int, error) {
	if c.live.Load() {
		if err := c.Conn.SetReadDeadline(time.Now().Add(idleTimeout - finalRead)); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) && c.live.Load() {
		if err := c.Conn.SetReadDeadline(time.Now().Add(finalRead)); err != nil {
			return 0, err
		}
		n, err = c.Conn.Read(p)
	}
	if n > 0 {
		c.hear()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && c.live.Load() {
		err = fmt.Errorf("nothing received for %v: %w", idleTimeout, err)
		_ = c.Close() // Close of a TLS connection would first try to send an alert
	}
	return n, err
}

func (c *netConn) hear() { c.heard.Store(int64(time.Since(c.began))) }

// silent returns the time since bytes last arrived.
func (c *netConn) silent() time.Duration { return time.Since(c.began) - time.Duration(c.heard.Load()) }

// Write fails if the kernel takes longer than writeTimeout to accept a piece. Any
// error closes the connection.
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
