package gateway

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
	"ahprelay/audience"
	"ahprelay/auth"
	"ahprelay/contentproxy"
	"ahprelay/fair"
	"ahprelay/gateway/admission"
	"ahprelay/routing"
)

// Canvases by URL. A client that renders in a browser asks the relay, on its
// connection, for a page of a canvas:
//
//	→ {"id":1,"method":"relay/canvasTicket","params":{"channel":"ahp-canvas:/<id>","uri":"ahp-canvas-content:/<instanceId>/<path>"}}
//	← {"id":1,"result":{"url":"https://<name>.<canvas domain>/.ahp-canvas/<ticket>/<path>","origin":"https://<name>.<canvas domain>",
//	    "access":"use","expires":"2026-03-04T05:06:07Z"}}
//
// The name is that of the client's view of the canvas: the same whenever it asks,
// at any relay of the cluster. It opens nothing. The ticket is signed, good once
// and for a minute: it gives the browser that comes with it a session, a signed
// cookie that no script reads, and leads on to the path. With that, each request
// goes to the host-agent, on a stream of the link, and is answered by what the
// canvas's content is on: see package contentproxy. No relay keeps anything.
//
// The host-agent decides about each request and ticket. The session ends with the
// client's token, at its expiry or because it is revoked. An error says why there
// is no ticket; the client can read in band then. Without a canvas domain, the
// method is the host's to answer.

// ticketMethod is answered by the relay.
const ticketMethod = "relay/canvasTicket"

// enterPath is where tickets are used. Nothing below it is the application's.
const enterPath = "/.ahp-canvas/"

// Bounds of canvases by URL.
const (
	maxCanvasCookie = 3800             // bytes: browsers take 4096, with its name and attributes
	maxSessions     = 4096             // that are remembered to be good
	checkTimeout    = 15 * time.Second // for a ticket
	maxChecks       = 16               // of a client at a time

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

// A canvasOrigin is where canvases have their names.
type canvasOrigin struct {
	scheme, domain, port string
}

// parseCanvasDomain reads "canvas.example.com", which means https, or an
// origin such as "http://localhost:8484".
func parseCanvasDomain(text string) (canvasOrigin, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || net.ParseIP(u.Hostname()) != nil ||
		u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return canvasOrigin{}, fmt.Errorf("canvas domain %q: want a name such as canvas.example.com, or an origin such as http://localhost:8484", text)
	}
	return canvasOrigin{u.Scheme, strings.ToLower(u.Hostname()), u.Port()}, nil
}

// CheckCanvasDomain reports why names below a canvas domain do not lead browsers to
// a relay that has it. Names below localhost they know to be here.
func CheckCanvasDomain(ctx context.Context, text string) error {
	origin, err := parseCanvasDomain(text)
	if err != nil {
		return err
	}
	address := origin.of("check") + "/"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	if origin.domain == "localhost" {
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
func (o canvasOrigin) missing(err error) string {
	var unknown *net.DNSError
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	switch {
	case errors.As(err, &unknown):
		return fmt.Sprintf("want a record in DNS for *.%s that leads where the relay's own name does", o.domain)
	case errors.As(err, &certificate):
		return fmt.Sprintf("want a certificate for *.%s: --acme-dns of relay serve gets one, --tls-cert takes one, or a proxy in front has it", o.domain)
	case errors.As(err, &alert):
		return fmt.Sprintf("there is no certificate for *.%s yet: see the relay's log", o.domain)
	}
	return fmt.Sprintf("want what listens there to be the relay, or a proxy in front of it that has *.%s, too", o.domain)
}

// of returns the origin with a name: "*" for a pattern of all.
func (o canvasOrigin) of(name string) string {
	host := name + "." + o.domain
	if o.port != "" {
		host += ":" + o.port
	}
	return o.scheme + "://" + host
}

// nameIn returns the name that a request is for; ok is false if the host is none
// below the canvas domain.
func (o canvasOrigin) nameIn(host string) (name string, ok bool) {
	if o.domain == "" {
		return "", false
	}
	name = strings.ToLower((&url.URL{Host: host}).Hostname())
	return strings.CutSuffix(name, "."+o.domain)
}

// secure reports whether browsers take cookies from there that are for safe
// origins only.
func (o canvasOrigin) secure() bool {
	return o.scheme == "https" || o.domain == "localhost" || strings.HasSuffix(o.domain, ".localhost")
}

// A canvasSession is what a browser may see.
type canvasSession struct {
	auth.CanvasGrant
	name   string // of its origin
	pool   string // of the streams that its requests share
	remote string // where it was first seen to come from
	check  bool   // it is none yet: the host-agent is asked about it
}

func newCanvasSession(g auth.CanvasGrant, name, remote string) *canvasSession {
	return &canvasSession{CanvasGrant: g, name: name, pool: strings.ToLower(rand.Text()), remote: remote}
}

// canvases serves canvases by URL.
type canvases struct {
	origin    canvasOrigin
	server    *Server
	turns     *fair.Turns        // of tenants, hosts and sessions
	tickets   *admission.Buckets // of subjects
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

func newCanvases(origin canvasOrigin, s *Server) *canvases {
	c := &canvases{
		origin: origin, server: s, turns: fair.New(usesWait, tenantUses, hostUses, sessionUses),
		tickets: admission.NewBuckets(ticketEvery, ticketsAtOnce), uses: map[*canvasUse]bool{},
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

// close ends all requests, and takes no more.
func (c *canvases) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.endIf(func(*canvasSession) bool { return true }, errRelayClosed)
	c.transport.CloseIdleConnections()
}

// endIf ends the requests of some sessions.
func (c *canvases) endIf(over func(*canvasSession) bool, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for u := range c.uses {
		if over(u.session) {
			u.end(why)
		}
	}
}

// endRevoked ends the requests of those whose tokens are revoked.
func (c *canvases) endRevoked() {
	c.endIf(func(s *canvasSession) bool { return c.server.isRevoked(s.Client()) }, auth.ErrTokenRevoked)
}

// use notes that a request is being answered, until done is called. Its context
// ends with the session.
func (c *canvases) use(ctx context.Context, s *canvasSession) (_ context.Context, done func(), err error) {
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
		err = errRelayClosed
	case c.server.isRevoked(s.Client()): // those who revoke find it from now on
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
func (c *canvases) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	s, ok := ctx.Value(sessionKey{}).(*canvasSession)
	if !ok {
		return nil, errors.New("no canvas")
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	link, release, err := c.server.hosts.borrow(ctx, hostKey{s.Tenant, s.Host})
	if err != nil {
		return nil, err
	}
	if !link.canvases || s.Preview && !link.previews {
		release()
		return nil, errOldAgent
	}
	stream, err := link.relay.OpenBytes(routing.Open{
		ID: rand.Text()[:12], Subject: s.Subject, Token: s.Token, Access: string(auth.AccessRead), Expires: &s.Expires, Remote: s.remote,
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

// errOldAgent reports a host-agent that knows nothing of canvases by URL, or of
// previews.
var errOldAgent = errors.New("the host-agent is too old for that; upgrade it")

// answerTicket answers a client's request for a ticket, or about previews, and
// reports whether that is what the message was.
func (c *client) answerTicket(env *ahp.Envelope) bool {
	if c.canvases.origin.domain == "" || env.Kind != ahp.Request {
		return false
	}
	answer, ok, err := c.previewAnswer(env)
	if !ok && string(env.Method) == ticketMethod {
		answer, err = c.ticketAnswer(env)
		ok = true
	}
	if !ok {
		return false
	}
	id := append([]byte(nil), env.ID...)
	if err == nil && c.checks.Add(1) > maxChecks {
		c.checks.Add(-1)
		err = fail(ahp.CodeRateLimited, "more than %d requests for tickets at a time", maxChecks)
	} else if err == nil && c.spawn(func() {
		defer c.checks.Add(-1)
		result, err := answer(c.ctx)
		c.answerWith(id, result, err)
	}) {
		return true
	}
	c.answerWith(id, nil, err)
	return true
}

// answerWith answers a request with a result or an error.
func (c *client) answerWith(id, result []byte, err error) {
	var failed *ticketError
	switch {
	case errors.As(err, &failed):
		c.answer(ahp.AppendError(nil, id, failed.code, failed.why, nil))
	case err != nil:
		c.answer(ahp.AppendError(nil, id, ahp.CodeInternalError, err.Error(), nil))
	default:
		c.answer(ahp.AppendResult(nil, id, result))
	}
}

// A ticketError is why there is no ticket.
type ticketError struct {
	code int
	why  string
}

func (e *ticketError) Error() string { return e.why }

func fail(code int, format string, args ...any) error {
	return &ticketError{code, fmt.Sprintf(format, args...)}
}

// ticketAnswer returns what answers a client's request for a ticket.
func (c *client) ticketAnswer(env *ahp.Envelope) (answer func(context.Context) ([]byte, error), err error) {
	m := [...]ahp.Member{{Name: "uri"}}
	if err := ahp.Members(env.Params, m[:]); err != nil {
		return nil, fail(ahp.CodeInvalidParams, "params: want {channel, uri}")
	}
	uri, _ := ahp.Text(m[0].Raw)
	at, err := contentproxy.ParseAddress(uri)
	if err != nil {
		return nil, fail(ahp.CodeInvalidParams, "%v", err)
	}
	channel := string(env.Channel)
	if !strings.HasPrefix(channel, "ahp-canvas:") {
		return nil, fail(ahp.CodeInvalidParams, "channel: want ahp-canvas:/<id>")
	}
	grant, err := c.grantFor(channel)
	if err != nil {
		return nil, err
	}
	grant.Instance = at.Instance
	return func(ctx context.Context) ([]byte, error) { return c.canvases.ticket(ctx, grant, uri, c.remote) }, nil
}

// grantFor returns what a client may have a browser see of a channel.
func (c *client) grantFor(channel string) (grant auth.CanvasGrant, err error) {
	if c.clientID == "" {
		return grant, fail(ahp.CodeInvalidParams, "the client has not said a clientId yet: initialize first")
	}
	if c.canvases.tickets.Take(c.who.Tenant+" "+c.who.Subject) > 0 {
		return grant, fail(ahp.CodeRateLimited, "too many tickets in so short a time")
	}
	who := c.whoNow()
	authority, clientID := c.openAs(who), c.clientID
	if viewer, ok := c.toHost().(*audience.Viewer); ok { // the host-agent knows the audience
		who.Subject, clientID = who.Audience, viewer.HostClient()
	}
	return auth.CanvasGrant{
		Tenant: who.Tenant, Subject: who.Subject, Expires: who.Expires,
		CanvasClaims: auth.CanvasClaims{
			Host: c.host.name, Token: who.ID, Device: who.Device, Issued: who.IssuedAt.Unix(), Until: who.Expires.Unix(), ClientID: clientID,
			Channel: channel, Authority: authority.Authority(), Page: c.page,
		},
	}, nil
}

// ticket returns a ticket, if the host-agent agrees.
func (c *canvases) ticket(ctx context.Context, grant auth.CanvasGrant, uri, remote string) ([]byte, error) {
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
func (c *canvases) address(grant auth.CanvasGrant, page string) (*canvasAddress, error) {
	keys := c.server.cfg.Keys
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
	origin := c.origin.of(keys.CanvasName(&grant))
	return &canvasAddress{origin + enterPath + ticket + "/" + page, origin}, nil
}

// canvasAccessHeader is where a host-agent says what may be done: look or use.
const canvasAccessHeader = "Ahp-Canvas-Access"

// maxConsulted bounds a host-agent's answer to the relay itself, in bytes.
const maxConsulted = 256 << 10

// consult asks the host-agent whether and how a canvas may be seen, or about
// previews.
func (c *canvases) consult(ctx context.Context, grant auth.CanvasGrant, remote, method, target string) (*http.Response, []byte, error) {
	s := newCanvasSession(grant, "", remote)
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
