package browser_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/contentproxy"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/refhost"
)

// A stack is a whole path in this process: relay – NATS – host-agent – demo
// host. In front of the relay stands a proxy that can cut connections.
type stack struct {
	t     *testing.T
	relay *gateway.Relay
	proxy *cutter
	host  *demoHost
	cfg   stackConfig
}

const hostName = "demo"

// A stackConfig is what a stack is beyond the usual.
type stackConfig struct {
	canvases []refhost.Canvas    // of the host, beside those that all tests have
	mcp      []refhost.MCPServer // of the host; nil for the demo's
	replay   int                 // actions that the host can replay; 0 for the usual
	byURL    bool                // canvases have origins of their own
	loopback contentproxy.Config // what of the host's machine canvases may show
}

func startStack(t *testing.T) *stack { return startStackWith(t, stackConfig{}) }

func startStackWith(t *testing.T, cfg stackConfig) *stack {
	t.Helper()
	relayCfg := gateway.RelayConfig{DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: gateway.NoListener}
	if cfg.byURL {
		relayCfg.Gateway.CanvasDomain = "http://localhost:0"
	}
	relay, err := gateway.StartRelay(t.Context(), relayCfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	s := &stack{t: t, relay: relay, proxy: startCutter(t, relay.URL()[len("http://"):])}
	s.cfg = cfg
	s.host = startHost(t, "127.0.0.1:0", cfg)
	t.Cleanup(func() { s.host.kill() })
	s.startAgent()
	return s
}

func (s *stack) startAgent() {
	t := s.t
	token, err := s.relay.Keys().IssueHost(auth.Enrolment{Tenant: "default", Host: hostName, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := hostagent.New(hostagent.Config{
		Relays: []string{s.relay.URL()}, Token: func() (string, error) { return token, nil },
		Upstream: hostagent.Upstream{URL: "ws://" + s.host.address}, Canvas: s.cfg.loopback,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := agent.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("host-agent: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// token issues a client token that allows everything.
func (s *stack) token(ttl time.Duration) string {
	s.t.Helper()
	return s.tokenWith(func(c *auth.Client) { c.Expires = time.Now().Add(ttl) })
}

// tokenWith issues one that is changed.
func (s *stack) tokenWith(change func(*auth.Client)) string {
	s.t.Helper()
	c := auth.Client{
		Tenant: "default", Subject: "browser", Hosts: []string{hostName}, Access: auth.AccessWrite,
		Expires: time.Now().Add(time.Hour),
	}
	change(&c)
	token, err := s.relay.Keys().IssueClient(c)
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

// console is the address that a user opens.
func (s *stack) console(token string) string {
	return "http://" + s.proxy.Addr().String() + "/#" + url.Values{"host": {hostName}, "token": {token}}.Encode()
}

// restartHost starts a host where the killed one was. It knows the demo's
// sessions, and nothing else of the past.
func (s *stack) restartHost() { s.host = startHost(s.t, s.host.address, s.cfg) }

// A demoHost is a demo host on a TCP address.
type demoHost struct {
	*refhost.Host
	address string
	kill    func() // ends it as the end of its process would
}

func startHost(t *testing.T, address string, cfg stackConfig) *demoHost {
	t.Helper()
	host, err := refhost.New(refhost.Config{Demo: true, Canvases: slices.Concat(demoCanvases, cfg.canvases), MCP: cfg.mcp, ReplayBuffer: cfg.replay})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	conns := &connSet{Listener: l}
	server := &http.Server{Handler: host, ReadHeaderTimeout: 10 * time.Second}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(conns) })
	return &demoHost{Host: host, address: l.Addr().String(), kill: sync.OnceFunc(func() {
		_ = l.Close()
		conns.cut()
		_ = server.Close()
		_ = host.Close()
		wg.Wait()
	})}
}

// A connSet is a listener that knows its connections.
type connSet struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (s *connSet) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err == nil {
		s.mu.Lock()
		s.conns = append(s.conns, conn)
		s.mu.Unlock()
	}
	return conn, err
}

// cut ends all connections without a word.
func (s *connSet) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	s.conns = nil
}

// A cutter is a TCP proxy whose connections can be cut.
type cutter struct{ connSet }

func startCutter(t *testing.T, target string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{connSet{Listener: l}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := c.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("proxy: %v", err)
				}
				return
			}
			wg.Go(func() { forward(conn, target) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
		wg.Wait()
	})
	return c
}

func forward(conn net.Conn, target string) {
	defer conn.Close()
	up, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(up, conn)
		_ = up.Close()
	})
	_, _ = io.Copy(conn, up)
	_ = conn.Close()
	wg.Wait()
}

// revoke takes a token back, as relay revoke does.
func (s *stack) revoke(token string) {
	s.t.Helper()
	id, expires, err := s.relay.Keys().TokenID(token)
	if err != nil {
		s.t.Fatal(err)
	}
	operator, err := s.relay.Keys().IssueOperator("test")
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := json.Marshal(gateway.RevokeRequest{Token: id, Expires: expires})
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.relay.URL()+"/operator/revocations", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+operator)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		s.t.Fatalf("revoke: HTTP %d", response.StatusCode)
	}
}
