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

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"ahprelay/ahp"
)

// DefaultCredentialTTL is how long a host-agent's credential is good: a machine
// that is off for longer has to enroll again.
const DefaultCredentialTTL = 90 * 24 * time.Hour

// confirmation is the claim cnf (RFC 7800): of a credential with an Ed25519 key as
// a JWK (RFC 8037).
type confirmation struct {
	JWK struct {
		Type  string `json:"kty"`
		Curve string `json:"crv"`
		X     string `json:"x"`
	} `json:"jwk,omitzero"`

	Thumbprint string `json:"jkt,omitempty"` // of a device's key (RFC 9449, section 6.1)
}

// A Former is the credential that one was renewed from.
type Former struct {
	ID      string    `json:"jti"`
	Expires time.Time `json:"exp"`
}

// credentialClaims are what a credential says beside an enrolment token.
type credentialClaims struct {
	Confirmation *confirmation `json:"cnf,omitempty"`
	Former       *Former       `json:"former,omitempty"`
}

// IssueCredential signs a credential for the holder of e.Key. An empty ID and
// a zero IssuedAt are filled in.
func (k *Keys) IssueCredential(e Enrolment) (string, error) {
	cl, err := k.credentialClaims(e)
	if err != nil {
		return "", err
	}
	return k.issue(credentialKind, cl)
}

func (k *Keys) credentialClaims(e Enrolment) (*claims, error) {
	if e.Expires.IsZero() {
		return nil, errors.New("credential: no time of expiry")
	}
	cl := k.newClaims(e.ID, e.Host, e.Tenant, e.IssuedAt, e.Expires)
	cl.Confirmation, cl.Former, cl.Origins = new(confirmation), e.Former, e.Origins
	jwk := &cl.Confirmation.JWK
	jwk.Type, jwk.Curve, jwk.X = "OKP", "Ed25519", base64.RawURLEncoding.EncodeToString(e.Key)
	if _, err := cl.credential(); err != nil {
		return nil, fmt.Errorf("credential: %w", err)
	}
	return cl, nil
}

// RenewCredential is IssueCredential for who has shown a credential that is good. It is
// signed with keys that the former one names, as its holder trusts no others yet.
func (k *Keys) RenewCredential(e Enrolment, former string) (string, error) {
	cl, kid, err := peekRelayKeys(former)
	if err != nil {
		return "", err
	}
	set := k.signing()
	if !slices.Contains(cl.RelayKeys, base64.RawURLEncoding.EncodeToString(set.public())) {
		if set = k.setOf(kid); set == nil {
			return "", fmt.Errorf("%w: its keys are retired", ErrTokenInvalid)
		}
	}
	next, err := k.credentialClaims(e)
	if err != nil {
		return "", err
	}
	return k.issueWith(set, credentialKind, next)
}

// Outdated reports whether a good token of a host-agent does not name all keys of
// relays, or was not signed with those of now: its holder is to renew it.
func (k *Keys) Outdated(token string) bool {
	cl, kid, err := peekRelayKeys(token)
	return err == nil && (kid != k.signing().tokenID || !slices.Equal(cl.RelayKeys, k.relayKeyTexts()))
}

// peekRelayKeys reads what a token says of keys. It was verified before.
func peekRelayKeys(token string) (cl *claims, kid string, err error) {
	cl = new(claims)
	parsed, _, err := jwt.NewParser().ParseUnverified(token, cl)
	if err != nil {
		return nil, "", fmt.Errorf("%w: not a JWT", ErrTokenInvalid)
	}
	kid, _ = parsed.Header["kid"].(string)
	return cl, kid, nil
}

// VerifyAgent checks what a host-agent shows, an enrolment token or a
// credential, and returns what it says. A credential says a Key: it is good
// only with a proof of that. The error wraps ErrTokenExpired or
// ErrTokenInvalid.
func (k *Keys) VerifyAgent(token string) (Enrolment, error) {
	if kindOf(token) != credentialKind {
		return k.VerifyHost(token)
	}
	return verified(k, credentialKind, token, (*claims).credential)
}

// kindOf returns which kind a token says that it is, "" for what is no token.
func kindOf(token string) tokenKind {
	if len(token) > MaxTokenSize {
		return ""
	}
	parsed, _, err := jwt.NewParser().ParseUnverified(token, new(claims))
	if err != nil {
		return ""
	}
	typ, _ := parsed.Header["typ"].(string)
	return tokenKind(typ)
}

// credential returns what the claims of a credential describe.
func (cl *claims) credential() (Enrolment, error) {
	e, err := cl.enrolment()
	if err != nil {
		return Enrolment{}, err
	}
	if cl.Confirmation == nil {
		return Enrolment{}, errors.New("no cnf")
	}
	jwk := cl.Confirmation.JWK
	key, err := base64.RawURLEncoding.Strict().DecodeString(jwk.X)
	if err != nil || jwk.Type != "OKP" || jwk.Curve != "Ed25519" || len(key) != ed25519.PublicKeySize {
		return Enrolment{}, errors.New("cnf is no Ed25519 key")
	}
	if cl.Former != nil && (CheckSubject(cl.Former.ID) != nil || cl.Former.Expires.IsZero()) {
		return Enrolment{}, errors.New("former has no jti or exp")
	}
	e.Key, e.Former = key, cl.Former
	return e, nil
}

// A Purpose is what a host-agent proves its key for: a proof for one is none
// for another.
type Purpose string

// The purposes.
const (
	ToEnroll  Purpose = "enroll"      // the key is to be that of the credential
	ToRenew   Purpose = "renew"       // a credential
	ToConnect Purpose = "credentials" // of NATS, for the nkey that is said with it
	ToShare   Purpose = "shares"      // what is done about links to the host, which is said with it, as a hash
)

// keyProofPrefix begins what a host-agent signs with its host key, and nothing
// else that it signs.
const keyProofPrefix = "ahp-relay host key v1\x00"

// keyProof is what a host-agent signs. No part can contain the NUL that
// separates them. What is said with it is bound to it.
func keyProof(purpose Purpose, challenge, tenant, host, said string) ([]byte, error) {
	if err := errors.Join(ahp.CheckName("tenant", tenant), ahp.CheckName("host", host)); err != nil {
		return nil, fmt.Errorf("challenge: %w", err)
	}
	parts := []string{string(purpose), challenge, tenant, host, said}
	for _, part := range parts {
		if strings.ContainsRune(part, 0) {
			return nil, errors.New("challenge: not one of a relay")
		}
	}
	return []byte(keyProofPrefix + strings.Join(parts, "\x00")), nil
}

// CheckKey reports why the signature does not prove that its maker holds the
// private part of a key, and wants this for that host, now.
func (k *Keys) CheckKey(key ed25519.PublicKey, purpose Purpose, challenge, tenant, host, said string, signature []byte) error {
	if err := k.checkFresh(challenge); err != nil {
		return err
	}
	proof, err := keyProof(purpose, challenge, tenant, host, said)
	if err != nil {
		return err
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, proof, signature) {
		return errors.New("challenge: signature does not fit challenge, tenant, host and the host's key")
	}
	return nil
}

// A HostKey is the key that a host-agent's credential is bound to. It is kept
// on the host's machine, and safe for concurrent use.
type HostKey struct{ key ed25519.PrivateKey }

// NewHostKey makes a key.
func NewHostKey() *HostKey {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return &HostKey{key}
}

// ReadHostKey returns the key that Seed has returned.
func ReadHostKey(seed []byte) (*HostKey, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("host key: %d bytes; want %d", len(seed), ed25519.SeedSize)
	}
	return &HostKey{ed25519.NewKeyFromSeed(seed)}, nil
}

// Seed returns what the key is made from: it is secret.
func (h *HostKey) Seed() []byte { return h.key.Seed() }

// Public returns the public part.
func (h *HostKey) Public() ed25519.PublicKey { return h.key.Public().(ed25519.PublicKey) }

// Prove answers a relay's challenge, as [Keys.CheckKey] wants it.
func (h *HostKey) Prove(purpose Purpose, challenge, tenant, host, said string) ([]byte, error) {
	proof, err := keyProof(purpose, challenge, tenant, host, said)
	if err != nil {
		return nil, err
	}
	return ed25519.Sign(h.key, proof), nil
}

// CheckCredential reports why a credential that a relay has answered with is
// not to be believed: it must be signed with one of the keys that the token of
// before names, and be for the same host and for this key. Times are not
// checked: the host-agent's clock may be wrong.
func CheckCredential(credential, before string, key ed25519.PublicKey) error {
	trusted, err := PeekRelayKeys(before)
	if err != nil {
		return err
	}
	tenant, host, err := PeekHost(before)
	if err != nil {
		return err
	}
	if len(credential) > MaxTokenSize || kindOf(credential) != credentialKind {
		return errors.New("credential: the relay has sent something else")
	}
	parser := jwt.NewParser(jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithStrictDecoding(), jwt.WithoutClaimsValidation())
	for _, relay := range trusted {
		cl := new(claims)
		if _, err := parser.ParseWithClaims(credential, cl, func(*jwt.Token) (any, error) { return relay, nil }); err != nil {
			continue
		}
		e, err := cl.credential()
		switch {
		case err != nil:
			return fmt.Errorf("credential: %w", err)
		case e.Tenant != tenant || e.Host != host || !e.Key.Equal(key):
			return errors.New("credential: it is for another host, or another key")
		}
		return nil
	}
	return errors.New("credential: it is not signed by a relay that this host-agent trusts; who answers is not that relay")
}

// PublicText is the public part of a host-agent's key, as it is sent to relays.
func (h *HostKey) PublicText() string { return base64.RawURLEncoding.EncodeToString(h.Public()) }

// Fingerprint is that of the key, as people compare it.
func (h *HostKey) Fingerprint() string {
	_, thumbprint, err := ReadHostPublic(h.PublicText())
	if err != nil {
		panic(err) // it is a key
	}
	return Fingerprint(thumbprint)
}

// ReadHostPublic reads what PublicText has returned, and the key's thumbprint (RFC 7638).
func ReadHostPublic(text string) (key ed25519.PublicKey, thumbprint string, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != ed25519.PublicKeySize {
		return nil, "", errors.New("key is no Ed25519 key in base64url")
	}
	key = b
	thumbprint, err = thumbprintOf(&jose.JSONWebKey{Key: key})
	return key, thumbprint, err
}
