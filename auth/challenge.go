package auth

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"

	"github.com/nats-io/nkeys"
)

// ChallengeTTL is how long a challenge is valid.
const ChallengeTTL = 60 * time.Second

// challengeVersion is the first byte of a challenge.
const challengeVersion = 1

// Lengths in bytes of a challenge's body, and of the whole challenge.
const (
	challengeBody = 1 + 8 + 8 + 8 // version, milliseconds since 1970, the process's random number, random
	challengeSize = challengeBody + sha256.Size
)

// proofPrefix begins each text that a host-agent signs to prove its nkey. No other signed
// text begins with it.
const proofPrefix = "ahp-relay agent credentials v1\x00"

// NewChallenge returns a challenge, valid for ChallengeTTL: a text that a host-agent signs,
// or the nonce in a device's proof (dpop.go).
func (k *Keys) NewChallenge() string {
	b := make([]byte, challengeBody, challengeSize)
	b[0] = challengeVersion
	binary.BigEndian.PutUint64(b[1:], uint64(k.now().UnixMilli()))
	copy(b[9:17], k.run[:])
	rand.Read(b[17:]) // never fails
	return base64.RawURLEncoding.EncodeToString(append(b, k.signing().challengeMAC(b)...))
}

// CheckChallenge verifies that the host-agent has the private key for userNKey: the
// signature must cover a challenge that has not expired, the tenant and the host.
func (k *Keys) CheckChallenge(challenge, tenant, host, userNKey string, signature []byte) error {
	if err := k.checkFresh(challenge); err != nil {
		return err
	}
	if !nkeys.IsValidPublicUserKey(userNKey) {
		return errors.New("challenge: nkey is not a public NATS user key")
	}
	proof, err := proofMessage(challenge, tenant, host, userNKey)
	if err != nil {
		return err
	}
	user, err := nkeys.FromPublicKey(userNKey)
	if err != nil {
		return fmt.Errorf("challenge: nkey: %w", err)
	}
	if err := user.Verify(proof, signature); err != nil {
		return errors.New("challenge: the signature does not match challenge, tenant, host and nkey")
	}
	return nil
}

// checkFresh returns an error if a challenge has expired or was not made by a relay with
// these keys.
func (k *Keys) checkFresh(challenge string) error {
	_, _, err := k.readChallenge(challenge)
	return err
}

// readChallenge verifies a challenge, and returns when it was made, and whether by this
// process.
func (k *Keys) readChallenge(challenge string) (made time.Time, own bool, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(challenge)
	if err != nil || len(b) != challengeSize || b[0] != challengeVersion {
		return made, false, errors.New("challenge: not made by a relay")
	}
	ours := func(s *keySet) bool { return hmac.Equal(b[challengeBody:], s.challengeMAC(b[:challengeBody])) }
	if !slices.ContainsFunc(k.sets.Load().all, ours) {
		return made, false, errors.New("challenge: made with keys unknown to this relay")
	}
	made = time.UnixMilli(int64(binary.BigEndian.Uint64(b[1:])))
	if age := k.now().Sub(made); age > ChallengeTTL || age < -Leeway {
		return made, false, fmt.Errorf("challenge: made %v ago; valid for %v", age.Round(time.Second), ChallengeTTL)
	}
	return made, bytes.Equal(b[9:17], k.run[:]), nil
}

func (s *keySet) challengeMAC(body []byte) []byte {
	mac := hmac.New(sha256.New, s.challenge)
	mac.Write(body)
	return mac.Sum(nil)
}

// proofMessage returns the text that a host-agent signs. NUL separates its parts, which
// cannot contain NUL.
func proofMessage(challenge, tenant, host, userNKey string) ([]byte, error) {
	if err := cmp.Or(ahp.CheckName("tenant", tenant), ahp.CheckName("host", host)); err != nil {
		return nil, fmt.Errorf("challenge: %w", err)
	}
	return []byte(proofPrefix + strings.Join([]string{challenge, tenant, host, userNKey}, "\x00")), nil
}

// An AgentKey is the NATS nkey of a host-agent process. It is safe for concurrent use.
type AgentKey struct{ key natsKey }

// NewAgentKey generates an nkey.
func NewAgentKey() (*AgentKey, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("make an nkey: %w", err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("make an nkey: %w", err)
	}
	return &AgentKey{natsKey{pair, public}}, nil
}

// Public returns the public key, for CheckChallenge and AgentUser.
func (a *AgentKey) Public() string { return a.key.public }

// SignNonce signs a NATS server's nonce at login. It refuses nonces that look like texts
// for relays, because a malicious server could use the signature to answer a relay's
// challenge.
func (a *AgentKey) SignNonce(nonce []byte) ([]byte, error) {
	if strings.HasPrefix(string(nonce), "ahp-relay ") {
		return nil, errors.New("the NATS server asked for a signature with the prefix reserved for relays")
	}
	return a.key.Sign(nonce)
}

// SignChallenge signs a relay's challenge; the relay verifies the signature with
// [Keys.CheckChallenge].
func SignChallenge(key *AgentKey, challenge, tenant, host string) ([]byte, error) {
	if strings.ContainsRune(challenge, 0) {
		return nil, errors.New("challenge: not made by a relay")
	}
	proof, err := proofMessage(challenge, tenant, host, key.Public())
	if err != nil {
		return nil, err
	}
	return key.key.Sign(proof)
}
