//go:build !race

package browser_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	operatorapi "ahprelay/gateway/api/operator"
	"ahprelay/test/hostrpc"
	"ahprelay/test/procs"
)

// A site is a chain of processes: relay – NATS – host-agent – demo host. A proxy in front
// of the relay can cut connections. Sites share a relay; each is a tenant.
type site struct {
	t      *testing.T
	bench  *procs.Bench
	keys   *auth.Keys     // the relay's
	url    string         // of the relay
	relay  *procs.Process // of this site alone
	tenant string
	proxy  *cutter
	agent  *procs.Process // the latest host-agent
	agents int            // number of host-agents started
	host   *demoHost
	cfg    stackConfig
}

const hostName = "demo"

// A stackConfig is a stack's deviations from the default.
type stackConfig struct {
	canvases   []hostrpc.Canvas   // added to the default canvases
	mcp        []hostrpc.MCP      // nil for the demo's
	signIn     []hostrpc.SignIn   // the agent's protected resources
	meta       string             // JSON, _meta in the result of initialize; "" for none
	still      bool               // nothing happens by itself
	replay     int                // actions kept for replay; 0 for the default
	byURL      bool               // canvases have origins of their own
	preview    string             // host ports for previews
	uplink     bool               // the host-agent is behind the proxy, too
	noLoopback bool               // canvases cannot show the host's loopback
	protocol   agenthost.Protocol // the host's; "" for the default
}

// build builds the programs, once for all tests.
var build = sync.OnceValues(func() (programs string, err error) {
	ctx := context.Background()
	if programs, err = procs.Build(ctx); err != nil {
		return "", err
	}
	return programs, procs.Sources(ctx, "ahprelay/test/browser") // see race_test.go: the go command does not know all inputs
})

func startStack(t *testing.T) *site { return startStackWith(t, stackConfig{}) }

// startStackWith starts a stack and returns when its host is online. Its processes end
// with the test, which fails if one exits early or has a race.
func startStackWith(t *testing.T, cfg stackConfig) *site {
	t.Helper()
	s := startRelayFor(t, cfg)
	s.host = s.addHost(hostName)
	s.startAgent(s.host)
	return s
}

// startRelayFor returns a site with a relay, as a tenant of its own, and without a
// host.
func startRelayFor(t *testing.T, cfg stackConfig) *site {
	t.Helper()
	start := sharedRelay
	if cfg.byURL {
		start = sharedRelayByURL
	}
	relay, err := start()
	must(t, err)
	s := newSite(t)
	s.cfg, s.keys, s.url, s.tenant = cfg, relay.keys, relay.url, fmt.Sprint("tenant-", tenants.Add(1))
	t.Cleanup(func() {
		if err := relay.bench.Verify(); err != nil {
			t.Error(err)
		}
	})
	s.proxy = startCutter(t, s.url[len("http://"):])
	return s
}

// addHost starts a host without its host-agent, which the caller starts.
func (s *site) addHost(name string) *demoHost {
	s.t.Helper()
	address, err := procs.FreeAddress()
	must(s.t, err)
	h := &demoHost{site: s, name: name, address: net.JoinHostPort(address, "18990"), control: net.JoinHostPort(address, "18991")}
	h.prepare()
	h.start()
	return h
}

// newSite returns a site without processes. Its processes end with the test, which
// fails if one exits early or has a race.
func newSite(t *testing.T) *site {
	t.Helper()
	programs, err := build()
	must(t, err)
	s := &site{t: t, bench: &procs.Bench{Programs: programs, Dir: t.TempDir()}, tenant: auth.DefaultTenant}
	t.Cleanup(func() {
		s.bench.Kill()
		if err := s.bench.Verify(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *site) file(name string) string { return filepath.Join(s.bench.Dir, name) }

// A relayOfMany is a relay shared by sites.
type relayOfMany struct {
	bench *procs.Bench
	keys  *auth.Keys
	url   string
}

// Relays shared by sites; one has no canvas origins.
var (
	sharedRelay      = sync.OnceValues(func() (*relayOfMany, error) { return startRelay() })
	sharedRelayByURL = sync.OnceValues(func() (*relayOfMany, error) { return startRelay("--canvas-domain", "http://localhost:0") })
	tenants          atomic.Int64 // tenants created so far
)

// relayReady matches the relay's log line with its address.
var relayReady = regexp.MustCompile(`msg="relay ready" url=(\S+)`)

// startRelay starts a relay that ends after all tests. It may notify services on this
// machine.
func startRelay(flags ...string) (r *relayOfMany, err error) {
	programs, err := build()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "ahp-browser-")
	if err != nil {
		return nil, err
	}
	r = &relayOfMany{bench: &procs.Bench{Programs: programs, Dir: dir}}
	data := filepath.Join(dir, "data")
	process := r.bench.Process("", "relay", procs.RelayProgram, append([]string{"serve", "--data-dir", data, "--listen", "127.0.0.1:0",
		"--admin-listen", gateway.NoListener, "--drain", "1s", "--notify-private", "127.0.0.0/8"}, flags...)...)
	atEnd(func() error {
		err := end(process)
		r.bench.Kill()
		return errors.Join(err, r.bench.Verify(), os.RemoveAll(dir))
	})
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	if r.keys, err = auth.LoadKeys(data); err != nil {
		return nil, err
	}
	return r, process.Launch(context.Background(), func() error {
		match := relayReady.FindStringSubmatch(process.Log())
		if match == nil {
			return errors.New("the log does not say where it is")
		}
		r.url = match[1]
		return nil
	})
}

func (s *site) startAgent(h *demoHost) {
	s.t.Helper()
	s.startAgentWith(h.name, "--upstream", "ws://"+h.address)
}

// startAgentWith starts a host-agent with additional flags. Arguments of a command come
// last.
func (s *site) startAgentWith(name string, more ...string) {
	t := s.t
	t.Helper()
	token, err := s.keys.Tokens().IssueHost(auth.Enrolment{Tenant: s.tenant, Host: name, Expires: time.Now().Add(time.Hour)})
	must(t, err)
	file := s.file("token-" + name)
	must(t, os.WriteFile(file, []byte(token), 0o600))
	relay := s.url
	if s.cfg.uplink {
		relay = "http://" + s.proxy.Addr().String()
	}
	flags := []string{"run", "--relay", relay, "--token-file", file, "--control", "off"}
	if s.cfg.preview != "" {
		flags = append(flags, "--preview-port", s.cfg.preview)
	}
	if s.cfg.noLoopback {
		flags = append(flags, "--no-canvas-loopback")
	}
	flags = append(flags, more...)
	s.agents++
	agent := s.bench.Process("", fmt.Sprintf("host-agent-%s-%d", name, s.agents), procs.AgentProgram, flags...)
	t.Cleanup(func() { s.end(agent) })
	s.agent = agent
	seen := s.tokenWith(func(c *auth.Client) { c.Hosts = []string{name} })
	must(t, agent.Launch(t.Context(), func() error { // an early page would see an unknown host and stop
		info, err := procs.GetJSON[hostsapi.Info](t.Context(), s.url+"/api/hosts/"+name, seen)
		if err == nil && info.State != registry.Online {
			err = fmt.Errorf("host is %s: %s", info.State, info.Reason)
		}
		return err
	}))
}

// end stops a process cleanly unless it has exited.
func (s *site) end(p *procs.Process) {
	if err := end(p); err != nil {
		s.t.Error(err)
	}
}

func end(p *procs.Process) error {
	if p.Pid() == 0 {
		return nil // Verify reports the reason
	}
	if err := p.End(syscall.SIGTERM); err != nil {
		return err
	}
	if code := p.ExitCode(); code != 0 {
		return fmt.Errorf("exit status %d:\n%s", code, p.Log())
	}
	return nil
}

// token issues a client token for the site's host with the level operate, valid for ttl.
func (s *site) token(ttl time.Duration) string {
	s.t.Helper()
	return s.tokenWith(func(c *auth.Client) { c.Expires = time.Now().Add(ttl) })
}

// tokenWith issues a client token like token's for an hour, after change has edited it.
func (s *site) tokenWith(change func(*auth.Client)) string {
	s.t.Helper()
	c := auth.Client{
		Tenant: s.tenant, Subject: "browser", Hosts: []string{hostName}, Access: auth.AccessWrite,
		Expires: time.Now().Add(time.Hour),
	}
	change(&c)
	token, err := s.keys.Tokens().IssueClient(c)
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

// console returns the console's address with a token.
func (s *site) console(token string) string {
	return "http://" + s.proxy.Addr().String() + "/#" + url.Values{"host": {hostName}, "token": {token}}.Encode()
}

// A demoHost is a demo host on a TCP address, driven by tests.
type demoHost struct {
	*hostrpc.Client // to the running process

	site             *site
	name             string
	address, control string
	process          *procs.Process
}

// prepare writes the host's configuration file and sets up the process that start runs.
func (h *demoHost) prepare() {
	t, cfg := h.site.t, h.site.cfg
	t.Helper()
	text, err := json.Marshal(hostrpc.Config{Canvases: slices.Concat(demoCanvases, cfg.canvases), MCP: cfg.mcp, SignIn: cfg.signIn, Replay: cfg.replay, Still: cfg.still, Meta: json.RawMessage(cfg.meta)})
	must(t, err)
	file := h.site.file("host-" + h.name + ".json")
	must(t, os.WriteFile(file, text, 0o600))
	args := []string{"--demo", "--listen", h.address, "--control", h.control, "--config", file}
	if cfg.protocol != "" {
		args = append(args, "--protocol", string(cfg.protocol))
	}
	h.process = h.site.bench.Process("", "host-"+h.name, procs.HostProgram, args...)
}

// start starts the host and returns when it accepts connections. After a restart, the
// host has only the demo's sessions.
func (h *demoHost) start() {
	t := h.site.t
	t.Helper()
	must(t, h.process.Launch(t.Context(), func() error {
		conn, err := net.DialTimeout("tcp", h.address, time.Second) // the last address it listens on
		if err == nil {
			err = conn.Close()
		}
		return err
	}))
	var err error
	h.Client, err = hostrpc.Dial(h.control)
	must(t, err)
	t.Cleanup(func() { _ = h.Client.Close() })
}

// kill kills the process.
func (h *demoHost) kill() {
	h.process.Kill()
	_ = h.Client.Close()
}

// A cutter is a TCP proxy that can cut all connections.
type cutter struct {
	net.Listener

	mu    sync.Mutex // guards the fields below
	conns []net.Conn
	down  bool
}

func startCutter(t *testing.T, target string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := c.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("the proxy's Accept: %v; want net.ErrClosed at its end", err)
				}
				return
			}
			if c.keep(conn) {
				wg.Go(func() { forward(conn, target) })
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
		wg.Wait()
	})
	return c
}

// keep records a connection, or closes it while the proxy is cut.
func (c *cutter) keep(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		_ = conn.Close()
		return false
	}
	c.conns = append(c.conns, conn)
	return true
}

// cut closes all connections abruptly and refuses new ones, until restore.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = true
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

func (c *cutter) restore() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = false
}

// drop cuts the page's connection, waits until the page reports it, and runs
// meanwhile. If the page could reconnect at once, the report would be too short to
// observe.
func (p *page) drop(s *site, meanwhile func()) {
	p.t.Helper()
	s.proxy.cut()
	p.wants("#status-text", "Connection lost")
	meanwhile()
	s.proxy.restore()
	p.wants("#status-text", "Live")
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

// revoke revokes a token, like relay revoke.
func (s *site) revoke(token string) {
	s.t.Helper()
	id, expires, err := s.keys.Tokens().TokenID(token)
	if err != nil {
		s.t.Fatal(err)
	}
	operator, err := s.keys.Tokens().IssueOperator("test")
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := json.Marshal(operatorapi.RevokeRequest{Token: id, Expires: expires})
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/operator/revocations", bytes.NewReader(body))
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
		s.t.Fatalf("revoking: HTTP %d; want 200", response.StatusCode)
	}
}
