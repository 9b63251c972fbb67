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

// Buffer sizes for an idle connection in bytes. Large messages bypass these buffers.
const (
	readBuffer  = 512
	writeBuffer = 256
)

// subprotocol is the relay's answer to clients that pass their token in the list of
// subprotocols.
const subprotocol = "ahp"

// A socket is the WebSocket of a client or a host-agent. The library performs the
// handshake, reads, and closes. Data frames to clients are already encoded and bypass
// the library; one goroutine at a time writes them. Both paths share one lockedConn,
// which keeps their order.
type socket struct {
	ws    *websocket.Conn
	conn  *lockedConn
	page  string // origin of the web page that opened it; "" for other clients
	trace string // traceparent of the handshake; "" for none
	packs bool   // the peer accepts compressed messages

	// pong queues the answer to a ping; nil: the library writes it. The library would
	// wait for the current write, and close the connection after 5 s. Set before the
	// first read.
	pong func(payload []byte)
}

// accept upgrades a request, or answers it with an error. Browsers must come from the
// relay's own origin or from one that matches origins. The connection ends with life
// at the latest.
func accept(life context.Context, w http.ResponseWriter, r *http.Request, origins []string, stall time.Duration, compression websocket.CompressionMode) (*socket, error) {
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		// Proxies may disagree about the end of the body, and treat its bytes as data
		// behind the handshake, or the reverse.
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
	ws.SetReadLimit(-1) // readAll enforces the limit, with our close reason
	setOptions(h.conn.Conn)
	s.ws, s.conn, s.page = ws, h.conn, pageOf(r)
	s.trace = tracing.Traceparent(r.Header)
	s.packs = h.Header().Get("Sec-WebSocket-Extensions") != ""
	return s, nil
}

// pageOf returns the origin of the web page that sends a request, or "".
func pageOf(r *http.Request) string {
	u, err := url.Parse(r.Header.Get("Origin"))
	odd := func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789.-:[]", r) }
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.ContainsFunc(u.Host, odd) {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// pinged handles a ping, and reports whether the library must answer it.
func (s *socket) pinged(_ context.Context, payload []byte) bool {
	if s.pong == nil {
		return true
	}
	s.pong(payload)
	return false
}

// pongNow answers a ping at once. The library would create two contexts with timers, a
// third of an idle host's cost.
func (s *socket) pongNow(payload []byte) {
	_ = s.write(appendFrame(nil, finBit|opPong, payload)) // a failure also fails the next read
}

// Errors of reading that determine the close code.
var (
	errBinary = errors.New("binary frame; AHP messages are text frames")
	errTooBig = errors.New("message too big")
)

// next waits for the next message, and returns its reader.
func (s *socket) next() (io.Reader, error) {
	kind, r, err := s.ws.Reader(context.Background())
	if err == nil && kind != websocket.MessageText {
		err = errBinary
	}
	return r, err
}

// The initial size of a read buffer, and the largest size kept for reuse.
const (
	firstBuffer = 4 << 10
	keepBuffer  = 64 << 10
)

// readAll appends all of r to buf, at most limit bytes. Before each growth of the
// buffer beyond keepBuffer, it calls more with the added bytes.
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
		n, err := r.Read(buf[len(buf):min(cap(buf), limit+1)]) // Read blocks
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

// maxReason is the longest reason in a close frame, in bytes (RFC 6455, section 5.5).
const maxReason = 123

// closeTime bounds the closing handshake.
const closeTime = 5 * time.Second

// sendClose sends a close frame, and nothing after it. The peer's messages can still
// be read until its own close frame.
func (s *socket) sendClose(code ahp.CloseCode, reason string) {
	s.conn.last(encodeClose(code, reason))
}

// close sends a close frame and waits up to closeTime for the peer's. Messages before
// the peer's close frame are lost.
func (s *socket) close(code ahp.CloseCode, reason string) {
	// The library reads on until the peer's close frame. It sets no limit for the rest
	// of a message before it.
	timer := time.AfterFunc(closeTime, func() { _ = s.conn.Close() })
	defer timer.Stop()
	_ = s.ws.Close(websocket.StatusCode(code), fitReason(reason)) // the peer may be gone already
}

// fitReason shortens a text to fit into a close frame, as valid UTF-8.
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

// kill ends the connection without a close frame, and unblocks its users.
func (s *socket) kill() {
	_ = s.conn.Close() // CloseNow would wait for a Close in progress
	_ = s.ws.CloseNow()
}

// drop is kill, and makes the kernel discard its buffers. Otherwise it keeps them for
// minutes if the client does not read.
func (s *socket) drop() {
	if tcp := tcpConn(s.conn.Conn); tcp != nil {
		_ = tcp.SetLinger(0) // fails if the connection is closed
	}
	s.kill()
}

// closeLost stands for the close code of a connection that ended without a close frame
// (RFC 6455, section 7.4.1).
const closeLost ahp.CloseCode = 1006

// stream returns a net.Conn over binary messages.
func (s *socket) stream() net.Conn {
	return websocket.NetConn(context.Background(), s.ws, websocket.MessageBinary)
}

// closeStatus returns the code and reason of a client's close.
func closeStatus(err error) (ahp.CloseCode, string) {
	var closed websocket.CloseError
	if errors.As(err, &closed) {
		return ahp.CloseCode(closed.Code), closed.Reason
	}
	return closeLost, "connection lost"
}

// A hijacker makes the library use a lockedConn with small buffers.
type hijacker struct {
	http.ResponseWriter
	life  context.Context
	stall time.Duration
	conn  *lockedConn
}

// WriteHeader closes the connection after a failed handshake: see closeUpgrades. The
// library sets "Connection: Upgrade" instead.
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
	early := rw.Reader.Buffered() // bytes the client has sent behind the handshake
	r := bufio.NewReaderSize(io.MultiReader(io.LimitReader(rw.Reader, int64(early)), h.conn), max(readBuffer, early))
	if _, err := r.Peek(early); err != nil { // the library reads these bytes first, and then from h.conn
		return nil, nil, err
	}
	return h.conn, bufio.NewReadWriter(r, bufio.NewWriterSize(h.conn, writeBuffer)), nil
}

// A lockedConn writes the bytes of each call contiguously, at the pace of a pacedConn.
type lockedConn struct {
	net.Conn
	*pace // of the connection below TLS
	untie func() bool
	quiet *quiet // below TLS; nil: reads wait inside TLS

	records *tlsRecords // below TLS; nil: no TLS

	reads atomic.Uint32 // counts reads with data
	taken atomic.Uint64 // bytes read

	mu   sync.Mutex  // held during a Write
	mute atomic.Bool // the close frame is written, nothing may follow; set under mu
}

// newLockedConn takes over conn, which is closed when life ends. A write fails when
// the kernel accepts no byte for stall.
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

// holds returns the extra bytes held during a Write of the given size.
func (c *lockedConn) holds(bytes int) int {
	if c.records == nil || recordsOf(bytes) == 0 {
		return 0
	}
	return recordsTogether
}

// isTLS reports whether this process encrypts the connection.
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

// closedForWriting reports whether the connection is closed for writing.
func (c *lockedConn) closedForWriting() bool { return c.mute.Load() }
