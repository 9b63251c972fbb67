package acp

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"ahprelay/ahp"
	"ahprelay/internal/signal"
)

// A Handler handles the peer's messages, in order. [Conn.Run] calls it, so its methods
// must not wait for the peer.
type Handler interface {
	// Notify handles a notification.
	Notify(method string, params json.RawMessage)

	// Request handles a request. The answer may be given later, from any goroutine.
	Request(r *Request)

	// Flush is called before the connection waits for bytes, and before it passes an
	// answer to a call. A handler which collects messages handles them here.
	Flush()
}

// Limits bound a connection. Zero fields have the given defaults.
type Limits struct {
	Line     int // bytes of a message; default 16 MiB
	Queue    int // bytes which wait for the peer, beside the message being written; default 64 MiB
	Requests int // unanswered requests from the peer; default 256
}

func (l Limits) withDefaults() Limits {
	return Limits{cmp.Or(l.Line, 16<<20), cmp.Or(l.Queue, 64<<20), cmp.Or(l.Requests, 256)}
}

// Errors of a connection.
var (
	// ErrClosed reports a call on a connection which has ended.
	ErrClosed = errors.New("the connection has ended")

	// ErrStuck reports that the connection was ended because the peer does not read.
	ErrStuck = errors.New("the peer does not read its messages")

	// ErrTooLong reports that a call's answer exceeds the limit.
	ErrTooLong = errors.New("the answer is too long")
)

// JSON-RPC error codes.
const (
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
	CodeAuthRequired   = -32000
	CodeNotFound       = -32002
	CodeCancelled      = -32800
)

// An Error is an error answer.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitzero"`
}

// maxDetails bounds the details included in an error's text, in bytes.
const maxDetails = 500

// Error returns code, message, and the details which many agents add.
func (e *Error) Error() string {
	var data struct {
		Details string `json:"details"`
	}
	if len(e.Data) > 0 && Decode(e.Data, &data) == nil && data.Details != "" && len(data.Details) <= maxDetails {
		return fmt.Sprintf("%s: %s (%d)", e.Message, data.Details, e.Code)
	}
	return fmt.Sprintf("%s (%d)", e.Message, e.Code)
}

// A Conn exchanges messages with a peer. Its methods are safe for concurrent use.
type Conn struct {
	// Set by NewConn, then read-only.
	out     io.Writer
	handler Handler
	limits  Limits
	done    chan struct{} // closed when the connection has ended
	wake    chan struct{} // wakes the writer; capacity 1, never closed

	// Owned by Run.
	in ahp.LineReader

	mu       sync.Mutex // guards the fields below
	err      error      // why the connection ended
	lastID   int64
	calls    map[string]*Pending // by id; each has capacity 1
	requests int                 // unanswered requests from the peer
	queue    []byte              // lines for the peer
	skipped  int                 // lines that were not messages
}

type answer struct {
	result json.RawMessage
	err    error
}

// NewConn returns a connection which reads from in and writes to out. Run starts it.
func NewConn(in io.Reader, out io.Writer, handler Handler, limits Limits) *Conn {
	limits = limits.withDefaults()
	return &Conn{
		in: ahp.LineReader{In: bufio.NewReaderSize(in, readSize), Limit: limits.Line}, out: out, handler: handler, limits: limits,
		done: make(chan struct{}), wake: make(chan struct{}, 1), calls: map[string]*Pending{},
	}
}

// Run handles messages until the input ends, the output fails or [Conn.Fail] is
// called, and returns the reason. While it waits for input, only the end of the input ends it.
// The caller then closes input and output; Run does not wait for that.
func (c *Conn) Run() error {
	var writer sync.WaitGroup
	writer.Go(c.writeLoop)
	c.Fail(c.readLoop())
	writer.Wait()
	return c.err // no longer changes
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Fail ends the connection and all its calls with an error. Only the first call has an
// effect. To end a blocked Run, also close input and output.
func (c *Conn) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.done)
	}
}

// Skipped returns the number of lines which were no messages.
func (c *Conn) Skipped() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.skipped
}

// A message is any JSON-RPC message.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// readLoop handles the peer's messages.
func (c *Conn) readLoop() error {
	for {
		if !c.in.Whole() {
			c.handler.Flush()
		}
		line, err := c.in.Next()
		var long *ahp.LongLine
		switch line = bytes.TrimSpace(line); {
		case errors.As(err, &long):
			env, _ := long.Envelope() // zero for a line that is no message
			c.skip(env)
		case err != nil:
			return err
		case len(line) > 0:
			c.take(line)
		}
		select {
		case <-c.done:
			return c.err
		default:
		}
	}
}

func (c *Conn) take(line []byte) {
	var m message
	if !ahp.IsObject(line) || Decode(line, &m) != nil {
		c.count()
		return
	}
	switch {
	case m.Method != "" && m.ID == nil:
		c.handler.Notify(m.Method, m.Params)
	case m.Method != "":
		c.request(&Request{conn: c, id: m.ID, Method: m.Method, Params: m.Params})
	case m.ID != nil && m.Error != nil:
		c.answered(m.ID, answer{err: m.Error})
	case m.ID != nil:
		c.answered(m.ID, answer{result: m.Result})
	default:
		c.count()
	}
}

func (c *Conn) count() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skipped++
}

// skip handles a line above the limit, of which only the envelope was read.
func (c *Conn) skip(env ahp.Envelope) {
	switch env.Kind {
	case ahp.Request:
		c.respond(message{ID: env.ID, Error: &Error{Code: CodeInternal, Message: fmt.Sprintf("the message is longer than %d bytes", c.limits.Line)}})
	case ahp.Response:
		c.answered(env.ID, answer{err: ErrTooLong})
	}
	c.count()
}

// request passes a request to the handler.
func (c *Conn) request(r *Request) {
	c.mu.Lock()
	full := c.requests >= c.limits.Requests
	if !full {
		c.requests++
	}
	c.mu.Unlock()
	if full {
		c.respond(message{ID: r.id, Error: &Error{Code: CodeInternal, Message: "too many requests"}})
		return
	}
	c.handler.Request(r)
}

// answered passes an answer to its call. An unknown id is ignored, because the call
// may have been abandoned.
func (c *Conn) answered(id json.RawMessage, a answer) {
	c.mu.Lock()
	p, ok := c.calls[string(id)]
	delete(c.calls, string(id))
	c.mu.Unlock()
	if ok {
		c.handler.Flush()
		if p.then != nil && a.err == nil {
			p.then(a.result)
		}
		p.reply <- a
	}
}

// Call sends a request and decodes the answer into result, which may be nil. If ctx
// ends first, a later answer is ignored. When Call returns, all messages the peer has
// sent before the answer were handled.
func (c *Conn) Call(ctx context.Context, method string, params, result any) error {
	return c.Begin(method, params).Wait(ctx, result)
}

// CallThen is like Call. It also passes the result to then, in the connection's goroutine: all
// messages that the peer has sent after the answer are handled later.
func (c *Conn) CallThen(ctx context.Context, method string, params, result any, then func(result json.RawMessage)) error {
	return c.begin(method, params, then).Wait(ctx, result)
}

// A Pending is a request that waits for its answer.
type Pending struct {
	conn   *Conn
	method string
	id     string
	reply  chan answer
	then   func(result json.RawMessage) // may be nil
	err    error                        // why the request was not sent
}

// Begin sends a request, before all messages sent later. The caller must call Wait
// once.
func (c *Conn) Begin(method string, params any) *Pending { return c.begin(method, params, nil) }

func (c *Conn) begin(method string, params any, then func(result json.RawMessage)) *Pending {
	p := &Pending{conn: c, method: method, reply: make(chan answer, 1), then: then}
	text, err := json.Marshal(params)
	if err != nil {
		p.err = err
		return p
	}
	c.mu.Lock()
	c.lastID++
	p.id = strconv.FormatInt(c.lastID, 10)
	c.calls[p.id] = p
	c.mu.Unlock()
	p.err = c.send(message{ID: json.RawMessage(p.id), Method: method, Params: text})
	return p
}

// Wait reads the answer into result, as in [Conn.Call].
func (p *Pending) Wait(ctx context.Context, result any) error {
	defer func() {
		p.conn.mu.Lock()
		defer p.conn.mu.Unlock()
		delete(p.conn.calls, p.id)
	}()
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.method, p.err)
	}
	var a answer
	select {
	case a = <-p.reply:
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", p.method, context.Cause(ctx))
	case <-p.conn.done:
		select {
		case a = <-p.reply: // the answer came before the end
		default:
			return fmt.Errorf("%s: %w", p.method, p.conn.ended())
		}
	}
	if a.err != nil {
		return fmt.Errorf("%s: %w", p.method, a.err)
	}
	if result == nil {
		return nil
	}
	if err := Decode(a.result, result); err != nil {
		return fmt.Errorf("%s: %w", p.method, err)
	}
	return nil
}

// Cancel asks the peer to stop working on the request, which the peer may not support.
// Wait still returns the peer's answer or error.
func (p *Pending) Cancel() {
	if p.err == nil {
		_ = p.conn.Notify("$/cancel_request", CancelRequestNotification{RequestID: json.RawMessage(p.id)}) // without a connection, nothing works on it
	}
}

// ended returns the error for calls on an ended connection.
func (c *Conn) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("%w: %w", ErrClosed, c.err)
}

// Notify sends a notification.
func (c *Conn) Notify(method string, params any) error {
	text, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return c.send(message{Method: method, Params: text})
}

// respond sends an answer. If the connection has ended, nothing waits for it.
func (c *Conn) respond(m message) { _ = c.send(m) }

// send queues a message for the peer.
func (c *Conn) send(m message) error {
	m.Version = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.mu.Lock()
	stuck := len(c.queue) > c.limits.Queue
	ended := c.err != nil
	if !stuck && !ended {
		c.queue = append(append(c.queue, line...), '\n')
	}
	c.mu.Unlock()
	if stuck {
		c.Fail(ErrStuck)
	}
	if stuck || ended {
		return c.ended()
	}
	signal.Send(c.wake)
	return nil
}

// writeLoop writes queued messages until the connection ends.
func (c *Conn) writeLoop() {
	for {
		select {
		case <-c.done:
			return
		case <-c.wake:
		}
		c.mu.Lock()
		lines := c.queue
		c.queue = nil
		c.mu.Unlock()
		if _, err := c.out.Write(lines); err != nil {
			c.Fail(err)
			return
		}
	}
}

// A Request is a peer's request.
type Request struct {
	Method string
	Params json.RawMessage

	conn *Conn
	id   json.RawMessage
	once sync.Once
}

// Withdrawn reports whether a notification withdraws this request.
func (r *Request) Withdrawn(n CancelRequestNotification) bool { return ahp.SameID(r.id, n.RequestID) }

// Reply answers the request with a result or an error. Errors other than [*Error]
// become internal errors. Only the first call has an effect.
func (r *Request) Reply(result any, err error) {
	r.once.Do(func() {
		r.conn.mu.Lock()
		r.conn.requests--
		r.conn.mu.Unlock()
		m := message{ID: r.id}
		if err == nil {
			m.Result, err = json.Marshal(result)
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				e = &Error{Code: CodeInternal, Message: err.Error()}
			}
			m.Result, m.Error = nil, e
		}
		r.conn.respond(m)
	})
}

// readSize is the size of a read, in bytes.
const readSize = 32 << 10
