package auth

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
)

// A Statement is the purpose of a relay's signature. No signature for one statement is
// valid for another, or as a token.
type Statement string

// The statements.
const (
	AnswerRequest    Statement = "ahp-relay answer request v1\x00"    // to a host-agent: somebody answers the host
	AnswerCapability Statement = "ahp-relay answer capability v1\x00" // to relays: whoever has it may answer
	WakeOrder        Statement = "ahp-relay wake order v1\x00"        // to a host-agent: wake a machine on its network
	WaitingItems     Statement = "ahp-relay waiting items v1\x00"     // to a host-agent: items that people have left for the host
)

// Sign signs a statement for relays.
func (k *Keys) Sign(what Statement, body []byte) (key ed25519.PublicKey, signature []byte) {
	s := k.oldest()
	return s.public(), ed25519.Sign(s.token, append([]byte(what), body...))
}

// CheckSigned checks that one of the trusted keys has signed a statement. The error
// wraps ErrUntrusted.
func CheckSigned(trusted []ed25519.PublicKey, what Statement, body, key, signature []byte) error {
	known := slices.ContainsFunc(trusted, func(t ed25519.PublicKey) bool { return bytes.Equal(t, key) })
	if !known || len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("%w: unknown key", ErrUntrusted)
	}
	if !ed25519.Verify(key, append([]byte(what), body...), signature) {
		return fmt.Errorf("%w: %w", ErrUntrusted, errSignature)
	}
	return nil
}

var errSignature = errors.New("the signature does not match")
