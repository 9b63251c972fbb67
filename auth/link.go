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
	// linkShare is the length of a share, an X25519 public key, in bytes.
	linkShare = 32

	// maxRelayKeys is the largest number of relay keys in a host-agent's token.
	maxRelayKeys = 8
)

// linkPrefix begins the text that a relay signs to prove its identity to a host-agent. No
// other text signed with the token key begins like this.
const linkPrefix = "ahp-relay link v1"

// ErrUntrusted reports that a relay has not proved a key that the host-agent trusts.
var ErrUntrusted = errors.New("relay is not trusted")

// A LinkID identifies an attempt to open a link between a relay and a host-agent.
type LinkID struct {
	Tenant, Host string
	Agent, Relay string // instances
	Epoch        uint64

	RelayShare, AgentShare []byte // X25519 public keys, made for this link only
}

// Digest returns a hash of the link's data, which later messages use to refer to the
// link.
func (l *LinkID) Digest() ([sha256.Size]byte, error) {
	message, err := l.message()
	return sha256.Sum256(message), err
}

// message returns the text that the relay signs. NUL separates its parts. Only the shares
// may contain NUL, and they have a fixed length.
func (l *LinkID) message() ([]byte, error) {
	for _, name := range []struct{ what, value string }{
		{"tenant", l.Tenant}, {"host", l.Host}, {"host-agent instance", l.Agent}, {"relay instance", l.Relay},
	} {
		if err := ahp.CheckName(name.what, name.value); err != nil {
			return nil, fmt.Errorf("link: %w", err)
		}
	}
	if len(l.RelayShare) != linkShare || len(l.AgentShare) != linkShare {
		return nil, errors.New("link: a share is not an X25519 public key")
	}
	text := strings.Join([]string{linkPrefix, l.Tenant, l.Host, l.Agent, l.Relay, strconv.FormatUint(l.Epoch, 10), ""}, "\x00")
	return slices.Concat([]byte(text), l.RelayShare, l.AgentShare), nil
}

// Links proves a relay's identity to host-agents. [Keys.Links] returns it.
type Links struct{ keys *Keys }

// RelayKeys returns the public keys of all sets. The first belongs to the oldest set, and is
// the one that a relay proves: the tokens of all host-agents name it.
func (p Links) RelayKeys() (keys []ed25519.PublicKey) {
	for _, s := range p.keys.sets.Load().all {
		keys = append(keys, s.public())
	}
	return keys
}

// Prove signs a link; the host-agent verifies the signature with [CheckLink].
func (p Links) Prove(l LinkID) (key ed25519.PublicKey, proof []byte, err error) {
	message, err := l.message()
	if err != nil {
		return nil, nil, err
	}
	s := p.keys.oldest()
	return s.public(), ed25519.Sign(s.token, message), nil
}

// CheckLink verifies that the relay has a trusted key and has signed this link. The error
// wraps ErrUntrusted.
func CheckLink(trusted []ed25519.PublicKey, l LinkID, key, proof []byte) error {
	known := slices.ContainsFunc(trusted, func(t ed25519.PublicKey) bool { return bytes.Equal(t, key) })
	if !known || len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("%w: its key is not in the host-agent's token; if the relay's keys have changed, get a new token (relay token host)", ErrUntrusted)
	}
	message, err := l.message()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	if !ed25519.Verify(key, message, proof) {
		return fmt.Errorf("%w: its signature does not match this link", ErrUntrusted)
	}
	return nil
}

// PeekRelayKeys returns the relay keys that a host-agent's token names. It does not
// verify the token, because the host-agent's owner received it from a trusted source.
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
		return nil, fmt.Errorf("enrolment token: it has %d relay keys, and 1 to %d are allowed; %s", len(cl.RelayKeys), maxRelayKeys, want)
	}
	keys := make([]ed25519.PublicKey, 0, len(cl.RelayKeys))
	for _, text := range cl.RelayKeys {
		key, err := base64.RawURLEncoding.Strict().DecodeString(text)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return nil, errors.New("enrolment token: a relay key is damaged; " + want)
		}
		keys = append(keys, key)
	}
	return keys, nil
}
