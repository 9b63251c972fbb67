package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
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

// A socket is a client's WebSocket. The library does the handshake, reading,
// and control frames; data frames are written past it, already encoded, by
// one goroutine at a time. Both go through one lockedConn, in order.
type socket struct {
	ws   *websocket.Conn
	conn *lockedConn
}

// accept upgrades a request, or answers it with an error. Browsers are let in
// from the relay's own origin and those that match a pattern.
func accept(w http.ResponseWriter, r *http.Request, origins []string, stall time.Duration) (*socket, error) {
	h := &hijacker{ResponseWriter: w, stall: stall}
	ws, err := websocket.Accept(h, r, &websocket.AcceptOptions{
		Subprotocols:    []string{subprotocol},
		OriginPatterns:  origins,
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(-1) // readAll counts, to close with our reason
	setNotSentLowWater(h.conn.Conn)
	return &socket{ws: ws, conn: h.conn}, nil
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

// readAll appends all of r to buf, at most limit bytes.
func readAll(r io.Reader, buf []byte, limit int) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
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

// close sends a close frame and waits a little for the client's.
func (s *socket) close(code ahp.CloseCode, reason string) {
	if len(reason) > maxReason {
		reason = reason[:maxReason-3] + "..."
	}
	_ = s.ws.Close(websocket.StatusCode(code), reason) // the client may be gone already
}

// kill ends the connection without a word, and whoever reads or writes it.
func (s *socket) kill() { _ = s.ws.CloseNow() }

// closeStatus returns the code and reason with which a client closed; 1006
// if it did not say.
func closeStatus(err error) (ahp.CloseCode, string) {
	var closed websocket.CloseError
	if errors.As(err, &closed) {
		return ahp.CloseCode(closed.Code), closed.Reason
	}
	return 1006, "connection lost"
}

// A hijacker has the library work on a lockedConn with small buffers.
type hijacker struct {
	http.ResponseWriter
	stall time.Duration
	conn  *lockedConn
}

// Hijack implements [http.Hijacker].
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	h.conn = &lockedConn{Conn: conn, stall: h.stall}
	r := rw.Reader
	if r.Buffered() == 0 {
		r = bufio.NewReaderSize(h.conn, readBuffer)
	}
	return h.conn, bufio.NewReadWriter(r, bufio.NewWriterSize(h.conn, writeBuffer)), nil
}

// A lockedConn writes what it is given in one piece each. A write fails when
// the kernel takes no byte for the time stall.
type lockedConn struct {
	net.Conn
	stall time.Duration

	mu sync.Mutex
}

// Write implements [net.Conn].
func (c *lockedConn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(p[n:])
		n += m
		if err == nil || m == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}
