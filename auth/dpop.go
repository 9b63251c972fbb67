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

// A device proves its key with each request by a DPoP proof (RFC 9449): a JWT of
// typ dpop+jwt, signed with ES256 by a key of P-256. The public key is in the header. The
// claims are htm and htu (method and URL of the request), jti, nonce (of a relay,
// [Keys.NewChallenge]) and, beside an access token, ath (the token's SHA-256). The nonce
// carries the time by the relay's clock, so the device's clock and iat do not count.
//
// A relay checks a proof in two steps, since a signature costs a hundred times more than
// all other checks together. [ReadProof] reads the proof without its signature: the caller
// learns the key that the proof claims, and refuses a key that it does not want.
// [Keys.CheckProof] then checks the claims, and the signature last.

// MaxProofSize is the limit of a proof's length, in bytes.
const MaxProofSize = 4 << 10

// Reasons why a proof is refused.
var (
	// ErrProofInvalid reports a proof that proves nothing.
	ErrProofInvalid = errors.New("proof of the device's key is not good")
	// ErrProofStale reports a proof without a nonce that is good now: with a new one
	// it may be.
	ErrProofStale = errors.New("the proof wants a new nonce of the relay's")
)

// Asked is the request that a proof is for.
type Asked struct {
	Method string   // of HTTP
	URLs   []string // of the request, without query: the proof names one of them
	Token  string   // shown with the proof; "": none
}

// A Proof is a proof that was checked.
type Proof struct {
	Thumbprint string    // of the key (RFC 7638), SHA-256 in base64url
	ID         string    // made of key and jti, so unique
	Made       time.Time `json:"-"` // when a relay made the nonce, by that relay's clock
	Own        bool      `json:"-"` // this process made the nonce
}

// A ClaimedProof is a proof whose signature is not checked yet: anybody can have made it.
type ClaimedProof struct {
	Thumbprint string // of the key that the proof claims to be signed with

	key    *jose.JSONWebKey
	signed *jose.JSONWebSignature
	claims proofClaims
}

// proofClaims are the claims of a proof.
type proofClaims struct {
	ID     string `json:"jti"`
	Method string `json:"htm"`
	URL    string `json:"htu"`
	Issued int64  `json:"iat"`
	Nonce  string `json:"nonce,omitempty"`
	Token  string `json:"ath,omitempty"`
}

// CheckProof checks a proof for a request that comes now. It does not know which proofs
// were used: the caller compares Proof.ID. The error wraps ErrProofInvalid or
// ErrProofStale, and contains nothing of the proof.
func (k *Keys) CheckProof(proof *ClaimedProof, asked Asked) (Proof, error) {
	said := proof.claims
	switch {
	case said.ID == "" || len(said.ID) > MaxSubjectLen:
		return Proof{}, fmt.Errorf("%w: no jti, or too long a one", ErrProofInvalid)
	case said.Method != asked.Method || !isTarget(said.URL, asked.URLs):
		return Proof{}, fmt.Errorf("%w: it is for another request (behind a proxy, the relay needs --public-url, or --trust-proxy with X-Forwarded-Proto)", ErrProofInvalid)
	case subtle.ConstantTimeCompare([]byte(said.Token), []byte(tokenHash(asked.Token))) != 1:
		return Proof{}, fmt.Errorf("%w: it is for another token", ErrProofInvalid)
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

// ReadProof reads a proof, and does not check its signature. The error wraps
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
		return nil, bad("no public key in it")
	}
	if public, ok := key.Key.(*ecdsa.PublicKey); !ok || public.Curve != elliptic.P256() {
		return nil, bad("key is not of P-256")
	}
	thumbprint, err := thumbprintOf(key)
	if err != nil {
		return nil, err
	}
	read := &ClaimedProof{Thumbprint: thumbprint, key: key, signed: signed}
	if json.Unmarshal(signed.UnsafePayloadWithoutVerification(), &read.claims) != nil {
		return nil, bad("claims cannot be read")
	}
	return read, nil
}

// isTarget reports whether a proof's htu is one of the URLs of a request: the same scheme,
// host, port and path, after normalization (RFC 9449, section 4.3). Query and fragment do
// not count.
func isTarget(htu string, urls []string) bool {
	target, ok := normalURL(htu)
	return ok && slices.ContainsFunc(urls, func(one string) bool {
		is, ok := normalURL(one)
		return ok && is == target
	})
}

// normalURL returns the URL of a request of HTTP in its normal form (RFC 3986, section
// 6.2), without query and fragment. The handshake of a WebSocket is such a request.
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

// tokenHash is the claim ath of a token, "" for none.
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

// CheckThumbprint reports what is no thumbprint of a key.
func CheckThumbprint(text string) error {
	if b, err := base64.RawURLEncoding.Strict().DecodeString(text); err != nil || len(b) != sha256.Size {
		return errors.New("not the thumbprint of a key")
	}
	return nil
}

// Fingerprint is a thumbprint as people compare it: the first 64 bits.
func Fingerprint(thumbprint string) string {
	b, err := base64.RawURLEncoding.DecodeString(thumbprint)
	if err != nil || len(b) < 8 {
		return "?"
	}
	return fmt.Sprintf("%X-%X-%X-%X", b[0:2], b[2:4], b[4:6], b[6:8])
}

// A DeviceKey is the key of a device that is no browser. It is safe for concurrent
// use.
type DeviceKey struct{ key *ecdsa.PrivateKey }

// NewDeviceKey makes a key.
func NewDeviceKey() (*DeviceKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &DeviceKey{key}, nil
}

// ReadDeviceKey returns the key that Private has returned.
func ReadDeviceKey(private []byte) (*DeviceKey, error) {
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), private)
	if err != nil {
		return nil, fmt.Errorf("device key: %w", err)
	}
	return &DeviceKey{key}, nil
}

// Private returns the private part: it is secret.
func (d *DeviceKey) Private() ([]byte, error) { return d.key.Bytes() }

// Thumbprint names the key (RFC 7638).
func (d *DeviceKey) Thumbprint() string {
	thumbprint, err := thumbprintOf(&jose.JSONWebKey{Key: d.key.Public()})
	if err != nil {
		panic(err) // it is a key
	}
	return thumbprint
}

// Prove makes a proof for a request to the first of its URLs, with a nonce of a relay's.
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
