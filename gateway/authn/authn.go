package authn

import (
	"context"
	"errors"
	"net/http"
	"net/netip"

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
	TrustProxy []netip.Prefix // proxies whose X-Forwarded-For is trusted
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

// VerifyClient verifies a client token, and that it is not revoked.
func (c *Checker) VerifyClient(ctx context.Context, token string) (auth.Client, error) {
	who, err := c.VerifyIssued(ctx, token)
	if err == nil && c.IsRevoked(who) {
		err = auth.ErrTokenRevoked
	}
	return who, err
}

// VerifyIssued verifies a client token, which may be revoked.
func (c *Checker) VerifyIssued(ctx context.Context, token string) (auth.Client, error) {
	return auth.Issuers{Own: c.Keys.Tokens(), Others: c.Issuers}.Verify(ctx, token)
}

// VerifyHost verifies an enrolment token or credential, and that it is not revoked.
func (c *Checker) VerifyHost(token string) (auth.Enrolment, error) {
	host, err := c.Keys.Tokens().VerifyAgent(token)
	if err == nil && c.IsEnrolmentRevoked(host) {
		err = auth.ErrTokenRevoked
	}
	return host, err
}

// IsRevoked reports whether a client's token is revoked, or a grant from which it is
// derived, or whether the key that has signed the token is retired.
func (c *Checker) IsRevoked(who auth.Client) bool {
	return c.Keys.Retired(who.Signer) || c.Revoked.Revoked(who.IssuedAt, who.Keys()...) || c.Revoked.RevokedOrigin(who.Tenant, who.Origins)
}

// IsEnrolmentRevoked reports whether a host-agent's token is revoked, or a grant from
// which it is derived.
func (c *Checker) IsEnrolmentRevoked(host auth.Enrolment) bool {
	return c.Revoked.Revoked(host.IssuedAt, host.Keys()...) || c.Revoked.RevokedOrigin(host.Tenant, host.AllOrigins())
}

// Client returns the client that sent the request. If ok is false, it has responded with
// an error.
func (c *Checker) Client(w http.ResponseWriter, r *http.Request) (auth.Client, bool) {
	token, ok := auth.Bearer(r.Header.Get("Authorization"))
	if !ok {
		c.Unauthorized(w, r, auth.ErrNoToken)
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

// Host returns the host whose host-agent sent the request. If ok is false, it has
// responded with an error.
func (c *Checker) Host(w http.ResponseWriter, r *http.Request) (auth.Enrolment, bool) {
	token, ok := auth.Bearer(r.Header.Get("Authorization"))
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

// MaxOperator is the longest request body by an operator or a person, in bytes.
const MaxOperator = 16 << 10

// Operator restricts a handler to the relay's operator, who has the relay's keys.
func (c *Checker) Operator(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, ok := auth.Bearer(r.Header.Get("Authorization"))
		if !ok {
			c.Unauthorized(w, r, auth.ErrNoToken)
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
