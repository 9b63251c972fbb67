package auth

import (
	"cmp"
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
	// MaxTokenSize is the longest token in bytes. It is checked before a token is
	// decoded.
	MaxTokenSize = 8 << 10

	// Leeway is the tolerated difference between the clocks of signer and verifier.
	Leeway = 5 * time.Second

	// MaxSubjectLen is the longest subject of a client in bytes.
	MaxSubjectLen = 256
)

// Reasons to refuse a token. Errors that wrap them give details, but never contain the
// token.
var (
	// ErrTokenExpired reports a token that was valid and has expired.
	ErrTokenExpired = errors.New("token expired")
	// ErrTokenInvalid reports a token refused for any other reason.
	ErrTokenInvalid = errors.New("token invalid")
)

// DefaultTenant is the tenant when none is named.
const DefaultTenant = "default"

// AllHosts in Client.Hosts stands for every host of the tenant.
const AllHosts = All

// MaxConnections is the largest Client.MaxConnections.
const MaxConnections = 1 << 20

// A Client is the content of a client token.
type Client struct {
	ID       string    // unique ID of the token
	Tenant   string    // name of the tenant
	Subject  string    // the user's name, by which hosts and revocations identify the user
	Hosts    []string  // patterns of host names
	Access   Access    // at these hosts
	IssuedAt time.Time // to the second
	Expires  time.Time // to the second

	// Channels and Methods restrict the token further; see package gate.
	Channels []string // patterns; none: all channels
	Methods  []string // patterns; none: all methods that Access allows

	Files          bool // the client may also read files in the working directories of its sessions
	Reverse        bool // the host may request the client's own files even if others use the host
	MaxConnections int  // largest number of simultaneous connections at a relay; 0: the relay's limit

	// Audience names a group of clients that may share a connection to the host; "" means a
	// connection of its own. It requires the level look. The host sees this name as the
	// client's ID. See package audience.
	Audience string

	// Set in a device's token. When the device is revoked, all its tokens are.
	Device     string // the device's ID; "": none
	DeviceName string // for display
	Key        string // thumbprint of the key that the client proves with each use (RFC 9449); "": a bearer token

	// Origins are the grants from which the token is derived, nearest first. When any of
	// them is revoked, the token ends.
	Origins []Origin

	// Signer is the ID of the relays' key that has signed the token, see [Keys.Retired]. It
	// is "" for other issuers' tokens.
	Signer string `json:",omitempty"`
}

// MayReach reports whether the token is valid for a host.
func (c Client) MayReach(tenant, host string) bool {
	return c.Tenant == tenant && MatchesAny(c.Hosts, host)
}

// OnlyHost returns the host's name, if the token names exactly one host without a
// wildcard.
func (c Client) OnlyHost() (name string, ok bool) {
	hosts := distinct(c.Hosts)
	if len(hosts) != 1 || strings.Contains(hosts[0], All) {
		return "", false
	}
	return hosts[0], true
}

// Restricted reports whether the token permits less than everything at its hosts.
func (c Client) Restricted() bool {
	return !c.Access.Includes(AccessWrite) || len(c.Channels) > 0 || len(c.Methods) > 0
}

// Covers reports whether c may do at least what o may do. It compares every field that gives
// or limits authority. A pattern covers itself only; * covers all.
func (c Client) Covers(o Client) bool {
	allFiles := c.Access.Includes(AccessWrite) && len(c.Channels) == 0
	return c.Tenant == o.Tenant && c.Access.Includes(o.Access) && covers(c.Hosts, o.Hosts, false) &&
		covers(c.Channels, o.Channels, true) && covers(c.Methods, o.Methods, true) &&
		(c.Files || allFiles || !o.Files) && (c.Reverse || !o.Reverse) &&
		cmp.Or(c.MaxConnections, MaxConnections+1) >= cmp.Or(o.MaxConnections, MaxConnections+1) &&
		(c.Audience == "" || c.Audience == o.Audience)
}

// covers reports whether the patterns in wide cover those in narrow. all means that an empty
// list stands for everything.
func covers(wide, narrow []string, all bool) bool {
	if len(wide) == 0 {
		return all
	}
	for _, pattern := range narrow {
		if !slices.Contains(wide, pattern) && !slices.Contains(wide, All) {
			return false
		}
	}
	return len(narrow) > 0 || !all
}

// SameAuthority reports whether c and o may do the same. Their lists of channels must have
// the same patterns: beside *, a pattern of files still permits reading.
func (c Client) SameAuthority(o Client) bool {
	return c.Covers(o) && o.Covers(c) && slices.Equal(distinct(c.Channels), distinct(o.Channels))
}

func distinct(patterns []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(patterns)))
}

// An Enrolment is the content of a host-agent's token.
type Enrolment struct {
	ID       string    // unique ID of the token
	Tenant   string    // name of the tenant
	Host     string    // the only host that the agent may serve
	IssuedAt time.Time // to the second
	Expires  time.Time // to the second

	// Set in a credential, see [Tokens.IssueCredential].
	Key      ed25519.PublicKey // the key that the host-agent must prove; nil: this is an enrolment token
	Replaces *Replaced         // the credential that this one replaces; nil: none

	Origins []Origin // as in Client
}

// Claims in every token.
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
		return "a canvas grant"
	}
	return "not a relay's token"
}

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
	DeviceName     string   `json:"deviceName,omitempty"`
	Watches        string   `json:"audience,omitempty"`
	Origins        []Origin `json:"origins,omitempty"`

	RelayKeys []string `json:"relay_keys,omitempty"` // in host-agents' tokens

	Canvas *CanvasClaims `json:"canvas,omitempty"`

	credentialClaims

	signer string // the kid in the header of a verified token
}

// Tokens issues and verifies the tokens of clients, host-agents and operators.
// [Keys.Tokens] returns it.
type Tokens struct{ keys *Keys }

// IssueClient signs a client token. It generates an ID and IssuedAt if they are missing.
// It returns an error for a token that VerifyClient would refuse.
func (t Tokens) IssueClient(c Client) (string, error) {
	if c.Expires.IsZero() {
		return "", errors.New("client token: no expiry time")
	}
	cl := t.newClaims(c.ID, c.Subject, c.Tenant, c.IssuedAt, c.Expires)
	cl.Hosts, cl.Access, cl.Channels, cl.Methods = c.Hosts, c.Access, c.Channels, c.Methods
	cl.Files, cl.Reverse, cl.MaxConnections, cl.Device = c.Files, c.Reverse, c.MaxConnections, c.Device
	cl.DeviceName, cl.Watches, cl.Origins = c.DeviceName, c.Audience, c.Origins
	if c.Key != "" {
		cl.Confirmation = &confirmation{Thumbprint: c.Key}
	}
	if _, err := cl.client(); err != nil {
		return "", fmt.Errorf("client token: %w", err)
	}
	return t.issue(clientKind, cl)
}

// IssueHost signs a host enrolment token. It generates an ID and IssuedAt if they are
// missing. It returns an error for a token that VerifyHost would refuse.
func (t Tokens) IssueHost(e Enrolment) (string, error) {
	if e.Expires.IsZero() {
		return "", errors.New("host enrolment token: no expiry time")
	}
	cl := t.newClaims(e.ID, e.Host, e.Tenant, e.IssuedAt, e.Expires)
	cl.Origins = e.Origins
	if _, err := cl.enrolment(); err != nil {
		return "", fmt.Errorf("host enrolment token: %w", err)
	}
	return t.issue(hostKind, cl)
}

// VerifyClient verifies a client token and returns its content. The error wraps
// ErrTokenExpired or ErrTokenInvalid.
func (t Tokens) VerifyClient(token string) (Client, error) {
	return verified(t, clientKind, token, (*claims).client)
}

// VerifyHost verifies a host enrolment token and returns its content. The error wraps
// ErrTokenExpired or ErrTokenInvalid.
func (t Tokens) VerifyHost(token string) (Enrolment, error) {
	return verified(t, hostKind, token, (*claims).enrolment)
}

// verified verifies a token's kind and signature, and converts its claims with read.
func verified[T any](t Tokens, want tokenKind, token string, read func(*claims) (T, error)) (T, error) {
	var none T
	cl, err := t.verify(want, token)
	if err != nil {
		return none, err
	}
	content, err := read(cl)
	if err != nil {
		return none, fmt.Errorf("%w: %w", ErrTokenInvalid, err)
	}
	return content, nil
}

func (t Tokens) newClaims(id, subject, tenant string, issued, expires time.Time) *claims {
	id = cmp.Or(id, rand.Text())
	if issued.IsZero() {
		issued = t.keys.now()
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

func (t Tokens) issue(kind tokenKind, cl *claims) (string, error) {
	return t.issueWith(t.keys.signing(), kind, cl)
}

func (t Tokens) issueWith(set *keySet, kind tokenKind, cl *claims) (string, error) {
	if !cl.ExpiresAt.After(t.keys.now()) {
		return "", fmt.Errorf("token would expire at %s, which has passed", stamp(cl.ExpiresAt.Time))
	}
	if kind == hostKind || kind == credentialKind { // name the relays that the host-agent is to trust
		cl.RelayKeys = t.relayKeyTexts()
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

// relayKeyTexts returns the relays' public keys in the form in which host-agents' tokens
// have them.
func (t Tokens) relayKeyTexts() (texts []string) {
	for _, key := range t.keys.Links().RelayKeys() {
		texts = append(texts, base64.RawURLEncoding.EncodeToString(key))
	}
	return texts
}

// verify makes the checks that all kinds of token have in common. For an expired token,
// it returns the claims with the error.
func (t Tokens) verify(want tokenKind, token string) (*claims, error) {
	if len(token) > MaxTokenSize {
		return nil, fmt.Errorf("%w: %d bytes long; want at most %d", ErrTokenInvalid, len(token), MaxTokenSize)
	}
	parser := jwt.NewParser(
		// Only EdDSA is accepted, because a token must not choose how it is verified (RFC
		// 8725, section 3.1).
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		jwt.WithExpirationRequired(), // the library accepts tokens without exp
		jwt.WithIssuedAt(),
		jwt.WithIssuer(tokenIssuer),
		jwt.WithAudience(tokenAudience),
		jwt.WithLeeway(Leeway),
		jwt.WithTimeFunc(t.keys.now),
		jwt.WithStrictDecoding(),
	)
	if err := CheckKeys(token); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTokenInvalid, err)
	}
	cl := new(claims)
	parsed, err := parser.ParseWithClaims(token, cl, t.keyFor(want))
	if err != nil {
		if err = t.refusal(cl, err); !errors.Is(err, ErrTokenExpired) {
			cl = nil
		}
		return cl, err
	}
	cl.signer, _ = parsed.Header["kid"].(string)
	return cl, nil
}

// A wrongKeyError describes a wrong token header. The JWT library wraps it. Its text
// contains nothing from the token.
type wrongKeyError string

func (e wrongKeyError) Error() string { return string(e) }

// keyFor returns the function that finds the key for a token's header.
func (t Tokens) keyFor(want tokenKind) jwt.Keyfunc {
	return func(token *jwt.Token) (any, error) {
		typ, _ := token.Header["typ"].(string)
		if kind := tokenKind(typ); kind != want {
			return nil, wrongKeyError(fmt.Sprintf("this is %v; want %v", kind, want))
		}
		kid, _ := token.Header["kid"].(string)
		set := t.keys.setOf(kid)
		if set == nil {
			return nil, wrongKeyError("signed with a key unknown to this relay")
		}
		return set.public(), nil
	}
}

// refusal replaces the JWT library's error, which may contain parts of the token.
func (t Tokens) refusal(cl *claims, err error) error {
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
		return say("bad signature, or an algorithm other than EdDSA")
	case errors.Is(err, jwt.ErrTokenInvalidAudience), errors.Is(err, jwt.ErrTokenInvalidIssuer):
		return say("not made for this relay: iss or aud differs")
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		return say("exp, iss or aud is missing")
	case errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return say("issued at %s, which is in the future; check the clocks", stamp(cl.IssuedAt.Time))
	case errors.Is(err, jwt.ErrTokenExpired):
		ago := t.keys.now().Sub(cl.ExpiresAt.Time).Round(time.Second)
		return fmt.Errorf("%w at %s, %v ago", ErrTokenExpired, stamp(cl.ExpiresAt.Time), ago)
	}
	return say("claims not accepted")
}

func (cl *claims) client() (Client, error) {
	if err := cl.check(); err != nil {
		return Client{}, err
	}
	if cl.Channels != nil && len(cl.Channels) == 0 || cl.Methods != nil && len(cl.Methods) == 0 {
		return Client{}, errors.New("empty list of channels or methods; omit it to allow all")
	}
	c := Client{
		ID: cl.ID, Tenant: cl.Tenant, Subject: cl.Subject, Hosts: cl.Hosts, Access: cl.Access,
		IssuedAt: cl.IssuedAt.UTC(), Expires: cl.ExpiresAt.UTC(),
		Channels: cl.Channels, Methods: cl.Methods, Files: cl.Files, Reverse: cl.Reverse, MaxConnections: cl.MaxConnections,
	}
	c.Device, c.Audience, c.Origins, c.Signer = cl.Device, cl.Watches, cl.Origins, cl.signer
	if cl.Device != "" && CheckSubject(cl.Device) != nil {
		return Client{}, errors.New("device is too long, or unprintable")
	}
	if CheckSubject(cl.DeviceName) == nil { // a device chooses its name, so a bad name ends nothing
		c.DeviceName = cl.DeviceName
	}
	if cl.Confirmation != nil {
		c.Key = cl.Confirmation.Thumbprint
		if err := CheckThumbprint(c.Key); err != nil {
			return Client{}, fmt.Errorf("cnf: %w", err)
		}
	}
	return c, c.CheckAuthority()
}

// CheckAuthority returns an error if a field that limits the client's authority is
// invalid.
func (c *Client) CheckAuthority() error {
	if c.Access.rank() < 0 {
		return errors.New("unknown access level; want look, talk, approve, operate or own")
	}
	if c.MaxConnections < 0 || c.MaxConnections > MaxConnections {
		return fmt.Errorf("maxConnections is %d; want at most %d, or 0 for the relay's limit", c.MaxConnections, MaxConnections)
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

// check makes the checks for all kinds of token that the JWT library does not make.
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

// CheckSubject checks a subject's length and characters. Unprintable characters could
// forge log lines.
func CheckSubject(s string) error {
	unfit := func(r rune) bool { return !unicode.IsPrint(r) }
	switch {
	case s == "":
		return errors.New("no subject")
	case len(s) > MaxSubjectLen:
		return fmt.Errorf("subject is %d bytes long; want at most %d", len(s), MaxSubjectLen)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unfit):
		return errors.New("subject has unprintable characters")
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
