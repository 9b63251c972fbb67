package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/broker/resume"
	"ahprelay/gateway/admission"
	operatorapi "ahprelay/gateway/api/operator"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/wire"
	"ahprelay/internal/idle"
)

func (s *Server) publicHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ahp/{host}", s.serveAHP)
	if s.carried != nil {
		mux.HandleFunc("GET "+resume.Path, s.serveCarrier)
	}
	s.hostAPI.Routes(mux)
	s.notify.Routes(mux)
	s.remembered.Routes(mux)
	s.waitingAPI.Routes(mux)
	mux.HandleFunc("GET /healthz", serveHealthy)
	mux.HandleFunc("GET /readyz", s.serveReady(false))
	s.agents.Routes(mux)
	operatorapi.New(operatorapi.Config{Caller: s.caller, Forget: s.cfg.Registry.Forget}).Routes(mux)
	if s.cfg.People != nil {
		s.people.Routes(mux)
	}
	mux.HandleFunc("GET "+oauthClientPath, serveOAuthClient)
	mux.HandleFunc("GET "+authn.ResourcePath, s.caller.ServeResource)
	mux.HandleFunc("GET "+authn.ResourcePath+"/{path...}", s.caller.ServeResource)
	mux.Handle("POST /share", http.RedirectHandler("/", http.StatusSeeOther)) // the console's service worker handles shared content; without it, the content is lost
	page := console(s.canvases.Origin)
	mux.Handle("GET /", page)
	mux.Handle("GET /{$}", s.rootHandler(page))
	return closeUpgrades(s.canvases.Handler(s.admitConsoles(mux)))
}

// closeUpgrades closes the connection after a request for an upgrade that was not
// granted. Otherwise a careless proxy could treat it as a tunnel, and forward what a
// client sends next without checks.
func closeUpgrades(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header["Upgrade"] != nil {
			w.Header().Set("Connection", "close") // a successful handshake replaces it
		}
		next.ServeHTTP(w, r)
	})
}

// serveAHP serves a client's connection to the host in the path.
func (s *Server) serveAHP(w http.ResponseWriter, r *http.Request) {
	if who, joined, ok := s.authenticate(w, r); ok {
		s.connect(w, r, who, joined)
	}
}

// rootHandler connects a client at "/" to the only host that its token names. It exists
// for clients that cannot configure a path, such as VS Code's bridge. All other requests
// go to page.
func (s *Server) rootHandler(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := auth.RequestToken(r)
		if r.Header["Upgrade"] == nil || errors.Is(err, auth.ErrNoToken) {
			page.ServeHTTP(w, r)
			return
		}
		who, joined, ok := s.authenticate(w, r)
		if !ok {
			return
		}
		host, ok := who.OnlyHost()
		if !ok {
			joined()
			page.ServeHTTP(w, r)
			return
		}
		r.SetPathValue("host", host)
		s.connect(w, r, who, joined)
	})
}

// authenticate returns the client identified by a request's token. If ok is false, it has
// already responded with an error. Otherwise Drain waits until joined is called, once the
// client is in hosts or refused.
func (s *Server) authenticate(w http.ResponseWriter, r *http.Request) (who auth.Client, joined func(), ok bool) {
	s.mu.Lock()
	if s.draining.Load() {
		s.mu.Unlock()
		authn.RefuseDraining(w)
		return auth.Client{}, nil, false
	}
	s.joining.Add(1)
	s.mu.Unlock()
	token, err := auth.RequestToken(r)
	if err == nil {
		who, err = s.caller.Authenticate(r, token)
	}
	if err != nil {
		s.joining.Done()
		s.caller.Unauthorized(w, r, err)
		return auth.Client{}, nil, false
	}
	s.caller.Proved(r)
	return who, s.joining.Done, true
}

// connect upgrades a client's request to a WebSocket, for the host in the path.
func (s *Server) connect(w http.ResponseWriter, r *http.Request, who auth.Client, joined func()) {
	served := false
	defer func() {
		if !served {
			joined()
		}
	}()
	if s.budget.full() {
		s.refuseFull(w, r, who)
		return
	}
	if resume.TicketOf(r.Header, resume.MovedHeader) != "" && who.MayReach(who.Tenant, r.PathValue("host")) && !s.hosts.online(hostKey{who.Tenant, r.PathValue("host")}) {
		// Until the host is online, ahp-connect tries again, and answers its client's
		// pings itself.
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the host is not online yet", http.StatusServiceUnavailable)
		return
	}
	admitted, over := s.limits.Connect(who, r.PathValue("host"), s.caller.Address(r))
	if over != nil {
		s.caller.TooMany(w, over, audit.Line{Host: r.PathValue("host"), Address: s.caller.Address(r)}.Of(who))
		return
	}
	s.hostAPI.TellEndpoint(w, who, r.PathValue("host"))
	moved := resume.TicketOf(r.Header, resume.MovedHeader)
	if moved != "" {
		w.Header().Set(resume.MovedHeader, "yes")
	}
	sock, err := wire.Accept(s.life, w, r, slices.Concat(s.cfg.Origins, s.cfg.ConsoleOrigins), s.cfg.Stall, s.cfg.Compress.Mode())
	if err != nil {
		admitted.Leave()
		s.caller.Refuse("handshake", "", audit.Line{Host: r.PathValue("host"), Address: s.caller.Address(r), Reason: err.Error()}.Of(who))
		return // the library has answered
	}
	sock.Move, sock.Moved = resume.TicketOf(r.Header, resume.MoveHeader), moved
	host, remote := hostKey{who.Tenant, r.PathValue("host")}, s.caller.Address(r)
	served = s.spawn(func() {
		defer admitted.Leave()
		s.serveClient(sock, who, host, remote, admitted, joined)
	})
	if !served {
		admitted.Leave()
		sock.Kill()
	}
}

func (s *Server) serveClient(sock *wire.Socket, who auth.Client, host hostKey, remote string, admitted *admission.Admission, joined func()) {
	var c *client
	idle.Deep(func() { c = s.enter(sock, who, host, remote, admitted) })
	if c == nil {
		joined()
		return
	}
	c.serve(s.draining.Load, joined)
}

// enter creates the client, or returns nil if it is refused.
func (s *Server) enter(sock *wire.Socket, who auth.Client, host hostKey, remote string, admitted *admission.Admission) *client {
	c := s.newClient(sock, who, host, remote)
	c.admitted = admitted
	if code, reason := s.admit(who, host); code != 0 {
		s.caller.Refuse(code.Reason(), "", lineOf(c, "refuse", closing{code: code, reason: reason}))
		sock.Close(code, reason)
		c.cancel()
		return nil
	}
	s.audit.Comings(lineOf(c, "connect", closing{}))
	s.metrics.accepted.Inc()
	return c
}

// admit returns the close code and reason with which a client is refused; code 0 means
// admitted.
func (s *Server) admit(who auth.Client, host hostKey) (ahp.CloseCode, string) {
	if !who.MayReach(host.tenant, host.name) {
		return ahp.CloseForbidden, closeReason(ahp.CloseForbidden, "this token is not for that host")
	}
	if s.stopped() {
		return ahp.CloseHostOffline, closeReason(ahp.CloseHostOffline, cutReason)
	}
	switch err := s.hosts.enrolled(s.life, host.tenant, host.name); {
	case err == nil:
		return 0, ""
	case errors.Is(err, registry.ErrUnknownHost):
		return ahp.CloseUnknownHost, closeReason(ahp.CloseUnknownHost, "no host-agent has ever enrolled under that name")
	default: // this relay cannot know yet whether the host exists
		s.cfg.Log.Warn("host not found", "reason", "this relay cannot tell yet whether the host exists", "effect", "the client is asked to try again", "tenant", host.tenant, "host", host.name, "error", err)
		return ahp.CloseHostOffline, closeReason(ahp.CloseHostOffline, "this relay cannot tell yet whether that host exists")
	}
}

func (s *Server) newClient(sock *wire.Socket, who auth.Client, host hostKey, remote string) *client {
	ctx, cancel := context.WithCancel(s.life)
	id := rand.Text()[:12]
	c := &client{
		id: id, host: host, token: credential{first: who, host: host, verify: s.caller.VerifyClient}, remote: remote, since: time.Now(), sock: sock, page: sock.Page,
		shares: s.shares, hosts: s.hosts, cfg: &s.cfg, spawn: s.spawn, cutOff: &s.cutOff, metrics: s.metrics, budget: s.budget, tickets: tickets{canvases: s.canvases}, audit: s.audit, revoked: s.caller.IsRevoked,
		arrived: func() { s.notify.Joined(who, host.tenant, host.name) },
		begun:   make(chan struct{}), ctx: ctx, cancel: cancel,
	}
	c.begin = sync.OnceFunc(func() { close(c.begun) })
	c.out = &outbox{sock: sock, limit: s.cfg.QueueLimit, budget: s.budget, written: c.written, ended: c.ended, writers: s.writers, tenant: host.tenant, delayed: s.metrics.delays.Observe}
	sock.Conn.OnBlock(c.out.leavePlace)
	c.out.packing.On = sock.Compresses && s.cfg.Compress.Pays(sock.Conn.Conn, remote)
	sock.Conn.WaitQuietly()
	c.load.budget, c.load.conn, c.load.ctx, c.load.upload.conn = s.budget, sock.Conn, ctx, sock.Conn
	c.load.progressed(c.since)
	c.pending.budget = s.budget
	sock.Pong = c.pong
	return c
}

func serveHealthy(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }

// Degraded begins the answer of /readyz, with status 200, from a ready relay that lacks something. The
// lack follows.
const Degraded = "ready, but degraded: "

// serveReady returns the handler that reports whether this relay should get new clients.
// For inside, see [Config.Ready].
func (s *Server) serveReady(inside bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := s.unready(inside); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		state := "ready"
		if s.cfg.Degraded != nil {
			if lack := s.cfg.Degraded(); lack != "" {
				state = Degraded + lack
			}
		}
		_, _ = w.Write([]byte(state + "\n"))
	}
}

// unready returns the reason why this relay should get no new clients, or nil.
func (s *Server) unready(inside bool) error {
	if s.draining.Load() {
		return errors.New(ahp.CloseShuttingDown.Reason())
	}
	if s.cfg.Ready != nil {
		if err := s.cfg.Ready(inside); err != nil {
			return err
		}
	}
	if s.cutOff.Load() {
		return errors.New(cutReason)
	}
	return nil
}

// refuseFull refuses a client with HTTP 503 because memory is short (RFC 9110, section
// 15.6.4).
func (s *Server) refuseFull(w http.ResponseWriter, r *http.Request, who auth.Client) {
	const reason = "no memory for more connections on this relay"
	s.caller.Refuse("memory", "", audit.Line{Host: r.PathValue("host"), Address: s.caller.Address(r), Reason: reason}.Of(who))
	w.Header().Set("Retry-After", "5")
	http.Error(w, ahp.CloseOverloaded.Reason()+": "+reason, http.StatusServiceUnavailable)
}
