package wire

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
	"ahprelay/internal/sealed"
	"ahprelay/internal/tracing"
)

// Buffer sizes in bytes for an idle connection. Large messages bypass these buffers.
const (
	readBuffer  = 512
	writeBuffer = 256
)

// subprotocol is the subprotocol that the relay selects when a client passes its token in
// the list of subprotocols.
const subprotocol = "ahp"

// A Socket is a WebSocket to a client or a host-agent. The library performs the
// handshake, reads, and closes. Data frames to clients are already encoded, and are
// written without the library by one goroutine at a time. Both paths share a Conn, which
// keeps the frames in order.
type Socket struct {
	ws         *websocket.Conn
	Conn       *Conn
	Page       string // origin of the web page that opened the connection; "" for other clients
	Trace      string // traceparent of the handshake; "" for none
	Compresses bool   // the handshake has agreed on compression, and the messages are not sealed
	Move       string // ticket for a move to a different relay; "": the client does not move
	Moved      string // ticket of the connection that continues here; "": a new connection
	Sealed     bool   // binary messages are for the host-agent: see package sealed

	// Pong queues the response to a ping. It must be set before the first read. If it is
	// nil, the library writes the response; but the library would wait for the current
	// write, and close the connection after 5 s.
	Pong func(payload []byte)
}

// Accept upgrades a request, or responds with an error. A web page must have the relay's
// own origin, or one that matches origins. The connection ends with life at the latest.
func Accept(life context.Context, w http.ResponseWriter, r *http.Request, origins []string, stall time.Duration, compression websocket.CompressionMode) (*Socket, error) {
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		// A handshake with a body is refused, because proxies may disagree about where
		// the body ends. They could treat its bytes as WebSocket data, or the reverse.
		http.Error(w, "the request has a body; a WebSocket handshake has none", http.StatusBadRequest)
		return nil, errors.New("handshake with a body")
	}
	h := &hijacker{ResponseWriter: w, life: life, stall: stall}
	s := &Socket{}
	ws, err := websocket.Accept(h, r, &websocket.AcceptOptions{
		Subprotocols:    []string{sealed.Subprotocol, subprotocol},
		OriginPatterns:  origins,
		CompressionMode: compression,
		OnPingReceived:  s.pinged,
	})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(-1) // ReadAll enforces the limit, with our close reason
	setOptions(h.conn.Conn)
	s.ws, s.Conn, s.Page = ws, h.conn, pageOf(r)
	s.Trace = tracing.Traceparent(r.Header)
	s.Sealed = ws.Subprotocol() == sealed.Subprotocol
	s.Compresses = h.Header().Get("Sec-WebSocket-Extensions") != "" && !s.Sealed
	return s, nil
}

// pageOf returns the origin of the web page that sent a request, or "".
func pageOf(r *http.Request) string {
	u, err := url.Parse(r.Header.Get("Origin"))
	odd := func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789.-:[]", r) }
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.ContainsFunc(u.Host, odd) {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// pinged handles a ping, and reports whether the library must respond.
func (s *Socket) pinged(_ context.Context, payload []byte) bool {
	if s.Pong == nil {
		return true
	}
	s.Pong(payload)
	return false
}

// PongNow responds to a ping at once. The library would create two contexts with timers,
// which are a third of the cost of an idle host.
func (s *Socket) PongNow(payload []byte) {
	_ = s.Write(AppendFrame(nil, FinBit|OpPong, payload)) // a failure also fails the next read
}

// Read errors for which the relay chooses the close code.
var (
	ErrBinary = errors.New("binary frame; AHP messages are text frames")
	ErrText   = errors.New("text frame; sealed messages are binary frames, and relays answer relay/refreshToken only")
	ErrTooBig = errors.New("message too big")
)

// Next waits for the next message, and returns its reader. Only sealed connections may
// have binary messages.
func (s *Socket) Next() (r io.Reader, binary bool, err error) {
	kind, r, err := s.ws.Reader(context.Background())
	binary = kind == websocket.MessageBinary
	if err == nil && binary && !s.Sealed {
		err = ErrBinary
	}
	return r, binary, err
}

// Size of a new read buffer, and the largest size kept for reuse.
const (
	FirstBuffer = 4 << 10
	KeepBuffer  = 64 << 10
)

// ReadAll appends all of r to buf, up to limit bytes. Whenever the buffer must grow
// beyond KeepBuffer, it first calls more with the number of additional bytes.
func ReadAll(r io.Reader, buf []byte, limit int, more func(bytes int) error) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			size := cap(buf) + cap(buf)/2
			if cap(buf) < KeepBuffer {
				size = min(max(4*cap(buf), FirstBuffer), KeepBuffer)
			}
			size = min(size, limit+1)
			if size > KeepBuffer {
				if err := more(size - max(cap(buf), KeepBuffer)); err != nil {
					return buf, err
				}
			}
			buf = append(make([]byte, 0, size), buf...)
		}
		n, err := r.Read(buf[len(buf):min(cap(buf), limit+1)]) // Read may block
		buf = buf[:len(buf)+n]
		if len(buf) > limit {
			return buf, fmt.Errorf("%w: more than %d bytes", ErrTooBig, limit)
		}
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}

// Write writes whole encoded frames.
func (s *Socket) Write(frames []byte) error {
	_, err := s.Conn.Write(frames)
	return err
}

// maxReason is the longest reason in a close frame, in bytes (RFC 6455, section 5.5).
const maxReason = 123

// CloseTime limits the closing handshake.
const CloseTime = 5 * time.Second

// SendClose sends a close frame, and nothing after it. The peer's messages can still be
// read until its close frame arrives.
func (s *Socket) SendClose(code ahp.CloseCode, reason string) {
	s.Conn.last(encodeClose(code, reason))
}

// Close sends a close frame, and waits up to CloseTime for the peer's close frame.
// Messages that arrive before it are dropped.
func (s *Socket) Close(code ahp.CloseCode, reason string) {
	// The library skips a message before the peer's close frame without any time limit.
	timer := time.AfterFunc(CloseTime, func() { _ = s.Conn.Close() })
	defer timer.Stop()
	_ = s.ws.Close(websocket.StatusCode(code), fitReason(reason)) // the peer may be gone already
}

// fitReason shortens a text so that it fits into a close frame, as valid UTF-8.
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

// Kill ends the connection without a close frame, and unblocks its users.
func (s *Socket) Kill() {
	_ = s.Conn.Close() // CloseNow would wait for a Close in progress
	_ = s.ws.CloseNow()
}

// Drop is like Kill, but also makes the kernel discard its buffers. Otherwise the kernel
// would keep them for minutes if the client does not read.
func (s *Socket) Drop() {
	if tcp := tcpConn(s.Conn.Conn); tcp != nil {
		_ = tcp.SetLinger(0) // fails if the connection is closed
	}
	s.Kill()
}

// CloseLost is the close code in logs for a connection that ended without a close frame
// (RFC 6455, section 7.4.1).
const CloseLost ahp.CloseCode = 1006

// Stream returns a net.Conn that reads and writes binary messages.
func (s *Socket) Stream() net.Conn {
	return websocket.NetConn(context.Background(), s.ws, websocket.MessageBinary)
}

// CloseStatus returns the code and reason with which a client closed the connection, or
// CloseLost if there was no close frame.
func CloseStatus(err error) (ahp.CloseCode, string) {
	if closed, ok := errors.AsType[websocket.CloseError](err); ok {
		return ahp.CloseCode(closed.Code), closed.Reason
	}
	return CloseLost, "connection lost"
}

// A hijacker makes the library use a Conn, with small buffers.
type hijacker struct {
	http.ResponseWriter
	life  context.Context
	stall time.Duration
	conn  *Conn
}

// WriteHeader makes the server close the connection after a failed handshake. The library would set
// "Connection: Upgrade", and a careless proxy may then treat the connection as a tunnel.
func (h *hijacker) WriteHeader(status int) {
	if status != http.StatusSwitchingProtocols {
		h.Header().Set("Connection", "close")
	}
	h.ResponseWriter.WriteHeader(status)
}

func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.conn = NewConn(h.life, conn, h.stall)
	early := rw.Reader.Buffered() // bytes the client has sent behind the handshake
	r := bufio.NewReaderSize(io.MultiReader(io.LimitReader(rw.Reader, int64(early)), h.conn), max(readBuffer, early))
	if _, err := r.Peek(early); err != nil { // the library reads these bytes first, and then from h.conn
		return nil, nil, err
	}
	return h.conn, bufio.NewReadWriter(r, bufio.NewWriterSize(h.conn, writeBuffer)), nil
}

// A Conn writes the bytes of each call contiguously, as fast as the kernel accepts them.
type Conn struct {
	net.Conn
	*pace // of the connection below TLS
	untie func() bool
	quiet *quiet // below TLS; nil: reads wait inside TLS

	records *tlsRecords // below TLS; nil: no TLS

	Reads atomic.Uint32 // counts reads with data
	Taken atomic.Uint64 // bytes read

	mu   sync.Mutex  // held during a Write
	mute atomic.Bool // the close frame has been written, so nothing may follow; set under mu
}

// NewConn takes over conn, and closes it when life ends. A write fails when the kernel
// accepts no byte for the time stall.
func NewConn(life context.Context, conn net.Conn, stall time.Duration) *Conn {
	conn, pace := paced(conn, stall)
	c := &Conn{
		Conn: conn, pace: pace,
		untie: context.AfterFunc(life, func() { _ = conn.Close() }),
	}
	if below, ok := KernelConn(conn).(*pacedConn); ok && c.IsTLS() {
		c.records = &below.records
	}
	return c
}

// Holds returns the extra memory in bytes that a Write of the given size needs.
func (c *Conn) Holds(bytes int) int {
	if c.records == nil || recordsOf(bytes) == 0 {
		return 0
	}
	return recordsTogether
}

// IsTLS reports whether the connection uses TLS in this process.
func (c *Conn) IsTLS() bool { return KernelConn(c.Conn) != c.Conn }

// Close closes the connection, which ends a Write in progress.
func (c *Conn) Close() error {
	c.untie()
	return c.Conn.Close()
}

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (n int, err error) {
	if c.quiet != nil {
		n, err = c.quiet.readQuietly(c.Conn, p)
	} else {
		n, err = c.Conn.Read(p)
	}
	if n > 0 {
		c.Reads.Add(1)
		c.Taken.Add(uint64(n))
	}
	return n, err
}

// Write implements [net.Conn].
func (c *Conn) Write(p []byte) (n int, err error) {
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

// last writes a frame. Later writes are discarded.
func (c *Conn) last(frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mute.Swap(true) {
		_, _ = c.Conn.Write(frame) // the reader sees an error too
	}
}

// ClosedForWriting reports whether the close frame has been written.
func (c *Conn) ClosedForWriting() bool { return c.mute.Load() }
