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
	// askAfter is the silence after which the peer is probed, if this side has written
	// since it last heard the peer. No ping is sent while the peer sends, because any
	// message proves that the connection is alive.
	askAfter = 4 * time.Second

	// restAfter is the same on a connection at rest: this side has written nothing since
	// it last heard the peer, so no message can be lost without a reply. Pings of idle
	// host-agents are more than half of a relay's work at rest.
	restAfter = 8 * time.Second

	// answerTime is how long a probed peer may take to answer. Without an answer, the
	// connection ends. Together with the delay before the next attempt, a connection that
	// freezes is replaced within 7 s of the first write, and at rest within 11 s.
	answerTime = 2500 * time.Millisecond

	// idleTimeout ends a connection on which no bytes have arrived for this long, even if
	// no probe was sent.
	idleTimeout = restAfter + answerTime

	// finalRead is the end of idleTimeout and of answerTime. In it, Read tries once more:
	// if this process was paused, bytes that arrived in time wait in the kernel.
	finalRead = 50 * time.Millisecond

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
	wrote atomic.Bool  // something was written after bytes last arrived
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

// Read fails if no bytes arrive for idleTimeout, or for answerTime after expectAnswer.
func (c *netConn) Read(p []byte) (int, error) {
	for {
		n, err := c.readWithin(p, idleTimeout-finalRead)
		if c.isOverdue(err) {
			n, err = c.readWithin(p, finalRead)
		}
		if !c.isOverdue(err) {
			return n, err
		}
		// Otherwise, the peer was heard between the probe and its deadline.
		if silent := c.silent(); silent > askAfter {
			_ = c.Close() // Close of a TLS connection would first try to send an alert
			return n, fmt.Errorf("nothing received for %v: %w", silent.Round(10*time.Millisecond), err)
		}
	}
}

// readWithin reads once, within a time if the handshake is complete.
func (c *netConn) readWithin(p []byte, within time.Duration) (int, error) {
	if c.live.Load() {
		if err := c.Conn.SetReadDeadline(time.Now().Add(within)); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.hear()
	}
	return n, err
}

// isOverdue reports whether err is the end of a deadline that a Read has after the
// handshake.
func (c *netConn) isOverdue(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && c.live.Load()
}

// expectAnswer ends the connection unless the peer is heard within answerTime.
func (c *netConn) expectAnswer() {
	_ = c.Conn.SetReadDeadline(time.Now().Add(answerTime - finalRead)) // fails only if the connection is closed
}

func (c *netConn) hear() {
	c.heard.Store(int64(time.Since(c.began)))
	c.wrote.Store(false)
}

// silent returns the time since bytes last arrived.
func (c *netConn) silent() time.Duration { return time.Since(c.began) - time.Duration(c.heard.Load()) }

// patience returns the silence after which the peer is probed.
func (c *netConn) patience() time.Duration {
	if c.wrote.Load() {
		return askAfter
	}
	return restAfter
}

// Write fails if the kernel takes longer than writeTimeout to accept a piece. Any
// error closes the connection.
func (c *netConn) Write(p []byte) (written int, err error) {
	for len(p) > 0 && err == nil {
		if c.live.Load() {
			c.wrote.Store(true)
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

func (c *netConn) Close() error {
	c.stop()
	return c.Conn.Close()
}
