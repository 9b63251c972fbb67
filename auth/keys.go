package auth

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/nats-io/nkeys"
)

// Keys are all private keys of a relay. They are safe for concurrent use.
type Keys struct {
	// Now tells the time; nil means time.Now. Set it before anything else
	// uses the keys. NATS servers check their JWTs by their own clocks.
	Now func() time.Time

	token     ed25519.PrivateKey
	tokenID   string // kid of what token signs
	challenge []byte // MAC key of challenges
	canvases  []byte // MAC key of canvases' names
	signIns   []byte // MAC key of sign-ins at identity providers

	tenants []byte // secret from which the keys of tenants' accounts are derived

	operator, system, account natsKey
}

// A natsKey is an nkey with its public part.
type natsKey struct {
	nkeys.KeyPair
	public string
}

// newKeys derives what follows from the keys read from files.
func newKeys(token ed25519.PrivateKey, nk map[string]natsKey) (*Keys, error) {
	challenge, err := hkdf.Key(sha256.New, token.Seed(), nil, "ahp-relay challenge v1", sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive the challenge key: %w", err)
	}
	canvases, err := hkdf.Key(sha256.New, token.Seed(), nil, "ahp-relay canvas names v1", sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive the key of canvases' names: %w", err)
	}
	signIns, err := hkdf.Key(sha256.New, token.Seed(), nil, "ahp-relay sign-in v1", sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive the key of sign-ins: %w", err)
	}
	tenants, err := rawSeed(nk[accountFile])
	if err != nil {
		return nil, fmt.Errorf("derive the tenants' secret: %w", err)
	}
	return &Keys{
		token:     token,
		tokenID:   thumbprint(token.Public().(ed25519.PublicKey)),
		challenge: challenge,
		canvases:  canvases,
		signIns:   signIns,
		tenants:   tenants,
		operator:  nk[operatorFile],
		system:    nk[systemFile],
		account:   nk[accountFile],
	}, nil
}

// nkeySeed is the length of an nkey's secret, in bytes.
const nkeySeed = 32

// rawSeed returns the secret bytes of an nkey.
func rawSeed(key natsKey) ([]byte, error) {
	seed, err := key.Seed()
	if err != nil {
		return nil, err
	}
	_, raw, err := nkeys.DecodeSeed(seed)
	return raw, err
}

func (k *Keys) now() time.Time {
	if k.Now != nil {
		return k.Now()
	}
	return time.Now()
}

// thumbprint is the JWK thumbprint of an Ed25519 key (RFC 7638, RFC 8037).
func thumbprint(key ed25519.PublicKey) string {
	jwk := fmt.Sprintf(`{"crv":"Ed25519","kty":"OKP","x":"%s"}`, base64.RawURLEncoding.EncodeToString(key))
	sum := sha256.Sum256([]byte(jwk))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
