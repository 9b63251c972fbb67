package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/internal/tracing"
)

// Sizes of the buffers of an idle connection, in bytes. Large messages go
// past them.
const (
	readBuffer  = 512
	writeBuffer = 256
)

// subprotocol is what the relay answers to clients that pass their token in
// the list of subprotocols.
const subprotocol = "ahp"

// A socket is the WebSocket of a client or a host-agent. The library does the
// handshake, reading, and closing; data frames to clients are written past it,
// already encoded, by one goroutine at a time. Both go through one lockedConn,
// in order.
type socket struct {
	ws    *websocket.Conn
	conn  *lockedConn
	page  string // origin of the page that has asked for it; "" if there is none on the web
	trace string // traceparent of the handshake; "" if there is none
	packs bool   // the other side takes compressed messages

	// pong queues the answer to a ping; nil: the library writes it. That waits
	// for what is being written, and gives the connection up after 5 s. It is
	// set before the first read.
	pong func(payload []byte)
}

// accept upgrades a request, or answers it with an error. Browsers are let in
// from the relay's own origin and those that match a pattern. The connection
// ends with life at the latest.
func accept(life context.Context, w http.ResponseWriter, r *http.Request, origins []string, stall time.Duration, compression websocket.CompressionMode) (*socket, error) {
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		// Proxies may not agree where it ends, and take its bytes for what
		// comes after the handshake, or the other way round.
		http.Error(w, "the request has a body; a WebSocket handshake has none", http.StatusBadRequest)
		return nil, errors.New("handshake with a body")
	}
	h := &hijacker{ResponseWriter: w, life: life, stall: stall}
	s := &socket{}
	ws, err := websocket.Accept(h, r, &websocket.AcceptOptions{
		Subprotocols:    []string{subprotocol},
		OriginPatterns:  origins,
		CompressionMode: compression,
		OnPingReceived:  s.pinged,
	})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(-1) // readAll counts, to close with our reason
	setOptions(h.conn.Conn)
	s.ws, s.conn, s.page = ws, h.conn, pageOf(r)
	s.trace = tracing.Traceparent(r.Header)
	s.packs = h.Header().Get("Sec-WebSocket-Extensions") != ""
	return s, nil
}

// pageOf returns the origin of the page on the web that sends a request, "" if it
// is none.
func pageOf(r *http.Request) string {
	u, err := url.Parse(r.Header.Get("Origin"))
	odd := func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789.-:[]", r) }
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.ContainsFunc(u.Host, odd) {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// pinged takes a ping, and reports whether the library is to answer it.
func (s *socket) pinged(_ context.Context, payload []byte) bool {
	if s.pong == nil {
		return true
	}
	s.pong(payload)
	return false
}

// pongNow answers a ping at once. The library would make two contexts with timers for it: of
// what a host on which nothing happens costs, that is a third.
func (s *socket) pongNow(payload []byte) {
	_ = s.write(appendFrame(nil, finBit|opPong, payload)) // if it fails, so does the next read
}

// Errors of reading that name the close code to answer with.
var (
	errBinary = errors.New("binary frame; AHP messages are text frames")
	errTooBig = errors.New("message too big")
)

// next waits for the next message and returns where to read it.
func (s *socket) next() (io.Reader, error) {
	kind, r, err := s.ws.Reader(context.Background())
	if err == nil && kind != websocket.MessageText {
		err = errBinary
	}
	return r, err
}

// How many bytes a buffer for reading messages begins with, and from how many on it is no
// longer kept for the next.
const (
	firstBuffer = 4 << 10
	keepBuffer  = 64 << 10
)

// readAll appends all of r to buf, at most limit bytes. It asks more before the
// buffer becomes larger than keepBuffer by so many bytes, or so many more.
func readAll(r io.Reader, buf []byte, limit int, more func(bytes int) error) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			size := cap(buf) + cap(buf)/2
			if cap(buf) < keepBuffer {
				size = min(max(4*cap(buf), firstBuffer), keepBuffer)
			}
			size = min(size, limit+1)
			if size > keepBuffer {
				if err := more(size - max(cap(buf), keepBuffer)); err != nil {
					return buf, err
				}
			}
			buf = append(make([]byte, 0, size), buf...)
		}
		n, err := r.Read(buf[len(buf):min(cap(buf), limit+1)]) // which waits for all of that
		buf = buf[:len(buf)+n]
		if len(buf) > limit {
			return buf, fmt.Errorf("%w: more than %d bytes", errTooBig, limit)
		}
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}

// write writes whole encoded frames.
func (s *socket) write(frames []byte) error {
	_, err := s.conn.Write(frames)
	return err
}

// maxReason is how long the reason in a close frame may be, in bytes (RFC
// 6455, section 5.5).
const maxReason = 123

// closeTime is how long the other side may take for the closing handshake.
const closeTime = 5 * time.Second

// sendClose sends a close frame, and nothing after it. The other side's messages
// can still be read, until its own close frame ends that.
func (s *socket) sendClose(code ahp.CloseCode, reason string) {
	s.conn.last(encodeClose(code, reason))
}

// close sends a close frame and waits a little for the other side's. Messages
// that come before it are lost.
func (s *socket) close(code ahp.CloseCode, reason string) {
	// The library reads on for the other side's close frame, and without a
	// limit through what is left of a message before it.
	timer := time.AfterFunc(closeTime, func() { _ = s.conn.Close() })
	defer timer.Stop()
	_ = s.ws.Close(websocket.StatusCode(code), fitReason(reason)) // the other side may be gone already
}

// fitReason makes a text fit into a close frame, which holds UTF-8.
func fitReason(reason string) string {
	reason = strings.ToValidUTF8(reason, "?")
	if len(reason) <= maxReason {
		return reason
	}
	end := maxReason - len("...")
	for !utf8.RuneStart(reason[end]) {
		end--
	}
	return reason[:end] + "..."
}

// kill ends the connection without a word, and with it whoever reads, writes
// or closes it.
func (s *socket) kill() {
	_ = s.conn.Close() // CloseNow would wait for a Close that is under way
	_ = s.ws.CloseNow()
}

// drop is kill, and has the kernel forget what it holds: it would keep that for
// minutes for a client that takes nothing.
func (s *socket) drop() {
	if tcp := tcpConn(s.conn.Conn); tcp != nil {
		_ = tcp.SetLinger(0) // fails if it is closed
	}
	s.kill()
}

// closeLost stands for the close code of a connection that ended without one
// (RFC 6455, section 7.4.1).
const closeLost ahp.CloseCode = 1006

// stream is what the binary messages carry, as one connection.
func (s *socket) stream() net.Conn {
	return websocket.NetConn(context.Background(), s.ws, websocket.MessageBinary)
}

// closeStatus returns the code and reason with which a client closed.
func closeStatus(err error) (ahp.CloseCode, string) {
	var closed websocket.CloseError
	if errors.As(err, &closed) {
		return ahp.CloseCode(closed.Code), closed.Reason
	}
	return closeLost, "connection lost"
}

// A hijacker has the library work on a lockedConn with small buffers.
type hijacker struct {
	http.ResponseWriter
	life  context.Context
	stall time.Duration
	conn  *lockedConn
}

// WriteHeader ends the connection of a handshake that fails: see
// closeUpgrades. The library has asked for an upgrade instead.
func (h *hijacker) WriteHeader(status int) {
	if status != http.StatusSwitchingProtocols {
		h.Header().Set("Connection", "close")
	}
	h.ResponseWriter.WriteHeader(status)
}

// Hijack implements [http.Hijacker].
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.conn = newLockedConn(h.life, conn, h.stall)
	early := rw.Reader.Buffered() // what the client has sent behind the handshake
	r := bufio.NewReaderSize(io.MultiReader(io.LimitReader(rw.Reader, int64(early)), h.conn), max(readBuffer, early))
	if _, err := r.Peek(early); err != nil { // the library takes this over, and then reads from h.conn
		return nil, nil, err
	}
	return h.conn, bufio.NewReadWriter(r, bufio.NewWriterSize(h.conn, writeBuffer)), nil
}

// A lockedConn writes what it is given in one piece each, at the pace of a
// pacedConn.
type lockedConn struct {
	net.Conn
	*pace // of the kernel's connection, below TLS
	untie func() bool
	quiet *quiet // below TLS; nil: reads wait in there

	records *tlsRecords // below TLS; nil: there is none

	reads atomic.Uint32 // counts reads that brought something
	taken atomic.Uint64 // bytes that they brought

	mu   sync.Mutex  // held during a Write
	mute atomic.Bool // the close frame is written: nothing may follow; set under mu
}

// newLockedConn takes over conn, which is closed when life ends. A write fails
// when the kernel takes no byte for the time stall.
func newLockedConn(life context.Context, conn net.Conn, stall time.Duration) *lockedConn {
	conn, pace := paced(conn, stall)
	c := &lockedConn{
		Conn: conn, pace: pace,
		untie: context.AfterFunc(life, func() { _ = conn.Close() }),
	}
	if below, ok := kernelConn(conn).(*pacedConn); ok && c.isTLS() {
		c.records = &below.records
	}
	return c
}

// holds returns how much is held for a Write of so many bytes besides them.
func (c *lockedConn) holds(bytes int) int {
	if c.records == nil || recordsOf(bytes) == 0 {
		return 0
	}
	return recordsTogether
}

// isTLS reports whether the connection is encrypted here.
func (c *lockedConn) isTLS() bool { return kernelConn(c.Conn) != c.Conn }

// Close closes the connection, and ends a Write.
func (c *lockedConn) Close() error {
	c.untie()
	return c.Conn.Close()
}

// Read implements [net.Conn].
func (c *lockedConn) Read(p []byte) (n int, err error) {
	if c.quiet != nil {
		n, err = c.quiet.readQuietly(c.Conn, p)
	} else {
		n, err = c.Conn.Read(p)
	}
	if n > 0 {
		c.reads.Add(1)
		c.taken.Add(uint64(n))
	}
	return n, err
}

// Write implements [net.Conn].
func (c *lockedConn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mute.Load() {
		return len(p), nil
	}
	if c.records != nil {
		c.records.left.Store(recordsOf(len(p)))
	}
	return c.Conn.Write(p)
}

// last writes a frame, and nothing after it.
func (c *lockedConn) last(frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mute.Swap(true) {
		_, _ = c.Conn.Write(frame) // the reader sees an error too
	}
}

// saidLast reports whether nothing more is written.
func (c *lockedConn) saidLast() bool { return c.mute.Load() }
