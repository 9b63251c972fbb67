package connect

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/internal/signal"
)

// Messages is a connection to a local client.
type Messages interface {
	// Read returns the next message, which is valid until the next call. It returns
	// a [*Closed] when the client has ended the connection.
	Read() ([]byte, error)

	// Write sends a message, and does not keep it. It may be called concurrently.
	Write(message []byte) error

	// Close ends the connection and unblocks Read and Write.
	Close(code ahp.CloseCode, reason string)
}

// Closed is the reason why a connection has ended, or is to end.
type Closed struct {
	Code   ahp.CloseCode
	Reason string
}

func (c *Closed) Error() string { return fmt.Sprintf("closed with %d %s", c.Code, c.Reason) }

// Close codes of WebSockets that are not AHP's (RFC 6455, section 7.4.1).
const (
	closeNormal   ahp.CloseCode = 1000
	closeNoStatus ahp.CloseCode = 1005
	closeLost     ahp.CloseCode = 1006
)

// keepBuffer is the largest buffer kept for the next message, in bytes.
const keepBuffer = 64 << 10

var errBinary = errors.New("binary message; AHP messages are text")

func readMessage(ws *websocket.Conn, buf *bytes.Buffer) ([]byte, error) {
	if buf.Reset(); buf.Cap() > keepBuffer {
		*buf = bytes.Buffer{}
	}
	kind, r, err := ws.Reader(context.Background())
	if err == nil {
		_, err = buf.ReadFrom(r)
	}
	var closed websocket.CloseError
	switch {
	case errors.As(err, &closed):
		return nil, &Closed{ahp.CloseCode(closed.Code), closed.Reason}
	case err != nil:
		return nil, err
	case kind != websocket.MessageText:
		return nil, errBinary
	}
	return buf.Bytes(), nil
}

// closeTime bounds a closing handshake.
const closeTime = 5 * time.Second

// closeWS closes a WebSocket. Codes that must not be sent become 1000.
func closeWS(ws *websocket.Conn, code ahp.CloseCode, reason string) {
	if code == closeNoStatus || code == closeLost || code < 1000 {
		code = closeNormal
	}
	if len(reason) > 123 {
		reason = string(bytes.ToValidUTF8([]byte(reason[:123]), nil))
	}
	timer := time.AfterFunc(closeTime, func() { _ = ws.CloseNow() })
	defer timer.Stop()
	_ = ws.Close(websocket.StatusCode(code), reason) // the peer may be gone
	_ = ws.CloseNow()
}

// wsMessages are the messages of a WebSocket.
type wsMessages struct {
	ws  *websocket.Conn
	buf bytes.Buffer
}

func (m *wsMessages) Read() ([]byte, error) { return readMessage(m.ws, &m.buf) }

func (m *wsMessages) Write(message []byte) error {
	return m.ws.Write(context.Background(), websocket.MessageText, message)
}

func (m *wsMessages) Close(code ahp.CloseCode, reason string) { closeWS(m.ws, code, reason) }

// lineMessages are messages on streams, one on each line.
type lineMessages struct {
	in    ahp.LineReader
	end   func()
	ended chan struct{} // closed by Close
	once  sync.Once

	mu  sync.Mutex // held during writes
	out io.Writer

	asking   sync.Mutex      // guards asked; not held during reads and writes
	asked    map[string]bool // ids of requests without an answer, at most maxAsked
	answered chan struct{}   // receives an item when asked becomes empty
}

// answersTime bounds the wait for answers after the last line. maxAsked bounds the
// unanswered requests for which answers are awaited.
const (
	answersTime = 30 * time.Second
	maxAsked    = 1024
)

// NewLines returns messages on streams, one on each line. Close calls end, which must
// unblock Read.
func NewLines(in io.Reader, out io.Writer, end func()) Messages {
	return &lineMessages{
		in: ahp.LineReader{In: bufio.NewReader(in), Limit: maxMessage}, out: out, end: end, ended: make(chan struct{}),
		asked: map[string]bool{}, answered: make(chan struct{}, 1),
	}
}

// Read implements [Messages]. It reports the end of input only after all requests were
// answered, or after answersTime.
func (m *lineMessages) Read() ([]byte, error) {
	for {
		line, err := m.in.Next()
		if errors.Is(err, io.EOF) {
			m.awaitAnswers()
			err = &Closed{closeNormal, ""}
		}
		if line = bytes.TrimSpace(line); len(line) > 0 || err != nil {
			m.note(line)
			return line, err
		}
	}
}

// note records the id of a request.
func (m *lineMessages) note(line []byte) {
	env, err := ahp.Peek(line)
	if err != nil || env.Kind != ahp.Request {
		return
	}
	m.asking.Lock()
	defer m.asking.Unlock()
	if len(m.asked) < maxAsked {
		m.asked[string(env.ID)] = true
	}
}

// awaitAnswers waits until all requests have answers, or answersTime has passed.
func (m *lineMessages) awaitAnswers() {
	timeout := time.After(answersTime)
	for {
		m.asking.Lock()
		done := len(m.asked) == 0
		m.asking.Unlock()
		if done {
			return
		}
		select {
		case <-m.answered:
		case <-m.ended:
			return
		case <-timeout:
			return
		}
	}
}

// noteAnswer deletes the id of an answered request.
func (m *lineMessages) noteAnswer(message []byte) {
	m.asking.Lock()
	defer m.asking.Unlock()
	if len(m.asked) == 0 {
		return
	}
	env, err := ahp.Peek(message)
	if err != nil || env.Kind != ahp.Response {
		return
	}
	maps.DeleteFunc(m.asked, func(id string, _ bool) bool { return ahp.SameID([]byte(id), env.ID) })
	if len(m.asked) == 0 {
		signal.Send(m.answered)
	}
}

// Write implements [Messages]. Line breaks between JSON's tokens become spaces.
func (m *lineMessages) Write(message []byte) error {
	line := ahp.LineOf(message)
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.out.Write(line)
	m.noteAnswer(message)
	return err
}

func (m *lineMessages) Close(ahp.CloseCode, string) {
	m.once.Do(func() { close(m.ended) })
	m.end()
}
