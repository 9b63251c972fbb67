package stack

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/coder/websocket"

	"ahprelay/test/refclient"
)

// A Tap forwards WebSocket messages between clients and an AHP host, and records them.
type Tap struct {
	upstream string
	server   *Server

	mu     sync.Mutex
	conns  []*TapConn
	closed bool
	wg     sync.WaitGroup
}

// A TapConn is a connection through a Tap, with its messages.
type TapConn struct {
	ended atomic.Bool

	mu       sync.Mutex
	toHost   [][]byte
	toClient [][]byte
}

// NewTap returns a Tap for the AHP host at a URL.
func NewTap(upstream string) (*Tap, error) {
	t := &Tap{upstream: upstream}
	var err error
	t.server, err = Serve(t)
	return t, err
}

// URL returns the URL at which the Tap accepts connections.
func (t *Tap) URL() string { return t.server.URL() }

// Conns returns all connections so far, in the order in which they were opened. It
// leaves out connections by a host-agent's monitor.
func (t *Tap) Conns() []*TapConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*TapConn
	for _, c := range t.conns {
		if first := c.first(); first != nil && !isMonitor(first) {
			list = append(list, c)
		}
	}
	return list
}

func (c *TapConn) first() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.toHost) == 0 {
		return nil
	}
	return c.toHost[0]
}

// isMonitor reports whether a connection with this first message belongs to a
// host-agent's monitor.
func isMonitor(first []byte) bool {
	return string(first) == `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"channel":"ahp-root://"}}`
}

// ToHost returns all messages to the host so far, without the host-agent's own
// requests.
func (c *TapConn) ToHost() [][]byte { return c.clients(&c.toHost) }

// ToClient returns all messages from the host so far, without the answers to the
// host-agent's own requests.
func (c *TapConn) ToClient() [][]byte { return c.clients(&c.toClient) }

func (c *TapConn) clients(list *[][]byte) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(*list), refclient.IsHostAgents)
}

// maxFrame is larger than every message in a test.
const maxFrame = 256 << 20

// ServeHTTP implements [http.Handler].
func (t *Tap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	host, response, err := websocket.Dial(ctx, t.upstream+r.URL.RequestURI(), &websocket.DialOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		status := http.StatusBadGateway
		if response != nil {
			status = response.StatusCode
		}
		http.Error(w, "tap: host does not answer", status)
		return
	}
	client, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		_ = host.CloseNow()
		return
	}
	c := &TapConn{}
	if !t.add(c) {
		_ = errors.Join(client.CloseNow(), host.CloseNow())
		return
	}
	defer t.wg.Done()
	host.SetReadLimit(maxFrame)
	client.SetReadLimit(maxFrame)
	var wg sync.WaitGroup
	wg.Go(func() { c.pass(client, host, &c.toClient) })
	wg.Go(func() { c.pass(host, client, &c.toHost) })
	wg.Wait()
	c.ended.Store(true)
}

// Ended reports whether the connection has ended.
func (c *TapConn) Ended() bool { return c.ended.Load() }

func (t *Tap) add(c *TapConn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Add(1)
	t.conns = append(t.conns, c)
	return true
}

// pass forwards and records messages until either end closes, and then closes the other
// end.
func (c *TapConn) pass(to, from *websocket.Conn, kept *[][]byte) {
	for {
		kind, message, err := from.Read(context.Background())
		if err != nil {
			var closed websocket.CloseError
			if errors.As(err, &closed) && closed.Code != websocket.StatusNoStatusRcvd {
				_ = to.Close(closed.Code, closed.Reason)
			} else {
				_ = to.CloseNow()
			}
			return
		}
		c.mu.Lock()
		*kept = append(*kept, message)
		c.mu.Unlock()
		if to.Write(context.Background(), kind, message) != nil {
			_ = from.CloseNow()
			return
		}
	}
}

// Cut makes the Tap refuse new connections until Restore, so the host-agent finds no
// host. Open connections end only when the host ends them.
func (t *Tap) Cut() { t.server.Stop() }

// Restore makes the Tap accept connections again.
func (t *Tap) Restore() error { return t.server.Start() }

// Close makes the Tap accept no more connections. An open connection ends when either
// end closes it.
func (t *Tap) Close() {
	t.server.Stop()
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
}
