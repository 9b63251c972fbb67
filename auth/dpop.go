package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// A device proves its key with each request by a DPoP proof (RFC 9449): a JWT with typ
// dpop+jwt, signed with ES256 by a P-256 key. The public key is in the header. The claims
// are htm and htu (the request's method and URL), jti, nonce (from [Keys.NewChallenge])
// and, with an access token, ath (the token's SHA-256). The nonce contains the time by
// the relay's clock. So the device's clock need not be correct, and iat is ignored.
//
// A relay checks a proof in two steps, because verifying a signature costs a hundred
// times more than all other checks together. [ReadProof] parses the proof without
// verifying its signature, so that the caller can refuse an unknown key.
// [Keys.CheckProof] then checks the claims, and finally the signature.

// MaxProofSize is the longest proof in bytes.
const MaxProofSize = 4 << 10

// Reasons to refuse a proof.
var (
	// ErrProofInvalid reports an invalid proof.
	ErrProofInvalid = errors.New("invalid proof of the device's key")
	// ErrProofStale reports a proof without a fresh nonce. The device may try again
	// with a new nonce.
	ErrProofStale = errors.New("the proof needs a new nonce from the relay")
)

// Asked is the request for which a proof was made.
type Asked struct {
	Method string   // HTTP method
	URLs   []string // the request's URLs without query; the proof names one of them
	Token  string   // access token in the request; "": none
}

// A Proof is a verified proof.
type Proof struct {
	Thumbprint string    // thumbprint of the key (RFC 7638), SHA-256 in base64url
	ID         string    // unique: thumbprint and jti
	Made       time.Time `json:"-"` // when a relay made the nonce, by that relay's clock
	Own        bool      `json:"-"` // whether this process made the nonce
}

// A ClaimedProof is a proof whose signature has not been verified: it may be forged.
type ClaimedProof struct {
	Thumbprint string // thumbprint of the key in the header

	key    *jose.JSONWebKey
	signed *jose.JSONWebSignature
	claims proofClaims
}

type proofClaims struct {
	ID     string `json:"jti"`
	Method string `json:"htm"`
	URL    string `json:"htu"`
	Issued int64  `json:"iat"`
	Nonce  string `json:"nonce,omitempty"`
	Token  string `json:"ath,omitempty"`
}

// CheckProof verifies a proof for a request. It does not detect replays: for that, the
// caller compares Proof.ID. The error wraps ErrProofInvalid or ErrProofStale, and
// contains no data from the proof.
func (k *Keys) CheckProof(proof *ClaimedProof, asked Asked) (Proof, error) {
	said := proof.claims
	switch {
	case said.ID == "" || len(said.ID) > MaxSubjectLen:
		return Proof{}, fmt.Errorf("%w: jti is missing or too long", ErrProofInvalid)
	case said.Method != asked.Method || !isTarget(said.URL, asked.URLs):
		return Proof{}, fmt.Errorf("%w: made for a different request (behind a proxy, the relay needs --public-url, or --trust-proxy with X-Forwarded-Proto)", ErrProofInvalid)
	case subtle.ConstantTimeCompare([]byte(said.Token), []byte(tokenHash(asked.Token))) != 1:
		return Proof{}, fmt.Errorf("%w: made for a different token", ErrProofInvalid)
	}
	made, own, err := k.readChallenge(said.Nonce)
	if err != nil {
		return Proof{}, ErrProofStale
	}
	if _, err := proof.signed.Verify(proof.key); err != nil {
		return Proof{}, fmt.Errorf("%w: bad signature", ErrProofInvalid)
	}
	return Proof{proof.Thumbprint, proof.Thumbprint + " " + said.ID, made, own}, nil
}

// ReadProof parses a proof without verifying its signature. The error wraps
// ErrProofInvalid.
func ReadProof(proof string) (*ClaimedProof, error) {
	bad := func(why string) error { return fmt.Errorf("%w: %s", ErrProofInvalid, why) }
	if len(proof) > MaxProofSize {
		return nil, bad("too long")
	}
	if CheckKeys(proof) != nil {
		return nil, bad(errTwoReadings.Error())
	}
	signed, err := jose.ParseSignedCompact(proof, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return nil, bad("not a JWT signed with ES256")
	}
	header := signed.Signatures[0].Protected
	if typ, _ := header.ExtraHeaders[jose.HeaderType].(string); typ != "dpop+jwt" {
		return nil, bad("typ is not dpop+jwt")
	}
	key := header.JSONWebKey
	if key == nil || !key.Valid() || !key.IsPublic() {
		return nil, bad("header has no public key")
	}
	if public, ok := key.Key.(*ecdsa.PublicKey); !ok || public.Curve != elliptic.P256() {
		return nil, bad("key is not a P-256 key")
	}
	thumbprint, err := thumbprintOf(key)
	if err != nil {
		return nil, err
	}
	read := &ClaimedProof{Thumbprint: thumbprint, key: key, signed: signed}
	if json.Unmarshal(signed.UnsafePayloadWithoutVerification(), &read.claims) != nil {
		return nil, bad("claims are not JSON")
	}
	return read, nil
}

// isTarget reports whether a proof's htu equals one of the request's URLs after
// normalization (RFC 9449, section 4.3). Query and fragment are ignored.
func isTarget(htu string, urls []string) bool {
	target, ok := normalURL(htu)
	return ok && slices.ContainsFunc(urls, func(one string) bool {
		is, ok := normalURL(one)
		return ok && is == target
	})
}

// normalURL returns an HTTP URL in normal form (RFC 3986, section 6.2), without query and
// fragment. It replaces ws by http, because a WebSocket handshake is an HTTP request.
func normalURL(text string) (normal string, ok bool) {
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Opaque != "" || u.Hostname() == "" {
		return "", false
	}
	scheme, port := u.Scheme, "" // url.Parse has made it lower case
	switch scheme {
	case "http", "ws":
		scheme, port = "http", "80"
	case "https", "wss":
		scheme, port = "https", "443"
	default:
		return "", false
	}
	host := strings.ToLower(u.Host)
	if u.Port() == "" {
		host = strings.TrimSuffix(host, ":") + ":" + port
	}
	return scheme + "://" + host + "/" + strings.TrimPrefix(u.Path, "/"), true
}

// tokenHash returns the claim ath for a token, or "" for none.
func tokenHash(token string) string {
	if token == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func thumbprintOf(key *jose.JSONWebKey) (string, error) {
	sum, err := key.Thumbprint(crypto.SHA256)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrProofInvalid, err)
	}
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

// CheckThumbprint returns an error unless text is a key's thumbprint.
func CheckThumbprint(text string) error {
	if b, err := base64.RawURLEncoding.Strict().DecodeString(text); err != nil || len(b) != sha256.Size {
		return errors.New("not the thumbprint of a key")
	}
	return nil
}

// Fingerprint returns the first 64 bits of a thumbprint, in a form that people can
// compare.
func Fingerprint(thumbprint string) string {
	b, err := base64.RawURLEncoding.DecodeString(thumbprint)
	if err != nil || len(b) < 8 {
		return "?"
	}
	return fmt.Sprintf("%X-%X-%X-%X", b[0:2], b[2:4], b[4:6], b[6:8])
}

// A DeviceKey is the key of a device that is not a browser. It is safe for concurrent
// use.
type DeviceKey struct{ key *ecdsa.PrivateKey }

// NewDeviceKey generates a key.
func NewDeviceKey() (*DeviceKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &DeviceKey{key}, nil
}

// ReadDeviceKey decodes a private key from [DeviceKey.Private].
func ReadDeviceKey(private []byte) (*DeviceKey, error) {
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), private)
	if err != nil {
		return nil, fmt.Errorf("device key: %w", err)
	}
	return &DeviceKey{key}, nil
}

// Private returns the private key, which is secret.
func (d *DeviceKey) Private() ([]byte, error) { return d.key.Bytes() }

// Thumbprint returns the key's thumbprint (RFC 7638).
func (d *DeviceKey) Thumbprint() string {
	thumbprint, err := thumbprintOf(&jose.JSONWebKey{Key: d.key.Public()})
	if err != nil {
		panic(err) // it is a key
	}
	return thumbprint
}

// Prove returns a proof for a request to the first URL in asked, with a relay's nonce.
func (d *DeviceKey) Prove(asked Asked, nonce string) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: d.key}, (&jose.SignerOptions{EmbedJWK: true}).WithType("dpop+jwt"))
	if err != nil {
		return "", err
	}
	claims, err := json.Marshal(proofClaims{
		ID: rand.Text(), Method: asked.Method, URL: asked.URLs[0], Nonce: nonce, Token: tokenHash(asked.Token),
	})
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}
