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

// Keys are all private keys of a relay. They are safe for concurrent use.
type Keys struct {
	// Now tells the time; nil means time.Now. Set it before anything else
	// uses the keys. NATS servers check their JWTs by their own clocks.
	Now func() time.Time

	dir  string  // of the files
	run  [8]byte // random, of this process: stands in the challenges that it makes
	sets atomic.Pointer[keySets]

	tenants []byte // secret from which the keys of tenants' accounts are derived

	// Names of accounts.
	system, account natsKey
}

// A natsKey is an nkey with its public part.
type natsKey struct {
	nkeys.KeyPair
	public string
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
