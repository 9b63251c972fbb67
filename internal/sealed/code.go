package sealed

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// codeDigits are the digits of a code: Crockford's base 32.
const codeDigits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// Sizes of a code.
const (
	codeBytes  = 16
	codeLength = 26 // digits; the last one has two unused bits
)

// A Code is a pairing code: 128 random bits.
type Code [codeBytes]byte

// NewCode returns a random code.
func NewCode() (c Code) {
	_, _ = rand.Read(c[:]) // never fails
	return c
}

// String returns the code's 26 digits, in groups of four.
func (c Code) String() string {
	var b strings.Builder
	bits, held := 0, uint(0)
	for at, i := 0, 0; i < codeLength; i++ {
		for held < 5 {
			next := byte(0)
			if at < codeBytes {
				next = c[at]
			}
			bits, held, at = bits<<8|int(next), held+8, at+1
		}
		if i > 0 && i%4 == 0 {
			b.WriteByte('-')
		}
		held -= 5
		b.WriteByte(codeDigits[bits>>held&31])
		bits &= 1<<held - 1
	}
	return b.String()
}

// errCode reports an invalid code. It does not quote the text, which may be nearly a
// valid code.
var errCode = fmt.Errorf("this is no pairing code: want its %d letters and digits", codeLength)

// ParseCode parses a code as people type it: upper or lower case, hyphens and spaces
// anywhere, O for 0, I or L for 1.
func ParseCode(text string) (c Code, err error) {
	bits, held, at, n := 0, 0, 0, 0
	for _, r := range strings.ToUpper(text) {
		switch r {
		case '-', ' ':
			continue
		case 'O':
			r = '0'
		case 'I', 'L':
			r = '1'
		}
		digit := strings.IndexRune(codeDigits, r)
		if n++; digit < 0 || n > codeLength {
			return Code{}, errCode
		}
		bits, held = bits<<5|digit, held+5
		if held >= 8 && at < codeBytes {
			held -= 8
			c[at], at = byte(bits>>held), at+1
			bits &= 1<<held - 1
		}
	}
	if n != codeLength || bits != 0 {
		return Code{}, errCode
	}
	return c, nil
}

// secret returns the pre-shared key for the handshake.
func (c Code) secret() []byte { return digest("pair", c[:]) }

// label begins all hashed or signed texts, and the prologue.
const label = "ahp-sealed/1 "

// digest returns the SHA-256 of a purpose and parts. Parts have fixed lengths, so
// different purposes or parts never give the same input.
func digest(purpose string, parts ...[]byte) []byte {
	sum := sha256.New()
	sum.Write([]byte(label + purpose + "\x00"))
	for _, part := range parts {
		sum.Write(part)
	}
	return sum.Sum(nil)
}

// A Fingerprint identifies the keys of a device or of a host.
type Fingerprint [16]byte

// FingerprintSize is the length of a fingerprint's text.
const FingerprintSize = 22

// String returns the fingerprint in base64url.
func (f Fingerprint) String() string { return base64.RawURLEncoding.EncodeToString(f[:]) }

var errFingerprint = errors.New("want a fingerprint of 22 characters")

// ParseFingerprint reads a fingerprint's text.
func ParseFingerprint(text string) (f Fingerprint, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != len(f) {
		return f, errFingerprint
	}
	return Fingerprint(b), nil
}

// Words returns the first 64 bits of the fingerprint as four pronounceable words, for
// people to compare. Each word is a proquint of 16 bits: consonant, vowel, consonant,
// vowel, consonant.
func (f Fingerprint) Words() string {
	const consonants, vowels = "bdfghjklmnprstvz", "aiou"
	var b strings.Builder
	for i := 0; i < 8; i += 2 {
		n := int(f[i])<<8 | int(f[i+1])
		if i > 0 {
			b.WriteByte(' ')
		}
		b.Write([]byte{consonants[n>>12], vowels[n>>10&3], consonants[n>>6&15], vowels[n>>4&3], consonants[n&15]})
	}
	return b.String()
}
