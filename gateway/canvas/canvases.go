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
	"ahprelay/gateway/admission"
	"ahprelay/gateway/authn"
	"ahprelay/internal/fair"
	"ahprelay/routing"
)

// ticketMethod is answered by the relay.
const ticketMethod = "relay/canvasTicket"

// enterPath is where tickets are used. Nothing below it is the application's.
const enterPath = "/.ahp-canvas/"

// Bounds of canvases by URL.
const (
	maxCanvasCookie = 3800             // bytes: browsers take 4096, with its name and attributes
	maxSessions     = 4096             // that are remembered to be good
	checkTimeout    = 15 * time.Second // for a ticket

	// How many tickets a subject gets at once, and how often one more.
	ticketsAtOnce = 100
	ticketEvery   = time.Second

	// Requests at a time, those that stay open included. More wait in turn, so
	// many of each browser.
	tenantUses  = 2048
	hostUses    = 1024
	sessionUses = 256
	usesWait    = 4096
)

// An Origin is where canvases have their names.
type Origin struct {
	Scheme, Domain, Port string
}

// ParseDomain reads "canvas.example.com", which means https, or an
// origin such as "http://localhost:8484".
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

// CheckDomain reports why names below a canvas domain do not lead browsers to
// a relay that has it. Names below localhost they know to be here.
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
		return fmt.Errorf("canvas domain: what answers at %s is no relay with that domain (HTTP %d); want --canvas-domain of relay serve, and a proxy that passes Host on", address, response.StatusCode)
	}
	return nil
}

// missing says what to do about names that browsers cannot reach.
func (o Origin) missing(err error) string {
	var unknown *net.DNSError
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	switch {
	case errors.As(err, &unknown):
		return fmt.Sprintf("want a record in DNS for *.%s that leads where the relay's own name does", o.Domain)
	case errors.As(err, &certificate):
		return fmt.Sprintf("want a certificate for *.%s: --acme-dns of relay serve gets one, --tls-cert takes one, or a proxy in front has it", o.Domain)
	case errors.As(err, &alert):
		return fmt.Sprintf("there is no certificate for *.%s yet: see the relay's log", o.Domain)
	}
	return fmt.Sprintf("want what listens there to be the relay, or a proxy in front of it that has *.%s, too", o.Domain)
}

// Of returns the origin with a name: "*" for a pattern of all.
func (o Origin) Of(name string) string {
	host := name + "." + o.Domain
	if o.Port != "" {
		host += ":" + o.Port
	}
	return o.Scheme + "://" + host
}

// NameIn returns the name that a request is for; ok is false if the host is none
// below the canvas domain.
func (o Origin) NameIn(host string) (name string, ok bool) {
	if o.Domain == "" {
		return "", false
	}
	name = strings.ToLower((&url.URL{Host: host}).Hostname())
	return strings.CutSuffix(name, "."+o.Domain)
}

// secure reports whether browsers take cookies from there that are for safe
// origins only.
func (o Origin) secure() bool {
	return o.Scheme == "https" || o.Domain == "localhost" || strings.HasSuffix(o.Domain, ".localhost")
}

// A canvasSession is what a browser may see.
type canvasSession struct {
	auth.CanvasGrant
	name   string // of its origin
	pool   string // of the streams that its requests share
	remote string // where it was first seen to come from
	check  bool   // it is none yet: the host-agent is asked about it
}

func newSession(g auth.CanvasGrant, name, remote string) *canvasSession {
	return &canvasSession{CanvasGrant: g, name: name, pool: strings.ToLower(rand.Text()), remote: remote}
}

// Config is what [Canvases] are given.
type Config struct {
	Origin   Origin // without a Domain there are none
	Caller   *authn.Checker
	Draining func() bool // the relay takes no more requests

	// MaxHeader bounds the header of a request in bytes, without the cookies that are dropped. Default: none.
	MaxHeader int

	// Borrow returns the link to a host, until release is called; the error is [ErrHostAway] if
	// there is none.
	Borrow func(ctx context.Context, tenant, host string) (link Link, release func(), err error)
}

// A Link is the way to a host.
type Link struct {
	Relay    *routing.RelayEnd
	Canvases bool // the host-agent takes streams to canvases
	Previews bool // and to previews
}

// ErrHostAway reports a host that is not online.
var ErrHostAway = errors.New("host offline")

// errClosed ends requests when the relay does.
var errClosed = errors.New("relay closed")

// Canvases serves canvases by URL.
type Canvases struct {
	Config
	turns     *fair.Turns        // of tenants, hosts and sessions
	hold      time.Duration      // holdTime
	tickets   *admission.Buckets // of subjects
	cookies   *knownCookies
	transport *http.Transport
	proxy     *httputil.ReverseProxy

	mu       sync.Mutex // guards the fields below
	sessions *simplelru.LRU[string, *canvasSession]
	uses     map[*canvasUse]bool
	closed   bool
}

// A canvasUse is a request that is being answered.
type canvasUse struct {
	session *canvasSession
	end     context.CancelCauseFunc
}

// New returns canvases of which none is shown yet.
func New(cfg Config) *Canvases {
	c := &Canvases{
		Config: cfg, turns: fair.New(usesWait, tenantUses, hostUses, sessionUses), hold: holdTime,
		tickets: admission.NewBuckets(ticketEvery, ticketsAtOnce), uses: map[*canvasUse]bool{}, cookies: newKnownCookies(),
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

// Close ends all requests, and takes no more.
func (c *Canvases) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.endIf(func(*canvasSession) bool { return true }, errClosed)
	c.transport.CloseIdleConnections()
}

// endIf ends the requests of some sessions.
func (c *Canvases) endIf(over func(*canvasSession) bool, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for u := range c.uses {
		if over(u.session) {
			u.end(why)
		}
	}
}

// EndRevoked ends the requests of those whose tokens are revoked.
func (c *Canvases) EndRevoked() {
	c.endIf(c.isRevoked, auth.ErrTokenRevoked)
	c.mu.Lock()
	known := c.sessions.Values()
	c.mu.Unlock()
	for _, s := range known {
		c.isRevokedForGood(s)
	}
}

// isRevoked reports whether a session is, or what it follows from.
func (c *Canvases) isRevoked(s *canvasSession) bool {
	return c.Caller.IsRevoked(s.Client()) || c.Caller.Revoked.Revoked(time.Now(), auth.RevocationKey{Token: s.ID})
}

// isRevokedForGood is isRevoked. A revocation of a token is forgotten when the token has expired, which the session can
// outlive: so the session itself is revoked, too.
func (c *Canvases) isRevokedForGood(s *canvasSession) bool {
	if !c.isRevoked(s) {
		return false
	}
	if s.ID != "" && s.TokenExpires().Before(s.Expires) {
		_, _ = c.Caller.Revoked.Spend(s.ID, s.Expires) // without room for it, or if it cannot be written down, the token's revocation is all
	}
	return true
}

// use notes that a request is being answered, until done is called. Its context
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
	case c.isRevokedForGood(s): // those who revoke find it from now on
		err = auth.ErrTokenRevoked
	}
	if err != nil {
		done()
	}
	return ctx, done, err
}

// sessionKey is where the context of a request has its canvasSession.
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

// dial opens a stream for the session of a request.
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

// ErrOldAgent reports a host-agent that knows nothing of canvases by URL, or of
// previews.
var ErrOldAgent = errors.New("the host-agent is too old for that; upgrade it")

// MaxAsked is how many requests of a client for tickets are answered at a time.
const MaxAsked = 16

// A ticketError is why there is no ticket.
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

// A canvasAddress is where a browser begins.
type canvasAddress struct {
	URL    string `json:"url"`
	Origin string `json:"origin"`
}

// address returns the address of a page with a ticket in it.
func (c *Canvases) address(grant auth.CanvasGrant, page string) (*canvasAddress, error) {
	keys := c.Caller.Keys
	session, err := keys.IssueCanvasSession(grant)
	if err == nil && len(session) > maxCanvasCookie {
		return nil, fail(ahp.CodeInvalidParams, "the names of canvas and client are too long for a browser to keep")
	}
	ticket := ""
	if err == nil {
		ticket, err = keys.IssueCanvasTicket(grant)
	}
	if err != nil {
		return nil, err
	}
	origin := c.Origin.Of(keys.CanvasName(&grant))
	return &canvasAddress{origin + enterPath + ticket + "/" + page, origin}, nil
}

// canvasAccessHeader is where a host-agent says what may be done: look or use.
const canvasAccessHeader = "Ahp-Canvas-Access"

// maxConsulted bounds a host-agent's answer to the relay itself, in bytes.
const maxConsulted = 256 << 10

// consult asks the host-agent whether and how a canvas may be seen, or about
// previews.
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
	return nil, nil, fail(ahp.CodeHostOffline, "the host-agent cannot be asked: %v", err)
}

// refusedBy is why a host-agent does not agree.
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
