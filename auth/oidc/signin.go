package oidc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	goidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"ahprelay/auth"
)

// Bounds of signing in.
const (
	exchangeTimeout = 10 * time.Second
	maxKept         = 4 << 10 // bytes of a person's stored claims
)

// A SignIn signs people in with browsers, by the authorization code flow with PKCE. The
// rules map the stored claims from the ID token to authority whenever that is needed. It
// is safe for concurrent use.
type SignIn struct {
	cfg    Config
	secret string
	http   *http.Client

	mu       sync.Mutex // guards the fields below
	provider *goidc.Provider
	fetched  time.Time
}

// An Identity is a signed-in person.
type Identity struct {
	Subject string          // subject, as in the provider's tokens
	Name    string          // display name; "": the provider did not send any
	Claims  json.RawMessage // the claims that rules mention
	At      time.Time       // when the ID token was issued
}

// NewSignIn returns a SignIn for a provider with a ClientID. It does not contact the
// provider yet.
func NewSignIn(cfg Config) (*SignIn, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("oidc: %w", err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true // sign-ins are rare
	s := &SignIn{cfg: cfg, http: &http.Client{Transport: bounded{transport}, Timeout: exchangeTimeout}}
	s.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if cfg.ClientSecretFile != "" {
		secret, err := os.ReadFile(cfg.ClientSecretFile)
		if err != nil {
			return nil, fmt.Errorf("oidc: client-secret-file: %w", err)
		}
		s.secret = strings.TrimSpace(string(secret))
	}
	return s, nil
}

// Issuer returns the provider's issuer.
func (s *SignIn) Issuer() string { return s.cfg.Issuer }

// Name returns the provider's name for the sign-in page.
func (s *SignIn) Name() string {
	if s.cfg.Name != "" {
		return s.cfg.Name
	}
	return place(s.cfg.Issuer)
}

// URL returns the provider's page on which a browser signs in. Afterwards the provider
// redirects the browser to redirect.
func (s *SignIn) URL(ctx context.Context, redirect string, in auth.SignIn) (string, error) {
	ctx = goidc.ClientContext(ctx, s.http)
	provider, err := s.discover(ctx)
	if err != nil {
		return "", err
	}
	return s.client(provider, redirect).AuthCodeURL(in.State, goidc.Nonce(in.Nonce), oauth2.S256ChallengeOption(in.Verifier)), nil
}

// A Response has the parameters that a browser brings back from the provider.
type Response struct {
	Code   string
	Issuer string // iss, the provider's identifier (RFC 9207); "": missing
}

// ErrOtherIssuer reports a response from a different provider than the one where the
// sign-in began.
var ErrOtherIssuer = errors.New("the answer comes from a different identity provider than the one where you began to sign in")

// Finish exchanges the code in a response for an identity. It returns an error if the
// response comes from another provider. If the provider is unreachable, the error wraps
// [auth.ErrIssuerAway].
func (s *SignIn) Finish(ctx context.Context, redirect string, response Response, in auth.SignIn) (Identity, error) {
	ctx = goidc.ClientContext(ctx, s.http)
	provider, err := s.discover(ctx)
	if err != nil {
		return Identity{}, err
	}
	if err := s.checkResponse(provider, response); err != nil {
		return Identity{}, err
	}
	token, err := s.client(provider, redirect).Exchange(ctx, response.Code, oauth2.VerifierOption(in.Verifier))
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused) && refused.Response.StatusCode < http.StatusInternalServerError:
		return Identity{}, fmt.Errorf("the identity provider rejects the code: %q", refused.ErrorCode)
	case err != nil:
		return Identity{}, fmt.Errorf("%w: %w", auth.ErrIssuerAway, err)
	}
	raw, _ := token.Extra("id_token").(string)
	id, err := provider.VerifierContext(ctx, &goidc.Config{ClientID: s.cfg.ClientID, SupportedSigningAlgs: s.cfg.Algorithms}).Verify(ctx, raw)
	if err != nil {
		return Identity{}, errors.New("the identity provider's ID token is invalid")
	}
	if id.Nonce != in.Nonce {
		return Identity{}, errors.New("the identity provider's ID token belongs to a different sign-in")
	}
	return s.identity(id)
}

// checkResponse checks the iss in a response. The iss must be present if the provider
// announces that it always sends one (RFC 9207). Without this check, a malicious provider
// could make the relay send it a code that an honest provider issued.
func (s *SignIn) checkResponse(provider *goidc.Provider, response Response) error {
	var says struct {
		Issuer bool `json:"authorization_response_iss_parameter_supported"`
	}
	if err := provider.Claims(&says); err != nil {
		return fmt.Errorf("%w: %w", auth.ErrIssuerAway, err)
	}
	if response.Issuer == s.cfg.Issuer || response.Issuer == "" && !says.Issuer {
		return nil
	}
	return ErrOtherIssuer
}

// identity returns the person named in an ID token, if a rule matches.
func (s *SignIn) identity(id *goidc.IDToken) (Identity, error) {
	var raw json.RawMessage
	if err := id.Claims(&raw); err != nil {
		return Identity{}, err
	}
	claims, err := readClaims(raw)
	if err != nil {
		return Identity{}, err
	}
	who := Identity{Subject: id.Subject + "@" + place(s.cfg.Issuer), At: id.IssuedAt.UTC().Truncate(time.Second)}
	if id.Subject == "" || auth.CheckSubject(who.Subject) != nil {
		return Identity{}, errors.New("sub is missing, too long, or unprintable")
	}
	for _, name := range []string{"name", "preferred_username", "email"} {
		if text, _ := claims[name].(string); who.Name == "" {
			who.Name = text
		}
	}
	kept := map[string]any{}
	for _, rule := range s.cfg.Rules {
		for _, condition := range rule.When {
			outer, _, _ := strings.Cut(condition.Claim, ".")
			for _, name := range []string{condition.Claim, outer} {
				if value, ok := claims[name]; ok {
					kept[name] = value
				}
			}
		}
	}
	if who.Claims, err = json.Marshal(kept); err != nil {
		return Identity{}, err
	}
	if len(who.Claims) > maxKept {
		return Identity{}, fmt.Errorf("the claims %s have more than %d bytes", strings.Join(slices.Sorted(maps.Keys(kept)), ", "), maxKept)
	}
	_, _, err = s.Allows(who.Claims, who.At)
	return who, err
}

// Allows applies the rules to a person's stored claims. It returns the authority, and
// when that ends; zero means never. at is when the ID token was issued.
func (s *SignIn) Allows(claims json.RawMessage, at time.Time) (allowed auth.Client, until time.Time, err error) {
	read, err := readClaims(claims)
	if err != nil {
		return auth.Client{}, until, err
	}
	i := slices.IndexFunc(s.cfg.Rules, func(r Rule) bool { return r.fits(read) })
	if i < 0 {
		return auth.Client{}, until, ErrNoRule
	}
	rule := &s.cfg.Rules[i]
	if rule.MaxTTL > 0 {
		until = at.Add(rule.MaxTTL)
	}
	return rule.client(), until, nil
}

// ErrNoRule reports a token or a person whose claims no rule matches.
var ErrNoRule = errors.New("no rule in the relay's configuration matches")

func readClaims(raw []byte) (claims map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // conditions compare numbers as text
	if err := d.Decode(&claims); err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	return claims, nil
}

// place returns an issuer's URL without the scheme, as used in subjects.
func place(issuer string) string {
	_, place, _ := strings.Cut(issuer, "://")
	return place
}

func (s *SignIn) client(provider *goidc.Provider, redirect string) *oauth2.Config {
	return &oauth2.Config{
		ClientID: s.cfg.ClientID, ClientSecret: s.secret, RedirectURL: redirect, Endpoint: provider.Endpoint(),
		Scopes: append([]string{goidc.ScopeOpenID}, s.cfg.Scopes...),
	}
}

// discover returns the provider's endpoints, and fetches them if they are older than
// refreshAge.
func (s *SignIn) discover(ctx context.Context) (*goidc.Provider, error) {
	s.mu.Lock()
	known, fresh := s.provider, time.Since(s.fetched) < refreshAge
	s.mu.Unlock()
	if known != nil && fresh {
		return known, nil
	}
	provider, err := goidc.NewProvider(ctx, s.cfg.Issuer)
	if err == nil {
		err = s.checkEndpoints(provider.Endpoint())
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", auth.ErrIssuerAway, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.provider, s.fetched = provider, time.Now()
	return provider, nil
}

// checkEndpoints returns an error for an endpoint without https. If the issuer itself has
// no https, endpoints on loopback addresses may be without, too.
func (s *SignIn) checkEndpoints(e oauth2.Endpoint) error {
	for _, text := range []string{e.AuthURL, e.TokenURL} {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || !isSafe(u) || strings.HasPrefix(s.cfg.Issuer, "https:") && u.Scheme != "https" {
			return errors.New("its discovery document names an endpoint without https")
		}
	}
	return nil
}

// bounded is an HTTP transport that limits the length of responses.
type bounded struct{ to http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.to.RoundTrip(r)
	if err == nil {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, maxDocument), response.Body}
	}
	return response, err
}
