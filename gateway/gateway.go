package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"

	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	agentsapi "ahprelay/gateway/api/agents"
	hostsapi "ahprelay/gateway/api/hosts"
	notifyapi "ahprelay/gateway/api/notify"
	peopleapi "ahprelay/gateway/api/people"
	rememberedapi "ahprelay/gateway/api/remembered"
	waitingapi "ahprelay/gateway/api/waiting"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/canvas"
	"ahprelay/gateway/notify"
	"ahprelay/gateway/remembered"
	"ahprelay/gateway/waiting"
	"ahprelay/internal/fair"
	"ahprelay/internal/meter"
)

// A Server is the relay's edge: it serves clients and host-agents over HTTP and
// WebSocket.
type Server struct {
	cfg        Config
	hosts      *hosts
	metrics    *metrics
	budget     *budget
	canvases   *canvas.Canvases
	carried    *carried // nil: connections do not resume
	reports    *reports
	httpConns  *httpConns
	audit      *audit.Log
	limits     *admission.Limiter
	shares     *fair.Shares // of the processors, among tenants
	writers    *writers     // of clients' frames
	revoked    *registry.Revocations
	board      *notify.Board
	caller     *authn.Checker // authenticates requests
	hostAPI    *hostsapi.API
	agents     *agentsapi.API
	people     *peopleapi.API
	notify     *notifyapi.API
	remembered *rememberedapi.API
	keeper     atomic.Pointer[remembered.Keeper] // nil until the relay has started it
	waitingAPI *waitingapi.API
	waiting    atomic.Pointer[waiting.Keeper] // nil until the relay has started it
	public     http.Handler
	admin      http.Handler

	life   context.Context // ends with Close
	cancel context.CancelFunc
	quiet  func() // ends the callbacks of the registry
	forget func() // ends the callbacks of revoked

	draining atomic.Bool
	cutSeen  atomic.Bool   // the relay is cut off from the cluster's majority, perhaps briefly
	cutOff   atomic.Bool   // the cut has lasted minorityAfter, and restricts clients
	revoking chan struct{} // wakes watchRevocations; capacity 1

	mu      sync.Mutex // guards closed, and Add against Wait of the groups below
	closed  bool
	running sync.WaitGroup // all goroutines of the Server
	joining sync.WaitGroup // handshakes that have begun before Drain, and whose clients are not in hosts yet
}

// New returns a Server with working handlers. The caller must Close it.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	origin, err := cfg.canvasOrigin()
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	s := newServer(cfg, origin, cfg.Registry, cfg.Registry.Revocations())
	s.quiet = cfg.Registry.Subscribe(s.hosts.changed)
	return s, nil
}

// newServer returns a Server that finds hosts in known.
func newServer(cfg Config, origin canvas.Origin, known directory, revoked *registry.Revocations) *Server {
	s := &Server{
		cfg: cfg, budget: newBudget(cfg.MaxQueued, cfg.MaxFrame), quiet: func() {},
		audit: audit.New(cfg.Log, cfg.AuditFile), limits: admission.New(cfg.Limits, cfg.MaxFrame), shares: fair.NewShares(clientShare * float64(runtime.GOMAXPROCS(0))),
		revoked: revoked, revoking: make(chan struct{}, 1),
		board: notify.NewBoard(),
	}
	s.life, s.cancel = context.WithCancel(context.Background())
	s.writers = newWriters(s.spawn, s.shares.Contended)
	s.hosts = newHosts(s.life, &s.cfg, known, s.spawn)
	s.hosts.budget, s.hosts.cutOff = s.budget, &s.cutOff
	s.reports = newReports()
	s.hosts.reports = s.reports
	s.metrics = newMetrics(s)
	s.newAPIs(origin)
	if cfg.ClientResume > 0 {
		s.startCarried()
	}
	s.public = s.publicHandler()
	s.admin = (&adminPages{&s.cfg, s.hosts, s.reports, s.metrics, s.serveReady(true)}).handler()
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

// newAPIs creates the handlers for all requests except client connections.
func (s *Server) newAPIs(origin canvas.Origin) {
	cfg := &s.cfg
	s.caller = authn.New(authn.Config{
		Keys: cfg.Keys, Issuers: cfg.Issuers, Revoked: s.revoked, TrustProxy: cfg.TrustProxy, PublicURL: cfg.PublicURL,
		Limits: s.limits, Audit: s.audit, Count: func(why string) { s.metrics.refused.WithLabelValues(why).Inc() },
		Proved: func(r *http.Request) { s.httpConns.proved(r) },
	})
	bounds := httpBounds
	if origin.Domain != "" {
		bounds = longHeaderBounds
	}
	s.httpConns = newHTTPConns(s.caller.ManyOf, func(address string) {
		s.caller.Refuse("unproven", "", audit.Line{Address: address, Reason: evictedReason})
	}, bounds)
	s.hostAPI = hostsapi.New(hostsapi.Config{Caller: s.caller, List: cfg.Registry.Hosts, Lookup: s.hosts.lookup, Find: s.hosts.enrolled, OwnURL: cfg.OwnURL, Wake: cfg.Wake, Order: s.orderWake, Life: s.life, Spawn: s.spawn})
	s.agents = agentsapi.New(agentsapi.Config{
		Caller: s.caller, Registry: cfg.Registry, Log: cfg.Log, AgentTTL: cfg.AgentTTL, CredentialTTL: cfg.CredentialTTL,
		NATS: cfg.NATS, Accept: s.acceptTunnel, Stopped: s.stopped, Leaving: s.leaving, Place: cfg.Place, Life: s.life, Spawn: s.spawn,
	})
	s.people = peopleapi.New(peopleapi.Config{
		Caller: s.caller, Agents: s.agents, People: cfg.People, SignIn: cfg.SignIn, Log: cfg.Log, CredentialTTL: cfg.CredentialTTL,
		Hosts: s.hostAPI.Hosts, Lookup: s.hosts.lookup, Watching: s.hosts.byToken,
		Reached: func(url string) { s.notify.LearnURL(url) },
	})
	s.notify = notifyapi.New(notifyapi.Config{
		Caller: s.caller, Board: s.board, Instance: cfg.Instance, Standing: s.people.Standing, Life: s.life,
	})
	s.remembered = &rememberedapi.API{Caller: s.caller, Source: func() rememberedapi.Source {
		if k := s.keeper.Load(); k != nil {
			return k
		}
		return nil
	}}
	s.waitingAPI = waitingapi.New(s.caller, s.waiting.Load)
	s.canvases = canvas.New(canvas.Config{
		Origin: origin, Caller: s.caller, Draining: s.draining.Load, Borrow: s.hosts.lend, MaxHeader: maxHeader,
	})
}

// endStreams ends all event streams and all canvases served by URL. Their clients
// reconnect.
func (s *Server) endStreams() {
	s.notify.EndStreams()
	s.canvases.Close()
}

// Handler serves the public listener: clients, host-agents, the API and the console.
func (s *Server) Handler() http.Handler { return s.public }

// AdminHandler serves the admin listener. It refuses requests from web pages, and
// requests whose Host is not a loopback name or address.
func (s *Server) AdminHandler() http.Handler { return s.admin }

// MetricsHandler serves only metrics, for a listener at the given address.
func (s *Server) MetricsHandler(at net.Addr) http.Handler {
	return meter.Page(s.metrics.registry, at)
}

// Resumed tells the Server that NATS messages of a tenant may have been lost.
func (s *Server) Resumed(tenant string) { s.hosts.resumed(tenant) }

// spawn runs a function in a goroutine that Close waits for. After Close it returns false
// without running the function.
func (s *Server) spawn(run func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Go(run)
	return true
}

// Close ends all connections and links without close frames. It returns when all
// goroutines of the Server have ended.
func (s *Server) Close() {
	s.draining.Store(true)
	s.endStreams()
	s.quiet()
	s.forget()
	s.cancel() // closes all sockets
	if s.carried != nil {
		s.carried.close()
	}
	s.hosts.close()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	s.audit.Flush()
}
