package auth

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nkeys"
)

// Keys holds all private keys of a relay. It is safe for concurrent use.
type Keys struct {
	// Now returns the time; nil means time.Now. It must be set before the first use. NATS
	// servers check their JWTs by their own clocks.
	Now func() time.Time

	dir  string  // directory of the key files
	run  [8]byte // random for each process; part of its challenges
	sets atomic.Pointer[keySets]

	tenants []byte // secret from which tenants' account keys are derived

	// Keys of the system account and the relays' account; the public keys are the accounts'
	// names.
	system, account natsKey
}

// Tokens returns the issuer and verifier of tokens with these keys.
func (k *Keys) Tokens() Tokens { return Tokens{k} }

// Authority returns the issuer of the JWTs that NATS servers trust.
func (k *Keys) Authority() Authority { return Authority{k} }

// Canvases returns the issuer and verifier of canvas grants with these keys.
func (k *Keys) Canvases() Canvases { return Canvases{k} }

// Links returns the prover of the relay's identity to host-agents.
func (k *Keys) Links() Links { return Links{k} }

// A natsKey is an nkey with its public key.
type natsKey struct {
	nkeys.KeyPair
	public string
}

// nkeySeed is the length of an nkey's secret, in bytes.
const nkeySeed = 32

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

// thumbprint returns the JWK thumbprint of an Ed25519 key (RFC 7638, RFC 8037).
func thumbprint(key ed25519.PublicKey) string {
	jwk := fmt.Sprintf(`{"crv":"Ed25519","kty":"OKP","x":"%s"}`, base64.RawURLEncoding.EncodeToString(key))
	sum := sha256.Sum256([]byte(jwk))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
