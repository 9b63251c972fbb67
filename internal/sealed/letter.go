package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"errors"
)

// A Letter is content which a device leaves for a host at a relay. Only the host and the
// chosen devices can read it. A head, which is not secret, accompanies the letter; the
// device's signature covers both.
//
// The content is encrypted with AES-256-GCM under a random key; the head is the additional
// data. A random nonce of 12 bytes precedes the ciphertext. Each box contains that key,
// encrypted for one recipient with HPKE (RFC 9180): DHKEM(X25519, HKDF-SHA256), HKDF-SHA256,
// AES-256-GCM, base mode, without additional data. The info is "ahp-sealed/1 letter", a zero
// byte, and the head. The device signs the info, a line feed, the SHA-256 of the encrypted
// content, and the SHA-256 of all boxes: of each box its recipient, a line feed and its key.
type Letter struct {
	Boxes     []Box  `json:"boxes"`
	Data      []byte `json:"data"`
	Signature []byte `json:"signature"`
}

// A Box contains a letter's key, encrypted for one recipient.
type Box struct {
	To  string `json:"to"` // fingerprint of the recipient's keys
	Key []byte `json:"key"`
}

// boxSize is the size of an encrypted key: an encapsulated key, the key and a tag.
const boxSize = KeySize + KeySize + 16

// letterSlack is how much longer a letter's data is than its content: a nonce and a tag.
const letterSlack = 12 + 16

// ErrLetter reports a letter not signed by its sender, or which cannot be decrypted.
var ErrLetter = errors.New("the message is damaged, or not from this device")

func letterInfo(head string) []byte { return []byte(label + "letter\x00" + head) }

func signedLetter(head string, l *Letter) []byte {
	boxes := sha256.New()
	for _, b := range l.Boxes {
		boxes.Write([]byte(b.To + "\n"))
		boxes.Write(b.Key)
	}
	data := sha256.Sum256(l.Data)
	return boxes.Sum(append(append(letterInfo(head), '\n'), data[:]...))
}

// Check rejects a malformed letter. It also rejects a letter with more than most bytes of
// content, or with more than mostBoxes recipients.
func (l *Letter) Check(most, mostBoxes int) error {
	if len(l.Data) < letterSlack || len(l.Data) > most+letterSlack {
		return errors.New("letter with content of a wrong size")
	}
	if len(l.Boxes) == 0 || len(l.Boxes) > mostBoxes || len(l.Signature) != signatureSize {
		return errors.New("letter without recipients, with too many, or without a signature")
	}
	for _, b := range l.Boxes {
		if _, err := ParseFingerprint(b.To); err != nil || len(b.Key) != boxSize {
			return errors.New("letter with a bad recipient")
		}
	}
	return nil
}

func letterCipher(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// SealLetter encrypts and signs content for recipients, given by fingerprint.
func (d *Device) SealLetter(head string, content []byte, to map[Fingerprint]Key) (*Letter, error) {
	key := make([]byte, KeySize)
	_, _ = rand.Read(key) // never fails
	aead, err := letterCipher(key)
	if err != nil {
		return nil, err
	}
	l := &Letter{Data: aead.Seal(nil, nil, content, []byte(head))}
	for name, public := range to {
		point, err := ecdh.X25519().NewPublicKey(public[:])
		if err != nil {
			return nil, err
		}
		recipient, err := hpke.NewDHKEMPublicKey(point)
		if err != nil {
			return nil, err
		}
		box, err := hpke.Seal(recipient, hpke.HKDFSHA256(), hpke.AES256GCM(), letterInfo(head), key)
		if err != nil {
			return nil, err
		}
		l.Boxes = append(l.Boxes, Box{name.String(), box})
	}
	l.Signature, err = d.sign(signedLetter(head, l))
	return l, err
}

// OpenLetter verifies a letter's signature, and returns the content for a recipient.
func (s Secret) OpenLetter(l *Letter, head string, by Verifier, as Fingerprint) ([]byte, error) {
	if !by.verify(signedLetter(head, l), l.Signature) {
		return nil, ErrLetter
	}
	for _, b := range l.Boxes {
		if b.To != as.String() {
			continue
		}
		private, err := hpke.NewDHKEMPrivateKey(s.private)
		if err != nil {
			return nil, err
		}
		key, err := hpke.Open(private, hpke.HKDFSHA256(), hpke.AES256GCM(), letterInfo(head), b.Key)
		if err != nil || len(key) != KeySize {
			return nil, ErrLetter
		}
		aead, err := letterCipher(key)
		if err != nil {
			return nil, err
		}
		content, err := aead.Open(nil, nil, l.Data, []byte(head))
		if err != nil {
			return nil, ErrLetter
		}
		return content, nil
	}
	return nil, ErrLetter
}

// OpenLetter is [Secret.OpenLetter] with the device's keys.
func (d *Device) OpenLetter(l *Letter, head string, by Verifier) ([]byte, error) {
	return d.secret.OpenLetter(l, head, by, d.Identity().Fingerprint())
}

// ReadIdentity decodes a device's public keys: the key and then the verifier.
func ReadIdentity(b []byte) (i Identity, err error) {
	if len(b) != KeySize+VerifierSize {
		return i, errors.New("device keys of a wrong length")
	}
	i = Identity{Key(b[:KeySize]), Verifier(b[KeySize:])}
	return i, i.Verifier.check()
}

// Bytes encodes public keys for ReadIdentity.
func (i Identity) Bytes() []byte { return append(i.Key[:], i.Verifier[:]...) }
