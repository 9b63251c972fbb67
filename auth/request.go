package auth

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
)

// A Statement is the kind of a text that relays sign. A signature for one statement is
// not valid for another, nor as a token.
type Statement string

// The statements.
const (
	AnswerRequest    Statement = "ahp-relay answer request v1\x00"    // for host-agents: a person answers an event
	AnswerCapability Statement = "ahp-relay answer capability v1\x00" // for relays: the holder may answer an event
	WakeOrder        Statement = "ahp-relay wake order v1\x00"        // for host-agents: wake a machine on the same network
	WaitingItems     Statement = "ahp-relay waiting items v1\x00"     // for host-agents: items that people have left for the host
)

// Sign signs a statement with the relays' oldest key, which every host-agent knows.
func (k *Keys) Sign(what Statement, body []byte) (key ed25519.PublicKey, signature []byte) {
	s := k.oldest()
	return s.public(), ed25519.Sign(s.token, append([]byte(what), body...))
}

// CheckSigned verifies that a trusted key has signed a statement. The error wraps
// ErrUntrusted.
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
