package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/oidc"
	"ahprelay/auth/people"
	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	agentsapi "ahprelay/gateway/api/agents"
	hostsapi "ahprelay/gateway/api/hosts"
	notifyapi "ahprelay/gateway/api/notify"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/canvas"
	"ahprelay/gateway/notify"
	"ahprelay/internal/fair"
	"ahprelay/internal/tracing"
)

// Config says how a [Server] is to work. Durations and sizes of zero mean
// their defaults.
type Config struct {
	Keys     *auth.Keys         // required; whose tokens are accepted
	Bus      link.Bus           // required; the relay's connections to NATS
	Registry *registry.Registry // required
	Instance string             // required; the name of this run of the relay
	Version  string             // of the program

	// Settings are those that the relay was started with, without secrets, for who is
	// to find out what is wrong.
	Settings map[string]string

	// Issuers verify the tokens of other issuers, by their iss: see package
	// oidc. They outlive the Server. Default: none.
	Issuers map[string]auth.Verifier

	// SignIn are identity providers where people sign in with a browser. Default: none.
	SignIn []*oidc.SignIn

	// People knows who has devices, which get tokens for their keys. Default: nobody.
	People *people.Directory

	// PublicURL is the base URL of the relay as people reach it, for links and the proofs of devices. Default: where
	// a request for one came to.
	PublicURL string

	// OwnURL is the base URL at which clients reach this relay and no other of its cluster.
	// Default: none is known.
	OwnURL string

	// NATS opens a connection to the NATS server for a tenant's host-agent that comes
	// over WebSocket, until ctx ends. Without it, /nats is not there.
	NATS func(ctx context.Context, tenant, host string) (net.Conn, error)

	// Ready tells why no clients should come now, in answers to /readyz.
	// Default: nothing but draining does.
	Ready func() error

	// Degraded tells what the relay lacks that does not keep it from serving,
	// in answers to /readyz; "" if nothing. May be nil.
	Degraded func() string

	// Origins are patterns of the origins whose pages may connect, beside the
	// relay's own: "app.example.com", "*.example.com", "https://example.com".
	// Default: DefaultOrigins.
	Origins []string

	MaxFrame      int           // bytes of the longest message, each way; default 128 MiB, or less for MaxQueued to have room for four
	MaxFirstFrame int           // the same until the host has answered initialize or reconnect; default 64 KiB, at most 256 KiB
	QueueLimit    int           // bytes queued for a client that make it too slow; default 8 MiB, at least 1 MiB
	MaxQueued     int           // bytes in use for all clients together before those are closed that have stood still for longest; default 1 GiB
	Ping          time.Duration // clients are pinged that often, and given up after three without an answer; default 15 s
	Stall         time.Duration // a client that takes no byte for that long is given up; default 40 s
	Resume        time.Duration // how long a host-agent may be out of reach unnoticed; default 15 s
	HoldTime      time.Duration // how long a client that resumes waits for its host; default 10 min. One that begins anew: 20 s at most
	AgentTTL      time.Duration // lifetime of NATS credentials for host-agents; default 15 min
	CredentialTTL time.Duration // lifetime of the credentials that host-agents get for enrolment tokens; default 90 days

	// Strict are patterns of the hosts, tenant/host, whose connections are gated
	// strictly: see package mcpgate. "default/*" are all of a tenant.
	Strict []string

	// CanvasDomain is the domain below which canvases have origins of their
	// own: "canvas.example.com", or with scheme and port
	// "http://localhost:8484". Its names must lead to the public listener; a
	// [Relay] puts that one's port in the place of port 0.
	// Default: none, canvases are read in band only.
	CanvasDomain string

	// Compress says for whom what they are sent is compressed, of those who offer that.
	// Default: CompressFar.
	Compress Compression

	// Limits are how much clients may use, by whom they are.
	Limits admission.Limits

	// TrustProxy are the addresses of proxies in front of the relay: what they
	// say in X-Forwarded-For is where a request comes from. Default: none.
	TrustProxy []netip.Prefix

	// AuditFile gets the audit as JSON lines, beside the log. Default: none.
	AuditFile io.Writer

	Log *slog.Logger // default: none

	// Tracer makes spans of clients' requests. Who has made it closes it after the Server.
	// Default: none does.
	Tracer *tracing.Tracer
}

// DefaultOrigins are origins of public clients whose pages are not served by
// relays. A connection from there still needs a token.
var DefaultOrigins = []string{
	"vscode-file://vscode-app", // VS Code on the desktop
}

// defaultStall is for how long a client may take nothing. Stock clients give a
// silent connection up after 25 s. But when a line was dead for 14 s and is back,
// the kernel may send the first byte 13 s later, and a client that has just got
// one waits for 25 s from then on.
const defaultStall = 40 * time.Second

// Bounds of limits.
const (
	// maxFirst is what a connection to a host takes without waiting for it.
	maxFirst = 256 << 10

	// minQueue is what a host-agent sends ahead of what is written: with less,
	// a client that is not too slow could fail at any large message.
	minQueue = 1 << 20
)

func (cfg Config) withDefaults() Config {
	size := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	duration := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	size(&cfg.QueueLimit, 8<<20)
	size(&cfg.MaxQueued, 1<<30)
	size(&cfg.MaxFrame, min(128<<20, max(1, (cfg.MaxQueued-cfg.QueueLimit)/4)))
	size(&cfg.MaxFirstFrame, min(64<<10, cfg.MaxFrame))
	duration(&cfg.Ping, 15*time.Second)
	duration(&cfg.Stall, defaultStall)
	duration(&cfg.Resume, link.DefaultResume)
	duration(&cfg.HoldTime, 10*time.Minute)
	cfg.Limits = cfg.Limits.WithDefaults()
	duration(&cfg.CredentialTTL, auth.DefaultCredentialTTL)
	cfg.CredentialTTL = min(cfg.CredentialTTL, auth.MaxDerivedTTL) // revocations of what it is derived from are kept no longer
	if cfg.Compress == "" {
		cfg.Compress = CompressFar
	}
	if cfg.Origins == nil {
		cfg.Origins = DefaultOrigins
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// leastHeld is what is held of bodies, and of chunks, for each host however
// short memory is, in bytes.
const leastHeld = 4 << 20

// ofMemory returns the n-th part of the bytes that may be in use for all
// clients, within bounds.
func (cfg *Config) ofMemory(n, most int) int { return min(max(cfg.MaxQueued/n, leastHeld), most) }

func (cfg *Config) check() error {
	switch {
	case cfg.Keys == nil:
		return errors.New("no Keys given")
	case cfg.Bus == nil:
		return errors.New("no Bus given")
	case cfg.OwnURL != "" && !strings.HasPrefix(cfg.OwnURL, "http://") && !strings.HasPrefix(cfg.OwnURL, "https://"):
		return fmt.Errorf("OwnURL %q: want http://host or https://host", cfg.OwnURL)
	case cfg.Registry == nil:
		return errors.New("no Registry given")
	case cfg.MaxFrame < 1:
		return fmt.Errorf("MaxFrame is %d; want at least 1", cfg.MaxFrame)
	case cfg.MaxFirstFrame < 1 || cfg.MaxFirstFrame > min(cfg.MaxFrame, maxFirst):
		return fmt.Errorf("MaxFirstFrame is %d; want 1 to %d", cfg.MaxFirstFrame, min(cfg.MaxFrame, maxFirst))
	case cfg.QueueLimit < minQueue:
		return fmt.Errorf("QueueLimit is %d; want at least %d", cfg.QueueLimit, minQueue)
	}
	if least := cfg.QueueLimit + 2*cfg.MaxFrame; cfg.MaxQueued < least {
		return fmt.Errorf("MaxQueued is %d; want at least %d, for one client with the longest message", cfg.MaxQueued, least)
	}
	if err := cfg.Compress.check(); err != nil {
		return err
	}
	if err := cfg.checkTimes(); err != nil {
		return err
	}
	for _, pattern := range cfg.Origins {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("%q in Origins is no pattern; want one such as *.example.com", pattern)
		}
	}
	if err := cfg.checkStrict(); err != nil {
		return err
	}
	return ahp.CheckName("Instance", cfg.Instance)
}

// canvasOrigin returns what CanvasDomain says.
func (cfg *Config) canvasOrigin() (canvas.Origin, error) {
	if cfg.CanvasDomain == "" {
		return canvas.Origin{}, nil
	}
	return canvas.ParseDomain(cfg.CanvasDomain)
}

func (cfg *Config) checkTimes() error {
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"Ping", cfg.Ping}, {"Stall", cfg.Stall}, {"Resume", cfg.Resume}, {"HoldTime", cfg.HoldTime}, {"CredentialTTL", cfg.CredentialTTL},
	} {
		if d.value < 0 {
			return fmt.Errorf("%s is %v; want a time above zero", d.field, d.value)
		}
	}
	return nil
}

// clientShare is the part of all processors that the messages of clients may take when their
// tenants contend. It counts reading a message and passing it on, about a quarter of the work
// on a request and its answer.
const clientShare = 1.0 / 16

// A Server is the relay's edge: it serves clients and host-agents over HTTP
// and WebSocket.
type Server struct {
	cfg      Config
	hosts    *hosts
	metrics  *metrics
	budget   *budget
	canvases *canvas.Canvases
	reports  *reports
	asking   *httpConns
	audit    *audit.Log
	limits   *admission.Limiter
	shares   *fair.Shares // of tenants, in the work on what clients send
	revoked  *registry.Revocations
	board    *notify.Board
	caller   *authn.Checker // who sends requests
	hostAPI  *hostsapi.API
	agents   *agentsapi.API
	people   *peopleapi.API
	notify   *notifyapi.API
	public   http.Handler
	admin    http.Handler

	life   context.Context // ends with Close
	cancel context.CancelFunc
	quiet  func() // ends the registry's calls
	forget func() // ends those of revoked

	draining atomic.Bool
	revoking chan struct{} // for watchRevocations: something was revoked; holds one

	mu      sync.Mutex // guards closed, and running.Add against running.Wait
	closed  bool
	running sync.WaitGroup // all goroutines of the Server
}

// New returns a Server whose handlers can be used at once. Close ends it.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	origin, err := cfg.canvasOrigin()
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	s := newServer(cfg, origin, cfg.Registry.Lookup, cfg.Registry.Revocations())
	s.quiet = cfg.Registry.Subscribe(s.hosts.changed)
	return s, nil
}

// newServer returns a Server that looks hosts up with the given function.
func newServer(cfg Config, origin canvas.Origin, lookup func(tenant, host string) (registry.Host, bool), revoked *registry.Revocations) *Server {
	s := &Server{
		cfg: cfg, budget: newBudget(cfg.MaxQueued, cfg.MaxFrame), quiet: func() {},
		audit: audit.New(cfg.Log, cfg.AuditFile), limits: admission.New(cfg.Limits, cfg.MaxFrame), shares: fair.NewShares(clientShare * float64(runtime.GOMAXPROCS(0))),
		revoked: revoked, revoking: make(chan struct{}, 1),
		board: notify.NewBoard(),
	}
	s.life, s.cancel = context.WithCancel(context.Background())
	s.hosts = newHosts(s.life, &s.cfg, lookup, s.spawn)
	s.hosts.budget = s.budget
	s.reports = newReports(s.cfg.Log)
	s.hosts.reports = s.reports
	s.metrics = newMetrics(s)
	s.newAPIs(origin)
	s.public = s.publicHandler()
	s.admin = (&adminPages{&s.cfg, s.hosts, s.reports, s.metrics, s.serveReady}).handler()
	s.spawn(s.sweep)
	relief := &relief{life: s.life, budget: s.budget, hosts: s.hosts}
	s.spawn(relief.relieve)
	if cfg.People != nil {
		s.spawn(func() { s.people.EndGrants(s.life) })
	}
	s.spawn(relief.takeTurns)
	s.spawn(func() { s.audit.Run(s.life) })
	s.spawn(s.watchRevocations)
	s.forget = revoked.Subscribe(s.revokedNow)
	return s
}

// newAPIs makes what answers requests that are no client's connection to a host.
func (s *Server) newAPIs(origin canvas.Origin) {
	cfg := &s.cfg
	s.caller = authn.New(authn.Config{
		Keys: cfg.Keys, Issuers: cfg.Issuers, Revoked: s.revoked, TrustProxy: cfg.TrustProxy, PublicURL: cfg.PublicURL,
		Limits: s.limits, Audit: s.audit, Count: func(why string) { s.metrics.refused.WithLabelValues(why).Inc() },
		Proved: func(r *http.Request) { s.asking.proved(r) },
	})
	s.asking = newHTTPConns(s.caller.ManyOf, func(address string) {
		s.caller.Refuse("unproven", "", audit.Line{Address: address, Reason: unprovenReason})
	})
	if origin.Domain != "" {
		s.asking.forLongHeaders()
	}
	s.hostAPI = hostsapi.New(hostsapi.Config{Caller: s.caller, List: cfg.Registry.Hosts, Lookup: s.hosts.lookup, OwnURL: cfg.OwnURL})
	s.agents = agentsapi.New(agentsapi.Config{
		Caller: s.caller, Registry: cfg.Registry, Log: cfg.Log, AgentTTL: cfg.AgentTTL, CredentialTTL: cfg.CredentialTTL,
		NATS: cfg.NATS, Accept: s.acceptTunnel, Life: s.life, Spawn: s.spawn,
	})
	s.people = peopleapi.New(peopleapi.Config{
		Caller: s.caller, Agents: s.agents, People: cfg.People, SignIn: cfg.SignIn, Log: cfg.Log, CredentialTTL: cfg.CredentialTTL,
		Hosts: s.hostAPI.Hosts, Lookup: s.hosts.lookup, Watching: s.hosts.byToken,
	})
	s.notify = notifyapi.New(notifyapi.Config{
		Caller: s.caller, Board: s.board, Instance: cfg.Instance, Standing: s.people.Standing, Life: s.life,
	})
	s.canvases = canvas.New(canvas.Config{
		Origin: origin, Caller: s.caller, Draining: s.draining.Load, Borrow: s.hosts.lend, MaxHeader: maxHeader,
	})
}

// endStreams ends all streams of events, and canvases by URL: their clients come again, elsewhere if
// this relay stops.
func (s *Server) endStreams() {
	s.notify.EndStreams()
	s.canvases.Close()
}

// Handler serves the public listener: clients, host-agents, the API and the
// console.
func (s *Server) Handler() http.Handler { return s.public }

// AdminHandler serves the admin listener. It answers only requests that name
// a loopback address and come from no web page.
func (s *Server) AdminHandler() http.Handler { return s.admin }

// Resumed tells the Server that the connection to NATS of a tenant was away.
func (s *Server) Resumed(tenant string) { s.hosts.resumed(tenant) }

// spawn starts a goroutine that Close waits for, unless Close was called.
func (s *Server) spawn(run func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Go(run)
	return true
}

// Close ends all connections and links without a word, and returns when
// nothing of the Server is running any more.
func (s *Server) Close() {
	s.draining.Store(true)
	s.endStreams()
	s.quiet()
	s.forget()
	s.cancel() // closes all sockets
	s.hosts.close()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	s.audit.Flush()
}
