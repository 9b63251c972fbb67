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

// DefaultCredentialTTL is the lifetime of a host-agent's credential. A machine that is
// off for longer must be enrolled again.
const DefaultCredentialTTL = 90 * 24 * time.Hour

// confirmation is the claim cnf (RFC 7800). In a credential, it contains an Ed25519 key
// as a JWK (RFC 8037).
type confirmation struct {
	JWK struct {
		Type  string `json:"kty"`
		Curve string `json:"crv"`
		X     string `json:"x"`
	} `json:"jwk,omitzero"`

	Thumbprint string `json:"jkt,omitempty"` // thumbprint of a device's key (RFC 9449, section 6.1)
}

// Replaced is the credential that a renewed credential replaces.
type Replaced struct {
	ID      string    `json:"jti"`
	Expires time.Time `json:"exp"`
}

type credentialClaims struct {
	Confirmation *confirmation `json:"cnf,omitempty"`
	Replaces     *Replaced     `json:"former,omitempty"`
}

// IssueCredential signs a credential that is bound to e.Key. It generates an ID and
// IssuedAt if they are missing.
func (t Tokens) IssueCredential(e Enrolment) (string, error) {
	cl, err := t.credentialClaims(e)
	if err != nil {
		return "", err
	}
	return t.issue(credentialKind, cl)
}

func (t Tokens) credentialClaims(e Enrolment) (*claims, error) {
	if e.Expires.IsZero() {
		return nil, errors.New("credential: no expiry time")
	}
	cl := t.newClaims(e.ID, e.Host, e.Tenant, e.IssuedAt, e.Expires)
	cl.Confirmation, cl.Replaces, cl.Origins = new(confirmation), e.Replaces, e.Origins
	jwk := &cl.Confirmation.JWK
	jwk.Type, jwk.Curve, jwk.X = "OKP", "Ed25519", base64.RawURLEncoding.EncodeToString(e.Key)
	if _, err := cl.credential(); err != nil {
		return nil, fmt.Errorf("credential: %w", err)
	}
	return cl, nil
}

// RenewCredential issues a credential that replaces a valid one. It signs with a key that
// the replaced credential names, because the host-agent does not trust other keys yet.
func (t Tokens) RenewCredential(e Enrolment, replaced string) (string, error) {
	cl, kid, err := peekRelayKeys(replaced)
	if err != nil {
		return "", err
	}
	set := t.keys.signing()
	if !slices.Contains(cl.RelayKeys, base64.RawURLEncoding.EncodeToString(set.public())) {
		if set = t.keys.setOf(kid); set == nil {
			return "", fmt.Errorf("%w: its keys are retired", ErrTokenInvalid)
		}
	}
	next, err := t.credentialClaims(e)
	if err != nil {
		return "", err
	}
	return t.issueWith(set, credentialKind, next)
}

// Outdated reports whether a host-agent should renew its token: the relay keys in it are
// not the present ones, or an older key set has signed it.
func (t Tokens) Outdated(token string) bool {
	cl, kid, err := peekRelayKeys(token)
	return err == nil && (kid != t.keys.signing().tokenID || !slices.Equal(cl.RelayKeys, t.relayKeyTexts()))
}

// peekRelayKeys returns the claims and kid of a token, which the caller has verified.
func peekRelayKeys(token string) (cl *claims, kid string, err error) {
	cl = new(claims)
	parsed, _, err := jwt.NewParser().ParseUnverified(token, cl)
	if err != nil {
		return nil, "", fmt.Errorf("%w: not a JWT", ErrTokenInvalid)
	}
	kid, _ = parsed.Header["kid"].(string)
	return cl, kid, nil
}

// VerifyAgent verifies an enrolment token or a credential. If the result has a Key, the
// token is a credential, and the caller must also verify a proof of that key. The error
// wraps ErrTokenExpired or ErrTokenInvalid.
func (t Tokens) VerifyAgent(token string) (Enrolment, error) {
	if kindOf(token) != credentialKind {
		return t.VerifyHost(token)
	}
	return verified(t, credentialKind, token, (*claims).credential)
}

// kindOf returns the kind in a token's header, or "" if token is not a JWT.
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
		return Enrolment{}, errors.New("cnf is not an Ed25519 key")
	}
	if cl.Replaces != nil && (CheckSubject(cl.Replaces.ID) != nil || cl.Replaces.Expires.IsZero()) {
		return Enrolment{}, errors.New("former has no jti or exp")
	}
	e.Key, e.Replaces = key, cl.Replaces
	return e, nil
}

// A Purpose is the operation for which a host-agent proves its key. A proof for one
// purpose is not valid for another.
type Purpose string

const (
	ToEnroll  Purpose = "enroll"      // binds the credential to the key
	ToRenew   Purpose = "renew"       // renews a credential
	ToConnect Purpose = "credentials" // gets NATS credentials; the proof contains the nkey
	ToShare   Purpose = "shares"      // manages links to the host; the proof contains a hash of the request
)

// keyProofPrefix begins each text that a host key signs for a relay's challenge. No other
// signed text begins with it.
const keyProofPrefix = "ahp-relay host key v1\x00"

// keyProof returns the text that a host-agent signs. NUL separates its parts, which
// cannot contain NUL.
func keyProof(purpose Purpose, challenge, tenant, host, detail string) ([]byte, error) {
	if err := errors.Join(ahp.CheckName("tenant", tenant), ahp.CheckName("host", host)); err != nil {
		return nil, fmt.Errorf("challenge: %w", err)
	}
	parts := []string{string(purpose), challenge, tenant, host, detail}
	for _, part := range parts {
		if strings.ContainsRune(part, 0) {
			return nil, errors.New("challenge: not made by a relay")
		}
	}
	return []byte(keyProofPrefix + strings.Join(parts, "\x00")), nil
}

// CheckKey verifies that the host-agent has the private key: the signature must cover a
// challenge that has not expired, the purpose, the host and the detail.
func (k *Keys) CheckKey(key ed25519.PublicKey, purpose Purpose, challenge, tenant, host, detail string, signature []byte) error {
	if err := k.checkFresh(challenge); err != nil {
		return err
	}
	proof, err := keyProof(purpose, challenge, tenant, host, detail)
	if err != nil {
		return err
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, proof, signature) {
		return errors.New("challenge: the signature does not match challenge, tenant, host and the host's key")
	}
	return nil
}

// A HostKey is the key to which a host-agent's credential is bound. It is stored on the
// host's machine. It is safe for concurrent use.
type HostKey struct{ key ed25519.PrivateKey }

// NewHostKey generates a key.
func NewHostKey() *HostKey {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return &HostKey{key}
}

// ReadHostKey returns the key for a seed from [HostKey.Seed].
func ReadHostKey(seed []byte) (*HostKey, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("host key: %d bytes; want %d", len(seed), ed25519.SeedSize)
	}
	return &HostKey{ed25519.NewKeyFromSeed(seed)}, nil
}

// Seed returns the private key's seed, which is secret.
func (h *HostKey) Seed() []byte { return h.key.Seed() }

// Public returns the public key.
func (h *HostKey) Public() ed25519.PublicKey { return h.key.Public().(ed25519.PublicKey) }

// Prove signs a relay's challenge; the relay verifies the signature with [Keys.CheckKey].
func (h *HostKey) Prove(purpose Purpose, challenge, tenant, host, detail string) ([]byte, error) {
	proof, err := keyProof(purpose, challenge, tenant, host, detail)
	if err != nil {
		return nil, err
	}
	return ed25519.Sign(h.key, proof), nil
}

// CheckCredential returns an error if a host-agent must not accept a credential from a
// relay. before is the host-agent's previous token. The credential must be signed with a
// key that before names, be for the same host, and be bound to key. Its times are not
// checked, because the host-agent's clock may be wrong.
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
		return errors.New("credential: the relay's answer is not a credential")
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
			return errors.New("credential: made for a different host or key")
		}
		return nil
	}
	return errors.New("credential: not signed by a relay that this host-agent trusts; check the relay's URL")
}

// PublicText returns the public key in base64url, as it is sent to relays.
func (h *HostKey) PublicText() string { return base64.RawURLEncoding.EncodeToString(h.Public()) }

// Fingerprint returns the key's fingerprint for people to compare.
func (h *HostKey) Fingerprint() string {
	_, thumbprint, err := ReadHostPublic(h.PublicText())
	if err != nil {
		panic(err) // it is a key
	}
	return Fingerprint(thumbprint)
}

// ReadHostPublic decodes a public key from PublicText, and returns it with its thumbprint
// (RFC 7638).
func ReadHostPublic(text string) (key ed25519.PublicKey, thumbprint string, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != ed25519.PublicKeySize {
		return nil, "", errors.New("key is not an Ed25519 key in base64url")
	}
	key = b
	thumbprint, err = thumbprintOf(&jose.JSONWebKey{Key: key})
	return key, thumbprint, err
}
