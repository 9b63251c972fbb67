package authn

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
)

// Bounds of the proofs that are remembered at a time. Devices and strangers have places of
// their own, so strangers take none from devices.
const (
	maxOfDevices  = 64 << 10
	maxOfPerson   = 4 << 10 // with all devices of the person
	maxOfDevice   = 1 << 10
	maxOfPairings = 16 << 10
	maxOfPairing  = 64 // a pairing asks every two seconds whether it was approved
)

// Reasons to refuse a proof beside those of [auth.Keys.CheckProof].
var (
	ErrNoProof    = errors.New("this token is bound to a device's key: show a proof of it (DPoP), in the header DPoP or as subprotocol dpop.<proof>")
	ErrOtherKey   = errors.New("this token is bound to another device's key: somebody has copied it")
	ErrProofAgain = errors.New("this proof was shown before")
	ErrProofsFull = errors.New("too many proofs in so short a time; try again")
)

// A UsedProof is a proof that a relay has accepted, as relays tell each other of it.
type UsedProof struct {
	auth.Proof

	// Person owns the device that has the key: tenant and subject. "": the key is of a
	// pairing, or a relay of a former version does not say.
	Person string `json:",omitempty"`
}

// Proofs remembers the proofs that were used, each until its nonce ends: a proof is good
// once. Relays of a cluster tell each other of used proofs. Two relays accept the same
// proof only if both are shown it before word of it has passed between them.
//
// A process that starts does not know which proofs were used before. So it accepts only
// proofs with a nonce that was made since it hears of used proofs: a proof that was used
// earlier has an older nonce. A client that shows an older nonce gets a new one. The same
// holds after a time in which the process did not hear the other relays.
type Proofs struct {
	Others func(UsedProof) // tells other relays; nil: there are none. Set before the first proof

	mu    sync.Mutex // guards the fields below
	since time.Time  // every proof that a relay has accepted from then on is known here
	used  map[string]bool
	count map[string]int // of used, by the groups of proofGroups
	queue []rememberedProof
}

// A rememberedProof is one of Proofs.used. In the queue the oldest stands first.
type rememberedProof struct {
	UsedProof
	until time.Time
}

func newProofs() *Proofs {
	p := &Proofs{used: map[string]bool{}, count: map[string]int{}}
	p.HearsSince(time.Now())
	return p
}

// HearsSince sets since when the process hears, without a gap, of the proofs that other
// relays accept.
func (p *Proofs) HearsSince(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = t.Truncate(time.Millisecond) // as nonces have it
}

// proofGroup is what proofs are counted by, and how many of it are remembered.
type proofGroup struct {
	name string
	most int
}

func (u *UsedProof) groups() []proofGroup {
	if u.Person == "" {
		return []proofGroup{{"pairings", maxOfPairings}, {"pairing " + u.Thumbprint, maxOfPairing}}
	}
	return []proofGroup{{"devices", maxOfDevices}, {"person " + u.Person, maxOfPerson}, {"device " + u.Thumbprint, maxOfDevice}}
}

// Use accepts a proof that was checked, and tells other relays.
func (p *Proofs) Use(u UsedProof, now time.Time) error {
	err := p.Unused(u.Proof)
	if err == nil {
		err = p.Note(u, now)
	}
	if err == nil && p.Others != nil {
		p.Others(u)
	}
	return err
}

// Unused reports why a proof was used before, or may have been. It remembers nothing.
func (p *Proofs) Unused(proof auth.Proof) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.since
	if !proof.Own {
		known = known.Add(auth.Leeway) // clocks of relays differ
	}
	switch {
	case p.used[proof.ID]:
		return ErrProofAgain
	case proof.Made.Before(known):
		return auth.ErrProofStale
	}
	return nil
}

// Note remembers a proof that this relay or another has accepted.
func (p *Proofs) Note(u UsedProof, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetLocked(now)
	if p.used[u.ID] {
		return ErrProofAgain
	}
	groups := u.groups()
	for _, g := range groups {
		if p.count[g.name] >= g.most {
			return ErrProofsFull
		}
	}
	for _, g := range groups {
		p.count[g.name]++
	}
	p.used[u.ID] = true
	p.queue = append(p.queue, rememberedProof{u, now.Add(auth.ChallengeTTL + auth.Leeway)})
	return nil
}

// forgetLocked forgets the proofs with nonces that have ended.
func (p *Proofs) forgetLocked(now time.Time) {
	for len(p.queue) > 0 && now.After(p.queue[0].until) {
		old := p.queue[0]
		p.queue = p.queue[1:]
		delete(p.used, old.ID)
		for _, g := range old.groups() {
			if p.count[g.name]--; p.count[g.name] == 0 {
				delete(p.count, g.name)
			}
		}
	}
}

// Authenticate checks a client token, and the proof that a device's token needs.
func (c *Checker) Authenticate(r *http.Request, token string) (auth.Client, error) {
	who, err := c.VerifyClient(r.Context(), token)
	if err != nil || who.Key == "" {
		return who, err
	}
	return who, c.ProveKey(r, token, who.Key, PersonOf(who.Tenant, who.Subject))
}

// PersonOf names a person in [UsedProof].
func PersonOf(tenant, subject string) string { return tenant + " " + subject }

// ProveKey checks that a request proves a key that the relay knows, and uses the proof up.
// Person is as in [UsedProof]. The signature is the last check: a stranger without a known
// key does not get that far.
func (c *Checker) ProveKey(r *http.Request, token, key, person string) error {
	claimed, err := claimedProof(r)
	if err != nil {
		return err
	}
	if claimed.Thumbprint != key {
		return ErrOtherKey
	}
	proof, err := c.checkProof(r, claimed, token, key)
	if err != nil {
		return err
	}
	return c.Proofs.Use(UsedProof{proof, person}, time.Now())
}

// ProveNewKey checks that a request proves a key that the relay does not know yet. It does
// not use the proof up: the caller does, once the key belongs to a device or a pairing.
func (c *Checker) ProveNewKey(r *http.Request) (auth.Proof, error) {
	claimed, err := claimedProof(r)
	if err != nil {
		return auth.Proof{}, err
	}
	proof, err := c.checkProof(r, claimed, "", "")
	if err == nil {
		err = c.Proofs.Unused(proof)
	}
	return proof, err
}

// checkProof checks a proof that a request shows. Key is the key if the relay knows it. The
// address of a stranger that has failed too often is refused before the signature is
// checked; failures with a known key are counted apart, so that neighbours at the address
// do not keep a device out.
func (c *Checker) checkProof(r *http.Request, claimed *auth.ClaimedProof, token, key string) (auth.Proof, error) {
	address := c.Address(r)
	if over := c.Limits.FailedTooOften(address, key); over != nil {
		return auth.Proof{}, over
	}
	proof, err := c.Keys.CheckProof(claimed, auth.Asked{Method: r.Method, URLs: c.urls(r), Token: token})
	if key != "" && errors.Is(err, auth.ErrProofInvalid) {
		c.Limits.Failed(address, key)
	}
	return proof, err
}

// claimedProof reads the proof in a request: in its own header or, of a WebSocket, in the
// list of subprotocols.
func claimedProof(r *http.Request) (*auth.ClaimedProof, error) {
	text := r.Header.Get("DPoP")
	for _, header := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(header, ",") {
			if proof, ok := strings.CutPrefix(strings.TrimSpace(p), "dpop."); ok && text == "" {
				text = proof
			}
		}
	}
	if text == "" {
		return nil, ErrNoProof
	}
	return auth.ReadProof(text)
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
