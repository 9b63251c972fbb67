package wire

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"ahprelay/internal/clock"
)

// WritePiece is the largest size of several frames that are written together, in bytes.
const WritePiece = 64 << 10

// A pacedConn is a TCP connection whose Write continues as long as the kernel accepts
// bytes. It lies below TLS, because a write deadline above TLS would make the TLS
// connection unusable.
type pacedConn struct {
	net.Conn
	pace
	raw     syscall.RawConn // nil if the connection has no file descriptor
	quiet   *quiet          // if not nil, Read reads through it
	records tlsRecords
}

// TLS writes each record, up to 16 KiB, with a separate call. tlsRecords collects the
// records of one Write above TLS, so that they need only one system call.
type tlsRecords struct {
	left   atomic.Int32 // records still expected from the Write above
	joined *[]byte      // collected records, from recordBuffers; used by one writer at a time
}

// TLS record sizes (RFC 8446, section 5.1).
const (
	recordSize  = 16 << 10 // longest plaintext
	recordExtra = 256      // largest overhead (section 5.2)
)

// recordsTogether is the largest size in bytes of the records from a single write to a
// client.
const recordsTogether = WritePiece / recordSize * (recordSize + recordExtra)

var recordBuffers = sync.Pool{New: func() any { b := make([]byte, 0, recordsTogether); return &b }}

// recordsOf returns the number of records for a write that should be joined, or 0 if
// joining does not help.
func recordsOf(bytes int) int32 {
	if bytes <= recordSize || bytes > WritePiece {
		return 0
	}
	return int32((bytes + recordSize - 1) / recordSize)
}

// join adds a record. It returns the bytes to write now, or wait if more records are
// expected. A record that TLS inserts itself keeps its place.
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

func (r *tlsRecords) drop() {
	if r.joined != nil {
		*r.joined = (*r.joined)[:0]
		recordBuffers.Put(r.joined)
		r.joined = nil
	}
}

func (c *pacedConn) Read(p []byte) (int, error) {
	if c.quiet != nil {
		return c.quiet.Read(p)
	}
	return c.Conn.Read(p)
}

// A pace describes a connection's write progress.
type pace struct {
	stall    atomic.Int64  // a Write fails after this time without progress, in ns; 0: the connection's own deadline applies
	Written  atomic.Uint64 // bytes accepted by the kernel
	waited   clock.Time    // when a Write last blocked
	standing clock.Time    // since when the current Write is blocked
	blocks   func()        // see OnBlock
}

// paced puts a pacedConn below conn if there is none, and returns the connection with its
// pace.
func paced(conn net.Conn, stall time.Duration) (net.Conn, *pace) {
	p, ok := KernelConn(conn).(*pacedConn)
	if !ok {
		p = &pacedConn{Conn: conn}
		conn = p
	}
	if system, ok := p.Conn.(syscall.Conn); ok {
		p.raw, _ = system.SyscallConn() // fails if the connection is closed
	}
	p.stall.Store(int64(stall))
	return conn, &p.pace
}

// KernelConn returns the connection below TLS, or conn without TLS.
func KernelConn(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}

// tcpConn returns the TCP connection below TLS and a pacedConn, or nil.
func tcpConn(conn net.Conn) *net.TCPConn {
	conn = KernelConn(conn)
	if paced, ok := conn.(*pacedConn); ok {
		conn = paced.Conn
	}
	tcp, _ := conn.(*net.TCPConn)
	return tcp
}

// longWrite is how long a write must take to count as blocked, because the peer is slow or
// unreachable.
const longWrite = 50 * time.Millisecond

// WaitedSince reports whether a Write has blocked since t.
func (p *pace) WaitedSince(t time.Time) bool {
	standing := p.standing.Get()
	return p.waited.Get().After(t) || !standing.IsZero() && time.Since(standing) >= longWrite
}

// A blocked Write wakes when the kernel accepts bytes, and otherwise each WriteLook. It wakes at least stallLooks times
// before it fails.
const (
	WriteLook  = time.Second
	stallLooks = 4
)

// OnBlock sets a function that a Write calls before it waits, if the kernel has not accepted all bytes
// at once; StandsSince then has the time already. It must be set before the first Write.
func (p *pace) OnBlock(f func()) { p.blocks = f }

// StandsSince returns the time since which the current write is blocked, or zero if none
// is.
func (p *pace) StandsSince() time.Time { return p.standing.Get() }

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

// write writes p as fast as the kernel accepts it.
func (c *pacedConn) write(p []byte) (n int, err error) {
	stall := time.Duration(c.stall.Load())
	if stall == 0 {
		return c.Conn.Write(p)
	}
	// Usually the kernel accepts all bytes at once. Writing without a deadline first
	// avoids a runtime timer, which could wake a thread.
	if c.raw != nil {
		n = writeNow(c.raw, p)
		c.Written.Add(uint64(n))
	}
	if n == len(p) {
		return n, nil
	}
	m, err := c.writeOn(p[n:], stall)
	return n + m, err
}

// writeOn writes the remaining bytes, which the kernel has not accepted at once. It fails
// after the time stall without progress. If a look comes too late, this process stood still, and the
// peer may have read meanwhile: the longest such time is not the peer's.
func (c *pacedConn) writeOn(p []byte, stall time.Duration) (n int, err error) {
	defer func() { _ = c.SetWriteDeadline(time.Time{}) }() // fails if the connection is closed
	start := time.Now()
	c.standing.Set(start)
	defer c.standing.Set(time.Time{})
	if c.blocks != nil {
		c.blocks()
	}
	var stood time.Duration
	look := min(WriteLook, stall/stallLooks)
	for moved, began := start, start; ; {
		if err := c.SetWriteDeadline(began.Add(look)); err != nil {
			return n, err
		}
		m, err := writeSoon(c.Conn, c.raw, p[n:])
		n += m
		now := time.Now()
		if now.Sub(start) >= longWrite {
			c.waited.Set(now)
		}
		c.Written.Add(uint64(m))
		stood = max(stood, now.Sub(began.Add(look)))
		if m > 0 {
			moved, stood = now, 0
			c.standing.Set(now)
		}
		if n == len(p) || err != nil && (!errors.Is(err, os.ErrDeadlineExceeded) || now.Sub(moved) >= stall+stood) {
			return n, err
		}
		began = now
	}
}

// BelowTLS returns conn with paced writes. TLS must be put above it.
func BelowTLS(conn net.Conn) net.Conn { return &pacedConn{Conn: conn} }
