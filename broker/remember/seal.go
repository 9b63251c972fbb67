package remember

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"ahprelay/internal/sealed"
)

// Sizes in bytes.
const (
	KeySize       = 32
	keyIDSize     = 8
	signatureSize = 64
	coordinate    = 32
)

const (
	domain = "ahp-remember v1\n"
	idsKey = "ids" // derives the key for the IDs of a sealed host; no record has this ID
)

// A Vault encrypts and decrypts a host's records.
type Vault struct {
	Tenant, Host string
	Key          []byte            // the host's key
	Blind        bool              // the host is sealed: IDs and sizes must reveal nothing to relays
	Signer       *ecdsa.PrivateKey // on P-256; nil: the Vault only decrypts
}

// KeyID returns the ID of the host's key. The ID does not reveal the key.
func (v *Vault) KeyID() string {
	sum := hmac.New(sha256.New, v.Key)
	sum.Write([]byte(domain + "key id"))
	return hex.EncodeToString(sum.Sum(nil)[:keyIDSize])
}

// RecordKey returns the key that encrypts the record with this ID.
func (v *Vault) RecordKey(id string) []byte {
	key, err := hkdf.Key(sha256.New, v.Key, nil, domain+v.Tenant+"\n"+v.Host+"\n"+id, KeySize)
	if err != nil {
		panic(err) // the length is valid
	}
	return key
}

// IDOf returns the ID of a session's record. In a blind vault, computing it requires the
// host's key.
func (v *Vault) IDOf(session string) string {
	if !v.Blind {
		return IDOf(session)
	}
	sum := hmac.New(sha256.New, v.RecordKey(idsKey))
	sum.Write([]byte(session))
	return hex.EncodeToString(sum.Sum(nil))
}

// Verifier returns the public key for Signer, as an uncompressed point.
func (v *Vault) Verifier() []byte {
	point, err := v.Signer.PublicKey.Bytes()
	if err != nil {
		panic(err) // cannot fail for P-256
	}
	return point
}

// NewSigner returns a random signing key.
func NewSigner() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// head returns a record's additional data.
func (v *Vault) head(r *Record) string {
	return fmt.Sprintf("%s%s\n%s\n%s\n%s\n%d\n%d", domain, v.Tenant, v.Host, r.ID, r.Key, r.Version, r.Time)
}

// Seal encrypts content into a record, and signs the record. It sets Key, Blind, Data and
// Signature.
func (v *Vault) Seal(r *Record, content []byte) error {
	if len(content) > MaxContent {
		return fmt.Errorf("record of %d bytes; want at most %d", len(content), MaxContent)
	}
	if v.Blind {
		content = append(slices.Clip(content), bytes.Repeat([]byte{' '}, sealed.Padded(len(content))-len(content))...)
	}
	r.Key, r.Blind = v.KeyID(), v.Blind
	aead, err := v.aead(r.ID)
	if err != nil {
		return err
	}
	head := v.head(r)
	r.Data = aead.Seal(nil, nil, content, []byte(head))
	x, y, err := ecdsa.Sign(rand.Reader, v.Signer, signed(head, r.Data))
	if err != nil {
		return err
	}
	r.Signature = append(x.FillBytes(make([]byte, coordinate)), y.FillBytes(make([]byte, coordinate))...)
	return nil
}

// ErrForged reports a record which this host has not signed, or which was encrypted with a
// different key.
var ErrForged = errors.New("not a record of this host")

// Open verifies a record and returns its decrypted content.
func (v *Vault) Open(verifier *ecdsa.PublicKey, r *Record) ([]byte, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	head := v.head(r)
	x, y := new(big.Int).SetBytes(r.Signature[:coordinate]), new(big.Int).SetBytes(r.Signature[coordinate:])
	if !ecdsa.Verify(verifier, signed(head, r.Data), x, y) {
		return nil, ErrForged
	}
	aead, err := v.aead(r.ID)
	if err != nil {
		return nil, err
	}
	content, err := aead.Open(nil, nil, r.Data, []byte(head))
	if err != nil {
		return nil, ErrForged
	}
	return content, nil
}

func signed(head string, data []byte) []byte {
	content := sha256.Sum256(data)
	sum := sha256.Sum256(append([]byte(head+"\n"), content[:]...))
	return sum[:]
}

func (v *Vault) aead(id string) (cipher.AEAD, error) {
	block, err := aes.NewCipher(v.RecordKey(id))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
