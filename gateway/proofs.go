package gateway

import (
	"encoding/json"
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
	errNoProof    = errors.New("this token is bound to a device's key: show a proof of it (DPoP), in the header DPoP or as subprotocol dpop.<proof>")
	errOtherKey   = errors.New("this token is bound to another device's key: somebody has copied it")
	errProofAgain = errors.New("this proof was shown before")
	errProofsFull = errors.New("too many proofs in so short a time; try again")
)

// proofs are those that were shown: each is good once. Relays of a cluster tell each other: one
// that is shown at two of them within the time that word takes, or while they do not hear
// each other, is good at both.
type proofs struct {
	others func(auth.Proof) // tells other relays; nil: there are none. Set before the first proof

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

func newProofs() *proofs { return &proofs{shown: map[string]bool{}, ofKey: map[string]int{}} }

// first notes a proof that is good.
func (p *proofs) first(proof auth.Proof, now time.Time) error {
	err := p.note(proof, now)
	if err == nil && p.others != nil {
		p.others(proof)
	}
	return err
}

// note notes a proof that was shown, here or at another relay.
func (p *proofs) note(proof auth.Proof, now time.Time) error {
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
		return errProofAgain
	case len(p.shown) >= maxProofs, p.ofKey[proof.Thumbprint] >= maxProofsOfKey:
		return errProofsFull
	}
	p.shown[proof.ID] = true
	p.ofKey[proof.Thumbprint]++
	p.queue = append(p.queue, shownProof{proof, now.Add(auth.ChallengeTTL + auth.Leeway)})
	return nil
}

// proofSubject is where relays tell each other of proofs that were shown, in their own
// account.
const proofSubject = "ahp.relays.v1.proof"

// proofRoom is how many may wait that other relays tell of. What is more is lost: it may be
// good once more here.
const proofRoom = 4096

// hearProofs has the relay tell others of proofs, and hear of theirs, its own too.
func (r *Relay) hearProofs(server *Server) (err error) {
	server.proofs.others = func(proof auth.Proof) {
		if body, err := json.Marshal(proof); err == nil {
			_ = r.conn.Publish(proofSubject, body) // the Conn's own events tell
		}
	}
	r.deaf, err = r.conn.Hear(proofSubject, proofRoom, func(body []byte) {
		var proof auth.Proof
		if json.Unmarshal(body, &proof) == nil && proof.ID != "" {
			_ = server.proofs.note(proof, time.Now()) // it is known here, or there is no room
		}
	})
	return err
}

// authenticate checks a client token, and the proof that a device's wants beside it.
func (s *Server) authenticate(r *http.Request, token string) (auth.Client, error) {
	who, err := s.verifyClient(r.Context(), token)
	if err != nil || who.Key == "" {
		return who, err
	}
	key, err := s.provenKey(r, token)
	if err == nil && key != who.Key {
		err = errOtherKey
	}
	return who, err
}

// provenKey returns the thumbprint of the key that a request proves. Token is what is
// shown with it, "" for none.
func (s *Server) provenKey(r *http.Request, token string) (thumbprint string, err error) {
	text := r.Header.Get("DPoP")
	for _, header := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(header, ",") {
			if proof, ok := strings.CutPrefix(strings.TrimSpace(p), "dpop."); ok && text == "" {
				text = proof
			}
		}
	}
	if text == "" {
		return "", errNoProof
	}
	proof, err := s.cfg.Keys.CheckProof(text, auth.Asked{Method: r.Method, Host: r.Host, Path: r.URL.Path, Token: token})
	if err != nil {
		return "", err
	}
	return proof.Thumbprint, s.proofs.first(proof, time.Now())
}

// wantsProof says in an answer which nonce a proof is to have, if that is what is
// missing (RFC 9449, sections 7.1 and 8).
func (s *Server) wantsProof(w http.ResponseWriter, err error) bool {
	if !errors.Is(err, auth.ErrProofStale) && !errors.Is(err, errNoProof) {
		return false
	}
	w.Header().Set("DPoP-Nonce", s.cfg.Keys.NewChallenge())
	w.Header().Set("WWW-Authenticate", `DPoP error="use_dpop_nonce", algs="ES256"`)
	return true
}
