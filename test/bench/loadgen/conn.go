package loadgen

import (
	"bufio"
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sys/unix"

	"ahprelay/internal/sealed"
)

// A wsConn is a WebSocket that one goroutine reads. It copies as little as possible.
type wsConn struct {
	net.Conn
	client bool
	buf    []byte
	start  int // start of the unread bytes in buf
	end    int
	out    []byte // scratch memory for a client's writes
	whole  []byte // scratch memory for a message in several frames

	sealing *sealing // nil: messages are not sealed
}

// dialTime limits the time for a connection and its handshake.
const dialTime = 30 * time.Second

// dialWS opens a WebSocket as a client. If seal is not nil, the connection is sealed.
// Without a token, token is "". The connection has the deadline of ctx.
func dialWS(ctx context.Context, address, token string, seal *Seal) (*wsConn, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "wss" { // a test has made the relay's certificate
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	ws, err := upgrade(c, u, token, seal != nil)
	if err == nil && seal != nil {
		err = ws.seal(seal)
	}
	if err != nil {
		_ = c.Close()
	}
	return ws, err
}

func upgrade(c net.Conn, u *url.URL, token string, seal bool) (*wsConn, error) {
	request := &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
	}}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if seal {
		request.Header.Set("Sec-Websocket-Protocol", sealed.Subprotocol)
	}
	if err := request.Write(c); err != nil {
		return nil, err
	}
	r := bufio.NewReader(c)
	response, err := http.ReadResponse(r, request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return nil, fmt.Errorf("HTTP %s: %s", response.Status, text)
	}
	ws := &wsConn{Conn: c, client: true}
	ws.buf, _ = r.Peek(r.Buffered())
	ws.buf = append([]byte(nil), ws.buf...)
	ws.end = len(ws.buf)
	return ws, nil
}

// acceptWS accepts a WebSocket as a server.
func acceptWS(w http.ResponseWriter, r *http.Request) (*wsConn, error) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	if rw.Reader.Buffered() > 0 { // a client must not send anything before the answer
		_ = c.Close()
		return nil, errors.New("a client sent bytes before the handshake's answer")
	}
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	_, err = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &wsConn{Conn: c}, nil
}

// smallBuf is the first size of a connection's buffer.
const smallBuf = 1 << 10

// fill reads more bytes. It makes the buffer large enough for need bytes from start on.
func (c *wsConn) fill(need int) error {
	if c.start > 0 {
		c.end = copy(c.buf, c.buf[c.start:c.end])
		c.start = 0
	}
	if size := max(smallBuf, need); len(c.buf) < size {
		c.buf = append(make([]byte, 0, size), c.buf[:c.end]...)[:size]
	}
	n, err := c.Read(c.buf[c.end:])
	c.end += n
	if n > 0 {
		return nil
	}
	return err
}

// next returns the next frame, which must be small. It answers pings.
func (c *wsConn) next() (frame, error) {
	f, used, err := c.peek()
	c.start += used
	return f, err
}

// peek is next, but the frame, of used bytes, remains in the buffer.
func (c *wsConn) peek() (f frame, used int, err error) {
	for {
		h, _, err := readHead(c.buf[c.start:c.end])
		if err != nil {
			return frame{}, 0, err
		}
		f, used, err := nextFrame(c.buf[c.start:c.end])
		if err != nil {
			return frame{}, 0, err
		}
		if used == 0 {
			if err := c.fill(h.size + h.length); err != nil {
				return frame{}, 0, err
			}
			continue
		}
		switch f.op {
		case opPing:
			if err := c.send(opPong, f.payload); err != nil {
				return frame{}, 0, err
			}
		case opPong:
		case opClose:
			return frame{}, 0, errors.New(closeText(f.payload))
		default:
			return f, used, nil
		}
		c.start += used
	}
}

// echo sends a ping, and waits for the answer. It returns an error if another frame
// comes first.
func (c *wsConn) echo() error {
	if err := c.send(opPing, nil); err != nil {
		return err
	}
	for {
		f, used, err := nextFrame(c.buf[c.start:c.end])
		c.start += used
		switch {
		case err != nil:
			return err
		case used == 0:
			if err := c.fill(0); err != nil {
				return err
			}
		case f.op == opPong:
			return nil
		default:
			return fmt.Errorf("a ping was answered with frame %d", f.op)
		}
	}
}

// message waits for the next AHP message. The message is valid until the next call.
func (c *wsConn) message() ([]byte, error) {
	if c.sealing != nil {
		return c.sealing.next(c.frames)
	}
	return c.frames()
}

// say sends an AHP message.
func (c *wsConn) say(message []byte) error {
	if c.sealing != nil {
		return c.sealed(sealed.Message, message)
	}
	return c.send(opText, message)
}

// frames waits for the next WebSocket message. The message is valid until the next
// call.
func (c *wsConn) frames() ([]byte, error) {
	f, err := c.next()
	if err != nil || f.fin {
		return f.payload, err
	}
	c.whole = append(c.whole[:0], f.payload...)
	for !f.fin {
		if f, err = c.next(); err != nil {
			return nil, err
		}
		c.whole = append(c.whole, f.payload...)
	}
	return c.whole, nil
}

// send writes a WebSocket frame.
func (c *wsConn) send(op byte, payload []byte) error {
	if c.client {
		c.out = appendMasked(c.out[:0], op, payload)
	} else {
		c.out = appendFrame(c.out[:0], op, payload)
	}
	_, err := c.Write(c.out)
	return err
}

// detach returns the connection's non-blocking socket, and the bytes that were read and
// not used. The Go runtime no longer uses the socket.
func (c *wsConn) detach() (fd int, rest []byte, err error) {
	tcp, ok := c.Conn.(*net.TCPConn)
	if !ok {
		return 0, nil, errors.New("no plain TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, nil, err
	}
	var dupErr error
	if err := raw.Control(func(own uintptr) { fd, dupErr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return 0, nil, err
	}
	if dupErr != nil {
		return 0, nil, dupErr
	}
	return fd, append([]byte(nil), c.buf[c.start:c.end]...), tcp.Close()
}
