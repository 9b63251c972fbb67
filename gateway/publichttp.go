package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
	"ahprelay/idle"
	"ahprelay/registry"
)

// publicHandler serves the public listener.
func (s *Server) publicHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ahp/{host}", s.serveAHP)
	mux.HandleFunc("GET /api/hosts", s.serveHosts)
	mux.HandleFunc("GET /api/hosts/{host}", s.serveHost)
	mux.HandleFunc("GET /api/events", s.serveEvents)
	s.notifyRoutes(mux)
	mux.HandleFunc("POST /api/answers/{id}", s.serveAnswer)
	mux.HandleFunc("GET /healthz", serveHealthy)
	mux.HandleFunc("GET /readyz", s.serveReady)
	mux.HandleFunc("POST /agent/challenge", s.serveChallenge)
	mux.HandleFunc("POST /agent/credentials", s.serveCredentials)
	mux.HandleFunc("POST /agent/enroll", s.serveEnroll)
	mux.HandleFunc("POST /agent/renew", s.serveRenew)
	if s.cfg.NATS != nil {
		mux.HandleFunc("GET /nats", s.serveNATS)
	}
	s.operatorRoutes(mux)
	if s.cfg.People != nil {
		s.peopleRoutes(mux)
	}
	mux.HandleFunc("GET "+oauthClientPath, serveOAuthClient)
	mux.Handle("GET /", console(s.canvases.origin))
	return closeUpgrades(s.onCanvasDomain(mux))
}

// closeUpgrades ends the connections of requests that want to be upgraded and
// are not: a proxy that does not look may take what follows for a tunnel, and
// not for more requests.
func closeUpgrades(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header["Upgrade"] != nil {
			w.Header().Set("Connection", "close") // a handshake that succeeds has another
		}
		next.ServeHTTP(w, r)
	})
}

// serveAHP takes a client's connection to a host.
func (s *Server) serveAHP(w http.ResponseWriter, r *http.Request) {
	if s.draining.Load() {
		refuseDraining(w)
		return
	}
	token, err := requestToken(r)
	if err != nil {
		s.unauthorized(w, r, err)
		return
	}
	who, err := s.authenticate(r, token)
	if err != nil {
		s.unauthorized(w, r, err)
		return
	}
	s.asking.proved(r)
	if s.budget.full() {
		s.refuseFull(w, r, who)
		return
	}
	admitted, over := s.limits.Connect(who, r.PathValue("host"), s.address(r))
	if over != nil {
		s.tooMany(w, over, audit.Line{Host: r.PathValue("host"), Address: s.address(r)}.Of(who))
		return
	}
	s.tellEndpoint(w, who, r.PathValue("host"))
	sock, err := accept(s.life, w, r, s.cfg.Origins, s.cfg.Stall, s.cfg.Compress.mode())
	if err != nil {
		admitted.Leave()
		s.refused("handshake", "", audit.Line{Host: r.PathValue("host"), Address: s.address(r), Reason: err.Error()}.Of(who))
		return // the library has answered
	}
	host, remote := hostKey{who.Tenant, r.PathValue("host")}, s.address(r)
	if !s.spawn(func() {
		defer admitted.Leave()
		s.serveClient(sock, who, host, remote, admitted)
	}) {
		admitted.Leave()
		sock.kill()
	}
}

// tellEndpoint tells a client that may see a host where it would be nearer to it.
func (s *Server) tellEndpoint(w http.ResponseWriter, who auth.Client, name string) {
	if !who.MayReach(who.Tenant, name) {
		return
	}
	host, _ := s.hosts.lookup(who.Tenant, name)
	if host.URL != "" && host.URL != strings.TrimSuffix(s.cfg.OwnURL, "/") {
		w.Header().Set(EndpointHeader, endpointOf(host))
	}
}

// serveClient carries a connection whose handshake is done.
func (s *Server) serveClient(sock *socket, who auth.Client, host hostKey, remote string, admitted *admission.Admission) {
	var c *client
	idle.Deep(func() { c = s.enter(sock, who, host, remote, admitted) })
	if c != nil {
		c.serve(s.draining.Load)
	}
}

// enter lets a client in, or returns nil.
func (s *Server) enter(sock *socket, who auth.Client, host hostKey, remote string, admitted *admission.Admission) *client {
	c := s.newClient(sock, who, host, remote)
	c.admitted = admitted
	if code, reason := s.admit(who, host); code != 0 {
		s.refused(code.Reason(), "", c.line("refuse", closing{code: code, reason: reason}))
		sock.close(code, reason)
		c.cancel()
		return nil
	}
	s.audit.Comings(c.line("connect", closing{}))
	s.metrics.accepted.Inc()
	s.tellJoined(who, host)
	return c
}

// admit reports why a client may not connect to a host; 0 if it may.
func (s *Server) admit(who auth.Client, host hostKey) (ahp.CloseCode, string) {
	if !who.MayReach(host.tenant, host.name) {
		return ahp.CloseForbidden, closeReason(ahp.CloseForbidden, "this token is not for that host")
	}
	if _, ok := s.hosts.lookup(host.tenant, host.name); !ok {
		return ahp.CloseUnknownHost, closeReason(ahp.CloseUnknownHost, "no host-agent has ever enrolled under that name")
	}
	return 0, ""
}

func (s *Server) newClient(sock *socket, who auth.Client, host hostKey, remote string) *client {
	ctx, cancel := context.WithCancel(s.life)
	id := rand.Text()[:12]
	c := &client{
		id: id, who: who, host: host, remote: remote, since: time.Now(), sock: sock, page: sock.page,
		hosts: s.hosts, cfg: &s.cfg, spawn: s.spawn, metrics: s.metrics, budget: s.budget, canvases: s.canvases, audit: s.audit, revoked: s.isRevoked, verify: s.verifyClient,
		ctx: ctx, cancel: cancel,
	}
	c.out = &outbox{sock: sock, limit: s.cfg.QueueLimit, budget: s.budget, written: c.written, ended: c.ended, spawn: s.spawn, delayed: s.metrics.delays.Observe}
	c.out.packing.on = sock.packs && s.cfg.Compress.pays(sock.conn.Conn, remote)
	sock.conn.beQuiet()
	c.upload.conn = sock.conn
	c.progressed(c.since)
	sock.pong = c.pong
	return c
}

// errNoToken reports a request without a token.
var errNoToken = errors.New("no token: pass one as Authorization: Bearer, ?access_token=, ?tkn= or subprotocol bearer.<token>")

// requestToken finds the token of a WebSocket handshake: in the header that
// OAuth 2.0 has for it (RFC 6750, section 2.1), in the query, where stock
// clients can put it, or in the list of subprotocols, where browsers can. More
// than one place may hold it, if they hold the same.
func requestToken(r *http.Request) (string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", errors.New("the query of the URL is malformed")
	}
	found := append(query["access_token"], query["tkn"]...)
	for _, header := range r.Header.Values("Authorization") {
		if token, ok := bearer(header); ok {
			found = append(found, token)
		}
	}
	for _, header := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(header, ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(p), "bearer."); ok {
				found = append(found, token)
			}
		}
	}
	if len(found) == 0 {
		return "", errNoToken
	}
	for _, token := range found[1:] {
		if token != found[0] {
			return "", errors.New("more than one token given")
		}
	}
	return found[0], nil
}

// bearer returns the token in an Authorization header. A device's may stand there
// by its own scheme (RFC 9449, section 7.1).
func bearer(header string) (string, bool) {
	scheme, token, ok := strings.Cut(header, " ")
	return strings.TrimSpace(token), ok && (strings.EqualFold(scheme, "Bearer") || strings.EqualFold(scheme, "DPoP"))
}

// unauthorized answers a request without a good token (RFC 6750, section 3).
func (s *Server) unauthorized(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, auth.ErrIssuerAway) { // that is not the client's fault
		s.refused("issuer away", "", audit.Line{Address: s.address(r), Reason: err.Error(), Detail: r.Method + " " + r.URL.Path})
		w.Header().Set("Retry-After", "10")
		http.Error(w, auth.ErrIssuerAway.Error(), http.StatusServiceUnavailable)
		return
	}
	if s.wantsProof(w, err) { // which is how a device learns the nonce
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if over := s.limits.Failed(s.address(r)); over != nil {
		s.tooMany(w, over, audit.Line{Address: s.address(r)})
		return
	}
	s.refused("unauthorized", troubleOf(err), audit.Line{Address: s.address(r), Reason: err.Error(), Detail: r.Method + " " + r.URL.Path})
	challenge := `Bearer realm="ahp-relay"`
	if !errors.Is(err, errNoToken) {
		challenge += `, error="invalid_token"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	http.Error(w, err.Error(), http.StatusUnauthorized)
}

// A HostInfo is a host as the API shows it.
type HostInfo struct {
	Host         string         `json:"host"`
	State        registry.State `json:"state"`
	Since        time.Time      `json:"since"` // when it came into that state
	Silent       *time.Time     `json:"notAnsweringSince,omitempty"`
	Region       string         `json:"region,omitempty"` // that decides who serves it, of several
	LastSeen     *time.Time     `json:"lastSeen"`         // null: never
	Reason       string         `json:"reason,omitempty"` // why it is not online
	AgentVersion string         `json:"agentVersion,omitempty"`
	HostVersion  string         `json:"hostVersion,omitempty"`
	Clients      int            `json:"clients"` // connected now

	// Endpoint is where a client is nearest to it: at the relay where its host-agent is
	// connected. Any other will do.
	Endpoint string `json:"endpoint,omitempty"`
}

// EndpointHeader is in the answer to a client that is at another relay than its host's
// host-agent, and says where that is.
const EndpointHeader = "AHP-Relay-Endpoint"

// endpointOf returns where clients reach a host through the relay that it is connected to,
// "" if that is not known.
func endpointOf(h registry.Host) string {
	rest, ok := strings.CutPrefix(h.URL, "http")
	if !ok {
		return ""
	}
	return "ws" + rest + "/ahp/" + h.Name
}

func infoOf(h registry.Host) HostInfo {
	info := HostInfo{
		Host: h.Name, State: h.State, Since: h.Since.UTC(), Reason: h.Reason,
		AgentVersion: h.AgentVersion, HostVersion: h.HostVersion, Clients: h.Clients, Endpoint: endpointOf(h), Region: h.Region,
	}
	if !h.LastSeen.IsZero() {
		seen := h.LastSeen.UTC()
		info.LastSeen = &seen
	}
	if !h.Silent.IsZero() {
		silent := h.Silent.UTC()
		info.Silent = &silent
	}
	return info
}

// apiClient returns whose request it is, or answers that it is nobody's.
func (s *Server) apiClient(w http.ResponseWriter, r *http.Request) (auth.Client, bool) {
	token, ok := bearer(r.Header.Get("Authorization"))
	if !ok {
		s.unauthorized(w, r, errNoToken)
		return auth.Client{}, false
	}
	who, err := s.authenticate(r, token)
	if err != nil {
		s.unauthorized(w, r, err)
		return auth.Client{}, false
	}
	s.asking.proved(r)
	return who, true
}

// A grant is what a token allows, as the API shows it, so that a page need not
// offer what will be refused.
type grant struct {
	Subject  string      `json:"subject"`
	Access   auth.Access `json:"access"`
	Level    string      `json:"level"`              // the same, by its name
	Channels []string    `json:"channels,omitempty"` // none: all
	Methods  []string    `json:"methods,omitempty"`  // none: all that Access allows
	Expires  time.Time   `json:"expires"`
}

func grantOf(who auth.Client) grant {
	return grant{who.Subject, who.Access, who.Access.Level(), who.Channels, who.Methods, who.Expires}
}

// serveHosts lists the hosts that the token may see, and what it allows there.
func (s *Server) serveHosts(w http.ResponseWriter, r *http.Request) {
	who, ok := s.apiClient(w, r)
	if !ok {
		return
	}
	list := []HostInfo{}
	for _, h := range s.cfg.Registry.Hosts(who.Tenant) {
		if who.MayReach(h.Tenant, h.Name) {
			list = append(list, infoOf(h))
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"hosts": list, "token": grantOf(who)})
}

// serveHost tells of one host. One that the token may not see is not there.
func (s *Server) serveHost(w http.ResponseWriter, r *http.Request) {
	who, ok := s.apiClient(w, r)
	if !ok {
		return
	}
	name := r.PathValue("host")
	host, known := s.cfg.Registry.Lookup(who.Tenant, name)
	if !known || !who.MayReach(who.Tenant, name) {
		writeJSON(w, http.StatusNotFound, map[string]string{"error": ahp.CloseUnknownHost.Reason()})
		return
	}
	writeJSON(w, http.StatusOK, infoOf(host))
}

func serveHealthy(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }

// serveReady tells whether new clients should come here.
func (s *Server) serveReady(w http.ResponseWriter, _ *http.Request) {
	if s.draining.Load() {
		http.Error(w, ahp.CloseShuttingDown.Reason(), http.StatusServiceUnavailable)
		return
	}
	if s.cfg.Ready != nil {
		if err := s.cfg.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	state := "ready"
	if s.cfg.Degraded != nil {
		if lack := s.cfg.Degraded(); lack != "" {
			state += ", but degraded: " + lack
		}
	}
	_, _ = w.Write([]byte(state + "\n"))
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}
