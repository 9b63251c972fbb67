package refclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/coder/websocket"
)

// Options configure a connection. A field's zero value means its default.
type Options struct {
	// Token is sent in the handshake, at the place TokenIn. Default: no token.
	Token   string
	TokenIn TokenPlace

	// Header is added to the handshake.
	Header http.Header

	// HTTPClient performs the handshake. A test may set it for TLS, a proxy or a Unix
	// socket. Default: http.DefaultClient.
	HTTPClient *http.Client

	// MaxFrame limits the size of a received frame. Default: 32 MiB.
	MaxFrame int64

	// Handlers answer the host's requests, by method. Each call runs in its own goroutine.
	// For a method without a handler, the client answers with error -32601.
	Handlers map[string]Handler

	// Unanswered makes the client answer no request from the host. The caller answers with
	// SendRaw.
	Unanswered bool

	// OnFrame is called with each frame, in the goroutine that reads. It may keep the
	// frame.
	OnFrame func(frame []byte)

	// OnSend is called with each frame before it is sent.
	OnSend func(frame []byte)

	// NoRecord makes the client keep no frames, to save memory in load tools.
	NoRecord bool
}

// A Handler answers a request from the host. An error that is an [*RPCError] is sent
// unchanged, and any other error with code -32603. ctx ends with the connection.
type Handler func(ctx context.Context, params json.RawMessage) (any, error)

// A TokenPlace is a place in the handshake where a client can send a token.
type TokenPlace int

const (
	InHeader      TokenPlace = iota // Authorization: Bearer …
	InAccessToken                   // ?access_token=…
	InTkn                           // ?tkn=…
	InSubprotocol                   // the subprotocols ahp, bearer.…
)

// ErrClosed reports that the connection has ended.
var ErrClosed = errors.New("connection closed")

// A HandshakeError is an HTTP response other than a WebSocket's.
type HandshakeError struct {
	Status int
	Header http.Header
	Body   []byte // at most 4 KiB
	err    error
}

// Error implements error.
func (e *HandshakeError) Error() string { return fmt.Sprintf("HTTP %d: %v", e.Status, e.err) }

// Unwrap returns the WebSocket library's error.
func (e *HandshakeError) Unwrap() error { return e.err }

// A Client is an AHP connection.
type Client struct {
	// start sets these fields, and nothing changes them later.
	link link
	opts Options
	done chan struct{} // closed when readLoop has ended

	wg sync.WaitGroup // waits for readLoop and the handlers

	mu        sync.Mutex // guards the fields below
	frames    [][]byte
	arrived   chan struct{} // closed at each frame, and then replaced
	pending   map[string]chan message
	lastID    int64
	clientSeq int64
	err       error // why readLoop has ended
}

// Dial connects to the AHP host at a ws: or wss: URL. If the host answers without a
// WebSocket, Dial returns a [*HandshakeError].
func Dial(ctx context.Context, url string, opts Options) (*Client, error) {
	if opts.MaxFrame == 0 {
		opts.MaxFrame = 32 << 20
	}
	l, err := dialWebSocket(ctx, url, opts)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", redact(url), err)
	}
	return start(l, opts), nil
}

// NewStream returns a client that reads from r and writes to w, one message a line, as
// with a process's standard output and input. The client closes both.
func NewStream(r io.ReadCloser, w io.WriteCloser, opts Options) *Client {
	return start(&lineLink{r: r, in: bufio.NewReader(r), w: w}, opts)
}

func start(l link, opts Options) *Client {
	c := &Client{
		link:    l,
		opts:    opts,
		done:    make(chan struct{}),
		arrived: make(chan struct{}),
		pending: make(map[string]chan message),
	}
	c.wg.Go(c.readLoop)
	return c
}

// Close closes the connection in order, and waits until all goroutines of the client
// have ended. If the connection has ended, Close only waits.
func (c *Client) Close() error {
	return c.end(c.link.Close)
}

// Abort drops the connection without a close frame, and waits as Close does.
func (c *Client) Abort() error {
	return c.end(c.link.Abort)
}

func (c *Client) end(closeLink func() error) error {
	select {
	case <-c.done:
		closeLink = c.link.Abort
	default:
	}
	err := closeLink()
	c.wg.Wait()
	if websocket.CloseStatus(err) != -1 || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// Done returns a channel that is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns nil while the connection is open. Afterwards it returns why the
// connection ended: io.EOF or another error.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// CloseStatus returns the code and the reason of the host's close frame. Without a
// close frame, the code is -1.
func (c *Client) CloseStatus() (code int, reason string) {
	if e, ok := errors.AsType[websocket.CloseError](c.Err()); ok {
		return int(e.Code), e.Reason
	}
	return -1, ""
}

// Subprotocol returns the subprotocol that the host has chosen, or "".
func (c *Client) Subprotocol() string {
	if l, ok := c.link.(*wsLink); ok {
		return l.ws.Subprotocol()
	}
	return ""
}

// SendRaw sends a frame unchanged. It blocks while the host does not read.
func (c *Client) SendRaw(frame []byte) error {
	if c.opts.OnSend != nil {
		c.opts.OnSend(frame)
	}
	return c.link.Send(frame)
}

// SendBinary sends a binary frame. It fails on a client from NewStream.
func (c *Client) SendBinary(frame []byte) error {
	l, ok := c.link.(*wsLink)
	if !ok {
		return errors.ErrUnsupported
	}
	return l.SendBinary(frame)
}

// readLoop handles frames until the connection ends.
func (c *Client) readLoop() {
	ctx, cancel := context.WithCancel(context.Background()) // ctx of the handlers
	defer cancel()
	for {
		frame, err := c.link.Recv()
		if err != nil {
			c.finish(err)
			return
		}
		c.record(frame)
		if c.opts.OnFrame != nil {
			c.opts.OnFrame(frame)
		}
		c.dispatch(ctx, frame)
		c.announce()
	}
}

func (c *Client) record(frame []byte) {
	if c.opts.NoRecord {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames = append(c.frames, frame)
}

// announce wakes the goroutines that wait for a frame.
func (c *Client) announce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.arrived)
	c.arrived = make(chan struct{})
}

func (c *Client) finish(err error) {
	c.link.Abort() // frees what the connection holds
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	close(c.done)
}

// Frames returns all frames that the client has received so far, in order. The caller
// may change the slice, and not the frames.
func (c *Client) Frames() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([][]byte(nil), c.frames...)
}

// WaitFor returns the first frame for which match is true, among all frames received so
// far and later. It needs recorded frames, so NoRecord must be false.
func (c *Client) WaitFor(ctx context.Context, match func(frame []byte) bool) ([]byte, error) {
	frame, _, err := c.WaitAfter(ctx, 0, match)
	return frame, err
}

// WaitAfter is WaitFor without the first n frames. It also returns the number of frames
// up to the match, which a further call can pass as n.
func (c *Client) WaitAfter(ctx context.Context, n int, match func(frame []byte) bool) ([]byte, int, error) {
	for {
		c.mu.Lock()
		frames, arrived := c.frames, c.arrived
		c.mu.Unlock()
		for ; n < len(frames); n++ {
			if match(frames[n]) {
				return frames[n], n + 1, nil
			}
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, n, fmt.Errorf("wait for a frame after %d: %w", n, context.Cause(ctx))
		case <-c.done:
			if c.frameCount() == n {
				return nil, n, fmt.Errorf("wait for a frame after %d: %w: %w", n, ErrClosed, c.Err())
			}
		}
	}
}

func (c *Client) frameCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.frames)
}
