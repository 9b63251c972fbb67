package authn

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
)

// Bounds of how many proofs are remembered, in all and of one key: more in so short
// a time are refused.
const (
	maxProofs      = 64 << 10
	maxProofsOfKey = 1 << 10
)

// Why a proof is refused beside what [auth.Keys.CheckProof] says.
var (
	ErrNoProof    = errors.New("this token is bound to a device's key: show a proof of it (DPoP), in the header DPoP or as subprotocol dpop.<proof>")
	ErrOtherKey   = errors.New("this token is bound to another device's key: somebody has copied it")
	ErrProofAgain = errors.New("this proof was shown before")
	errProofsFull = errors.New("too many proofs in so short a time; try again")
)

// Proofs are those that were shown: each is good once. Relays of a cluster tell each other: one
// that is shown at two of them within the time that word takes, or while they do not hear
// each other, is good at both.
type Proofs struct {
	Others func(auth.Proof) // tells other relays; nil: there are none. Set before the first proof

	mu    sync.Mutex // guards the fields below
	shown map[string]bool
	ofKey map[string]int
	queue []shownProof // those of shown, the oldest first
}

// A shownProof is remembered until its nonce is good no more.
type shownProof struct {
	auth.Proof
	until time.Time
}

func newProofs() *Proofs { return &Proofs{shown: map[string]bool{}, ofKey: map[string]int{}} }

// First notes a proof that is good.
func (p *Proofs) First(proof auth.Proof, now time.Time) error {
	err := p.Note(proof, now)
	if err == nil && p.Others != nil {
		p.Others(proof)
	}
	return err
}

// Shown reports whether a proof was, of those that are remembered.
func (p *Proofs) Shown(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown[id]
}

// Note notes a proof that was shown, here or at another relay.
func (p *Proofs) Note(proof auth.Proof, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 && now.After(p.queue[0].until) {
		old := p.queue[0]
		p.queue = p.queue[1:]
		delete(p.shown, old.ID)
		if p.ofKey[old.Thumbprint]--; p.ofKey[old.Thumbprint] == 0 {
			delete(p.ofKey, old.Thumbprint)
		}
	}
	switch {
	case p.shown[proof.ID]:
		return ErrProofAgain
	case len(p.shown) >= maxProofs, p.ofKey[proof.Thumbprint] >= maxProofsOfKey:
		return errProofsFull
	}
	p.shown[proof.ID] = true
	p.ofKey[proof.Thumbprint]++
	p.queue = append(p.queue, shownProof{proof, now.Add(auth.ChallengeTTL + auth.Leeway)})
	return nil
}

// Authenticate checks a client token, and the proof that a device's wants beside it.
func (c *Checker) Authenticate(r *http.Request, token string) (auth.Client, error) {
	who, err := c.VerifyClient(r.Context(), token)
	if err != nil || who.Key == "" {
		return who, err
	}
	key, err := c.ProvenKey(r, token)
	if err == nil && key != who.Key {
		err = ErrOtherKey
	}
	return who, err
}

// ProvenKey returns the thumbprint of the key that a request proves. Token is what is
// shown with it, "" for none.
func (c *Checker) ProvenKey(r *http.Request, token string) (thumbprint string, err error) {
	text := r.Header.Get("DPoP")
	for _, header := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(header, ",") {
			if proof, ok := strings.CutPrefix(strings.TrimSpace(p), "dpop."); ok && text == "" {
				text = proof
			}
		}
	}
	if text == "" {
		return "", ErrNoProof
	}
	proof, err := c.Keys.CheckProof(text, auth.Asked{Method: r.Method, Host: r.Host, Path: r.URL.Path, Token: token})
	if err != nil {
		return "", err
	}
	return proof.Thumbprint, c.Proofs.First(proof, time.Now())
}

// WantsProof says in an answer which nonce a proof is to have, if that is what is
// missing (RFC 9449, sections 7.1 and 8).
func (c *Checker) WantsProof(w http.ResponseWriter, err error) bool {
	if !errors.Is(err, auth.ErrProofStale) && !errors.Is(err, ErrNoProof) {
		return false
	}
	w.Header().Set("DPoP-Nonce", c.Keys.NewChallenge())
	w.Header().Set("WWW-Authenticate", `DPoP error="use_dpop_nonce", algs="ES256"`)
	return true
}
