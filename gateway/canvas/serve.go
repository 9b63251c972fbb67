package canvas

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// Handler serves requests for canvases, and passes all others to next. It first drops
// foreign cookies, and then refuses requests whose header is too long.
func (c *Canvases) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ok := c.Origin.NameIn(r.Host)
		if ok {
			c.dropForeignCookies(r.Header, name)
		}
		switch {
		case c.isTooLong(r):
			http.Error(w, "request header too long", http.StatusRequestHeaderFieldsTooLarge)
		case ok:
			c.serve(w, r, name)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// refusedPolicy is the Content-Security-Policy in responses from the relay itself.
const refusedPolicy = "default-src 'none'; frame-ancestors *"

// refuseCanvas responds with an error from the relay itself.
func refuseCanvas(w http.ResponseWriter, status int, why string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", refusedPolicy)
	http.Error(w, why, status)
}

func (c *Canvases) serve(w http.ResponseWriter, r *http.Request, name string) {
	if c.Draining() {
		refuseForNow(r, func() { authn.RefuseDraining(w) })
		return
	}
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace || !strings.HasPrefix(r.URL.Path, "/") {
		refuseCanvas(w, http.StatusMethodNotAllowed, "method not allowed")
		return
	}
	session := c.sessionOf(r, name)
	if ticket, ok := strings.CutPrefix(r.URL.EscapedPath(), enterPath); ok {
		c.enter(w, r, name, ticket, session)
		return
	}
	switch {
	case session == nil:
		refuseCanvas(w, http.StatusForbidden, "This canvas opens only from the page that opened it. Open it there again.")
		return
	case !c.ofItsOwn(r):
		refuseCanvas(w, http.StatusForbidden, "Requests from other pages are not allowed.")
		return
	}
	c.Caller.Proved(r)
	ctx, done, err := c.use(r.Context(), session)
	if errors.Is(err, errClosed) {
		refuseForNow(r, func() { authn.RefuseDraining(w) })
		return
	}
	if err != nil {
		refuseCanvas(w, http.StatusGone, "This canvas is no longer available: "+err.Error())
		return
	}
	defer done()
	place, err := c.turns.Take(ctx, session.Tenant, session.Host, session.ID)
	if err != nil {
		// The browser has disconnected, or has more waiting requests than any page needs.
		refuseForNow(r, func() { refuseCanvas(w, http.StatusServiceUnavailable, err.Error()) })
		return
	}
	defer place()
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex() // the answer may begin before the request's end
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
	w.Header().Del("Connection")
	if r = r.WithContext(ctx); wantsEvents(r) {
		c.serveEvents(w, r)
		return
	}
	c.proxy.ServeHTTP(&finalWriter{ResponseWriter: w}, r)
}

// cookieName returns the name of the session cookie. With the prefix __Host-, browsers
// accept the cookie only from this exact origin.
func (o Origin) cookieName() string {
	if o.Scheme == "https" {
		return "__Host-ahp-canvas"
	}
	return "ahp-canvas"
}

// sessionOf returns a request's session, or nil.
func (c *Canvases) sessionOf(r *http.Request, name string) *canvasSession {
	for _, cookie := range r.CookiesNamed(c.Origin.cookieName()) {
		if s := c.session(cookie.Value, c.Caller.Address(r)); s != nil && s.name == name {
			return s
		}
	}
	return nil
}

// session returns the session in a cookie, or nil.
func (c *Canvases) session(cookie, remote string) *canvasSession {
	c.mu.Lock()
	s, ok := c.sessions.Get(cookie)
	c.mu.Unlock()
	if !ok {
		grant, err := c.Caller.Keys.Canvases().VerifySession(cookie)
		if err != nil {
			return nil
		}
		s = newSession(grant, c.Caller.Keys.Canvases().Name(&grant), remote)
		c.mu.Lock()
		if other, ok := c.sessions.Get(cookie); ok {
			s = other
		} else {
			c.sessions.Add(cookie, s)
		}
		c.mu.Unlock()
	}
	if !time.Now().Before(s.Expires) {
		return nil
	}
	return s
}

// ofItsOwn reports whether a request comes from the canvas itself, or navigates to it.
// Without this check, other sites could use the session, because browsers send cookies
// with any request.
func (c *Canvases) ofItsOwn(r *http.Request) bool {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	upgrades := len(r.Header["Upgrade"]) > 0
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-site", "cross-site":
		return reads && !upgrades && r.Header.Get("Sec-Fetch-Mode") == "navigate"
	}
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return true
	}
	if len(origins) > 1 {
		return false
	}
	u, err := url.Parse(origins[0])
	own := err == nil && u.Scheme == c.Origin.Scheme && strings.EqualFold(u.Host, r.Host)
	return own || reads && !upgrades && r.Header.Get("Sec-Fetch-Site") != ""
}

// enter exchanges a ticket for a session, which replaces the browser's present session, and
// redirects to the page.
func (c *Canvases) enter(w http.ResponseWriter, r *http.Request, name, ticket string, session *canvasSession) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		refuseCanvas(w, http.StatusMethodNotAllowed, "a ticket is used with GET")
		return
	}
	ticket, path, _ := strings.Cut(ticket, "/")
	keys := c.Caller.Keys
	grant, err := keys.Canvases().VerifyTicket(ticket)
	if err == nil && keys.Canvases().Name(&grant) != name {
		err = auth.ErrTokenInvalid
	}
	if err == nil {
		err = c.spend(&grant)
	}
	switch {
	case err == nil:
		if err := c.begin(w, r, grant); err != nil {
			refuseCanvas(w, http.StatusGone, "This canvas is no longer available: "+err.Error())
			return
		}
	case errors.Is(err, registry.ErrTooManyRevocations): // the ticket is still valid
		w.Header().Set("Retry-After", "10")
		refuseCanvas(w, http.StatusServiceUnavailable, "The relay cannot record that this address is used: "+err.Error())
		return
	case session == nil || !errors.Is(err, errTicketUsed): // with a session, the browser has loaded the ticket's page again
		c.Caller.Refuse("canvas", authn.TroubleOf(err), audit.Line{Address: c.Caller.Address(r), Reason: err.Error()})
		refuseCanvas(w, http.StatusForbidden, "This address works once, for one minute. Open the canvas again from the page that opened it.")
		return
	}
	to := "/" + strings.TrimLeft(path, "/")
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

var errTicketUsed = errors.New("ticket already used")

// spend marks a ticket as used at all relays.
func (c *Canvases) spend(grant *auth.CanvasGrant) error {
	first, err := c.Caller.Revoked.Spend(grant.Tenant, grant.ID, grant.Expires)
	switch {
	case first: // also if the disk is full
		return nil
	case err == nil:
		return errTicketUsed
	}
	return err
}

// begin sets the browser's session cookie.
func (c *Canvases) begin(w http.ResponseWriter, r *http.Request, grant auth.CanvasGrant) error {
	grant.ID, grant.Expires = "", time.Unix(grant.Until, 0)
	who := grant.Client()
	if c.Caller.IsRevoked(who) {
		return auth.ErrTokenRevoked
	}
	value, err := c.Caller.Keys.Canvases().IssueSession(grant)
	if err != nil {
		return err
	}
	c.Caller.Proved(r)
	c.Caller.Audit.Comings(audit.Line{Event: "canvas", Host: grant.Host, Address: c.Caller.Address(r), Detail: grant.Channel + " " + grant.Instance}.Of(who))
	http.SetCookie(w, c.cookie(c.Origin.cookieName(), value, grant.Expires))
	return nil
}

// cookie returns a cookie that works in a frame on another site. Browsers store it
// separately for each such site (partitioned).
func (c *Canvases) cookie(name, value string, expires time.Time) *http.Cookie {
	cookie := &http.Cookie{Name: name, Value: value, Path: "/", HttpOnly: true, Expires: expires}
	c.inFrame(cookie)
	return cookie
}

// inFrame sets the attributes with which browsers send a cookie from frames.
func (c *Canvases) inFrame(cookie *http.Cookie) {
	if c.Origin.secure() {
		cookie.Secure, cookie.Partitioned, cookie.SameSite = true, true, http.SameSiteNoneMode
	}
}

// refusedStatus returns the response to a request that the application did not answer.
func refusedStatus(ctx context.Context, err error) (int, string) {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, auth.ErrTokenRevoked), errors.Is(cause, auth.ErrTokenExpired):
		return http.StatusGone, "This canvas is no longer available: " + cause.Error()
	case errors.Is(err, ErrHostAway):
		return http.StatusServiceUnavailable, "The host is offline."
	case errors.Is(err, ErrOldAgent):
		return http.StatusNotImplemented, ErrOldAgent.Error()
	case errors.Is(err, ErrSealed):
		return http.StatusNotImplemented, ErrSealed.Error()
	case errors.Is(err, errForNow):
		return http.StatusServiceUnavailable, err.Error()
	}
	return http.StatusBadGateway, "The host did not answer."
}

// hiddenHeaders are request headers that the application does not get, because they
// reveal more about the browser or about proxies than a request from a local browser
// would.
var hiddenHeaders = []string{"Forwarded", "Via", "X-Real-Ip", "True-Client-Ip", "Cf-Connecting-Ip"}

func hide(h http.Header) {
	for _, name := range hiddenHeaders {
		h.Del(name)
	}
	maps.DeleteFunc(h, func(name string, _ []string) bool { return strings.HasPrefix(name, "X-Forwarded-") })
}

// droppedHeaders are response headers that are dropped, because they would prevent
// framing, outlast the canvas, or affect other origins.
var droppedHeaders = []string{
	"X-Frame-Options",                                                                                     // the relay decides about framing
	"Strict-Transport-Security", "Public-Key-Pins", "Public-Key-Pins-Report-Only", "Expect-Ct", "Alt-Svc", // would apply to the relay's names and ports
	"Clear-Site-Data",                                                 // would end the session
	"Nel", "Report-To", "Reporting-Endpoints", "Origin-Agent-Cluster", // would send reports to other servers; framable sets the last

	// Proxies in front of relays obey these, and would send their own files or cached
	// content.
	"X-Sendfile", "X-Lighttpd-Send-File", "X-Lighttpd-Send-Tempfile", "X-Reproxy-Url", "X-Reproxy-File", "Fly-Replay",
}

// framable changes a response's headers so that the page works in a frame, in an origin
// of its own.
func (c *Canvases) framable(h http.Header, page string) {
	for _, name := range droppedHeaders {
		h.Del(name)
	}
	maps.DeleteFunc(h, func(name string, _ []string) bool { // nginx obeys these; X-Accel-Buffering only disables its buffering
		return strings.HasPrefix(name, "X-Accel-") && name != "X-Accel-Buffering"
	})
	h.Set("Origin-Agent-Cluster", "?1")
	for _, name := range []string{"Content-Security-Policy", "Content-Security-Policy-Report-Only"} {
		policies := strings.Split(strings.Join(h[name], ","), ",")
		h.Del(name)
		for _, policy := range policies {
			if policy = withoutFraming(policy); policy != "" {
				h.Add(name, policy)
			}
		}
	}
	ancestors := "frame-ancestors 'self'"
	if page != "" {
		h.Add("Content-Security-Policy", ancestors+" "+page)
	}
	byDefault(h, "Referrer-Policy", "same-origin")
	byDefault(h, "Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()")
	h.Set("Cache-Control", private(h.Values("Cache-Control")))
	h.Del("Cdn-Cache-Control")
	h.Del("Surrogate-Control")
	c.ownCookies(h)
}

func byDefault(h http.Header, name, value string) {
	if h.Get(name) == "" {
		h.Set(name, value)
	}
}

// withoutFraming returns a Content-Security-Policy without its directives about framing
// and reporting.
func withoutFraming(policy string) string {
	var kept []string
	for directive := range strings.SplitSeq(policy, ";") {
		directive = strings.TrimSpace(directive)
		name := directive
		if end := strings.IndexAny(directive, " \t\f"); end >= 0 {
			name = directive[:end]
		}
		switch strings.ToLower(name) {
		case "", "frame-ancestors", "report-uri", "report-to":
		default:
			kept = append(kept, directive)
		}
	}
	return strings.Join(kept, "; ")
}

// private returns a Cache-Control header that prevents shared caches from storing the
// response.
func private(values []string) string {
	kept := []string{"private"}
	for _, value := range values {
		for directive := range strings.SplitSeq(value, ",") {
			directive = strings.TrimSpace(directive)
			name, _, _ := strings.Cut(strings.ToLower(directive), "=")
			switch name {
			case "", "public", "private", "s-maxage", "proxy-revalidate":
			default:
				kept = append(kept, directive)
			}
		}
	}
	return strings.Join(kept, ", ")
}

// ownCookies restricts the application's cookies to this origin.
func (c *Canvases) ownCookies(h http.Header) {
	lines := slices.Clone(h["Set-Cookie"])
	h.Del("Set-Cookie")
	for _, line := range lines {
		cookie, err := http.ParseSetCookie(line)
		if err != nil || strings.EqualFold(cookie.Name, c.Origin.cookieName()) {
			continue
		}
		cookie.Domain = ""
		c.inFrame(cookie)
		if text := cookie.String(); text != "" {
			h.Add("Set-Cookie", text)
		}
	}
}
