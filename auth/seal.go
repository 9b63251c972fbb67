package auth

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
)

// ErrSealed reports what no relay with these keys has sealed under that name.
var ErrSealed = errors.New("not sealed by a relay with these keys, or under another name")

// A Sealer hides from whoever runs the NATS servers what relays keep there, and finds
// out what others have put in its place. It is safe for concurrent use.
type Sealer struct{ aead cipher.AEAD }

// Sealer returns the one for a purpose, which is the same at all relays with these keys.
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

// Seal seals data under a name.
func (s *Sealer) Seal(name string, data []byte) []byte {
	return s.aead.Seal(nil, nil, data, []byte(name))
}

// Open returns what was sealed under a name.
func (s *Sealer) Open(name string, sealed []byte) ([]byte, error) {
	data, err := s.aead.Open(nil, nil, sealed, []byte(name))
	if err != nil {
		return nil, ErrSealed
	}
	return data, nil
}
