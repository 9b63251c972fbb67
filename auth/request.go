package auth

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
)

// A Statement is what a relay's signature is about: no signature for one can be taken
// for another, nor for a token.
type Statement string

// The statements.
const (
	AnswerRequest    Statement = "ahp-relay answer request v1\x00"    // to a host-agent: somebody answers the host
	AnswerCapability Statement = "ahp-relay answer capability v1\x00" // to relays: whoever has it may answer
)

// Sign signs a statement of relays.
func (k *Keys) Sign(what Statement, body []byte) (key ed25519.PublicKey, signature []byte) {
	s := k.oldest()
	return s.public(), ed25519.Sign(s.token, append([]byte(what), body...))
}

// CheckSigned reports, with an error that wraps ErrUntrusted, that a statement was not
// signed with one of the trusted keys.
func CheckSigned(trusted []ed25519.PublicKey, what Statement, body, key, signature []byte) error {
	known := slices.ContainsFunc(trusted, func(t ed25519.PublicKey) bool { return bytes.Equal(t, key) })
	if !known || len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("%w: its key is not known here", ErrUntrusted)
	}
	if !ed25519.Verify(key, append([]byte(what), body...), signature) {
		return fmt.Errorf("%w: %w", ErrUntrusted, errSignature)
	}
	return nil
}

var errSignature = errors.New("the signature is another's")
