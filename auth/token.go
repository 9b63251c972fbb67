package auth

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"ahprelay/ahp"

	"github.com/golang-jwt/jwt/v5"
)

// Limits of tokens.
const (
	// MaxTokenSize is the limit of a token's length, in bytes. It is checked
	// before anything is decoded.
	MaxTokenSize = 8 << 10

	// Leeway is how far the clocks of relays may differ.
	Leeway = 5 * time.Second

	// MaxSubjectLen is the limit of a client's subject, in bytes.
	MaxSubjectLen = 256
)

// Reasons why a token is refused. The errors that wrap them say more, and
// never contain the token.
var (
	// ErrTokenExpired reports a token that was good and is no longer.
	ErrTokenExpired = errors.New("token expired")
	// ErrTokenInvalid reports any other token that is not accepted.
	ErrTokenInvalid = errors.New("token invalid")
)

// DefaultTenant is the tenant where nobody says which.
const DefaultTenant = "default"

// AllHosts in Client.Hosts stands for every host of the tenant.
const AllHosts = All

// MaxConnections is the highest number that Client.MaxConnections can be.
const MaxConnections = 1 << 20

// A Client is what a client token says.
type Client struct {
	ID       string    // of the token, unique
	Tenant   string    // name of the tenant
	Subject  string    // who uses the token, for people
	Hosts    []string  // patterns of hosts' names
	Access   Access    // at these hosts
	IssuedAt time.Time // to the second
	Expires  time.Time // to the second

	// What it may do there is less if these are set; package gate says how
	// they are understood.
	Channels []string // patterns of channels; none: all
	Methods  []string // patterns of methods; none: all that Access allows

	Files          bool // it also reaches the files in the working directories of sessions that it may see
	Reverse        bool // the host may ask the client for the client's own files
	MaxConnections int  // at a time, over all hosts; 0: as the relay is set

	// Audience is the name of those with whom the client watches on one connection to
	// the host, which is theirs all; "": it has its own. It is for who may look and no
	// more. The host knows the client by this name. See package audience.
	Audience string

	// Of a device's token: with the device, all of its tokens are revoked.
	Device string // its ID; "": none
	Key    string // thumbprint of the key that is to be proved with each use (RFC 9449); "": whoever has the token may use it

	// Origins are the grants from which the token was derived, the nearest first: each of them that is
	// revoked ends the token.
	Origins []Origin
}

// MayReach reports whether the token is for the host of that tenant.
func (c Client) MayReach(tenant, host string) bool {
	return c.Tenant == tenant && MatchesAny(c.Hosts, host)
}

// OnlyHost returns the name of the host that the token is for. It reports false for a token
// that is for several hosts, or may be.
func (c Client) OnlyHost() (name string, ok bool) {
	hosts := slices.Compact(slices.Sorted(slices.Values(c.Hosts)))
	if len(hosts) != 1 || strings.Contains(hosts[0], All) {
		return "", false
	}
	return hosts[0], true
}

// Restricted reports whether the token allows less than everything at its
// hosts.
func (c Client) Restricted() bool {
	return !c.Access.Includes(AccessWrite) || len(c.Channels) > 0 || len(c.Methods) > 0
}

// Covers reports whether who has the token may do all that another of the tenant's allows, as far
// as can be told from how they are written.
func (c Client) Covers(o Client) bool {
	within := func(narrow, wide []string, all bool) bool {
		if len(wide) == 0 {
			return all
		}
		for _, pattern := range narrow {
			if !slices.Contains(wide, pattern) && !slices.Contains(wide, AllHosts) {
				return false
			}
		}
		return len(narrow) > 0 || !all
	}
	return c.Tenant == o.Tenant && c.Access.Includes(o.Access) && within(o.Hosts, c.Hosts, false) &&
		within(o.Channels, c.Channels, true) && within(o.Methods, c.Methods, true)
}

// An Enrolment is what a host-agent's token says.
type Enrolment struct {
	ID       string    // of the token, unique
	Tenant   string    // name of the tenant
	Host     string    // the one host that the agent may serve
	IssuedAt time.Time // to the second
	Expires  time.Time // to the second

	// Of a credential, see [Keys.IssueCredential].
	Key    ed25519.PublicKey // that the host-agent must prove; nil: it is an enrolment token
	Former *Former           // the credential that this one replaces; nil: none

	Origins []Origin // as of Client
}

// What all tokens of a relay say.
const (
	tokenIssuer   = "ahp-relay"
	tokenAudience = "ahp-relay"
)

// A tokenKind is a token's typ header.
type tokenKind string

const (
	clientKind tokenKind = "ahp-client+jwt"
	hostKind   tokenKind = "ahp-host+jwt"

	credentialKind tokenKind = "ahp-agent+jwt"
)

func (k tokenKind) String() string {
	switch k {
	case clientKind:
		return "a client token (relay token client)"
	case hostKind:
		return "a host enrolment token (relay token host)"
	case credentialKind:
		return "a host-agent's credential (host-agent enroll)"
	case ticketKind, sessionKind:
		return "a grant for a canvas"
	}
	return "no token of a relay"
}

// claims are the claims of all kinds.
type claims struct {
	jwt.RegisteredClaims
	Tenant string   `json:"tenant"`
	Hosts  []string `json:"hosts,omitempty"`
	Access Access   `json:"access,omitempty"`

	Channels       []string `json:"channels,omitempty"`
	Methods        []string `json:"methods,omitempty"`
	Files          bool     `json:"files,omitempty"`
	Reverse        bool     `json:"reverse,omitempty"`
	MaxConnections int      `json:"maxConnections,omitempty"`
	Device         string   `json:"device,omitempty"`
	Watches        string   `json:"audience,omitempty"`
	Origins        []Origin `json:"origins,omitempty"`

	RelayKeys []string `json:"relay_keys,omitempty"` // of host-agents' tokens

	Canvas *CanvasClaims `json:"canvas,omitempty"`

	credentialClaims
}

// IssueClient signs a client token. An empty ID and a zero IssuedAt are filled
// in. It refuses what VerifyClient would refuse.
func (k *Keys) IssueClient(c Client) (string, error) {
	if c.Expires.IsZero() {
		return "", errors.New("client token: no time of expiry")
	}
	cl := k.newClaims(c.ID, c.Subject, c.Tenant, c.IssuedAt, c.Expires)
	cl.Hosts, cl.Access, cl.Channels, cl.Methods = c.Hosts, c.Access, c.Channels, c.Methods
	cl.Files, cl.Reverse, cl.MaxConnections, cl.Device = c.Files, c.Reverse, c.MaxConnections, c.Device
	cl.Watches, cl.Origins = c.Audience, c.Origins
	if c.Key != "" {
		cl.Confirmation = &confirmation{Thumbprint: c.Key}
	}
	if _, err := cl.client(); err != nil {
		return "", fmt.Errorf("client token: %w", err)
	}
	return k.issue(clientKind, cl)
}

// IssueHost signs a host enrolment token. An empty ID and a zero IssuedAt are
// filled in. It refuses what VerifyHost would refuse.
func (k *Keys) IssueHost(e Enrolment) (string, error) {
	if e.Expires.IsZero() {
		return "", errors.New("host enrolment token: no time of expiry")
	}
	cl := k.newClaims(e.ID, e.Host, e.Tenant, e.IssuedAt, e.Expires)
	cl.Origins = e.Origins
	if _, err := cl.enrolment(); err != nil {
		return "", fmt.Errorf("host enrolment token: %w", err)
	}
	return k.issue(hostKind, cl)
}

// VerifyClient checks a client token and returns what it says. The error wraps
// ErrTokenExpired or ErrTokenInvalid.
func (k *Keys) VerifyClient(token string) (Client, error) {
	return verified(k, clientKind, token, (*claims).client)
}

// VerifyHost checks a host enrolment token and returns what it says. The error
// wraps ErrTokenExpired or ErrTokenInvalid.
func (k *Keys) VerifyHost(token string) (Enrolment, error) {
	return verified(k, hostKind, token, (*claims).enrolment)
}

// verified checks a token of a kind, and returns what read makes of its claims.
func verified[T any](k *Keys, want tokenKind, token string, read func(*claims) (T, error)) (T, error) {
	var none T
	cl, err := k.verify(want, token)
	if err != nil {
		return none, err
	}
	said, err := read(cl)
	if err != nil {
		return none, fmt.Errorf("%w: %w", ErrTokenInvalid, err)
	}
	return said, nil
}

func (k *Keys) newClaims(id, subject, tenant string, issued, expires time.Time) *claims {
	if id == "" {
		id = rand.Text()
	}
	if issued.IsZero() {
		issued = k.now()
	}
	return &claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer:    tokenIssuer,
			Audience:  jwt.ClaimStrings{tokenAudience},
			Subject:   subject,
			ID:        id,
			IssuedAt:  jwt.NewNumericDate(issued),
			ExpiresAt: jwt.NewNumericDate(expires),
		},
		Tenant: tenant,
	}
}

func (k *Keys) issue(kind tokenKind, cl *claims) (string, error) {
	return k.issueWith(k.signing(), kind, cl)
}

func (k *Keys) issueWith(set *keySet, kind tokenKind, cl *claims) (string, error) {
	if !cl.ExpiresAt.After(k.now()) {
		return "", fmt.Errorf("token would expire at %s, which is past", stamp(cl.ExpiresAt.Time))
	}
	if kind == hostKind || kind == credentialKind { // a host-agent's: whom it is to trust
		cl.RelayKeys = k.relayKeyTexts()
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, cl)
	token.Header["typ"] = string(kind)
	token.Header["kid"] = set.tokenID
	signed, err := token.SignedString(set.token)
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	if len(signed) > MaxTokenSize {
		return "", fmt.Errorf("token would be %d bytes long; want at most %d", len(signed), MaxTokenSize)
	}
	return signed, nil
}

// relayKeyTexts are the keys of relays as tokens of host-agents name them.
func (k *Keys) relayKeyTexts() (texts []string) {
	for _, key := range k.RelayKeys() {
		texts = append(texts, base64.RawURLEncoding.EncodeToString(key))
	}
	return texts
}

// verify checks everything that both kinds of token have in common. It returns the claims of an expired token, too,
// with the error.
func (k *Keys) verify(want tokenKind, token string) (*claims, error) {
	if len(token) > MaxTokenSize {
		return nil, fmt.Errorf("%w: %d bytes long; want at most %d", ErrTokenInvalid, len(token), MaxTokenSize)
	}
	parser := jwt.NewParser(
		// The one algorithm that we sign with: a token must not choose how it
		// is checked (RFC 8725, section 3.1).
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		jwt.WithExpirationRequired(), // the library accepts tokens without exp
		jwt.WithIssuedAt(),
		jwt.WithIssuer(tokenIssuer),
		jwt.WithAudience(tokenAudience),
		jwt.WithLeeway(Leeway),
		jwt.WithTimeFunc(k.now),
		jwt.WithStrictDecoding(),
	)
	if err := CheckKeys(token); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTokenInvalid, err)
	}
	cl := new(claims)
	if _, err := parser.ParseWithClaims(token, cl, k.keyFor(want)); err != nil {
		if err = k.refusal(cl, err); !errors.Is(err, ErrTokenExpired) {
			cl = nil
		}
		return cl, err
	}
	return cl, nil
}

// A wrongKeyError says which header of a token does not fit. The library wraps
// it, and its text has nothing of the token.
type wrongKeyError string

func (e wrongKeyError) Error() string { return string(e) }

// keyFor returns the function that finds the key for a token's header.
func (k *Keys) keyFor(want tokenKind) jwt.Keyfunc {
	return func(token *jwt.Token) (any, error) {
		typ, _ := token.Header["typ"].(string)
		if kind := tokenKind(typ); kind != want {
			return nil, wrongKeyError(fmt.Sprintf("this is %v; needed is %v", kind, want))
		}
		kid, _ := token.Header["kid"].(string)
		set := k.setOf(kid)
		if set == nil {
			return nil, wrongKeyError("signed with a key that this relay does not have")
		}
		return set.public(), nil
	}
}

// refusal says in our words why the library refused a token: its own words may
// hold parts of the token.
func (k *Keys) refusal(cl *claims, err error) error {
	var wrongKey wrongKeyError
	say := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrTokenInvalid, fmt.Sprintf(format, args...))
	}
	switch {
	case errors.As(err, &wrongKey):
		return say("%v", wrongKey)
	case errors.Is(err, jwt.ErrTokenMalformed):
		return say("not a JWT, or only a part of one")
	case errors.Is(err, jwt.ErrTokenUnverifiable):
		return say("unknown signature algorithm; want EdDSA")
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return say("bad signature, or another algorithm than EdDSA")
	case errors.Is(err, jwt.ErrTokenInvalidAudience), errors.Is(err, jwt.ErrTokenInvalidIssuer):
		return say("not made for this relay: iss or aud differs")
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		return say("exp, iss or aud is missing")
	case errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return say("issued at %s, which is in the future; check the clocks", stamp(cl.IssuedAt.Time))
	case errors.Is(err, jwt.ErrTokenExpired):
		ago := k.now().Sub(cl.ExpiresAt.Time).Round(time.Second)
		return fmt.Errorf("%w at %s, %v ago", ErrTokenExpired, stamp(cl.ExpiresAt.Time), ago)
	}
	return say("claims not accepted")
}

// client returns the client that the claims describe.
func (cl *claims) client() (Client, error) {
	if err := cl.check(); err != nil {
		return Client{}, err
	}
	if cl.Channels != nil && len(cl.Channels) == 0 || cl.Methods != nil && len(cl.Methods) == 0 {
		return Client{}, errors.New("an empty list of channels or methods, which would allow nothing")
	}
	c := Client{
		ID: cl.ID, Tenant: cl.Tenant, Subject: cl.Subject, Hosts: cl.Hosts, Access: cl.Access,
		IssuedAt: cl.IssuedAt.UTC(), Expires: cl.ExpiresAt.UTC(),
		Channels: cl.Channels, Methods: cl.Methods, Files: cl.Files, Reverse: cl.Reverse, MaxConnections: cl.MaxConnections,
	}
	c.Device, c.Audience, c.Origins = cl.Device, cl.Watches, cl.Origins
	if cl.Device != "" && CheckSubject(cl.Device) != nil {
		return Client{}, errors.New("device is longer than a name, or cannot be printed")
	}
	if cl.Confirmation != nil {
		c.Key = cl.Confirmation.Thumbprint
		if err := CheckThumbprint(c.Key); err != nil {
			return Client{}, fmt.Errorf("cnf: %w", err)
		}
	}
	return c, c.CheckAuthority()
}

// CheckAuthority reports what is wrong with what a client may do where.
func (c *Client) CheckAuthority() error {
	if c.Access.rank() < 0 {
		return errors.New("access is none of look, talk, approve, operate and own")
	}
	if c.MaxConnections < 0 || c.MaxConnections > MaxConnections {
		return fmt.Errorf("maxConnections is %d; want at most %d, or 0 for no limit of the token's own", c.MaxConnections, MaxConnections)
	}
	if c.Audience != "" {
		if c.Access != AccessRead || c.Reverse {
			return errors.New("an audience is for the level look, without reverse")
		}
		if err := CheckSubject(c.Audience); err != nil {
			return fmt.Errorf("audience: %w", err)
		}
	}
	if err := checkHosts(c.Hosts); err != nil {
		return err
	}
	if err := CheckPatterns("channel", c.Channels); err != nil {
		return err
	}
	return CheckPatterns("method", c.Methods)
}

// enrolment returns the host that the claims describe.
func (cl *claims) enrolment() (Enrolment, error) {
	if err := cl.check(); err != nil {
		return Enrolment{}, err
	}
	if err := ahp.CheckName("host", cl.Subject); err != nil {
		return Enrolment{}, err
	}
	return Enrolment{
		ID: cl.ID, Tenant: cl.Tenant, Host: cl.Subject,
		IssuedAt: cl.IssuedAt.UTC(), Expires: cl.ExpiresAt.UTC(), Origins: cl.Origins,
	}, nil
}

// check checks the claims of all kinds that the library leaves to us.
func (cl *claims) check() error {
	if cl.ID == "" || cl.IssuedAt == nil || cl.ExpiresAt == nil {
		return errors.New("jti, iat or exp is missing")
	}
	if err := CheckSubject(cl.Subject); err != nil {
		return err
	}
	if err := ahp.CheckName("tenant", cl.Tenant); err != nil {
		return err
	}
	return CheckOrigins(cl.Origins)
}

// CheckSubject reports why a text cannot be a subject. It keeps out of logs what could forge them.
func CheckSubject(s string) error {
	unfit := func(r rune) bool { return !unicode.IsPrint(r) }
	switch {
	case s == "":
		return errors.New("no subject")
	case len(s) > MaxSubjectLen:
		return fmt.Errorf("subject is %d bytes long; want at most %d", len(s), MaxSubjectLen)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unfit):
		return errors.New("subject has characters that cannot be printed")
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
