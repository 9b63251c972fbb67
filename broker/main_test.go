package broker_test

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	_ "ahprelay/test/fixedseed"
)

func TestMain(m *testing.M) {
	// The tests that call Parallel wait most of the time, so more of them than
	// there are processors can do so.
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// patience is how long tests wait for what must happen.
const patience = time.Minute

// natsConn is [nats.Connect] where it is not to matter how fast the machine is.
func natsConn(url string, opts ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(url, append(opts, nats.Timeout(patience))...)
}

// site is an embedded server and its keys.
type site struct {
	keys   *auth.Keys
	server *broker.Server
}

// newSite starts a server that listens on a port of the system's choice.
func newSite(t testing.TB) *site {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatalf("LoadKeys: %v", err)
	}
	s := &site{keys: keys}
	s.start(t, "127.0.0.1:0")
	return s
}

func (s *site) start(t testing.TB, listen string) {
	t.Helper()
	server, err := broker.StartServer(broker.ServerConfig{Keys: s.keys, Listen: listen, Tenants: acme})
	if err != nil {
		t.Fatalf("StartServer: %v", err)
	}
	s.server = server
	t.Cleanup(server.Close)
}

// acme is the tenant that sites know from the start.
var acme = map[string]map[string]time.Time{"acme": nil}

// tenants are those of a relay at the site's server.
func (s *site) tenants(t testing.TB) *broker.Tenants {
	t.Helper()
	tenants, err := broker.StartTenants(t.Context(), broker.TenantsConfig{
		Relay: broker.RelayConfig{Server: s.server, Keys: s.keys, Instance: broker.NewInstance()},
	})
	if err != nil {
		t.Fatalf("StartTenants: %v", err)
	}
	t.Cleanup(tenants.Close)
	return tenants
}

// open opens accounts and awaits that.
func open(t testing.TB, tenants *broker.Tenants, names ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, name := range names {
		if err := errors.Join(tenants.Open(name, nil), tenants.Await(ctx, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// restart stops the server and starts another on the same port.
func (s *site) restart(t *testing.T) {
	t.Helper()
	addr := s.server.Addr().String()
	s.server.Close()
	s.start(t, addr)
}

func (s *site) url() string { return "nats://" + s.server.Addr().String() }

// relay connects a relay within the process to the account of the tenant acme.
func (s *site) relay(t *testing.T) *broker.Conn {
	t.Helper()
	return dialRelay(t, broker.RelayConfig{Server: s.server, Keys: s.keys, Instance: broker.NewInstance(), Tenant: "acme"})
}

// relays connects a relay to the account of relays among themselves.
func (s *site) relays(t *testing.T) *broker.Conn {
	t.Helper()
	return dialRelay(t, broker.RelayConfig{Server: s.server, Keys: s.keys, Instance: broker.NewInstance()})
}

func dialRelay(t *testing.T, cfg broker.RelayConfig) *broker.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := broker.DialRelay(ctx, cfg)
	if err != nil {
		t.Fatalf("DialRelay: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// agentConfig is the configuration of a host-agent with a key of its own.
func (s *site) agentConfig(t testing.TB, tenant, host string, ttl time.Duration) broker.AgentConfig {
	t.Helper()
	return s.agentConfigAt(t, s.url(), tenant, host, ttl)
}

func (s *site) agentConfigAt(t testing.TB, url, tenant, host string, ttl time.Duration) broker.AgentConfig {
	t.Helper()
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatalf("NewAgentKey: %v", err)
	}
	return broker.AgentConfig{
		URLs: []string{url}, Tenant: tenant, Host: host, Instance: broker.NewInstance(), Sign: key.SignNonce,
		Credentials: func(context.Context) (string, error) {
			userJWT, _, err := s.keys.AgentUser(tenant, host, key.Public(), ttl)
			return userJWT, err
		},
	}
}

// dialAgent connects a host-agent and awaits the connection.
func dialAgent(t testing.TB, cfg broker.AgentConfig) *broker.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := broker.DialAgent(ctx, cfg)
	if err != nil {
		t.Fatalf("DialAgent: %v", err)
	}
	t.Cleanup(c.Close)
	if err := c.AwaitConnected(ctx); err != nil {
		t.Fatalf("AwaitConnected: %v", err)
	}
	return c
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatalf("still not so after %v: %s", patience, what)
		case <-tick.C:
		}
	}
}

// next returns what comes next, or ends the test.
func next[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s in %v", what, patience)
		panic("unreachable")
	}
}

// events are Events as channels.
type events struct {
	connected, reconnected chan time.Time
	disconnected, errs     chan error
	dropped                chan string
	retrying               chan error
}

func newEvents() (*events, broker.Events) {
	const room = 1000
	e := &events{
		connected: make(chan time.Time, room), reconnected: make(chan time.Time, room),
		disconnected: make(chan error, room), errs: make(chan error, room),
		dropped: make(chan string, room), retrying: make(chan error, room),
	}
	return e, broker.Events{
		Connected:    func(string) { e.connected <- time.Now() },
		Reconnected:  func(string) { e.reconnected <- time.Now() },
		Disconnected: func(err error) { e.disconnected <- err },
		Dropped:      func(subject string) { e.dropped <- subject },
		Error:        func(err error) { e.errs <- err },
		Retrying:     func(_ int, err error, _ time.Duration) { e.retrying <- err },
	}
}

// logLines is a handler that keeps what is logged.
type logLines struct {
	slog.Handler
	lines chan string
}

func (l logLines) Enabled(context.Context, slog.Level) bool { return true }

func (l logLines) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	select {
	case l.lines <- line:
		return nil
	default:
		return errors.New("log is full")
	}
}

// A freezer makes connections that can be frozen: what arrives is thrown away,
// and so is what is sent, while both ends stay open.
type freezer struct {
	mu    sync.Mutex
	conns []*freezable
}

type freezable struct {
	net.Conn
	frozen atomic.Bool
	closed chan struct{}
	once   sync.Once

	mu     sync.Mutex
	readBy time.Time
}

func (f *freezer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = append(f.conns, &freezable{Conn: c, closed: make(chan struct{})})
	return f.conns[len(f.conns)-1], nil
}

// freeze freezes the connections made so far.
func (f *freezer) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.frozen.Store(true)
	}
}

func (c *freezable) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if !c.frozen.Load() {
			return n, err
		}
		if err == nil {
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
			return 0, err
		}
		c.mu.Lock() // not even the end gets through
		wait := time.Until(c.readBy)
		c.mu.Unlock()
		select {
		case <-time.After(wait):
			return 0, os.ErrDeadlineExceeded
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
}

func (c *freezable) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = t
	return c.Conn.SetReadDeadline(t)
}

func (c *freezable) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *freezable) Write(p []byte) (int, error) {
	if c.frozen.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}
