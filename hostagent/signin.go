package hostagent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/internal/clock"
	"ahprelay/routing"
)

// Sign-in of agents by the host-agent. Some authorization servers, such as GitHub's, refuse
// requests of web pages, so the console cannot run the device flow (RFC 8628). The host-agent
// runs this flow on the host's machine, with the client id that the host names:
//
//	→ {"id":1,"method":"relay/signIn","params":{"channel":"ahp-root://","resource":"https://api.example.com"}}
//	← {"id":1,"result":{"id":"…","code":"WDJB-MJHT","where":"https://example.com/device","whole":"…","expiresIn":900}}
//	← {"method":"relay/signedIn","params":{"channel":"ahp-root://","id":"…"}}            the host has the token
//	← {"method":"relay/signedIn","params":{"channel":"ahp-root://","id":"…","error":"…"}}
//
// For a server without the device flow, the answer contains the address of the server's
// page in place of a code: see signinback.go.
//
// The channel's state names the resource: root for agents, a session for its MCP servers.
// The host-agent reads that state by a second subscribe on the client's connection, so a
// client cannot choose the server. It sends the token to the host as an authenticate of the
// client, on the client's connection; relays and clients never see the token. A client has
// one sign-in at a time: a new request, or relay/signInCancel, ends the previous one. One
// request may cause 13 requests to authorization servers, so each person's requests are
// limited to a rate, over all connections.

// Methods of requests that the host-agent answers.
const (
	signInMethod       = "relay/signIn"
	signInBackMethod   = "relay/signInBack"
	signInCancelMethod = "relay/signInCancel"
	signedInMethod     = "relay/signedIn"
)

// Bounds of a sign-in.
const (
	maxSignIn       = 30 * time.Minute // longest time of a sign-in
	maxSignInAnswer = 256 << 10        // longest answer of an authorization server, in bytes
	signInPause     = 5 * time.Second  // pause between polls, unless the server asks for a longer pause
	signInTimeout   = 10 * time.Second // longest time for each request of a sign-in
	signInServers   = 4                // most authorization servers to try

	signInEvery  = 10 * time.Second // a person may request a sign-in once per interval, after the first signInAtOnce
	signInAtOnce = 5
)

const deviceGrant = "urn:ietf:params:oauth:grant-type:device_code"

// githubIssuer names GitHub's endpoints, whose metadata does not list the device flow.
const githubIssuer = "https://github.com/login/oauth"

var githubServer = authServer{Issuer: githubIssuer, Device: "https://github.com/login/device/code", Token: "https://github.com/login/oauth/access_token"}

// A protectedResource is the host's description of a resource (RFC 9728), with the client
// id for its authorization servers, as in the state of MCP servers.
type protectedResource struct {
	servers, scopes []string
	client          oauthClient
}

type oauthClient struct{ ID, Secret string }

// An authServer is an authorization server's metadata (RFC 8414).
type authServer struct {
	Issuer string `json:"issuer"`
	Device string `json:"device_authorization_endpoint"`
	Token  string `json:"token_endpoint"`

	Authorize string   `json:"authorization_endpoint"`
	Methods   []string `json:"code_challenge_methods_supported"`
	NamesSelf bool     `json:"authorization_response_iss_parameter_supported"` // RFC 9207
}

// A deviceCode is an answer to a device authorization request.
type deviceCode struct {
	Device   string `json:"device_code"`
	User     string `json:"user_code"`
	URI      string `json:"verification_uri"`
	URL      string `json:"verification_url"` // Google's name for URI
	Complete string `json:"verification_uri_complete"`
	Expires  int    `json:"expires_in"`
	Interval int    `json:"interval"`
}

// A signIns holds the sign-in of a connection.
type signIns struct {
	mu   sync.Mutex
	stop context.CancelFunc // cancels the running sign-in; nil: none
	back *landing           // landing of the running sign-in, if its server redirects the browser
}

// replace cancels the running sign-in and records its successor, or none if stop is nil.
func (s *signIns) replace(stop context.CancelFunc, back *landing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
	}
	s.stop, s.back = stop, back
}

// landing returns where the server's answer to the running sign-in is expected, or nil.
func (s *signIns) landing() *landing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.back
}

// A signInGate answers a client's requests to sign in.
type signInGate struct {
	view *view.Conn
	conn *hostConn
}

func (signInGate) FromHost([]byte, *ahp.Envelope, *view.Reading) gate.Decision {
	return gate.Decision{}
}

func (g signInGate) FromClient(_ []byte, env *ahp.Envelope) gate.Decision {
	method := string(env.Method)
	if method != signInMethod && method != signInCancelMethod && method != signInBackMethod {
		return gate.Decision{}
	}
	if env.Kind != ahp.Request {
		return gate.Decision{Verdict: gate.Answer}
	}
	refuse := func(code int, why string) gate.Decision {
		return gate.Decision{Verdict: gate.Answer, Message: ahp.AppendError(nil, env.ID, code, why, nil)}
	}
	c, channel := g.conn, string(env.Channel)
	switch method {
	case signInCancelMethod:
		c.signIns.replace(nil, nil)
		return gate.Decision{Verdict: gate.Serve, Message: ahp.AppendResult(nil, env.ID, []byte("{}"))}
	case signInBackMethod:
		if err := c.signIns.landing().takeAddress(ahp.TextOf(env.Params, "address")); err != nil {
			return refuse(ahp.CodeInvalidParams, err.Error())
		}
		return gate.Decision{Verdict: gate.Serve, Message: ahp.AppendResult(nil, env.ID, []byte("{}"))}
	}
	resource := ahp.TextOf(env.Params, "resource")
	switch {
	case !c.policy.Access.Includes(auth.AccessWrite) || !c.policy.Takes(ahp.RootChannel, "authenticate"):
		return refuse(ahp.CodePermissionDenied, "signing in an agent needs the level operate")
	case !g.view.Subscribed(channel) || !c.policy.Takes(channel, "subscribe"):
		return refuse(ahp.CodePermissionDenied, "subscribe to this channel first")
	case resource == "":
		return refuse(ahp.CodeInvalidParams, "params: want {channel, resource}")
	}
	if wait := c.agent.signInRate.Take(c.open.Subject); wait > 0 {
		return refuse(ahp.CodeRateLimited, fmt.Sprintf("too many sign-ins: try again in %d s", int(wait.Seconds())+1))
	}
	g.begin(channel, resource, bytes.Clone(env.ID))
	return gate.Decision{Verdict: gate.Serve} // the flow sends the answer
}

// begin starts a sign-in in place of the connection's previous one, and answers the
// request.
func (g signInGate) begin(channel, resource string, request []byte) {
	c := g.conn
	ctx, cancel := context.WithTimeout(c.agent.life, maxSignIn)
	flow := &signIn{conn: c, channel: channel, resource: resource, id: rand.Text(), http: signInClient(c.agent.cfg.HTTP), back: newLanding()}
	c.signIns.replace(cancel, flow.back)
	c.agent.conns.Go(func() { // the writer that calls begin belongs to the group, so the group is not empty
		defer cancel()
		c.agent.conns.Go(func() { // ends with the connection
			select {
			case <-c.ended:
				cancel()
			case <-ctx.Done():
			}
		})
		flow.run(ctx, request)
	})
}

// signInClient returns a client for authorization servers, with the transport of the
// relays' client. It follows no redirects.
func signInClient(relays *http.Client) *http.Client {
	client := newHTTPClient()
	client.Timeout = signInTimeout
	if relays != nil {
		client.Transport = relays.Transport
	}
	return client
}

// A signIn is one sign-in: a device flow, or a flow in which the server redirects the
// browser.
type signIn struct {
	conn     *hostConn
	channel  string
	resource string
	id       string
	http     *http.Client
	back     *landing

	client oauthClient
	server authServer
}

// Reasons why a sign-in cannot begin.
var (
	errNoResource = errors.New("the host names no such resource")
	errNoClient   = errors.New("the host names no client id for this resource")
	errNoDevice   = errors.New("the authorization server offers no sign-in by code, and none with PKCE (S256)")
)

// An offer is a started sign-in: the members of the answer to the client, and the function
// that completes the sign-in.
type offer struct {
	told   map[string]any
	finish func(context.Context) error
}

// run runs the sign-in, and answers the client's request. request is the id of that request.
func (s *signIn) run(ctx context.Context, request []byte) {
	begun, err := s.begin(ctx)
	if err != nil {
		s.conn.log.Info("agent sign-in not started", "error", err)
		s.say(ahp.AppendError(nil, request, ahp.CodeInternalError, err.Error(), nil))
		return
	}
	begun.told["id"], begun.told["site"] = s.id, siteOf(s.server.Issuer)
	result, _ := json.Marshal(begun.told) // strings and numbers always encode
	s.say(ahp.AppendResult(nil, request, result))
	err = begun.finish(ctx)
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return // cancelled, replaced, or the client has left
	}
	params := map[string]string{"channel": s.channel, "id": s.id}
	if err != nil {
		params["error"] = err.Error()
	} else {
		s.conn.audit("sign-in", "resource", shorten(s.resource), "server", s.server.Issuer)
	}
	said, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": signedInMethod, "params": params})
	s.say(said)
}

func (s *signIn) say(message []byte) {
	s.conn.order.Lock()
	defer s.conn.order.Unlock()
	_ = s.conn.conn.FromHost(message, false, nil) // fails if the client has left
}

// begin finds the authorization server and starts the sign-in there.
func (s *signIn) begin(ctx context.Context) (offer, error) {
	wanted, err := s.named(ctx)
	if err != nil {
		return offer{}, err
	}
	s.client = wanted.client
	if s.client.ID == "" {
		return offer{}, errNoClient
	}
	if s.server, err = s.discover(ctx, wanted.servers); err != nil {
		return offer{}, err
	}
	form := url.Values{}
	if len(wanted.scopes) > 0 {
		form.Set("scope", strings.Join(wanted.scopes, " "))
	}
	if s.server.Issuer != githubIssuer { // RFC 8707
		form.Set("resource", s.resource)
	}
	if s.server.Device == "" {
		return s.beginBack(ctx, form)
	}
	code, err := s.code(ctx, form)
	return offer{
		map[string]any{"code": code.User, "where": cmp.Or(code.URI, code.URL), "whole": code.Complete, "expiresIn": code.Expires},
		func(ctx context.Context) error { return s.finish(ctx, code) },
	}, err
}

func (s *signIn) code(ctx context.Context, form url.Values) (code deviceCode, err error) {
	if err := s.post(ctx, s.server.Device, form, &code); err != nil {
		return code, err
	}
	most := int(maxSignIn.Seconds())
	code.Expires = cmp.Or(min(max(code.Expires, 0), most), most)
	if where := cmp.Or(code.URI, code.URL); code.Device == "" || code.User == "" || !askable(where, s.server.Issuer) || code.Complete != "" && !askable(code.Complete, s.server.Issuer) {
		return code, fmt.Errorf("%s has given no code, or no trusted address at which to enter it", siteOf(s.server.Issuer))
	}
	return code, nil
}

// named returns the host's description of the resource.
func (s *signIn) named(ctx context.Context) (protectedResource, error) {
	ctx, cancel := context.WithTimeout(ctx, signInTimeout)
	defer cancel()
	answer, err := s.conn.ask(ctx, "subscribe", map[string]string{"channel": s.channel})
	if err != nil {
		return protectedResource{}, err
	}
	return findResource(ahp.RawOf(answer, "result", "snapshot", "state"), s.resource)
}

// findResource looks for a resource only where hosts name resources: among the agents of
// root, and in the states of a session's MCP servers. The client id is in the resource's
// metadata, or beside it. Other parts of a state may be text of clients, tools or models,
// which must not choose the addresses that the host-agent contacts.
func findResource(state []byte, resource string) (protectedResource, error) {
	for _, agent := range ahp.ElementsOf(ahp.RawOf(state, "agents")) {
		for _, each := range ahp.ElementsOf(ahp.RawOf(agent.Raw, "protectedResources")) {
			if found, is := resourceIn(each.Raw, resource, each.Raw); is {
				return found, nil
			}
		}
	}
	return serverResource(ahp.RawOf(state, "customizations"), resource)
}

// serverResource looks for a resource among MCP servers, including those of plugins.
func serverResource(customizations []byte, resource string) (protectedResource, error) {
	for _, each := range ahp.ElementsOf(customizations) {
		server := ahp.RawOf(each.Raw, "state")
		if found, is := resourceIn(ahp.RawOf(server, "resource"), resource, server); is {
			return found, nil
		}
		if found, err := serverResource(ahp.RawOf(each.Raw, "children"), resource); err == nil {
			return found, nil
		}
	}
	return protectedResource{}, errNoResource
}

// resourceIn reads metadata if it is about the resource and names servers. The client id
// may be in beside.
func resourceIn(metadata []byte, resource string, beside []byte) (found protectedResource, is bool) {
	if ahp.TextOf(metadata, "resource") != resource {
		return found, false
	}
	found.servers, _ = ahp.Texts(ahp.RawOf(metadata, "authorization_servers"))
	found.scopes, _ = ahp.Texts(ahp.RawOf(metadata, "scopes_supported"))
	for _, place := range [][]byte{metadata, beside} {
		if found.client.ID == "" {
			found.client = oauthClient{ahp.TextOf(place, "oauthClient", "clientId"), ahp.TextOf(place, "oauthClient", "clientSecret")}
		}
	}
	return found, len(found.servers) > 0
}

// discover returns the first server with the device flow, or with the code flow protected
// by a verifier (PKCE, RFC 7636).
func (s *signIn) discover(ctx context.Context, issuers []string) (authServer, error) {
	err := errNoDevice
	for _, issuer := range issuers[:min(len(issuers), signInServers)] {
		issuer = strings.TrimRight(issuer, "/")
		if issuer == githubIssuer {
			return githubServer, nil
		}
		if !askable(issuer, issuer) {
			continue
		}
		for _, place := range metadataPlaces(issuer) {
			var found authServer
			if s.get(ctx, place, &found) != nil {
				continue
			}
			if strings.TrimRight(found.Issuer, "/") != issuer { // RFC 8414, section 3.3
				err = fmt.Errorf("%s gives metadata of a different issuer", siteOf(issuer))
				break
			}
			if !askable(found.Token, issuer) {
				break
			}
			if askable(found.Device, issuer) {
				return found, nil
			}
			found.Device = ""
			if askable(found.Authorize, issuer) && slices.Contains(found.Methods, "S256") {
				return found, nil
			}
			break
		}
	}
	return authServer{}, err
}

// metadataPlaces lists the addresses of an issuer's metadata, by RFC 8414 and OpenID
// Connect.
func metadataPlaces(issuer string) []string {
	at, err := url.Parse(issuer)
	if err != nil {
		return nil
	}
	origin, path := at.Scheme+"://"+at.Host, at.EscapedPath()
	places := []string{origin + "/.well-known/oauth-authorization-server" + path, origin + "/.well-known/openid-configuration" + path}
	if path != "" {
		places = append(places, origin+path+"/.well-known/openid-configuration")
	}
	return places
}

// askable reports whether the host-agent may send requests to an address: it must be https.
// Only if the issuer is on this machine, the address may be there too, also with http.
func askable(address, issuer string) bool {
	at, err := url.Parse(address)
	by, byErr := url.Parse(issuer)
	if err != nil || byErr != nil || at.Host == "" || at.User != nil {
		return false
	}
	if isLoopback(at.Hostname()) {
		return isLoopback(by.Hostname()) && (at.Scheme == "http" || at.Scheme == "https")
	}
	return at.Scheme == "https"
}

// finish polls until the person has signed in, and then gives the token to the host.
func (s *signIn) finish(ctx context.Context, code deviceCode) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(code.Expires)*time.Second)
	defer cancel()
	pause := max(signInPause, min(time.Duration(code.Interval)*time.Second, time.Minute))
	for {
		if !clock.Sleep(ctx, pause) {
			return errors.New("the code has expired")
		}
		var granted struct {
			Token string `json:"access_token"`
		}
		err := s.post(ctx, s.server.Token, url.Values{"grant_type": {deviceGrant}, "device_code": {code.Device}}, &granted)
		var refused *oauthError
		switch {
		case err == nil:
			return s.give(ctx, granted.Token)
		case !errors.As(err, &refused): // no answer: RFC 8628, section 3.5
			pause = min(2*pause, time.Minute)
		case refused.Code == "authorization_pending":
		case refused.Code == "slow_down":
			pause += signInPause
		case refused.Code == "expired_token":
			return errors.New("the code has expired")
		default:
			return err
		}
	}
}

// give sends the server's token to the host, as the client's authenticate.
func (s *signIn) give(ctx context.Context, token string) error {
	if token == "" {
		return fmt.Errorf("%s has given no token", siteOf(s.server.Issuer))
	}
	answer, err := s.conn.ask(ctx, "authenticate", map[string]string{"channel": ahp.RootChannel, "resource": s.resource, "token": token})
	if err != nil {
		return err
	}
	env, err := ahp.Peek(answer)
	if err != nil {
		return err
	}
	if env.Error != nil {
		return errors.New("the host does not take the token: " + clean(ahp.TextOf(env.Error, "message")))
	}
	return nil
}

// An oauthError is an authorization server's error response (RFC 6749, section 5.2).
type oauthError struct {
	Code        string `json:"error"`
	Description string `json:"error_description"`
	site        string
}

func (e *oauthError) Error() string {
	return fmt.Sprintf("%s: %s", e.site, clean(cmp.Or(e.Description, e.Code)))
}

func (s *signIn) get(ctx context.Context, address string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	return s.do(r, into)
}

// post sends a form with the client id, and decodes the response.
func (s *signIn) post(ctx context.Context, address string, form url.Values, into any) error {
	form.Set("client_id", s.client.ID)
	if s.client.Secret != "" {
		form.Set("client_secret", s.client.Secret)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return s.do(r, into)
}

func (s *signIn) do(r *http.Request, into any) error {
	r.Header.Set("Accept", "application/json") // GitHub's default is a form
	answer, err := s.http.Do(r)
	if err != nil {
		return fmt.Errorf("%s cannot be reached", r.URL.Host) // the transport's error may contain secrets of the form
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxSignInAnswer+1))
	if err != nil || len(body) > maxSignInAnswer {
		return fmt.Errorf("%s gives an unreadable answer", r.URL.Host)
	}
	refused := oauthError{site: r.URL.Host} // checked before the status: GitHub reports errors with status 200
	if json.Unmarshal(body, &refused) == nil && refused.Code != "" {
		return &refused
	}
	if answer.StatusCode != http.StatusOK || json.Unmarshal(body, into) != nil {
		return fmt.Errorf("%s answered %d", r.URL.Host, answer.StatusCode)
	}
	return nil
}

func siteOf(issuer string) string {
	if at, err := url.Parse(issuer); err == nil {
		return at.Host
	}
	return issuer
}

// clean shortens a server's text for a client, and removes control characters.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "")
}

// ask sends a request to the host in the client's name, and returns the answer.
func (c *hostConn) ask(ctx context.Context, method string, params any) ([]byte, error) {
	encoded, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	id := fmt.Appendf(nil, "%q", "host-agent-"+rand.Text())
	reply := make(chan []byte, 1)
	if !c.asks.add(ask{id: id, reply: reply}) {
		return nil, errTooManyAsks
	}
	c.writer.queueUp(delivery{message: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, encoded), ours: true})
	select {
	case answer := <-reply:
		return answer, nil
	case <-c.ended:
		return nil, routing.ErrConnClosed
	case <-ctx.Done():
		c.asks.pop(id) // a late answer is dropped
		return nil, ctx.Err()
	}
}
