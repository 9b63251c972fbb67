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

	"github.com/go-jose/go-jose/v4"
)

// A device proves its key with each request, as RFC 9449 (DPoP) has it: a JWT of
// typ dpop+jwt, signed with ES256 by a key of P-256 whose public part is in its
// header, with the claims htm and htu (what is asked of whom), jti, nonce (of the relay,
// [Keys.NewChallenge]) and, beside an access token, ath (its SHA-256). When it was
// made the nonce says, by the relay's clock: the device's, and iat, do not count.

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

// Asked is what a proof is for.
type Asked struct {
	Method string // of HTTP
	Host   string // with a port, as in the header Host
	Path   string
	Token  string // that is shown with it; "": none
}

// A Proof is what a good one says.
type Proof struct {
	Thumbprint string // of the key (RFC 7638), SHA-256 in base64url
	ID         string // of the proof and key: no other is called so
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

// CheckProof checks a proof for what is asked now. That it is the first time, the
// caller sees to, by its ID. The error wraps ErrProofInvalid or ErrProofStale, and has
// nothing of the proof.
func (k *Keys) CheckProof(proof string, asked Asked) (Proof, error) {
	key, said, err := readProof(proof)
	if err != nil {
		return Proof{}, err
	}
	switch {
	case said.ID == "" || len(said.ID) > MaxSubjectLen:
		return Proof{}, fmt.Errorf("%w: no jti, or too long a one", ErrProofInvalid)
	case said.Method != asked.Method || !sameTarget(said.URL, asked):
		return Proof{}, fmt.Errorf("%w: it is for another request", ErrProofInvalid)
	case subtle.ConstantTimeCompare([]byte(said.Token), []byte(tokenHash(asked.Token))) != 1:
		return Proof{}, fmt.Errorf("%w: it is for another token", ErrProofInvalid)
	}
	if k.checkFresh(said.Nonce) != nil {
		return Proof{}, ErrProofStale
	}
	thumbprint, err := thumbprintOf(key)
	return Proof{thumbprint, thumbprint + " " + said.ID}, err
}

// readProof checks the form and signature of a proof.
func readProof(proof string) (key *jose.JSONWebKey, said proofClaims, err error) {
	bad := func(why string) error { return fmt.Errorf("%w: %s", ErrProofInvalid, why) }
	if len(proof) > MaxProofSize {
		return nil, said, bad("too long")
	}
	if CheckKeys(proof) != nil {
		return nil, said, bad(errTwoReadings.Error())
	}
	signed, err := jose.ParseSignedCompact(proof, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return nil, said, bad("not a JWT signed with ES256")
	}
	header := signed.Signatures[0].Protected
	if typ, _ := header.ExtraHeaders[jose.HeaderType].(string); typ != "dpop+jwt" {
		return nil, said, bad("typ is not dpop+jwt")
	}
	key = header.JSONWebKey
	if key == nil || !key.Valid() || !key.IsPublic() {
		return nil, said, bad("no public key in it")
	}
	if public, ok := key.Key.(*ecdsa.PublicKey); !ok || public.Curve != elliptic.P256() {
		return nil, said, bad("key is not of P-256")
	}
	payload, err := signed.Verify(key)
	if err != nil {
		return nil, said, bad("bad signature")
	}
	if json.Unmarshal(payload, &said) != nil {
		return nil, said, bad("claims cannot be read")
	}
	return key, said, nil
}

// sameTarget reports whether a URL is that of what is asked. A relay behind a
// proxy does not know the scheme that clients use, nor what stands before its own
// paths.
func sameTarget(target string, asked Asked) bool {
	u, err := url.Parse(target)
	return err == nil && slices.Contains([]string{"https", "http", "wss", "ws"}, u.Scheme) && u.User == nil &&
		u.Host == asked.Host && strings.HasSuffix(u.Path, asked.Path)
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

// Prove makes a proof for what is asked of the scheme's URL, with a nonce of the
// relay's.
func (d *DeviceKey) Prove(scheme string, asked Asked, nonce string) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: d.key}, (&jose.SignerOptions{EmbedJWK: true}).WithType("dpop+jwt"))
	if err != nil {
		return "", err
	}
	claims, err := json.Marshal(proofClaims{
		ID: rand.Text(), Method: asked.Method, URL: scheme + "://" + asked.Host + asked.Path, Nonce: nonce, Token: tokenHash(asked.Token),
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
