package auth

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"ahprelay/ahp"
)

// Bounds of links' proofs.
const (
	// linkShare is the length of either end's share, an X25519 public key, in
	// bytes.
	linkShare = 32

	// maxRelayKeys is how many relay keys a host-agent's token may name.
	maxRelayKeys = 8
)

// linkPrefix begins what a relay signs to prove itself to a host-agent. It can
// begin no JWT, the only other thing that the token key signs.
const linkPrefix = "ahp-relay link v1"

// ErrUntrusted reports a relay that does not prove to have a key which the
// host-agent trusts.
var ErrUntrusted = errors.New("relay is not trusted")

// A LinkID is one attempt to open a link between a relay and a host-agent.
type LinkID struct {
	Tenant, Host string
	Agent, Relay string // instances
	Epoch        uint64

	RelayShare, AgentShare []byte // X25519 public keys, made for this link alone
}

// Digest returns what stands for the link in what follows from it.
func (l *LinkID) Digest() ([sha256.Size]byte, error) {
	message, err := l.message()
	return sha256.Sum256(message), err
}

// message is what the relay signs. No part before the shares, whose length is
// fixed, can contain the NUL that separates them.
func (l *LinkID) message() ([]byte, error) {
	for _, name := range []struct{ what, value string }{
		{"tenant", l.Tenant}, {"host", l.Host}, {"host-agent instance", l.Agent}, {"relay instance", l.Relay},
	} {
		if err := ahp.CheckName(name.what, name.value); err != nil {
			return nil, fmt.Errorf("link: %w", err)
		}
	}
	if len(l.RelayShare) != linkShare || len(l.AgentShare) != linkShare {
		return nil, errors.New("link: a share is no X25519 public key")
	}
	text := strings.Join([]string{linkPrefix, l.Tenant, l.Host, l.Agent, l.Relay, strconv.FormatUint(l.Epoch, 10), ""}, "\x00")
	return slices.Concat([]byte(text), l.RelayShare, l.AgentShare), nil
}

// RelayKey returns the public key that relays with these keys prove themselves
// with, to host-agents whose token names it: of several the oldest, which all of
// them know.
func (k *Keys) RelayKey() ed25519.PublicKey { return k.oldest().public() }

// RelayKeys returns the public keys of all relays that have some of these keys.
func (k *Keys) RelayKeys() (keys []ed25519.PublicKey) {
	for _, s := range k.sets.Load().all {
		keys = append(keys, s.public())
	}
	return keys
}

// ProveLink signs a link for [CheckLink].
func (k *Keys) ProveLink(l LinkID) (key ed25519.PublicKey, proof []byte, err error) {
	message, err := l.message()
	if err != nil {
		return nil, nil, err
	}
	s := k.oldest()
	return s.public(), ed25519.Sign(s.token, message), nil
}

// CheckLink reports, with an error that wraps ErrUntrusted, why a relay does not
// prove that it has one of the trusted keys and wants this very link.
func CheckLink(trusted []ed25519.PublicKey, l LinkID, key, proof []byte) error {
	known := slices.ContainsFunc(trusted, func(t ed25519.PublicKey) bool { return bytes.Equal(t, key) })
	if !known || len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("%w: it has another key than the host-agent's token says; get a new token from it (relay token host) if that is right", ErrUntrusted)
	}
	message, err := l.message()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	if !ed25519.Verify(key, message, proof) {
		return fmt.Errorf("%w: its signature does not fit this link", ErrUntrusted)
	}
	return nil
}

// PeekRelayKeys returns the keys of the relays that a host-agent's token tells
// it to trust. The token is not checked, as it came to the owner in a way that
// is trusted.
func PeekRelayKeys(token string) ([]ed25519.PublicKey, error) {
	const want = "get a new one with relay token host"
	cl := new(claims)
	if len(token) > MaxTokenSize {
		return nil, errors.New("enrolment token: too long; " + want)
	}
	if _, _, err := jwt.NewParser().ParseUnverified(token, cl); err != nil {
		return nil, errors.New("enrolment token: not a JWT, or only a part of one; " + want)
	}
	if len(cl.RelayKeys) == 0 || len(cl.RelayKeys) > maxRelayKeys {
		return nil, fmt.Errorf("enrolment token: it names %d keys of relays; %s", len(cl.RelayKeys), want)
	}
	keys := make([]ed25519.PublicKey, 0, len(cl.RelayKeys))
	for _, text := range cl.RelayKeys {
		key, err := base64.RawURLEncoding.Strict().DecodeString(text)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return nil, errors.New("enrolment token: a key of a relay in it is damaged; " + want)
		}
		keys = append(keys, key)
	}
	return keys, nil
}
