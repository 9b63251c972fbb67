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

// Config is what a [Checker] goes by.
type Config struct {
	Keys       *auth.Keys
	Issuers    map[string]auth.Verifier // of tokens that others make, by their iss
	Revoked    *registry.Revocations
	TrustProxy []netip.Prefix // whose X-Forwarded-For is believed
	PublicURL  string         // of the relay as people reach it; "": where a request came to

	Limits *admission.Limiter
	Audit  *audit.Log

	Count  func(why string)      // counts a refusal
	Proved func(r *http.Request) // told that the request on a connection has shown a good token
}

// A Checker says who sends a request.
type Checker struct {
	Config
	Proofs *Proofs
}

// New returns a Checker that has seen no proof yet.
func New(cfg Config) *Checker { return &Checker{cfg, newProofs()} }

// VerifyClient checks a client token, and that it is not revoked.
func (c *Checker) VerifyClient(ctx context.Context, token string) (auth.Client, error) {
	who, err := c.VerifyIssued(ctx, token)
	if err == nil && c.IsRevoked(who) {
		err = auth.ErrTokenRevoked
	}
	return who, err
}

// VerifyIssued checks a client token, which may be revoked.
func (c *Checker) VerifyIssued(ctx context.Context, token string) (auth.Client, error) {
	return auth.Issuers{Own: c.Keys, Others: c.Issuers}.Verify(ctx, token)
}

// VerifyHost checks an enrolment token or credential, and that it is not
// revoked.
func (c *Checker) VerifyHost(token string) (auth.Enrolment, error) {
	host, err := c.Keys.VerifyAgent(token)
	if err == nil && c.IsEnrolmentRevoked(host) {
		err = auth.ErrTokenRevoked
	}
	return host, err
}

// IsRevoked reports whether a client's token is revoked, or a grant from which it was derived.
func (c *Checker) IsRevoked(who auth.Client) bool {
	return c.Revoked.Revoked(who.IssuedAt, who.Keys()...) || c.Revoked.RevokedOrigin(who.Tenant, who.Origins)
}

// IsEnrolmentRevoked reports the same of a host-agent's token.
func (c *Checker) IsEnrolmentRevoked(host auth.Enrolment) bool {
	return c.Revoked.Revoked(host.IssuedAt, host.Keys()...) || c.Revoked.RevokedOrigin(host.Tenant, host.AllOrigins())
}

// Client returns whose request it is, or answers that it is nobody's.
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

// Host returns which host's agent is asking, or answers that it is none.
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

// MaxOperator is how long the body of a request may be, in bytes, of an operator or a person.
const MaxOperator = 16 << 10

// Operator serves those only who can read the relay's keys.
func (c *Checker) Operator(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, ok := Bearer(r.Header.Get("Authorization"))
		if !ok {
			c.Unauthorized(w, r, ErrNoToken)
			return
		}
		if err := c.Keys.VerifyOperator(token); err != nil {
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

// RequestToken finds the token of a WebSocket handshake: in the header that
// OAuth 2.0 has for it (RFC 6750, section 2.1), in the query, where stock
// clients can put it, or in the list of subprotocols, where browsers can. More
// than one place may hold it, if they hold the same.
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

// Bearer returns the token in an Authorization header. A device's may stand there
// by its own scheme (RFC 9449, section 7.1).
func Bearer(header string) (string, bool) {
	scheme, token, ok := strings.Cut(header, " ")
	return strings.TrimSpace(token), ok && (strings.EqualFold(scheme, "Bearer") || strings.EqualFold(scheme, "DPoP"))
}
