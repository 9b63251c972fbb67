package hostagent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/internal/idle"
	"ahprelay/routing"
)

// webSocket is a hostSocket over WebSocket (RFC 6455). A library performs the handshake;
// webSocket reads and writes the frames itself, because all host messages pass here. It
// parses a message in the read buffer without a copy, and an idle connection has no
// buffers. With the library's frames, a host-agent needs 4 times the processor time to
// deliver a message to 100 clients, and twice the memory for an idle connection.
type webSocket struct {
	conn   net.Conn           // carries the stream; for deadlines, and to end the connection
	stream io.ReadWriteCloser // carries the frames: conn, possibly with TLS, after the bytes that came with the handshake
	limit  int                // bytes of a message from the host
	quiet  *idle.Reader       // over conn; nil if a buffer is needed to wait for data
	room   roomFunc
	life   func() // called for each ping and pong; may be nil

	reading  sync.Mutex // held while the fields below are used
	buf      *[]byte    // the read buffer; nil while idle
	from, to int        // the unread part of buf
	lent     bool       // buf holds the message returned by the last Read
	begun    bool       // bytes were read, so the handshake has left none
	err      error      // of reading; final

	writing   sync.Mutex // held while a frame is written; guards the field below
	closeSent bool       // the close frame is written: nothing may follow
}

// Sizes, in bytes.
const (
	maxHeader  = 14                          // of a frame
	readSize   = routing.MaxLent + maxHeader // of a read
	writeSize  = 64 << 10                    // of a write
	maxControl = 125                         // payload of a control frame
	growStep   = 1 << 20                     // most that is allocated because of a frame header, before as many bytes have arrived
)

var (
	readBuffers  = sync.Pool{New: func() any { b := make([]byte, readSize); return &b }}
	writeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, writeSize); return &b }}
)

// newWebSocket returns a webSocket, which then owns the stream and the connection below
// it.
func newWebSocket(conn net.Conn, stream io.ReadWriteCloser, encrypted bool, limit int, room roomFunc) *webSocket {
	s := &webSocket{conn: conn, stream: stream, limit: limit, room: room}
	if !encrypted {
		s.quiet = idle.NewReader(conn, &readBuffers)
	}
	return s
}

// The bits and codes of frames (RFC 6455, section 5.2).
const (
	finBit  = 0x80
	rsvBits = 0x70
	maskBit = 0x80

	opContinuation = 0
	opText         = 1
	opBinary       = 2
	opClose        = 8
	opPing         = 9
	opPong         = 10
)

type frameHeader struct {
	opcode byte
	fin    bool
	length int
}

// Read implements hostSocket. The message is valid until the next Read.
func (s *webSocket) Read() (message []byte, binary bool, err error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.putBack(); s.buf == nil && s.err == nil {
		s.err = s.getBuffer() // called at a shallow stack, because it waits most of the time
	}
	message, binary, err = s.readLocked()
	s.lent = err == nil
	return message, binary, err
}

// skip reads and drops a message of a connection that ends. It returns an error for a message that needs
// a reservation. The message returned by the last Read stays valid.
func (s *webSocket) skip() error {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.room = func(int) error { return net.ErrClosed }
	if s.lent && s.buf != nil {
		unread := (*s.buf)[s.from:s.to]
		s.buf = readBuffers.Get().(*[]byte)
		s.from, s.to = 0, copy(*s.buf, unread)
	}
	s.lent = false
	_, _, err := s.readLocked()
	return err
}

func (s *webSocket) readLocked() (message []byte, binary bool, err error) {
	if s.err == nil {
		if message, binary, err = s.message(); err == nil || isSkipped(err) {
			return message, binary, err
		}
		s.err = err
	}
	s.putBack()
	return nil, false, s.err
}

// dataHeader returns the header of a message's next frame. It answers the control frames
// before that frame.
func (s *webSocket) dataHeader(first bool) (h frameHeader, err error) {
	for {
		if h, err = s.header(); err != nil {
			return h, err
		}
		if h.opcode < opClose {
			break
		}
		if err := s.control(h); err != nil {
			return h, err
		}
	}
	if first == (h.opcode == opContinuation) {
		return h, s.violation("unexpected frame of a message")
	}
	return h, nil
}

// message reads the next message. Its branches handle frames of three sizes: lent
// without a copy, copied, and read after a reservation.
func (s *webSocket) message() (message []byte, binary bool, err error) {
	reserved := false
	for first := true; ; {
		h, err := s.dataHeader(first)
		if err != nil {
			return nil, false, err
		}
		if h.length > s.limit-len(message) {
			return nil, false, s.skipLong(h, message, binary || first && h.opcode == opBinary)
		}
		if !reserved && len(message)+h.length > routing.Reserved {
			whole := h.length
			if !first || !h.fin { // the total length is unknown
				whole = s.limit
			}
			if err := s.room.wait(whole); err != nil {
				return nil, false, err
			}
			reserved = true
		}
		if first {
			binary = h.opcode == opBinary
			if h.fin && h.length <= routing.MaxLent {
				message, err = s.next(h.length)
				return message, binary, err
			}
		}
		first = false
		if message, err = s.appendNext(message, h.length); err != nil || h.fin {
			return message, binary, err
		}
	}
}

// skipLong reads and drops the rest of a message above the limit, beginning at a frame
// with header h. It keeps the envelope of a request or response. Any other long message
// ends the connection.
func (s *webSocket) skipLong(h frameHeader, begun []byte, binary bool) error {
	var skim ahp.Skimmer
	_, _ = skim.Write(begun)
	for {
		endless := h.length > ahp.MaxSkim
		for n := h.length; n > 0 && !endless && !skim.Over(); {
			if s.from == s.to {
				if err := s.buffer(1); err != nil {
					return err
				}
			}
			part := (*s.buf)[s.from:min(s.to, s.from+n)]
			_, _ = skim.Write(part)
			s.from += len(part)
			n -= len(part)
		}
		if h.fin || endless || skim.Over() {
			break
		}
		var err error
		if h, err = s.dataHeader(false); err != nil {
			return err
		}
	}
	err := skipped(&skim, s.limit)
	if binary || !isSkipped(err) {
		s.goodbye(websocket.StatusMessageTooBig, "message too big")
		return fmt.Errorf("%w: more than %d bytes", errTooBig, s.limit)
	}
	return err
}

func (s *webSocket) header() (h frameHeader, err error) {
	b, err := s.next(2)
	if err != nil {
		return h, err
	}
	h = frameHeader{opcode: b[0] & 0x0f, fin: b[0]&finBit != 0, length: int(b[1] &^ maskBit)}
	switch {
	case b[0]&rsvBits != 0, b[1]&maskBit != 0, h.opcode > opPong, h.opcode > opBinary && h.opcode < opClose:
		return h, s.violation(fmt.Sprintf("invalid frame: %#x %#x", b[0], b[1]))
	case h.opcode >= opClose && (!h.fin || h.length > maxControl):
		return h, s.violation("control frame too long or fragmented")
	}
	switch h.length {
	case 126:
		if b, err = s.next(2); err == nil {
			h.length = int(binary.BigEndian.Uint16(b))
		}
	case 127:
		if b, err = s.next(8); err == nil {
			h.length = int(min(binary.BigEndian.Uint64(b), 1<<62))
		}
	}
	return h, err
}

// control answers a control frame. For a close frame, it returns a
// [websocket.CloseError].
func (s *webSocket) control(h frameHeader) error {
	payload, err := s.next(h.length)
	if err != nil {
		return err
	}
	if s.life != nil && h.opcode != opClose {
		s.life()
	}
	switch h.opcode {
	case opPing:
		return s.writeControl(opPong, payload)
	case opPong:
		return nil
	}
	closed := websocket.CloseError{Code: websocket.StatusNoStatusRcvd}
	if len(payload) >= 2 {
		closed = websocket.CloseError{Code: websocket.StatusCode(binary.BigEndian.Uint16(payload)), Reason: string(payload[2:])}
	}
	_ = s.writeControl(opClose, payload[:min(len(payload), 2)]) // the host may be gone
	return closed
}

func (s *webSocket) OnControl(life func()) { s.life = life }

func (s *webSocket) Ping() error { return s.writeControl(opPing, nil) }

// violation ends the connection because the host has broken the protocol.
func (s *webSocket) violation(what string) error {
	s.goodbye(websocket.StatusProtocolError, what)
	return errors.New("WebSocket protocol violated: " + what)
}

// next reads and returns n bytes, at most readSize. The bytes are valid until the next call.
func (s *webSocket) next(n int) ([]byte, error) {
	if err := s.buffer(n); err != nil {
		return nil, err
	}
	b := (*s.buf)[s.from : s.from+n : s.from+n]
	s.from += n
	return b, nil
}

// buffer reads until at least n bytes are unread.
func (s *webSocket) buffer(n int) error {
	if s.buf == nil {
		if err := s.getBuffer(); err != nil {
			return err
		}
	}
	if s.to-s.from >= n {
		return nil
	}
	s.to = copy(*s.buf, (*s.buf)[s.from:s.to])
	s.from = 0
	m, err := io.ReadAtLeast(s.stream, (*s.buf)[s.to:], n-s.to)
	s.to += m
	s.begun = true
	if err == io.EOF && s.to > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("read from the host: %w", err)
	}
	return nil
}

// getBuffer allocates the read buffer. It first waits for data, if the connection can
// report that without a buffer.
func (s *webSocket) getBuffer() (err error) {
	s.from, s.to = 0, 0
	if s.quiet == nil || !s.begun {
		s.buf = readBuffers.Get().(*[]byte)
		return nil
	}
	if s.buf, s.to, err = s.quiet.Read(); err != nil {
		return fmt.Errorf("read from the host: %w", err)
	}
	return nil
}

// appendNext appends n bytes to a message that has its own buffer.
func (s *webSocket) appendNext(message []byte, n int) ([]byte, error) {
	pieces := len(message) > 0 // the message has several frames
	for n > 0 {
		if free := cap(message) - len(message); free == 0 {
			room := n
			if len(message) < growStep { // once this many bytes have arrived, the declared length is credible
				room = min(n, growStep)
			}
			if pieces {
				room = max(room, min(len(message), s.limit-len(message)))
			}
			grown := make([]byte, len(message), len(message)+room)
			copy(grown, message)
			message = grown
		}
		part := message[len(message):min(cap(message), len(message)+n)]
		m := copy(part, (*s.buf)[s.from:s.to])
		s.from += m
		if m == 0 {
			var err error
			if m, err = s.stream.Read(part); m == 0 && err != nil {
				return nil, fmt.Errorf("read from the host: %w", err)
			}
		}
		message = message[:len(message)+m]
		n -= m
	}
	return message, nil
}

// putBack releases the read buffer if all its bytes are read, or reading has failed.
func (s *webSocket) putBack() {
	if s.buf != nil && (s.from == s.to || s.err != nil) {
		readBuffers.Put(s.buf)
		s.buf = nil
	}
}

func (s *webSocket) Whole() bool {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.err != nil || s.buf == nil {
		return false
	}
	b := (*s.buf)[s.from:s.to]
	switch {
	case len(b) < 2 || b[0] != finBit|opText && b[0] != finBit|opBinary:
		return false
	case b[1] < 126:
		return len(b)-2 >= int(b[1])
	default:
		return b[1] == 126 && len(b) >= 4 && len(b)-4 >= int(binary.BigEndian.Uint16(b[2:]))
	}
}

func (s *webSocket) Write(message []byte, binary bool) error {
	first := byte(finBit | opText)
	if binary {
		first = finBit | opBinary
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closeSent {
		return net.ErrClosed
	}
	return s.writeLocked(first, message)
}

// writeLocked writes a frame, masked as required for clients (section 5.3).
func (s *webSocket) writeLocked(first byte, payload []byte) error {
	buf := writeBuffers.Get().(*[]byte)
	defer writeBuffers.Put(buf)
	key := rand.Uint32()
	b := appendHeader((*buf)[:0], first, len(payload), key)
	for {
		n := min(len(payload), cap(b)-len(b))
		start := len(b)
		b = append(b, payload[:n]...)
		key = mask(b[start:], key)
		if _, err := s.stream.Write(b); err != nil {
			return fmt.Errorf("write to the host: %w", err)
		}
		if payload = payload[n:]; len(payload) == 0 {
			return nil
		}
		b = b[:0]
	}
}

// appendHeader appends the header of a frame with a payload of n bytes, masked with
// key.
func appendHeader(b []byte, first byte, n int, key uint32) []byte {
	switch {
	case n < 126:
		b = append(b, first, maskBit|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, first, maskBit|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, first, maskBit|127), uint64(n))
	}
	return binary.LittleEndian.AppendUint32(b, key)
}

// mask masks b in place, and returns the key for the following bytes.
func mask(b []byte, key uint32) uint32 {
	both := uint64(key)<<32 | uint64(key)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)^both)
	}
	for i := range b {
		b[i] ^= byte(key)
		key = key>>8 | key<<24
	}
	return key
}

// controlTime is how long the host may take to accept a control frame.
const controlTime = 5 * time.Second

// writeControl writes a control frame. A close frame is the last frame.
func (s *webSocket) writeControl(opcode byte, payload []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closeSent {
		return nil
	}
	s.closeSent = opcode == opClose
	_ = s.conn.SetWriteDeadline(time.Now().Add(controlTime)) // fails if the connection is closed, as the write does
	defer func() { _ = s.conn.SetWriteDeadline(time.Time{}) }()
	return s.writeLocked(finBit|opcode, payload)
}

func (s *webSocket) goodbye(code websocket.StatusCode, reason string) {
	payload := binary.BigEndian.AppendUint16(nil, uint16(code))
	_ = s.writeControl(opClose, append(payload, reason[:min(len(reason), maxControl-2)]...)) // the host may be gone
}

// goodbyeTime is how long a closing handshake with the host may take.
const goodbyeTime = time.Second

func (s *webSocket) Close(reason string) {
	defer func() { _ = s.stream.Close() }()
	// A host that hangs does not answer, and may block a Write.
	timer := time.AfterFunc(goodbyeTime, func() { _ = s.conn.Close() })
	defer timer.Stop()
	s.goodbye(websocket.StatusNormalClosure, reason)
	for { // until the host's close frame, which another goroutine may read
		if err := s.skip(); err != nil {
			return
		}
	}
}

// handshake opens a WebSocket, and returns the stream that carries its frames. It
// changes client.
func handshake(ctx context.Context, address string, header http.Header, client *http.Client) (io.ReadWriteCloser, *http.Response, error) {
	taken := &takenStream{RoundTripper: client.Transport}
	client.Transport = taken
	ws, response, err := websocket.Dial(ctx, address, &websocket.DialOptions{
		HTTPClient: client, HTTPHeader: header, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, response, err
	}
	stream := taken.ReadWriteCloser
	taken.ReadWriteCloser = noStream{}
	_ = ws.CloseNow() // the library's connection is already closed
	return stream, response, nil
}

// A takenStream lets a library perform a handshake, and then takes over the stream.
type takenStream struct {
	http.RoundTripper
	io.ReadWriteCloser
}

func (t *takenStream) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		if stream, ok := response.Body.(io.ReadWriteCloser); ok {
			t.ReadWriteCloser, response.Body = stream, t
		}
	}
	return response, err
}

type noStream struct{}

func (noStream) Read([]byte) (int, error)  { return 0, net.ErrClosed }
func (noStream) Write([]byte) (int, error) { return 0, net.ErrClosed }
func (noStream) Close() error              { return nil }
