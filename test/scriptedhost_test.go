package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// A scriptedHost is a host whose messages the test sends. It accepts every client, and
// answers each request with null.
type scriptedHost struct {
	*testing.T
	server *stack.Server

	mu    sync.Mutex
	conns map[string][]*scriptedConn // by clientId, in the order of connecting
}

// A scriptedConn is a client's connection, seen from a scriptedHost.
type scriptedConn struct {
	ws   *websocket.Conn
	done chan struct{} // closed when the connection has ended

	mu      sync.Mutex
	got     []string      // received requests and notifications
	blocked chan struct{} // the host reads nothing until this is closed; nil: the host reads
}

func newScriptedHost(t *testing.T) *scriptedHost {
	t.Helper()
	p := &scriptedHost{T: t, conns: map[string][]*scriptedConn{}}
	server, err := stack.Serve(p)
	if err != nil {
		t.Fatal(err)
	}
	p.server = server
	t.Cleanup(func() {
		server.Stop()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, list := range p.conns {
			for _, c := range list {
				_ = c.ws.CloseNow()
			}
		}
	})
	return p
}

// ServeHTTP implements [http.Handler].
func (p *scriptedHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	ws.SetReadLimit(-1)
	c := &scriptedConn{ws: ws, done: make(chan struct{})}
	defer close(c.done)
	defer func() { _ = ws.CloseNow() }()
	for {
		_, message, err := ws.Read(context.Background())
		if err != nil {
			return
		}
		c.hear(p, message)
		c.mu.Lock()
		blocked := c.blocked
		c.mu.Unlock()
		if blocked != nil {
			<-blocked
		}
	}
}

func (c *scriptedConn) hear(p *scriptedHost, message []byte) {
	env, err := ahp.Peek(message)
	if err != nil {
		p.Errorf("host got %.100q: %v", message, err)
		return
	}
	c.mu.Lock()
	c.got = append(c.got, string(message))
	c.mu.Unlock()
	if env.Kind == ahp.Request {
		_ = c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":null}`, env.ID))
	}
	// The test gets the connection only now, so its messages come after this answer.
	if m := string(env.Method); m == "initialize" || m == "reconnect" {
		id := [...]ahp.Member{{Name: "clientId"}}
		_ = ahp.Members(env.Params, id[:])
		clientID, _ := ahp.Text(id[0].Raw)
		p.mu.Lock()
		p.conns[clientID] = append(p.conns[clientID], c)
		p.mu.Unlock()
	}
}

// say sends a message to the client.
func (c *scriptedConn) say(message string) error {
	return c.ws.Write(context.Background(), websocket.MessageText, []byte(message))
}

// block makes the host read nothing from the connection until the test calls unblock.
func (c *scriptedConn) block() (unblock func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	blocked := make(chan struct{})
	c.blocked = blocked
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.blocked = nil
		close(blocked)
	})
}

func (c *scriptedConn) messages() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.got...)
}

// conn waits for the n-th connection of a clientId, counted from 0, and returns it.
func (p *scriptedHost) conn(clientID string, n int) *scriptedConn {
	p.Helper()
	for deadline := time.Now().Add(stepTime); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		list := p.conns[clientID]
		p.mu.Unlock()
		if len(list) > n {
			return list[n]
		}
		if time.Now().After(deadline) {
			p.Fatalf("client %s has %d connections to the host; want %d", clientID, len(list), n+1)
		}
	}
}

// greet connects a client to a host of a stack, over a line unless it is nil, and
// initializes it.
func greet(t *testing.T, s *stack.Stack, host, clientID string, l *line, onFrame func([]byte)) *refclient.Client {
	t.Helper()
	token, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	opts := refclient.Options{Token: token, OnFrame: onFrame, NoRecord: onFrame != nil, MaxFrame: 64 << 20}
	if l != nil {
		transport := &http.Transport{DialContext: l.dial, DisableKeepAlives: true}
		opts.HTTPClient = &http.Client{Transport: transport}
	}
	c, err := refclient.Dial(ctx, s.URL(host), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Abort() })
	if _, err := c.Call(ctx, "initialize", map[string]any{"channel": "ahp-root://", "clientId": clientID, "protocolVersions": []string{"0.9.0"}}); err != nil {
		t.Fatal(err)
	}
	return c
}

// A line is a client's network. A test can limit its speed and freeze it.
type line struct {
	rate int // most bytes that the client reads per second; 0: no limit

	mu     sync.Mutex
	frozen chan struct{} // nothing is read or written until this is closed; nil: the line is not frozen
}

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if l.rate > 0 {
		_ = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	}
	return &lineConn{conn, l}, nil
}

// freeze stops all reading and writing on the line until the test calls thaw.
func (l *line) freeze() (thaw func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	frozen := make(chan struct{})
	l.frozen = frozen
	return sync.OnceFunc(func() { close(frozen) })
}

func (l *line) wait() {
	l.mu.Lock()
	frozen := l.frozen
	l.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

type lineConn struct {
	net.Conn
	line *line
}

func (c *lineConn) Read(p []byte) (int, error) {
	c.line.wait()
	n, err := c.Conn.Read(p)
	if c.line.rate > 0 {
		time.Sleep(time.Duration(n) * time.Second / time.Duration(c.line.rate))
	}
	c.line.wait() // bytes that arrive while the line is frozen are kept
	return n, err
}

func (c *lineConn) Write(p []byte) (int, error) {
	c.line.wait()
	return c.Conn.Write(p)
}
