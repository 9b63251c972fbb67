package canvas

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/contentproxy"
	"ahprelay/gateway/authn"
	"ahprelay/internal/fair"
	"ahprelay/routing"
)

// ticketMethod is answered by the relay.
const ticketMethod = "relay/canvasTicket"

// enterPath is the path for tickets. The application gets no request below it.
const enterPath = "/.ahp-canvas/"

// Bounds of canvases by URL.
const (
	maxCanvasCookie = 3800             // bytes: browsers accept 4096, with name and attributes
	maxSessions     = 4096             // verified sessions remembered
	checkTimeout    = 15 * time.Second // to consult the host-agent

	// Tickets for one subject: the burst, and the interval after it.
	ticketsAtOnce = 100
	ticketEvery   = time.Second

	// Concurrent requests, including open streams. Further requests wait in turn,
	// usesWait in all.
	tenantUses  = 2048
	hostUses    = 1024
	sessionUses = 256
	usesWait    = 4096
)

// An Origin is the canvas domain with scheme and port.
type Origin struct {
	Scheme, Domain, Port string
}

// ParseDomain parses "canvas.example.com", which means https, or an origin such as
// "http://localhost:8484".
func ParseDomain(text string) (Origin, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || net.ParseIP(u.Hostname()) != nil ||
		u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return Origin{}, fmt.Errorf("canvas domain %q: want a name such as canvas.example.com, or an origin such as http://localhost:8484", text)
	}
	return Origin{u.Scheme, strings.ToLower(u.Hostname()), u.Port()}, nil
}

// CheckDomain reports an error if names below a canvas domain do not lead browsers to
// a relay with that domain. Browsers resolve names below localhost to their own
// machine.
func CheckDomain(ctx context.Context, text string) error {
	origin, err := ParseDomain(text)
	if err != nil {
		return err
	}
	address := origin.Of("check") + "/"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	if origin.Domain == "localhost" {
		transport.DialContext = func(ctx context.Context, network, at string) (net.Conn, error) {
			_, port, _ := net.SplitHostPort(at)
			var d net.Dialer
			return d.DialContext(ctx, network, net.JoinHostPort("localhost", port))
		}
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("canvas domain: %s: %w; %s", address, err, origin.missing(err))
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusForbidden || response.Header.Get("Content-Security-Policy") != refusedPolicy {
		return fmt.Errorf("canvas domain: %s is not served by a relay with that domain (HTTP %d); set --canvas-domain of relay serve, and let proxies pass the Host header", address, response.StatusCode)
	}
	return nil
}

// missing returns advice for an unreachable canvas domain.
func (o Origin) missing(err error) string {
	var unknown *net.DNSError
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	switch {
	case errors.As(err, &unknown):
		return fmt.Sprintf("add a DNS record for *.%s with the address of the relay", o.Domain)
	case errors.As(err, &certificate):
		return fmt.Sprintf("get a certificate for *.%s: with --acme-dns or --tls-cert of relay serve, or in a proxy in front", o.Domain)
	case errors.As(err, &alert):
		return fmt.Sprintf("there is no certificate for *.%s yet: see the relay's log", o.Domain)
	}
	return fmt.Sprintf("the relay, or a proxy in front of it, must serve *.%s there", o.Domain)
}

// Of returns the origin with a name; "*" makes a pattern.
func (o Origin) Of(name string) string {
	host := name + "." + o.Domain
	if o.Port != "" {
		host += ":" + o.Port
	}
	return o.Scheme + "://" + host
}

// NameIn returns the name in a request's host; ok is false if the host is not below
// the canvas domain.
func (o Origin) NameIn(host string) (name string, ok bool) {
	if o.Domain == "" {
		return "", false
	}
	name = strings.ToLower((&url.URL{Host: host}).Hostname())
	return strings.CutSuffix(name, "."+o.Domain)
}

// secure reports whether browsers accept Secure cookies from the domain.
func (o Origin) secure() bool {
	return o.Scheme == "https" || o.Domain == "localhost" || strings.HasSuffix(o.Domain, ".localhost")
}

// A canvasSession is a browser's permission to show a canvas.
type canvasSession struct {
	auth.CanvasGrant
	name   string // in its origin
	pool   string // key of the connection pool for its requests
	remote string // address of its first request
	check  bool   // not a session yet: consult the host-agent
}

func newSession(g auth.CanvasGrant, name, remote string) *canvasSession {
	return &canvasSession{CanvasGrant: g, name: name, pool: strings.ToLower(rand.Text()), remote: remote}
}

// Config configures [Canvases].
type Config struct {
	Origin   Origin // empty Domain: no canvases by URL
	Caller   *authn.Checker
	Draining func() bool // the relay accepts no more requests

	// MaxHeader bounds a request header in bytes, without dropped cookies. Default: no
	// bound.
	MaxHeader int

	// Borrow returns the link to a host; the caller must call release. It returns
	// [ErrHostAway] if there is no link.
	Borrow func(ctx context.Context, tenant, host string) (link Link, release func(), err error)
}

// A Link is the link to a host.
type Link struct {
	Relay    *routing.RelayEnd
	Canvases bool // the host-agent accepts streams to canvases
	Previews bool // and to previews
}

// ErrHostAway reports a host that is not online.
var ErrHostAway = errors.New("host offline")

// errClosed ends requests when the relay closes.
var errClosed = errors.New("relay closed")

// Canvases serves canvases by URL.
type Canvases struct {
	Config
	turns     *fair.Turns   // shared between tenants, hosts and sessions
	hold      time.Duration // holdTime
	tickets   *fair.Buckets // per subject
	cookies   *knownCookies
	transport *http.Transport
	proxy     *httputil.ReverseProxy

	mu       sync.Mutex // guards the fields below
	sessions *simplelru.LRU[string, *canvasSession]
	uses     map[*canvasUse]bool
	closed   bool
}

// A canvasUse is a request in progress.
type canvasUse struct {
	session *canvasSession
	end     context.CancelCauseFunc
}

// New returns Canvases without sessions.
func New(cfg Config) *Canvases {
	c := &Canvases{
		Config: cfg, turns: fair.New(usesWait, tenantUses, hostUses, sessionUses), hold: holdTime,
		tickets: fair.NewBuckets(ticketEvery, ticketsAtOnce), uses: map[*canvasUse]bool{}, cookies: newKnownCookies(),
	}
	c.sessions, _ = simplelru.NewLRU[string, *canvasSession](maxSessions, nil) // fails only without a limit
	c.transport = &http.Transport{
		Proxy:                  nil,
		DialContext:            c.dial,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    32,
		MaxIdleConns:           4096,
		IdleConnTimeout:        20 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		WriteBufferSize:        32 << 10,
		ReadBufferSize:         32 << 10,
	}
	c.proxy = c.newProxy()
	return c
}

// Close ends all requests, and refuses new ones.
func (c *Canvases) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.endIf(func(*canvasSession) bool { return true }, errClosed)
	c.transport.CloseIdleConnections()
}

// endIf ends the requests of matching sessions.
func (c *Canvases) endIf(over func(*canvasSession) bool, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for u := range c.uses {
		if over(u.session) {
			u.end(why)
		}
	}
}

// EndRevoked ends the requests of revoked tokens.
func (c *Canvases) EndRevoked() {
	c.endIf(c.isRevoked, auth.ErrTokenRevoked)
	c.mu.Lock()
	known := c.sessions.Values()
	c.mu.Unlock()
	for _, s := range known {
		c.isRevokedForGood(s)
	}
}

// isRevoked reports whether a session or its token is revoked.
func (c *Canvases) isRevoked(s *canvasSession) bool {
	return c.Caller.IsRevoked(s.Client()) || c.Caller.Revoked.Revoked(time.Now(), auth.RevocationKey{Token: s.ID})
}

// isRevokedForGood is isRevoked, and also revokes the session itself if it can outlive
// its token: the token's revocation is forgotten when the token expires.
func (c *Canvases) isRevokedForGood(s *canvasSession) bool {
	if !c.isRevoked(s) {
		return false
	}
	if s.ID != "" && s.TokenExpires().Before(s.Expires) {
		_, _ = c.Caller.Revoked.Spend(s.ID, s.Expires) // after an error, only the token's revocation counts
	}
	return true
}

// use registers a request in progress; the caller must call done. The returned context
// ends with the session.
func (c *Canvases) use(ctx context.Context, s *canvasSession) (_ context.Context, done func(), err error) {
	ctx, end := context.WithCancelCause(context.WithValue(ctx, sessionKey{}, s))
	ctx, stop := context.WithDeadlineCause(ctx, s.Expires, auth.ErrTokenExpired)
	u := &canvasUse{s, end}
	done = func() {
		c.mu.Lock()
		delete(c.uses, u)
		c.mu.Unlock()
		stop()
		end(nil)
	}
	c.mu.Lock()
	closed := c.closed
	c.uses[u] = true
	c.mu.Unlock()
	switch {
	case closed:
		err = errClosed
	case c.isRevokedForGood(s): // later revocations find the request
		err = auth.ErrTokenRevoked
	}
	if err != nil {
		done()
	}
	return ctx, done, err
}

// sessionKey is the context key for a request's canvasSession.
type sessionKey struct{}

// A canvasStream is a stream to a host-agent.
type canvasStream struct {
	net.Conn
	release func()
}

// Close implements [net.Conn].
func (s *canvasStream) Close() error {
	defer s.release()
	return s.Conn.Close()
}

// dial opens a stream for a request's session.
func (c *Canvases) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	s, ok := ctx.Value(sessionKey{}).(*canvasSession)
	if !ok {
		return nil, errors.New("no canvas")
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	link, release, err := c.Borrow(ctx, s.Tenant, s.Host)
	if err != nil {
		return nil, err
	}
	if !link.Canvases || s.Preview && !link.Previews {
		release()
		return nil, ErrOldAgent
	}
	tokenEnds := s.TokenExpires()
	stream, err := link.Relay.OpenBytes(routing.Open{
		ID: rand.Text()[:12], Subject: s.Subject, Token: s.Token, Access: string(auth.AccessRead), Expires: &tokenEnds, Remote: s.remote,
		Canvas: &routing.Canvas{
			Channel: s.Channel, Instance: s.Instance, ClientID: s.ClientID, Authority: s.Authority, Check: s.check, Preview: s.Preview,
		},
	})
	if err != nil {
		release()
		return nil, err
	}
	return &canvasStream{stream, sync.OnceFunc(release)}, nil
}

// ErrOldAgent reports a host-agent without support for canvases by URL or previews.
var ErrOldAgent = errors.New("the host-agent is too old for canvases by URL; upgrade it")

// MaxAsked bounds a client's concurrent requests for tickets.
const MaxAsked = 16

// A ticketError is the reason for a refused ticket.
type ticketError struct {
	code int
	why  string
}

func (e *ticketError) Error() string { return e.why }

func fail(code int, format string, args ...any) error {
	return &ticketError{code, fmt.Sprintf(format, args...)}
}

// ticket returns a ticket, if the host-agent agrees.
func (c *Canvases) ticket(ctx context.Context, grant auth.CanvasGrant, uri, remote string) ([]byte, error) {
	response, body, err := c.consult(ctx, grant, remote, http.MethodGet, "/")
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusNoContent {
		return nil, refusedBy(response, body)
	}
	_, place, _ := strings.Cut(strings.TrimPrefix(uri, contentproxy.Scheme+":/"), "/") // path, query and fragment
	at, err := c.address(grant, place)
	if err != nil {
		return nil, err
	}
	return json.Marshal(struct {
		*canvasAddress
		Access  string    `json:"access"`
		Expires time.Time `json:"expires"`
	}{at, response.Header.Get(canvasAccessHeader), grant.Expires})
}

// A canvasAddress is the start address for a browser.
type canvasAddress struct {
	URL    string `json:"url"`
	Origin string `json:"origin"`
}

// address returns a page's address with a ticket.
func (c *Canvases) address(grant auth.CanvasGrant, page string) (*canvasAddress, error) {
	keys := c.Caller.Keys
	session, err := keys.Canvases().IssueSession(grant)
	if err == nil && len(session) > maxCanvasCookie {
		return nil, fail(ahp.CodeInvalidParams, "the names of canvas and client are too long for a cookie")
	}
	ticket := ""
	if err == nil {
		ticket, err = keys.Canvases().IssueTicket(grant)
	}
	if err != nil {
		return nil, err
	}
	origin := c.Origin.Of(keys.Canvases().Name(&grant))
	return &canvasAddress{origin + enterPath + ticket + "/" + page, origin}, nil
}

// canvasAccessHeader is the host-agent's header for the permitted access: look or use.
const canvasAccessHeader = "Ahp-Canvas-Access"

// maxConsulted bounds a host-agent's answer to consult, in bytes.
const maxConsulted = 256 << 10

// consult asks the host-agent for permission to show a canvas, or about previews.
func (c *Canvases) consult(ctx context.Context, grant auth.CanvasGrant, remote, method, target string) (*http.Response, []byte, error) {
	s := newSession(grant, "", remote)
	s.check = true
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, sessionKey{}, s), checkTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+s.pool+target, nil)
	if err != nil {
		return nil, nil, err
	}
	request.Close = true
	response, err := c.transport.RoundTrip(request)
	if err == nil {
		defer func() { _ = response.Body.Close() }()
		var body []byte
		if body, err = io.ReadAll(io.LimitReader(response.Body, maxConsulted)); err == nil {
			return response, body, nil
		}
	}
	return nil, nil, fail(ahp.CodeHostOffline, "the host-agent did not answer: %v", err)
}

// refusedBy returns the error for a host-agent's refusal.
func refusedBy(response *http.Response, body []byte) error {
	code := ahp.CodePermissionDenied
	switch response.StatusCode {
	case http.StatusGone:
		code = ahp.CodeNotFound
	case http.StatusNotFound:
		code = ahp.CodeInvalidParams
	}
	return fail(code, "%s", strings.TrimSpace(string(body[:min(len(body), 200)])))
}
