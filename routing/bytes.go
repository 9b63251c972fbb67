package routing

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/internal/signal"
)

// A connection whose Open names a canvas carries a stream of bytes instead of messages.
// In both directions, its frames are consecutive pieces of the stream. Credit and close
// records work as for messages. Each end is a [ByteConn].

const (
	// bytesWindow bounds a byte stream's credit, and so the bytes in flight that messages
	// may have to wait behind.
	bytesWindow = 512 << 10

	// bytesQueue bounds the bytes of a stream that wait at a host-agent.
	bytesQueue = 256 << 10

	// bytesPiece is the longest frame of a byte stream.
	bytesPiece = 16 << 10
)

// CloseBytes is the close code of a byte stream that ended in good order.
const CloseBytes ahp.CloseCode = 1000

// A ByteConn is a [net.Conn] over a link. One goroutine may Read while another
// goroutine Writes. Bytes written before Close are still sent.
type ByteConn struct {
	name    byteAddr
	end     byteEnd
	count   func(n int)   // receives changes of the number of unread bytes
	arrived chan struct{} // has a token after bytes or the end have arrived
	over    chan struct{} // closed when either end has closed

	reading, writing timeout

	mu      sync.Mutex // guards the fields below; may be locked while the package's locks are held
	in      fifo[byteChunk]
	waiting int   // bytes of in
	ended   error // the other end's close; nil: still open
	closed  bool  // this end is closed
}

// A byteChunk holds received bytes, and the credit to return when they are read.
type byteChunk struct {
	data   []byte
	credit int
}

// A byteEnd is the connection that carries a ByteConn.
type byteEnd interface {
	// send queues a piece, and keeps it. It waits for room until over or late is
	// closed.
	send(piece []byte, over, late <-chan struct{}) error
	written(credit int)
	close(code ahp.CloseCode, reason string)
}

// byteAddr is a ByteConn's address: the id of its connection.
type byteAddr string

func (byteAddr) Network() string  { return "ahp-link" }
func (a byteAddr) String() string { return string(a) }

func newByteConn(id string, count func(n int)) *ByteConn {
	return &ByteConn{name: byteAddr(id), count: count, reading: newTimeout(), writing: newTimeout(), arrived: make(chan struct{}, 1), over: make(chan struct{})}
}

// deliver queues received bytes for Read.
func (b *ByteConn) deliver(data []byte, credit int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.in.push(byteChunk{data, credit})
		b.waiting += len(data)
		b.count(len(data))
		b.signal()
	}
}

func (b *ByteConn) signal() { signal.Send(b.arrived) }

func (b *ByteConn) peerClosed(code ahp.CloseCode, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended != nil {
		return
	}
	b.ended = io.EOF
	if code != CloseBytes {
		b.ended = &CutError{code, reason}
	}
	if !b.closed {
		close(b.over)
	}
	b.signal()
}

// A CutError reports that a byte stream was cut off, by the other end or because the
// link ended.
type CutError struct {
	Code   ahp.CloseCode
	Reason string
}

// Error returns the close code and its reason.
func (e *CutError) Error() string { return fmt.Sprintf("stream cut off: %d %s", e.Code, e.Reason) }

// Done is closed when either end has closed.
func (b *ByteConn) Done() <-chan struct{} { return b.over }

// Read implements [net.Conn].
func (b *ByteConn) Read(p []byte) (int, error) {
	for {
		n, credit, err := b.readBuffered(p)
		if credit > 0 {
			b.end.written(credit)
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		select {
		case <-b.arrived:
		case <-b.reading.passed():
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// readBuffered reads received bytes without waiting.
func (b *ByteConn) readBuffered(p []byte) (n, credit int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, 0, net.ErrClosed
	case b.reading.isPast():
		return 0, 0, os.ErrDeadlineExceeded
	}
	for n < len(p) && b.in.len() > 0 {
		c := b.in.at(0)
		m := copy(p[n:], c.data)
		n, c.data = n+m, c.data[m:]
		if len(c.data) == 0 {
			credit += c.credit
			b.in.pop()
		}
	}
	b.waiting -= n
	b.count(-n)
	if n == 0 && b.ended != nil {
		b.signal() // for the next reader
		return 0, credit, b.ended
	}
	if b.in.len() > 0 {
		b.signal()
	}
	return n, credit, nil
}

// Write implements [net.Conn]. It waits while the other end reads too slowly.
func (b *ByteConn) Write(p []byte) (n int, err error) {
	for len(p) > n {
		piece := p[n:min(len(p), n+bytesPiece)]
		if err := b.write(slices.Clone(piece)); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

func (b *ByteConn) write(piece []byte) error {
	if b.writing.isPast() {
		return os.ErrDeadlineExceeded
	}
	err := b.end.send(piece, b.over, b.writing.passed())
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var cut *CutError
	switch {
	case b.closed:
		return net.ErrClosed
	case errors.As(b.ended, &cut):
		return cut
	}
	return io.ErrClosedPipe
}

// Close implements [net.Conn].
func (b *ByteConn) Close() error {
	b.closeWith(CloseBytes, "")
	return nil
}

// Cut closes the connection with a code and a reason for the other end.
func (b *ByteConn) Cut(code ahp.CloseCode, reason string) { b.closeWith(code, reason) }

func (b *ByteConn) closeWith(code ahp.CloseCode, reason string) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return
	}
	b.closed = true
	if b.ended == nil {
		close(b.over)
	}
	b.count(-b.waiting)
	b.in, b.waiting = fifo[byteChunk]{}, 0
	b.signal()
	b.mu.Unlock()
	b.end.close(code, reason)
}

// LocalAddr implements [net.Conn].
func (b *ByteConn) LocalAddr() net.Addr { return b.name }

// RemoteAddr implements [net.Conn].
func (b *ByteConn) RemoteAddr() net.Addr { return b.name }

// SetDeadline implements [net.Conn].
func (b *ByteConn) SetDeadline(t time.Time) error {
	b.reading.set(t)
	b.writing.set(t)
	return nil
}

// SetReadDeadline implements [net.Conn].
func (b *ByteConn) SetReadDeadline(t time.Time) error {
	b.reading.set(t)
	b.signal() // a waiting reader checks the new deadline
	return nil
}

// SetWriteDeadline implements [net.Conn].
func (b *ByteConn) SetWriteDeadline(t time.Time) error {
	b.writing.set(t)
	return nil
}

// A timeout is a deadline for one direction, as in [net.Pipe]: a change also affects
// calls that already wait.
type timeout struct {
	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	past  chan struct{} // closed when the deadline has passed
}

func newTimeout() timeout { return timeout{past: make(chan struct{})} }

func (t *timeout) set(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil && !t.timer.Stop() {
		<-t.past // the timer is about to close it
	}
	t.timer = nil
	wait := time.Until(at)
	switch passed := isClosed(t.past); {
	case !at.IsZero() && wait <= 0:
		if !passed {
			close(t.past)
		}
		return
	case passed:
		t.past = make(chan struct{})
	}
	if !at.IsZero() {
		past := t.past
		t.timer = time.AfterFunc(wait, func() { close(past) })
	}
}

// passed is closed when the deadline has passed.
func (t *timeout) passed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.past
}

func (t *timeout) isPast() bool { return isClosed(t.passed()) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// OpenBytes opens a byte stream to the canvas or port that open names. The caller may
// write at once: the bytes follow the open record without a round trip.
func (r *RelayEnd) OpenBytes(open Open) (*ByteConn, error) {
	b := newByteConn(open.ID, r.cfg.Kept)
	conn, err := r.open(open, byteClient{b}, true)
	if err != nil {
		return nil, err
	}
	b.end = relayBytes{conn}
	return b, nil
}

// relayBytes is the byteEnd at the relay.
type relayBytes struct{ conn *RelayConn }

func (e relayBytes) send(piece []byte, over, late <-chan struct{}) error {
	for {
		err := e.conn.trySend(piece, 0)
		if !errors.Is(err, ErrQueueFull) {
			return err
		}
		select {
		case <-over:
			return ErrConnClosed
		case <-late:
			return os.ErrDeadlineExceeded
		case <-e.conn.stream.room:
		}
	}
}

func (e relayBytes) written(credit int) { e.conn.Written(credit) }

func (e relayBytes) close(code ahp.CloseCode, reason string) { e.conn.Close(code, reason) }

// byteClient makes a ByteConn the client of a RelayConn.
type byteClient struct{ bytes *ByteConn }

func (byteClient) Event(Event) {}

func (c byteClient) Deliver(frames []Frame) {
	for _, f := range frames {
		c.bytes.deliver(f.Data, f.Credit)
	}
}

func (c byteClient) Closed(code ahp.CloseCode, reason string) { c.bytes.peerClosed(code, reason) }

// Bytes returns a connection's byte stream, and its HostConn. [AgentEndConfig.Connect]
// calls it if open asks for a byte stream, and returns that HostConn.
func (c *AgentConn) Bytes(id string) (*ByteConn, HostConn) {
	b := newByteConn(id, func(int) {})
	b.end = agentBytes{c}
	return b, byteHost{b}
}

// agentBytes is the byteEnd at the host-agent.
type agentBytes struct{ conn *AgentConn }

func (e agentBytes) send(piece []byte, over, late <-chan struct{}) error {
	if err := e.conn.wait(over, late, 1); err != nil {
		return err
	}
	return e.conn.FromHost(piece, false, nil)
}

func (e agentBytes) written(credit int) { e.conn.Written(credit) }

func (e agentBytes) close(code ahp.CloseCode, reason string) { e.conn.Close(code, reason) }

// byteHost makes a ByteConn the HostConn of an AgentConn.
type byteHost struct{ bytes *ByteConn }

func (h byteHost) Deliver(message []byte, _ bool, credit int) { h.bytes.deliver(message, credit) }

// Flush implements [HostConn]. Relays never flush byte streams.
func (byteHost) Flush() {}

func (h byteHost) Closed(code ahp.CloseCode, reason string) { h.bytes.peerClosed(code, reason) }
