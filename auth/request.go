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

const (
	AnswerRequest    Statement = "ahp-relay answer request v1\x00"    // for host-agents: a person answers an event
	AnswerCapability Statement = "ahp-relay answer capability v1\x00" // for relays: the holder may answer an event
	WakeOrder        Statement = "ahp-relay wake order v1\x00"        // for host-agents: wake a machine on the same network
	WaitingItems     Statement = "ahp-relay waiting items v1\x00"     // for host-agents: items that people have left for the host
)

// A Signed is a statement with a relay's signature. The signature is necessary because the
// NATS servers may belong to someone else.
type Signed struct {
	Body      []byte `json:"body"`
	Key       []byte `json:"key"`
	Signature []byte `json:"signature"`
}

// Sign signs a statement with the relays' oldest key, which every host-agent knows.
func (k *Keys) Sign(what Statement, body []byte) Signed {
	s := k.oldest()
	return Signed{body, s.public(), ed25519.Sign(s.token, append([]byte(what), body...))}
}

// Check verifies that a trusted key has signed a statement of this kind. The error wraps
// ErrUntrusted.
func (s *Signed) Check(trusted []ed25519.PublicKey, what Statement) error {
	known := slices.ContainsFunc(trusted, func(t ed25519.PublicKey) bool { return bytes.Equal(t, s.Key) })
	if !known || len(s.Key) != ed25519.PublicKeySize {
		return fmt.Errorf("%w: unknown key", ErrUntrusted)
	}
	if !ed25519.Verify(s.Key, append([]byte(what), s.Body...), s.Signature) {
		return fmt.Errorf("%w: %w", ErrUntrusted, errSignature)
	}
	return nil
}

var errSignature = errors.New("the signature does not match")
