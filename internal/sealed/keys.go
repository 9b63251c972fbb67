package sealed

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
)

// Sizes of keys and signatures.
const (
	KeySize       = 32 // an X25519 key
	VerifierSize  = 65 // a P-256 point, not compressed
	shortVerifier = 33 // the same, compressed
	signatureSize = 64 // r and s of ECDSA
)

// A Key is a public X25519 key.
type Key [KeySize]byte

// A Secret is a private X25519 key.
type Secret struct{ private *ecdh.PrivateKey }

// NewSecret generates a key.
func NewSecret() (Secret, error) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	return Secret{private}, err
}

// ReadSecret decodes a key's private part.
func ReadSecret(b []byte) (Secret, error) {
	private, err := ecdh.X25519().NewPrivateKey(b)
	if err != nil {
		return Secret{}, fmt.Errorf("X25519 key: %w", err)
	}
	return Secret{private}, nil
}

// Private returns the private part.
func (s Secret) Private() []byte { return s.private.Bytes() }

// Public returns the public part.
func (s Secret) Public() Key { return Key(s.private.PublicKey().Bytes()) }

// HostFingerprint returns the fingerprint of a host's key.
func HostFingerprint(host Key) Fingerprint { return Fingerprint(digest("host", host[:])[:16]) }

// A Verifier is the public part of a device's signing key: a point on P-256.
type Verifier [VerifierSize]byte

// check returns an error if the point is not on the curve.
func (v Verifier) check() error {
	_, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), v[:])
	if err != nil {
		return errors.New("signing key: not a point on P-256")
	}
	return nil
}

// short returns the compressed form (SEC 1, section 2.3.3).
func (v Verifier) short() []byte {
	return append([]byte{2 | v[VerifierSize-1]&1}, v[1:shortVerifier]...)
}

// readShort decodes a verifier's compressed form.
func readShort(b []byte) (v Verifier, err error) {
	x, y := elliptic.UnmarshalCompressed(elliptic.P256(), b)
	if x == nil {
		return v, errors.New("signing key: not a compressed point on P-256")
	}
	v[0] = 4
	x.FillBytes(v[1:shortVerifier])
	y.FillBytes(v[shortVerifier:])
	return v, nil
}

func (v Verifier) verify(signed, signature []byte) bool {
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), v[:])
	if err != nil || len(signature) != signatureSize {
		return false
	}
	sum := sha256.Sum256(signed)
	return ecdsa.Verify(key, sum[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:]))
}

// An Identity is the public part of a device's keys.
type Identity struct {
	Key      Key
	Verifier Verifier
}

// Fingerprint returns the fingerprint of the device's keys.
func (i Identity) Fingerprint() Fingerprint {
	return Fingerprint(digest("device", i.Key[:], i.Verifier[:])[:16])
}

// A Device holds a device's private keys.
type Device struct {
	secret Secret
	signer *ecdsa.PrivateKey
}

// NewDevice generates keys.
func NewDevice() (*Device, error) {
	secret, err := NewSecret()
	if err != nil {
		return nil, err
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return &Device{secret, signer}, err
}

// ReadDevice decodes keys that Private has encoded.
func ReadDevice(b []byte) (*Device, error) {
	if len(b) != 2*KeySize {
		return nil, fmt.Errorf("device keys of %d bytes; want %d", len(b), 2*KeySize)
	}
	secret, err := ReadSecret(b[:KeySize])
	if err != nil {
		return nil, err
	}
	signer, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), b[KeySize:])
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	return &Device{secret, signer}, nil
}

// Private returns the private keys.
func (d *Device) Private() ([]byte, error) {
	signer, err := d.signer.Bytes()
	return append(d.secret.Private(), signer...), err
}

// Identity returns the public part.
func (d *Device) Identity() Identity {
	point, err := d.signer.PublicKey.Bytes()
	if err != nil {
		panic(err) // the key is on the curve
	}
	return Identity{d.secret.Public(), Verifier(point)}
}

func (d *Device) sign(what []byte) ([]byte, error) {
	sum := sha256.Sum256(what)
	r, s, err := ecdsa.Sign(rand.Reader, d.signer, sum[:])
	if err != nil {
		return nil, err
	}
	signature := make([]byte, signatureSize)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signature, nil
}
