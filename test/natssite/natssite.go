// Package natssite helps to test with NATS: it starts embedded servers with keys,
// connects relays and host-agents to them, and freezes connections.
package natssite

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/broker/link"
	"ahprelay/test/faultproxy"
)

// Patience limits how long tests wait for an event that must happen.
const Patience = 3 * time.Minute

// Connect is [nats.Connect] with a timeout for slow machines. It tries again when the login took so
// long that the server has pinged meanwhile: NATS's client does not expect a ping there.
func Connect(url string, opts ...nats.Option) (*nats.Conn, error) {
	for {
		nc, err := nats.Connect(url, append(opts, nats.Timeout(Patience))...)
		if err == nil || !strings.Contains(err.Error(), "got 'PING'") {
			return nc, err
		}
	}
}

// A Site is an embedded server with its keys.
type Site struct {
	Keys   *auth.Keys
	Store  string // directory of the server's store
	Server *embedded.Server
}

// New starts a server. No other program takes its port while the server restarts.
func New(t testing.TB) *Site {
	t.Helper()
	s := &Site{Keys: NewKeys(t), Store: t.TempDir()}
	s.Start(t, FreePort(t))
	return s
}

func (s *Site) Start(t testing.TB, listen string) {
	t.Helper()
	server, err := embedded.Start(embedded.Config{Keys: s.Keys, Listen: listen, Tenants: Acme, Store: s.Store})
	if err != nil {
		t.Fatalf("StartServer: %v", err)
	}
	s.Server = server
	t.Cleanup(server.Close)
}

// Acme is the only tenant of a new site.
var Acme = map[string]map[string]time.Time{"acme": nil}

// Tenants starts the tenants of a relay at the site's server.
func (s *Site) Tenants(t testing.TB) *broker.Tenants {
	t.Helper()
	tenants, err := broker.StartTenants(t.Context(), broker.TenantsConfig{
		Relay: broker.RelayDialConfig{Server: s.Server, Keys: s.Keys, Instance: link.NewInstance()},
	})
	if err != nil {
		t.Fatalf("StartTenants: %v", err)
	}
	t.Cleanup(tenants.Close)
	return tenants
}

// Open opens the accounts of tenants, and waits until they are usable.
func Open(t testing.TB, tenants *broker.Tenants, names ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	for _, name := range names {
		if err := errors.Join(tenants.Open(name, nil), tenants.Await(ctx, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// Restart stops the server, and starts a new server at the same port.
func (s *Site) Restart(t *testing.T) {
	t.Helper()
	addr := s.Server.Addr().String()
	s.Server.Close()
	s.Start(t, addr)
}

func (s *Site) URL() string { return "nats://" + s.Server.Addr().String() }

// Relay connects a relay in this process to the account of the tenant acme.
func (s *Site) Relay(t *testing.T) *broker.Conn {
	t.Helper()
	return DialRelay(t, broker.RelayDialConfig{Server: s.Server, Keys: s.Keys, Instance: link.NewInstance(), Tenant: "acme"})
}

// Relays connects a relay to the account that relays use among themselves.
func (s *Site) Relays(t *testing.T) *broker.Conn {
	t.Helper()
	return DialRelay(t, broker.RelayDialConfig{Server: s.Server, Keys: s.Keys, Instance: link.NewInstance()})
}

func DialRelay(t *testing.T, cfg broker.RelayDialConfig) *broker.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	c, err := broker.DialRelay(ctx, cfg)
	if err != nil {
		t.Fatalf("DialRelay: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// AgentConfig returns the configuration of a host-agent that has its own key and
// credentials valid for ttl.
func (s *Site) AgentConfig(t testing.TB, tenant, host string, ttl time.Duration) broker.AgentDialConfig {
	t.Helper()
	return s.AgentConfigAt(t, s.URL(), tenant, host, ttl)
}

func (s *Site) AgentConfigAt(t testing.TB, url, tenant, host string, ttl time.Duration) broker.AgentDialConfig {
	t.Helper()
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatalf("NewAgentKey: %v", err)
	}
	return broker.AgentDialConfig{
		URLs: []string{url}, Tenant: tenant, Host: host, Instance: link.NewInstance(), Sign: key.SignNonce,
		Credentials: func(context.Context) (string, error) {
			userJWT, _, err := s.Keys.Authority().AgentUser(tenant, host, key.Public(), ttl)
			return userJWT, err
		},
	}
}

// DialAgent connects a host-agent and waits until it is connected.
func DialAgent(t testing.TB, cfg broker.AgentDialConfig) *broker.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
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

// Eventually polls holds until it returns true. It fails the test after Patience. The
// pause between two polls is a twentieth of the time waited so far, from 5 ms to 250 ms:
// on a busy machine, polling must not take the processors from the event.
func Eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); {
		waited := time.Since(began)
		if waited > Patience {
			t.Fatalf("still not so after %v: %s", Patience, what)
		}
		time.Sleep(min(max(waited/20, 5*time.Millisecond), 250*time.Millisecond))
	}
}

// Enrol enrols a host at a registry. Like a host-agent, it tries again while the store cannot be
// used: on a busy machine, or directly after an election, a write may take too long.
func Enrol(t *testing.T, r registry, tenant, host string) {
	t.Helper()
	var err error
	defer func() {
		if err != nil {
			t.Logf("the last enrolment of %s/%s: %v", tenant, host, err)
		}
	}()
	Eventually(t, tenant+"/"+host+" is enrolled", func() bool { err = r.Enrol(tenant, host); return err == nil })
}

type registry interface {
	Enrol(tenant, host string) error
}

// Next waits for the next value from a channel. It ends the test after Patience.
func Next[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(Patience):
		t.Fatalf("no %s in %v", what, Patience)
		panic("unreachable")
	}
}

// EventChannels receive broker.Events, each kind on its own channel.
type EventChannels struct {
	Connected, Reconnected chan time.Time
	Disconnected, Errs     chan error
	Dropped                chan string
	Retrying               chan error
}

func NewEvents() (*EventChannels, broker.Events) {
	const room = 1000
	e := &EventChannels{
		Connected: make(chan time.Time, room), Reconnected: make(chan time.Time, room),
		Disconnected: make(chan error, room), Errs: make(chan error, room),
		Dropped: make(chan string, room), Retrying: make(chan error, room),
	}
	return e, broker.Events{
		Connected:    func(string) { e.Connected <- time.Now() },
		Reconnected:  func(string) { e.Reconnected <- time.Now() },
		Disconnected: func(err error) { e.Disconnected <- err },
		Dropped:      func(subject string) { e.Dropped <- subject },
		Error:        func(err error) { e.Errs <- err },
		Retrying:     func(_ int, err error, _ time.Duration) { e.Retrying <- err },
	}
}

// LogLines is a slog.Handler that sends each log line to a channel.
type LogLines struct {
	slog.Handler
	Lines chan string
}

func (l LogLines) Enabled(context.Context, slog.Level) bool { return true }

func (l LogLines) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	select {
	case l.Lines <- line:
		return nil
	default:
		return errors.New("log is full")
	}
}

// A Freezer makes connections that a test can freeze. A frozen connection stays open at
// both ends, and its traffic is discarded in both directions.
type Freezer struct {
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

func (f *Freezer) Dial(ctx context.Context, network, address string) (net.Conn, error) {
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

// Freeze freezes all connections that the Freezer has made so far.
func (f *Freezer) Freeze() {
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
		c.mu.Lock() // even the other end's close must not arrive
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

// NewKeys makes new keys for relays.
func NewKeys(t testing.TB) *auth.Keys {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatalf("LoadKeys: %v", err)
	}
	return keys
}

func Subscribe(t *testing.T, c *broker.Conn, subject string) chan *nats.Msg {
	t.Helper()
	in := make(chan *nats.Msg, 10000)
	cancel, err := c.Subscribe(subject, in)
	if err != nil {
		t.Fatalf("Subscribe: %v", err)
	}
	t.Cleanup(cancel)
	return in
}

// WantPassage sends messages from a to b until one arrives.
func WantPassage(t *testing.T, a, b *broker.Conn, subject string) {
	t.Helper()
	in := Subscribe(t, b, subject)
	Eventually(t, "a message on "+subject, func() bool {
		if err := a.Publish(subject, []byte("x")); err != nil {
			return false
		}
		select {
		case <-in:
			return true
		case <-time.After(10 * time.Millisecond):
			return false
		}
	})
}

func Cluster(listen string, routes ...string) embedded.Cluster {
	return embedded.Cluster{Listen: listen, Routes: routes}
}

// Watched returns the configuration with events, and the channels that receive them.
func Watched(cfg broker.AgentDialConfig) (*EventChannels, broker.AgentDialConfig) {
	evs, tell := NewEvents()
	cfg.Events = tell
	return evs, cfg
}

// FreePort returns an address at which nothing listens: see [faultproxy.FreeAddress].
func FreePort(t testing.TB) string {
	t.Helper()
	address, err := faultproxy.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}
