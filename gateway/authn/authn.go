package authn

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
)

// Config configures a [Checker].
type Config struct {
	Keys       *auth.Keys
	Issuers    map[string]auth.Verifier // verifiers of external tokens, by iss
	Revoked    *registry.Revocations
	TrustProxy []netip.Prefix // proxies with a trusted X-Forwarded-For
	PublicURL  string         // the relay's public base URL; "": taken from each request

	Limits *admission.Limiter
	Audit  *audit.Log

	Count  func(why string)      // counts a refusal
	Proved func(r *http.Request) // called when a request on a connection has shown a valid token
}

// A Checker authenticates requests.
type Checker struct {
	Config
	Proofs *Proofs
}

// New returns a Checker without any used proofs.
func New(cfg Config) *Checker { return &Checker{cfg, newProofs()} }

// VerifyClient checks a client token and its revocation.
func (c *Checker) VerifyClient(ctx context.Context, token string) (auth.Client, error) {
	who, err := c.VerifyIssued(ctx, token)
	if err == nil && c.IsRevoked(who) {
		err = auth.ErrTokenRevoked
	}
	return who, err
}

// VerifyIssued checks a client token, but not its revocation.
func (c *Checker) VerifyIssued(ctx context.Context, token string) (auth.Client, error) {
	return auth.Issuers{Own: c.Keys.Tokens(), Others: c.Issuers}.Verify(ctx, token)
}

// VerifyHost checks an enrolment token or credential, and its revocation.
func (c *Checker) VerifyHost(token string) (auth.Enrolment, error) {
	host, err := c.Keys.Tokens().VerifyAgent(token)
	if err == nil && c.IsEnrolmentRevoked(host) {
		err = auth.ErrTokenRevoked
	}
	return host, err
}

// IsRevoked reports whether a client's token, or a grant from which it was derived, is
// revoked.
func (c *Checker) IsRevoked(who auth.Client) bool {
	return c.Revoked.Revoked(who.IssuedAt, who.Keys()...) || c.Revoked.RevokedOrigin(who.Tenant, who.Origins)
}

// IsEnrolmentRevoked reports whether a host-agent's token, or a grant from which it
// was derived, is revoked.
func (c *Checker) IsEnrolmentRevoked(host auth.Enrolment) bool {
	return c.Revoked.Revoked(host.IssuedAt, host.Keys()...) || c.Revoked.RevokedOrigin(host.Tenant, host.AllOrigins())
}

// Client returns the client that sent the request, or answers the request with an
// error.
func (c *Checker) Client(w http.ResponseWriter, r *http.Request) (auth.Client, bool) {
	token, ok := Bearer(r.Header.Get("Authorization"))
	if !ok {
		c.Unauthorized(w, r, ErrNoToken)
		return auth.Client{}, false
	}
	who, err := c.Authenticate(r, token)
	if err != nil {
		c.Unauthorized(w, r, err)
		return auth.Client{}, false
	}
	c.Proved(r)
	return who, true
}

// Host returns the sending host-agent's host, or answers the request with an error.
func (c *Checker) Host(w http.ResponseWriter, r *http.Request) (auth.Enrolment, bool) {
	token, ok := Bearer(r.Header.Get("Authorization"))
	if !ok {
		c.Unauthorized(w, r, errors.New("no token: pass the enrolment token as Authorization: Bearer (relay token host)"))
		return auth.Enrolment{}, false
	}
	host, err := c.VerifyHost(token)
	if err != nil {
		c.Unauthorized(w, r, err)
		return auth.Enrolment{}, false
	}
	c.Proved(r)
	return host, true
}

// MaxOperator bounds the body of a request by an operator or a person, in bytes.
const MaxOperator = 16 << 10

// Operator restricts a handler to the relay's operator, the holder of its keys.
func (c *Checker) Operator(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, ok := Bearer(r.Header.Get("Authorization"))
		if !ok {
			c.Unauthorized(w, r, ErrNoToken)
			return
		}
		if err := c.Keys.Tokens().VerifyOperator(token); err != nil {
			c.Unauthorized(w, r, err)
			return
		}
		c.Proved(r)
		r.Body = http.MaxBytesReader(w, r.Body, MaxOperator)
		serve(w, r)
	}
}

// ErrNoToken reports a request without a token.
var ErrNoToken = errors.New("no token: pass one as Authorization: Bearer, ?access_token=, ?tkn= or subprotocol bearer.<token>")

// RequestToken finds the token in a WebSocket handshake: in the Authorization header
// (RFC 6750, section 2.1), in the query, for stock clients, or in the list of
// subprotocols, for browsers. Several places may hold it if the tokens are equal.
func RequestToken(r *http.Request) (string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", errors.New("the query of the URL is malformed")
	}
	found := append(query["access_token"], query["tkn"]...)
	for _, header := range r.Header.Values("Authorization") {
		if token, ok := Bearer(header); ok {
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
		return "", ErrNoToken
	}
	for _, token := range found[1:] {
		if token != found[0] {
			return "", errors.New("more than one token given")
		}
	}
	return found[0], nil
}

// Bearer returns the token in an Authorization header with the scheme Bearer, or DPoP
// for a device's token (RFC 9449, section 7.1).
func Bearer(header string) (string, bool) {
	scheme, token, ok := strings.Cut(header, " ")
	return strings.TrimSpace(token), ok && (strings.EqualFold(scheme, "Bearer") || strings.EqualFold(scheme, "DPoP"))
}
