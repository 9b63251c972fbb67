package authn

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
)

// Bounds of the remembered proofs. Devices and unauthenticated clients have separate
// bounds, so the latter cannot displace the former.
const (
	maxOfDevices  = 64 << 10
	maxOfPerson   = 4 << 10 // for all devices of a person
	maxOfDevice   = 1 << 10
	maxOfPairings = 16 << 10
	maxOfPairing  = 64 // a pairing polls for its approval every two seconds
)

// Reasons to refuse a proof in addition to those of [auth.Keys.CheckProof].
var (
	ErrNoProof    = errors.New("this token is bound to a device's key: send a proof (DPoP) in the header DPoP or as subprotocol dpop.<proof>")
	ErrOtherKey   = errors.New("this token is bound to a different device's key: it was copied")
	ErrProofAgain = errors.New("this proof was used before")
	ErrProofsFull = errors.New("too many proofs at the same time; try again")
)

// A UsedProof is an accepted proof, in the form that relays exchange.
type UsedProof struct {
	auth.Proof

	// Person is the owner of the key's device: tenant and subject. "" stands for a
	// pairing's key, or comes from a relay with an older version.
	Person string `json:",omitempty"`
}

// Proofs remembers used proofs until their nonces expire: a proof is valid once. The
// relays in a cluster exchange used proofs. Two relays accept the same proof only if
// it reaches both before they have exchanged it.
//
// A new process does not know the proofs used before. It therefore accepts only proofs
// with a nonce made since it began to receive used proofs: an earlier used proof has
// an older nonce. A client with an older nonce gets a new one. The same applies after
// a time without contact to the other relays.
type Proofs struct {
	Others func(UsedProof) // sends to other relays; nil: there are none. Set before the first proof

	mu    sync.Mutex // guards the fields below
	since time.Time  // used contains every proof that a relay has accepted since
	used  map[string]bool
	count map[string]int // used proofs by group name
	queue []rememberedProof
}

// A rememberedProof is an entry of Proofs.queue, which is sorted by age, oldest first.
type rememberedProof struct {
	UsedProof
	until time.Time
}

func newProofs() *Proofs {
	p := &Proofs{used: map[string]bool{}, count: map[string]int{}}
	p.HearsSince(time.Now())
	return p
}

// HearsSince sets the time since which the process has received, without a gap, the
// proofs that other relays accept.
func (p *Proofs) HearsSince(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = t.Truncate(time.Millisecond) // the precision of nonces
}

// A proofGroup is a group in which used proofs are counted, with its bound.
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

// Use accepts a checked proof, and notifies the other relays.
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

// Unused reports why a proof was used before, or may have been. It does not remember
// the proof.
func (p *Proofs) Unused(proof auth.Proof) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.since
	if !proof.Own {
		known = known.Add(auth.Leeway) // relays' clocks differ
	}
	switch {
	case p.used[proof.ID]:
		return ErrProofAgain
	case proof.Made.Before(known):
		return auth.ErrProofStale
	}
	return nil
}

// Note remembers a proof that this or a different relay has accepted.
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

// forgetLocked forgets proofs with expired nonces.
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

// Authenticate checks a client token, and for a device's token the proof.
func (c *Checker) Authenticate(r *http.Request, token string) (auth.Client, error) {
	who, err := c.VerifyClient(r.Context(), token)
	if err != nil || who.Key == "" {
		return who, err
	}
	return who, c.ProveKey(r, token, who.Key, PersonOf(who.Tenant, who.Subject))
}

// PersonOf returns the name of a person in [UsedProof].
func PersonOf(tenant, subject string) string { return tenant + " " + subject }

// ProveKey checks that a request proves a known key, and uses the proof up. Person is
// as in [UsedProof]. The signature is checked last, which an unauthenticated client
// without a known key cannot reach.
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

// ProveNewKey checks that a request proves an unknown key. The caller uses the proof
// up once the key belongs to a device or a pairing.
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

// checkProof checks a request's proof. The argument key is the key if it is known.
// After too many failures, an address is refused before the signature is checked.
// Failures with a known key are counted separately, so that neighbours at the address
// do not block a device.
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

// claimedProof reads a request's proof from the DPoP header or, for a WebSocket, the
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

// WantsProof adds a nonce for the proof to the answer, if the error is a missing or
// stale proof (RFC 9449, sections 7.1 and 8).
func (c *Checker) WantsProof(w http.ResponseWriter, err error) bool {
	if !errors.Is(err, auth.ErrProofStale) && !errors.Is(err, ErrNoProof) {
		return false
	}
	w.Header().Set("DPoP-Nonce", c.Keys.NewChallenge())
	w.Header().Set("WWW-Authenticate", `DPoP error="use_dpop_nonce", algs="ES256"`)
	return true
}
