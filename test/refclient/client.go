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

// Options configure a connection. A zero field means its default.
type Options struct {
	// Token is presented at the place TokenIn. Default: none.
	Token   string
	TokenIn TokenPlace

	// Header is sent with the WebSocket's handshake.
	Header http.Header

	// HTTPClient makes the handshake: for TLS, proxies and unix sockets.
	// Default: http.DefaultClient.
	HTTPClient *http.Client

	// MaxFrame is the size limit of a frame received. Default: 32 MiB.
	MaxFrame int64

	// Handlers answer the host's requests, by method. Each call has a
	// goroutine of its own. A method without one gets -32601.
	Handlers map[string]Handler

	// Unanswered leaves the host's requests to the caller, to be answered with
	// SendRaw.
	Unanswered bool

	// OnFrame is called with each frame, in the goroutine that reads. It may
	// keep the frame.
	OnFrame func(frame []byte)

	// NoRecord keeps no frames, for load tools.
	NoRecord bool
}

// A Handler answers a request of the host. An error that is an [*RPCError]
// goes out as it is, others as -32603. The ctx ends with the connection.
type Handler func(ctx context.Context, params json.RawMessage) (any, error)

// A TokenPlace is where a token stands in the WebSocket's handshake.
type TokenPlace int

const (
	InHeader      TokenPlace = iota // Authorization: Bearer …
	InAccessToken                   // ?access_token=…
	InTkn                           // ?tkn=…
	InSubprotocol                   // the subprotocols ahp, bearer.…
)

// ErrClosed reports that the connection has ended.
var ErrClosed = errors.New("connection closed")

// A HandshakeError is an HTTP answer in place of a WebSocket.
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

// A Client is one AHP connection.
type Client struct {
	// Set by start, then read-only.
	link link
	opts Options
	done chan struct{} // closed when the read loop has ended

	wg sync.WaitGroup // the read loop and the handlers

	mu        sync.Mutex // guards the fields below
	frames    [][]byte
	arrived   chan struct{} // closed and replaced with each frame
	pending   map[string]chan message
	lastID    int64
	clientSeq int64
	err       error // why the read loop ended
}

// Dial connects to the AHP host at a ws: or wss: URL. A host that answers with
// something else than a WebSocket gives a [*HandshakeError].
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

// NewStream returns a client that speaks one message a line, as over a
// process's standard input and output. It closes both ends.
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

// Close closes the connection in good order, and returns when no goroutine of
// the client is left. On a closed connection it waits only.
func (c *Client) Close() error {
	return c.end(c.link.Close)
}

// Abort drops the connection without a close frame, and returns like Close.
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

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended: nil while it is open, io.EOF or the
// link's own error afterwards.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// CloseStatus returns code and reason of the host's close frame, code -1 if
// there was none, or none yet.
func (c *Client) CloseStatus() (code int, reason string) {
	if e, ok := errors.AsType[websocket.CloseError](c.Err()); ok {
		return int(e.Code), e.Reason
	}
	return -1, ""
}

// Subprotocol returns the host's choice, or "".
func (c *Client) Subprotocol() string {
	if l, ok := c.link.(*wsLink); ok {
		return l.ws.Subprotocol()
	}
	return ""
}

// SendRaw sends a frame as it is. It blocks while the host does not read.
func (c *Client) SendRaw(frame []byte) error { return c.link.Send(frame) }

// SendBinary sends a binary frame. Over a stream there are none.
func (c *Client) SendBinary(frame []byte) error {
	l, ok := c.link.(*wsLink)
	if !ok {
		return errors.ErrUnsupported
	}
	return l.SendBinary(frame)
}

// readLoop takes frames until the connection ends.
func (c *Client) readLoop() {
	ctx, cancel := context.WithCancel(context.Background()) // for the handlers
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
	c.link.Abort() // frees what the link holds
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	close(c.done)
}

// Frames returns the frames received so far, in order. The caller owns the
// slice, not the frames.
func (c *Client) Frames() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([][]byte(nil), c.frames...)
}

// WaitFor returns the first frame that matches, of those received and those to
// come. It needs recorded frames.
func (c *Client) WaitFor(ctx context.Context, match func(frame []byte) bool) ([]byte, error) {
	frame, _, err := c.WaitAfter(ctx, 0, match)
	return frame, err
}

// WaitAfter is WaitFor without the first n frames. It also returns the count of frames
// up to the match: the n for the next call.
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
