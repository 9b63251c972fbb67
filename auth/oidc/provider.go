package oidc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"ahprelay/auth"
)

// A Provider verifies an issuer's tokens. It implements [auth.Verifier].
type Provider struct {
	cfg  Config
	keys *keySet
	now  func() time.Time
}

// Options configure a Provider. All have defaults.
type Options struct {
	HTTP *http.Client     // for requests to the provider; its CheckRedirect is ignored; default: a new client
	Now  func() time.Time // default: time.Now
	Log  *slog.Logger     // default: none
}

// New returns a Provider, without contacting the provider. The caller must Close it.
func New(cfg Config, o Options) (*Provider, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("oidc: %w", err)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Provider{cfg: cfg, now: o.Now, keys: newKeySet(cfg.Issuer, o)}, nil
}

// Issuer returns the iss of the provider's tokens.
func (p *Provider) Issuer() string { return p.cfg.Issuer }

// Close cancels a running fetch, and returns when it has ended.
func (p *Provider) Close() { p.keys.close() }

// Verify implements [auth.Verifier].
func (p *Provider) Verify(ctx context.Context, token string) (auth.Client, error) {
	claims, err := p.claims(ctx, token)
	if err != nil {
		return auth.Client{}, err
	}
	c, err := p.client(token, claims)
	if err != nil {
		return auth.Client{}, fmt.Errorf("%w: %w", auth.ErrTokenInvalid, err)
	}
	if !c.Expires.Add(auth.Leeway).After(p.now()) { // limited by the rule
		return auth.Client{}, fmt.Errorf("%w: issued at %s, and max-ttl has passed", auth.ErrTokenExpired, stamp(c.IssuedAt))
	}
	return c, nil
}

func (p *Provider) claims(ctx context.Context, token string) (jwt.MapClaims, error) {
	if len(token) > auth.MaxTokenSize {
		return nil, fmt.Errorf("%w: %d bytes long; want at most %d", auth.ErrTokenInvalid, len(token), auth.MaxTokenSize)
	}
	if err := auth.CheckKeys(token); err != nil {
		return nil, fmt.Errorf("%w: %w", auth.ErrTokenInvalid, err)
	}
	if err := p.worthAsking(token); err != nil {
		return nil, err
	}
	claims := jwt.MapClaims{}
	_, err := p.parser().ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) { return p.key(ctx, t) })
	if err != nil {
		return nil, p.refusal(claims, err)
	}
	return claims, nil
}

func (p *Provider) parser() *jwt.Parser {
	return jwt.NewParser(
		jwt.WithValidMethods(p.cfg.Algorithms), // a token must not choose how it is checked
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithIssuer(p.cfg.Issuer),
		jwt.WithAudience(p.cfg.Audience),
		jwt.WithLeeway(auth.Leeway),
		jwt.WithTimeFunc(p.now),
		jwt.WithStrictDecoding(),
		jwt.WithJSONNumber(),
	)
}

// worthAsking returns an error for a token with invalid claims, so that no key is fetched
// for it.
func (p *Provider) worthAsking(token string) error {
	claims := jwt.MapClaims{}
	if _, _, err := p.parser().ParseUnverified(token, claims); err != nil {
		return p.refusal(claims, err)
	}
	v := jwt.NewValidator(jwt.WithExpirationRequired(), jwt.WithIssuer(p.cfg.Issuer), jwt.WithAudience(p.cfg.Audience),
		jwt.WithLeeway(auth.Leeway), jwt.WithTimeFunc(p.now), jwt.WithIssuedAt())
	if err := v.Validate(claims); err != nil {
		return p.refusal(claims, err)
	}
	return nil
}

// A keyError is the reason why there is no key for a token. The JWT library wraps it.
type keyError struct{ error }

func (e keyError) Unwrap() error { return e.error }

func noKeyOf(err error) error {
	if noKey, ok := errors.AsType[keyError](err); ok {
		return noKey.error
	}
	return auth.ErrIssuerAway
}

func (p *Provider) key(ctx context.Context, t *jwt.Token) (any, error) {
	typ, _ := t.Header["typ"].(string)
	if !slices.ContainsFunc(p.cfg.Types, func(want string) bool {
		return strings.EqualFold(want, strings.TrimPrefix(strings.ToLower(typ), "application/"))
	}) {
		return nil, keyError{fmt.Errorf("its typ is not %s", strings.Join(p.cfg.Types, ", "))}
	}
	kid, _ := t.Header["kid"].(string)
	if kid == "" {
		return nil, keyError{errors.New("it does not name its key (kid)")}
	}
	key, err := p.keys.find(ctx, kid, t.Method.Alg())
	if err != nil {
		return nil, keyError{err}
	}
	return key, nil
}

// refusal replaces the JWT library's error by our own, because the library's text may
// contain parts of the token.
func (p *Provider) refusal(claims jwt.MapClaims, err error) error {
	var noKey keyError
	say := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", auth.ErrTokenInvalid, fmt.Sprintf(format, args...))
	}
	switch {
	case errors.Is(err, auth.ErrIssuerAway):
		return noKeyOf(err)
	case errors.As(err, &noKey):
		return say("%v", noKey)
	case errors.Is(err, jwt.ErrTokenMalformed):
		return say("not a JWT, or only a part of one")
	case errors.Is(err, jwt.ErrTokenUnverifiable), errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return say("bad signature, or an algorithm other than %s", strings.Join(p.cfg.Algorithms, ", "))
	case errors.Is(err, jwt.ErrTokenInvalidAudience), errors.Is(err, jwt.ErrTokenInvalidIssuer):
		return say("not made for this relay: iss or aud differs")
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		return say("exp, iss or aud is missing")
	case errors.Is(err, jwt.ErrTokenUsedBeforeIssued), errors.Is(err, jwt.ErrTokenNotValidYet):
		return say("not yet valid; check the clocks")
	case errors.Is(err, jwt.ErrTokenExpired):
		at, _ := claims.GetExpirationTime()
		return fmt.Errorf("%w at %s", auth.ErrTokenExpired, stamp(at.Time))
	}
	return say("claims not accepted")
}

// lastYear is the latest year that RFC 3339 times in JSON can have.
const lastYear = 9999

func (p *Provider) client(token string, claims jwt.MapClaims) (auth.Client, error) {
	sub, err := claims.GetSubject()
	if err != nil || sub == "" {
		return auth.Client{}, errors.New("sub is missing")
	}
	issued, err := claims.GetIssuedAt()
	if err != nil || issued == nil {
		return auth.Client{}, errors.New("iat is missing")
	}
	expires, err := claims.GetExpirationTime()
	if err != nil || expires == nil {
		return auth.Client{}, errors.New("exp is missing")
	}
	if issued.UTC().Year() < 1970 || expires.UTC().Year() > lastYear {
		return auth.Client{}, fmt.Errorf("iat is in the year %d and exp in the year %d: want seconds since 1970, not milliseconds", issued.UTC().Year(), expires.UTC().Year())
	}
	i := slices.IndexFunc(p.cfg.Rules, func(r Rule) bool { return r.fits(claims) })
	if i < 0 {
		return auth.Client{}, ErrNoRule
	}
	rule := &p.cfg.Rules[i]
	c := rule.client()
	c.Subject = sub + "@" + place(p.cfg.Issuer)
	if err := auth.CheckSubject(c.Subject); err != nil {
		return auth.Client{}, err
	}
	c.ID = p.tokenID(token, claims)
	c.IssuedAt, c.Expires = issued.UTC().Truncate(time.Second), expires.UTC().Truncate(time.Second)
	if last := c.IssuedAt.Add(rule.MaxTTL); rule.MaxTTL > 0 && last.Before(c.Expires) {
		c.Expires = last
	}
	return c, nil
}

// tokenID returns an ID that is unique among the tokens of all issuers.
func (p *Provider) tokenID(token string, claims jwt.MapClaims) string {
	name, _ := claims["jti"].(string)
	name = cmp.Or(name, token)
	sum := sha256.Sum256([]byte(p.cfg.Issuer + "\x00" + name))
	return base32.StdEncoding.EncodeToString(sum[:])[:26]
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
