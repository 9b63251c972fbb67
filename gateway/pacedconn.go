package gateway

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// A pacedConn is the kernel's connection, which writes as long as the kernel
// takes something. It lies below TLS: a TLS connection that has timed out once
// is of no use any more.
type pacedConn struct {
	net.Conn
	pace
}

// A pace is how writing goes.
type pace struct {
	stall   atomic.Int64  // a Write fails when the kernel takes no byte for so many ns; 0: it has the deadline that was set
	written atomic.Uint64 // bytes that the kernel has taken
	waited  atomic.Int64  // when a Write last had to wait for the other side, Unix time in ns
}

// paced returns conn with a pacedConn below it, and the pace of that.
func paced(conn net.Conn, stall time.Duration) (net.Conn, *pace) {
	p, ok := kernelConn(conn).(*pacedConn)
	if !ok {
		p = &pacedConn{Conn: conn}
		conn = p
	}
	p.stall.Store(int64(stall))
	return conn, &p.pace
}

// kernelConn returns what is below TLS.
func kernelConn(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}

// longWrite is how long a write takes for which there is no room: the other
// side is slow, or gone.
const longWrite = 50 * time.Millisecond

// waitedSince reports whether a Write had to wait since then.
func (p *pace) waitedSince(t time.Time) bool { return p.waited.Load() > t.UnixNano() }

// stallLooks is how often a Write looks for progress in the time stall.
const stallLooks = 4

// Write implements [net.Conn].
func (c *pacedConn) Write(p []byte) (n int, err error) {
	stall := time.Duration(c.stall.Load())
	if stall == 0 {
		return c.Conn.Write(p)
	}
	for idle := 0; ; {
		began := time.Now()
		if err := c.SetWriteDeadline(began.Add(stall / stallLooks)); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(p[n:])
		n += m
		if now := time.Now(); now.Sub(began) >= longWrite {
			c.waited.Store(now.UnixNano())
		}
		c.written.Add(uint64(m))
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if idle++; m > 0 {
			idle = 0
		}
		if idle == stallLooks {
			return n, err
		}
	}
}
