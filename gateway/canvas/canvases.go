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

// ticketMethod is a method that the relay answers itself.
const ticketMethod = "relay/canvasTicket"

// enterPath begins the path of a URL with a ticket. The application gets no request below
// it.
const enterPath = "/.ahp-canvas/"

// Limits for canvases by URL.
const (
	maxCanvasCookie = 3800             // bytes; browsers accept 4096, including name and attributes
	maxSessions     = 4096             // cached verified sessions
	checkTimeout    = 15 * time.Second // timeout for the host-agent's answer

	// A subject may get ticketsAtOnce tickets at once, and then one per ticketEvery.
	ticketsAtOnce = 100
	ticketEvery   = time.Second

	// Concurrent requests, including open streams. Up to usesWait further requests wait
	// for a turn.
	tenantUses  = 2048
	hostUses    = 1024
	sessionUses = 256
	usesWait    = 4096
)

// An Origin is the canvas domain with its scheme and port.
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
		return Origin{}, fmt.Errorf("--canvas-domain %q: want a name such as canvas.example.com, or an origin such as http://localhost:8484", text)
	}
	return Origin{u.Scheme, strings.ToLower(u.Hostname()), u.Port()}, nil
}

// CheckDomain connects to a name below the canvas domain, and returns an error unless a
// relay with that domain answers. If the domain is localhost, it does not resolve the name,
// but connects to this machine, as browsers do.
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

// Of returns the origin for a name; "*" makes a pattern.
func (o Origin) Of(name string) string {
	host := name + "." + o.Domain
	if o.Port != "" {
		host += ":" + o.Port
	}
	return o.Scheme + "://" + host
}

// NameIn returns the name in a request's Host; ok is false if that is not below the
// canvas domain.
func (o Origin) NameIn(host string) (name string, ok bool) {
	if o.Domain == "" {
		return "", false
	}
	name = strings.ToLower((&url.URL{Host: host}).Hostname())
	return strings.CutSuffix(name, "."+o.Domain)
}

// secure reports whether browsers accept Secure cookies from the canvas domain.
func (o Origin) secure() bool {
	return o.Scheme == "https" || o.Domain == "localhost" || strings.HasSuffix(o.Domain, ".localhost")
}

// A canvasSession permits a browser to show a canvas.
type canvasSession struct {
	auth.CanvasGrant
	name   string // first label of the canvas's host name
	pool   string // key of the connection pool for its requests
	remote string // client's address in the first request
	check  bool   // not a session: a request of consult to the host-agent
}

func newSession(g auth.CanvasGrant, name, remote string) *canvasSession {
	return &canvasSession{CanvasGrant: g, name: name, pool: strings.ToLower(rand.Text()), remote: remote}
}

// Config configures [Canvases].
type Config struct {
	Origin   Origin // empty Domain: no canvases by URL
	Caller   *authn.Checker
	Draining func() bool // reports whether the relay refuses new requests

	// MaxHeader is the longest request header in bytes, without cookies that are dropped.
	// Default: no limit.
	MaxHeader int

	// Borrow returns the link to a host. If the host is offline, the error is
	// [ErrHostAway]. Without an error, the caller must call release.
	Borrow func(ctx context.Context, tenant, host string) (link Link, release func(), err error)
}

// A Link is the link to a host.
type Link struct {
	Relay    *routing.RelayEnd
	Canvases bool // the host-agent accepts streams to canvases and previews
	Sealed   bool // the host is sealed, so its host-agent accepts none
}

// ErrHostAway reports that a host is offline.
var ErrHostAway = errors.New("host offline")

// errClosed ends requests because the relay closes.
var errClosed = errors.New("relay closed")

// Canvases serves canvases by URL.
type Canvases struct {
	Config
	turns     *fair.Turns   // shared between tenants, hosts and sessions
	hold      time.Duration // holdTime, except in tests
	tickets   *fair.Buckets // rate of tickets, by subject
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

// endIf ends the requests in sessions for which over returns true.
func (c *Canvases) endIf(over func(*canvasSession) bool, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for u := range c.uses {
		if over(u.session) {
			u.end(why)
		}
	}
}

// EndRevoked ends the requests whose tokens are revoked.
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

// isRevokedForGood is like isRevoked. A token's revocation is forgotten when the token
// expires. So if a revoked session can outlive its token, isRevokedForGood revokes the
// session itself too.
func (c *Canvases) isRevokedForGood(s *canvasSession) bool {
	if !c.isRevoked(s) {
		return false
	}
	if s.ID != "" && s.TokenExpires().Before(s.Expires) {
		_, _ = c.Caller.Revoked.Spend(s.Tenant, s.ID, s.Expires) // after an error, only the token's revocation counts
	}
	return true
}

// use registers a request in progress. The returned context ends with the session. The
// caller must call done.
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

// A canvasStream is a stream to a host-agent, whose link it releases when it is closed.
type canvasStream struct {
	net.Conn
	release func()
}

func (s *canvasStream) Close() error {
	defer s.release()
	return s.Conn.Close()
}

// dial opens a stream to the host-agent for a request's session.
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
	if !link.Canvases {
		release()
		if link.Sealed {
			return nil, ErrSealed
		}
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

// ErrOldAgent reports that the host-agent does not support canvases by URL or previews.
var ErrOldAgent = errors.New("the host-agent is too old for canvases by URL or previews; upgrade it")

// ErrSealed reports that the host is sealed.
var ErrSealed = errors.New("this host is sealed: it has no canvases by URL and no previews, because the relay would read them")

// MaxAsked is the largest number of concurrent requests about tickets and previews from a
// client.
const MaxAsked = 16

// A ticketError says why a ticket was refused.
type ticketError struct {
	code int
	why  string
}

func (e *ticketError) Error() string { return e.why }

func fail(code int, format string, args ...any) error {
	return &ticketError{code, fmt.Sprintf(format, args...)}
}

// ticket asks the host-agent, and returns the response with a ticket.
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

// A canvasAddress tells the client which page a browser must open: the page's URL with a
// ticket, and its origin.
type canvasAddress struct {
	URL    string `json:"url"`
	Origin string `json:"origin"`
}

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

// canvasAccessHeader is the header with which the host-agent states the permitted access:
// look or use.
const canvasAccessHeader = "Ahp-Canvas-Access"

// maxConsulted is the longest response to consult in bytes.
const maxConsulted = 256 << 10

// consult sends a request about a canvas or preview to the host-agent, which answers it
// itself.
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
