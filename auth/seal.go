package auth

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
)

// ErrSealed reports data that was not sealed with the Sealer's keys under the given name.
var ErrSealed = errors.New("not sealed with these keys and this name")

// A Sealer encrypts and authenticates the relays' records in NATS, so that the operator
// of the NATS servers can neither read them nor invent their contents. The operator can still
// remove a record or bring back an older version. A Sealer is safe for concurrent use.
type Sealer struct{ aead cipher.AEAD }

// Sealer returns the Sealer for a purpose. It is the same at all relays with the same
// keys.
func (k *Keys) Sealer(purpose string) (*Sealer, error) {
	key, err := hkdf.Key(sha256.New, k.tenants, nil, "ahp-relay sealed v1\x00"+purpose, 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key that seals %s: %w", purpose, err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &Sealer{aead}, err
}

// Seal encrypts data under a name, which Open requires.
func (s *Sealer) Seal(name string, data []byte) []byte {
	return s.aead.Seal(nil, nil, data, []byte(name))
}

// Open decrypts data that was sealed under the same name.
func (s *Sealer) Open(name string, sealed []byte) ([]byte, error) {
	data, err := s.aead.Open(nil, nil, sealed, []byte(name))
	if err != nil {
		return nil, ErrSealed
	}
	return data, nil
}

// Overhead returns how many bytes Seal adds.
func (s *Sealer) Overhead() int { return s.aead.Overhead() }
