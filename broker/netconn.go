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
	// idleTimeout ends a connection without received bytes, although the peer was
	// probed after askAfter. Including the delay before the next attempt, a frozen
	// connection is redialled within 7 s.
	idleTimeout = 6500 * time.Millisecond

	// askAfter is the silence after which the peer is probed. No ping is sent while
	// there is other traffic: any message proves that the connection is alive.
	askAfter = 4 * time.Second

	// writeTimeout ends a connection if the kernel accepts no byte for this long.
	writeTimeout = 5 * time.Second

	// writePiece is the number of bytes that must leave within writeTimeout. A
	// connection below 105 kbit/s with full buffers counts as frozen.
	writePiece = 64 << 10
)

// A netConn is a network connection that fails only when it makes no progress.
//
// The library's own deadlines would end slow connections: it requires a pong in time,
// though the pong may wait behind a large message, and bounds each whole write. It
// also continues after a failed write, without the lost bytes, where a netConn is
// closed. Outside handshakes, for which the library sets both deadlines at once, a
// netConn therefore ignores deadlines.
type netConn struct {
	net.Conn
	live atomic.Bool // no handshake in progress
	stop func() bool // cancels the close at the end of the Conn

	began time.Time
	heard atomic.Int64 // when bytes last arrived, or the handshake ended; ns since began
}

// newNetConn wraps c, which it closes when life ends. A handshake must complete within
// the timeout.
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
	// A Read may already be waiting.
	return errors.Join(c.Conn.SetWriteDeadline(t), c.Conn.SetReadDeadline(time.Now().Add(idleTimeout)))
}

// SetReadDeadline applies only during handshakes.
func (c *netConn) SetReadDeadline(t time.Time) error {
	if c.live.Load() {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline applies only during handshakes.
func (c *netConn) SetWriteDeadline(t time.Time) error {
	if c.live.Load() {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// Read fails after idleTimeout without bytes.
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
		_ = c.Close() // TLS would first send a close alert
	}
	return n, err
}

func (c *netConn) hear() { c.heard.Store(int64(time.Since(c.began))) }

// silent returns the time since bytes last arrived.
func (c *netConn) silent() time.Duration { return time.Since(c.began) - time.Duration(c.heard.Load()) }

// Write fails if a piece takes longer than writeTimeout. Any error closes the
// connection.
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
