package gateway

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// writePiece is how much of a client's is handed to the kernel in one call, in bytes.
const writePiece = 64 << 10

// A pacedConn is the kernel's connection, which writes as long as the kernel
// takes something. It lies below TLS: a TLS connection that has timed out once
// is of no use any more.
type pacedConn struct {
	net.Conn
	pace
	raw     syscall.RawConn // nil: the connection is not the kernel's
	quiet   *quiet          // what is read comes from there; nil: from the kernel
	records tlsRecords
}

// A pacedConn below TLS is given one record after the other, each of 16 KiB at
// most, and would have the kernel called for each. Those of one Write above go
// together.
type tlsRecords struct {
	left   atomic.Int32 // how many more are to come of the Write above
	joined *[]byte      // of recordBuffers: those that have come; owned by who writes, whom TLS lets do that one at a time
}

// What TLS makes of what it is given (RFC 8446, section 5.1).
const (
	recordSize  = 16 << 10 // of a record, at most
	recordExtra = 256      // what it is longer than that (section 5.2)
)

// recordsTogether is how long the records are of what is written to a client in one
// call, at most.
const recordsTogether = writePiece / recordSize * (recordSize + recordExtra)

var recordBuffers = sync.Pool{New: func() any { b := make([]byte, 0, recordsTogether); return &b }}

// recordsOf returns how many records TLS makes of so many bytes, if they are written
// together; else 0.
func recordsOf(bytes int) int32 {
	if bytes <= recordSize || bytes > writePiece {
		return 0
	}
	return int32((bytes + recordSize - 1) / recordSize)
}

// join takes a record, and returns what is to be written now. In between there may be a
// record that TLS itself has to send: it stays where it comes.
func (r *tlsRecords) join(record []byte) (whole []byte, wait bool) {
	if r.left.Load() <= 0 {
		return record, false
	}
	if r.joined == nil {
		r.joined = recordBuffers.Get().(*[]byte)
	}
	*r.joined = append(*r.joined, record...)
	return *r.joined, r.left.Add(-1) > 0
}

// drop gives the buffer back.
func (r *tlsRecords) drop() {
	if r.joined != nil {
		*r.joined = (*r.joined)[:0]
		recordBuffers.Put(r.joined)
		r.joined = nil
	}
}

// Read implements [net.Conn].
func (c *pacedConn) Read(p []byte) (int, error) {
	if c.quiet != nil {
		return c.quiet.Read(p)
	}
	return c.Conn.Read(p)
}

// A pace is how writing goes.
type pace struct {
	stall    atomic.Int64  // a Write fails when the kernel takes no byte for so many ns; 0: it has the deadline that was set
	written  atomic.Uint64 // bytes that the kernel has taken
	waited   atomic.Int64  // when a Write last had to wait for the other side, Unix time in ns
	standing atomic.Int64  // since when the Write that goes on has brought nothing, Unix time in ns; 0: none goes on
}

// paced returns conn with a pacedConn below it, and the pace of that.
func paced(conn net.Conn, stall time.Duration) (net.Conn, *pace) {
	p, ok := kernelConn(conn).(*pacedConn)
	if !ok {
		p = &pacedConn{Conn: conn}
		conn = p
	}
	if system, ok := p.Conn.(syscall.Conn); ok {
		p.raw, _ = system.SyscallConn() // fails if it is closed
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

// tcpConn returns the TCP connection below a pacedConn and TLS; nil if there is
// none.
func tcpConn(conn net.Conn) *net.TCPConn {
	conn = kernelConn(conn)
	if paced, ok := conn.(*pacedConn); ok {
		conn = paced.Conn
	}
	tcp, _ := conn.(*net.TCPConn)
	return tcp
}

// longWrite is how long a write takes for which there is no room: the other
// side is slow, or gone.
const longWrite = 50 * time.Millisecond

// waitedSince reports whether a Write had to wait since then.
func (p *pace) waitedSince(t time.Time) bool { return p.waited.Load() > t.UnixNano() }

// A Write that waits looks for progress after firstLook, and then when it has
// waited for as long again, up to writeLook: who moves is known to, and who does
// not costs little. In the time stall there are at least stallLooks.
const (
	firstLook  = 20 * time.Millisecond
	writeLook  = time.Second
	stallLooks = 4
)

// standsSince is since when the kernel has taken nothing of what is being
// written; zero if nothing waits to be.
func (p *pace) standsSince() time.Time {
	if at := p.standing.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Write implements [net.Conn].
func (c *pacedConn) Write(p []byte) (n int, err error) {
	joined, wait := c.records.join(p)
	if wait {
		return len(p), nil
	}
	n, err = c.write(joined)
	c.records.drop()
	if err == nil {
		n = len(p)
	}
	return min(n, len(p)), err
}

// write writes at the pace that the kernel takes it.
func (c *pacedConn) write(p []byte) (n int, err error) {
	stall := time.Duration(c.stall.Load())
	if stall == 0 {
		return c.Conn.Write(p)
	}
	// Mostly the kernel takes all of it at once. So most writes need no deadline, for which
	// there would be a timer of the runtime, which may wake a thread for it.
	if c.raw != nil {
		n = writeNow(c.raw, p)
		c.written.Add(uint64(n))
	}
	if n == len(p) {
		return n, nil
	}
	m, err := c.writeOn(p[n:], stall)
	return n + m, err
}

// writeOn writes what the kernel has not taken at once.
func (c *pacedConn) writeOn(p []byte, stall time.Duration) (n int, err error) {
	defer func() { _ = c.SetWriteDeadline(time.Time{}) }() // fails if it is closed
	start := time.Now()
	c.standing.Store(start.UnixNano())
	defer c.standing.Store(0)
	for moved, began := start, start; ; {
		look := min(max(began.Sub(moved), firstLook), writeLook, stall/stallLooks)
		if err := c.SetWriteDeadline(began.Add(look)); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(p[n:])
		n += m
		now := time.Now()
		if now.Sub(start) >= longWrite {
			c.waited.Store(now.UnixNano())
		}
		c.written.Add(uint64(m))
		if m > 0 {
			moved = now
			c.standing.Store(now.UnixNano())
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || now.Sub(moved) >= stall {
			return n, err
		}
		began = now
	}
}
