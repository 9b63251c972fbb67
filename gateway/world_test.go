package gateway

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/routing"
	"ahprelay/test/membus"
)

// A world has a relay, and after startAgent also a host-agent and a host, in memory and
// on fake time. The test sets the registry's content.
type world struct {
	*testing.T
	keys    *auth.Keys
	keysDir string
	net     membus.Net
	server  *Server

	revoked *registry.Revocations

	mu     sync.Mutex
	host   registry.Host // empty: never enrolled
	lookup func()        // called by each lookup; may be nil
	conns  []*hostEnd
	refuse string // the reason why the host-agent does not connect to the host; empty: it connects
	silent bool   // the host-agent does not answer requests to connect
	seals  bool   // the host-agent's host is sealed

	stopAgent func()
	links     *link.AgentLinks // of the host-agent that was started last
	running   sync.WaitGroup
}

const (
	testTenant = "default"
	testHost   = "laptop"
)

// inWorld runs a test in a world with a host that is known, but away. It fails if the
// relay counts memory as used when all clients have gone.
func inWorld(t *testing.T, cfg Config, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		keys, err := auth.LoadKeys(dir)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, keys: keys, keysDir: dir, host: registry.Host{Tenant: testTenant, Name: testHost, State: registry.Offline, Reason: "asleep"}}
		cfg.Keys, cfg.Bus, cfg.Instance = keys, &w.net, "relay1"
		w.revoked, err = registry.LoadRevocations("", nil)
		if err != nil {
			t.Fatal(err)
		}
		origin, err := cfg.canvasOrigin()
		if err != nil {
			t.Fatal(err)
		}
		w.server = newServer(cfg.withDefaults(), origin, lookupFunc(w.registry), w.revoked)
		defer func() {
			w.server.Close()
			if b := w.server.budget; b.used.Load() != 0 || b.beside.Load() != 0 || b.conns.Load() != 0 {
				t.Errorf("at the end, %d bytes are counted as queued, and %d as used otherwise, %d of them for connections; want none", b.used.Load(), b.beside.Load(), b.conns.Load())
			}
			if w.stopAgent != nil {
				w.stopAgent()
			}
			w.running.Wait()
		}()
		test(w)
	})
}

// lookupFunc is a directory of hosts. A host that the function does not find is surely
// unknown.
type lookupFunc func(tenant, host string) (registry.Host, bool)

func (l lookupFunc) Lookup(tenant, host string) (registry.Host, bool) { return l(tenant, host) }

func (l lookupFunc) Find(_ context.Context, tenant, host string) error {
	if _, known := l(tenant, host); !known {
		return registry.ErrUnknownHost
	}
	return nil
}

func (w *world) registry(tenant, host string) (registry.Host, bool) {
	w.mu.Lock()
	known, look := w.host, w.lookup
	w.mu.Unlock()
	if look != nil {
		look()
	}
	return known, known.Name == host && known.Tenant == tenant
}

// setState changes the host's state in the registry, and informs the relay.
func (w *world) setState(state registry.State, agent, reason string) {
	w.mu.Lock()
	w.host.State, w.host.AgentInstance, w.host.Reason = state, agent, reason
	host := w.host
	w.mu.Unlock()
	w.server.hosts.changed(host)
}

// setSilent sets in the registry since when the host does not answer, and informs the
// relay. The zero Time means that the host answers.
func (w *world) setSilent(since time.Time) {
	w.mu.Lock()
	w.host.Silent = since
	host := w.host
	w.mu.Unlock()
	w.server.hosts.changed(host)
}

// setReleased takes the host offline in the registry, and records that an instance has
// released it or has crashed.
func (w *world) setReleased(agent, reason string) {
	w.mu.Lock()
	w.host.Released = agent
	w.mu.Unlock()
	w.setState(registry.Offline, "", reason)
}

// startAgent connects a host-agent with a host to the relay, and registers the host as
// online.
func (w *world) startAgent(cfg routing.AgentEndConfig) {
	cfg.Instance, cfg.Connect = "agent1", w.connect
	agent := routing.NewAgentEnd(cfg)
	hello := agent.Hello()
	hello.Features = []string{link.FeatureAuthority, link.FeatureMove}
	if w.seals {
		hello.Features = append(hello.Features, link.FeatureSealed)
	}
	links := link.NewAgentLinks(&w.net, link.AgentLinksConfig{
		Tenant: testTenant, Host: testHost, Agent: "agent1", Hello: hello, Log: slog.New(slog.DiscardHandler),
		Trust: func() ([]ed25519.PublicKey, error) { return []ed25519.PublicKey{w.keys.Links().RelayKeys()[0]}, nil },
	}, agent)
	ctx, cancel := context.WithCancel(context.Background())
	w.stopAgent, w.links = cancel, links
	w.running.Go(func() { _ = links.Run(ctx) })
	synctest.Wait()
	w.setState(registry.Online, "agent1", "")
}

// A hostEnd is the host's end of a client's connection. It records the client's
// messages and close.
type hostEnd struct {
	w    *world
	conn *routing.AgentConn
	open routing.Open

	mu      sync.Mutex
	stuck   bool          // the host reads nothing
	slow    time.Duration // the host's time per message
	untaken int           // credit for unread messages
	got     []string
	closed  bool
	code    ahp.CloseCode
	reason  string
}

func (w *world) connect(conn *routing.AgentConn, open routing.Open) routing.HostConn {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &hostEnd{w: w, conn: conn, open: open}
	w.conns = append(w.conns, h)
	refuse := w.refuse
	switch {
	case w.silent:
	case refuse != "":
		w.running.Go(func() { conn.Close(ahp.CloseHostOffline, refuse) })
	default:
		w.running.Go(func() { _ = conn.Opened() })
	}
	return h
}

// Deliver implements [routing.HostConn].
func (h *hostEnd) Deliver(message []byte, _ bool, credit int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, string(message))
	if h.stuck {
		h.untaken += credit
		return
	}
	h.w.running.Go(func() {
		time.Sleep(h.slow)
		h.conn.Written(credit)
	})
}

// Flush implements [routing.HostConn].
func (h *hostEnd) Flush() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stuck {
		h.w.running.Go(func() { _ = h.conn.Flushed(false) })
	}
}

// Move implements [routing.Mover].
func (h *hostEnd) Move(routing.Move) { h.w.running.Go(func() { _ = h.conn.Flushed(true) }) }

// Closed implements [routing.HostConn].
func (h *hostEnd) Closed(code ahp.CloseCode, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed, h.code, h.reason = true, code, reason
}

func (h *hostEnd) messages() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.got...)
}

// wantClosed fails unless the host has seen the connection's close with this code.
func (h *hostEnd) wantClosed(code ahp.CloseCode) {
	h.w.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed || h.code != code {
		h.w.Errorf("the connection at the host: closed = %v, with %d %q; want it closed with %d", h.closed, h.code, h.reason, code)
	}
}

// send sends a message from the host to the client.
func (h *hostEnd) send(message string) {
	h.w.Helper()
	if err := h.conn.FromHost([]byte(message), false, nil); err != nil {
		h.w.Errorf("sending a message: %v; want no error", err)
	}
}

// hostConn waits up to a minute for the n-th connection to the host, and returns it.
func (w *world) hostConn(n int) *hostEnd {
	w.Helper()
	for range 600 {
		synctest.Wait()
		w.mu.Lock()
		conns := w.conns
		w.mu.Unlock()
		if len(conns) >= n {
			return conns[n-1]
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.Fatalf("the host has no connection number %d after the wait; want it opened", n)
	return nil
}

// A handshake is an HTTP transport that calls the handler in memory. It returns the
// client's end of the connection as the response's body, as WebSocket clients require.
type handshake struct{ handler http.Handler }

// RoundTrip implements [http.RoundTripper].
func (h handshake) RoundTrip(r *http.Request) (*http.Response, error) {
	client, server := net.Pipe()
	w := &hijackable{header: http.Header{}, conn: server}
	r.RemoteAddr = "192.0.2.1:1234"
	h.handler.ServeHTTP(w, r)
	response := &http.Response{StatusCode: w.status, Header: w.header, Body: client, Request: r}
	if w.status != http.StatusSwitchingProtocols {
		_ = errors.Join(client.Close(), server.Close())
		response.Body = io.NopCloser(&w.body)
	}
	return response, nil
}

type hijackable struct {
	header http.Header
	status int
	body   bytes.Buffer
	conn   net.Conn
}

func (w *hijackable) Header() http.Header    { return w.header }
func (w *hijackable) WriteHeader(status int) { w.status = status }
func (w *hijackable) Write(p []byte) (int, error) {
	w.status = cmp.Or(w.status, http.StatusOK)
	return w.body.Write(p)
}
func (w *hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return w.conn, bufio.NewReadWriter(bufio.NewReader(w.conn), bufio.NewWriter(w.conn)), nil
}

// token returns a client token for all hosts. change, unless nil, modifies the token
// before.
func (w *world) token(change func(*auth.Client)) string {
	w.Helper()
	c := auth.Client{
		Tenant: testTenant, Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite,
		Expires: time.Now().Add(24 * time.Hour),
	}
	if change != nil {
		change(&c)
	}
	token, err := w.keys.Tokens().IssueClient(c)
	if err != nil {
		w.Fatal(err)
	}
	return token
}

// A clientEnd is the client's end of a connection. It reads and records all messages.
type clientEnd struct {
	w  *world
	ws *websocket.Conn

	mu     sync.Mutex
	got    []string
	closed *websocket.CloseError // nil while open
	ended  error
}

// dial connects a client, which begins to read.
func (w *world) dial(token string) *clientEnd {
	w.Helper()
	c := &clientEnd{w: w, ws: w.handshake(token)}
	w.running.Go(c.readLoop)
	return c
}

// dialPacked is dial with compression.
func (w *world) dialPacked(token string) *clientEnd {
	w.Helper()
	c := &clientEnd{w: w, ws: w.handshakeWith(token, websocket.CompressionNoContextTakeover)}
	w.running.Go(c.readLoop)
	return c
}

// handshake connects a client, and returns its WebSocket, from which nothing reads.
func (w *world) handshake(token string) *websocket.Conn {
	w.Helper()
	return w.handshakeWith(token, websocket.CompressionDisabled)
}

func (w *world) handshakeWith(token string, compression websocket.CompressionMode) *websocket.Conn {
	w.Helper()
	return w.handshakeAs(&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}, CompressionMode: compression})
}

func (w *world) handshakeAs(options *websocket.DialOptions) *websocket.Conn {
	w.Helper()
	options.HTTPClient = &http.Client{Transport: handshake{w.server.Handler()}}
	ws, _, err := websocket.Dial(context.Background(), "ws://relay/ahp/"+testHost, options)
	if err != nil {
		w.Fatal(err)
	}
	ws.SetReadLimit(-1)
	return ws
}

// upgrade returns the HTTP request for a client's handshake.
func (w *world) upgrade(token string) *http.Request {
	w.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://relay/ahp/"+testHost, nil)
	if err != nil {
		w.Fatal(err)
	}
	r.Header = http.Header{
		"Authorization": {"Bearer " + token}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"},
		"Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
	}
	return r
}

// rawDial connects a client, and returns the network connection after the handshake.
// Nothing reads from it.
func (w *world) rawDial(token string) net.Conn {
	w.Helper()
	response, err := handshake{w.server.Handler()}.RoundTrip(w.upgrade(token))
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		w.Fatalf("handshake: %v, HTTP %d; want 101", err, response.StatusCode)
	}
	return response.Body.(net.Conn)
}

func (c *clientEnd) readLoop() {
	for {
		_, message, err := c.ws.Read(context.Background())
		c.mu.Lock()
		if err != nil {
			c.ended = err
			var closed websocket.CloseError
			if errors.As(err, &closed) {
				c.closed = &closed
			}
			c.mu.Unlock()
			_ = c.ws.CloseNow()
			return
		}
		c.got = append(c.got, string(message))
		c.mu.Unlock()
	}
}

// send sends a message from the client.
func (c *clientEnd) send(message string) {
	c.w.Helper()
	if err := c.ws.Write(context.Background(), websocket.MessageText, []byte(message)); err != nil {
		c.w.Errorf("sending a message: %v; want no error", err)
	}
}

// request sends a request from the client, and returns the request's text.
func (c *clientEnd) request(id int, method string) string {
	c.w.Helper()
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"channel":"ahp-root://"}}`, id, method)
	c.send(message)
	return message
}

func (c *clientEnd) messages() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.got...)
}

// wantMessages fails unless the client has received exactly these messages.
func (c *clientEnd) wantMessages(want ...string) {
	c.w.Helper()
	synctest.Wait()
	if got := c.messages(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		c.w.Errorf("client got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func (c *clientEnd) wantOpen() {
	c.w.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		c.w.Errorf("client's connection has ended: %v; want it open", c.ended)
	}
}

// wantClosed fails unless the relay has closed the client's connection with code and
// reason.
func (c *clientEnd) wantClosed(code ahp.CloseCode, reason string) {
	c.w.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		c.w.Errorf("client's connection: %v; want close %d %q", c.ended, code, reason)
	} else if ahp.CloseCode(c.closed.Code) != code || c.closed.Reason != reason {
		c.w.Errorf("client was closed with %d %q; want %d %q", c.closed.Code, c.closed.Reason, code, reason)
	}
}

// wantGone fails if the relay still has a client, counts memory for a client, or awaits
// a report on a client.
func (w *world) wantGone() {
	w.Helper()
	synctest.Wait()
	if n := len(w.server.hosts.all()); n != 0 {
		w.Errorf("%d clients are connected; want none", n)
	}
	if n := w.server.budget.conns.Load(); n != 0 {
		w.Errorf("%d bytes are counted for clients that are gone; want none", n)
	}
	w.server.reports.mu.Lock()
	defer w.server.reports.mu.Unlock()
	if n := len(w.server.reports.clients); n != 0 {
		w.Errorf("the relay still waits for the reports of %d clients; want none", n)
	}
}

// answerTo returns a host's response to a request.
func answerTo(id int) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":null}`, id) }

// accept has the host answer the client's initialize, which has this id.
func (h *hostEnd) accept(id int) {
	h.w.Helper()
	if err := h.conn.Ready(); err != nil {
		h.w.Error(err)
	}
	h.send(answerTo(id))
}
