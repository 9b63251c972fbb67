package authn

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
)

// Limits for remembered proofs. Devices and unauthenticated clients have separate limits,
// so unauthenticated clients cannot displace devices' proofs.
const (
	maxOfDevices  = 128 << 10 // of all tenants; a tenant may have as many as are free
	maxOfPerson   = 4 << 10   // for all of a person's devices
	maxOfDevice   = 1 << 10
	maxOfPairings = 16 << 10
	maxOfPairing  = 64 // a pairing polls for its approval every two seconds
)

// Reasons to refuse a proof, in addition to those from [auth.Keys.CheckProof].
var (
	ErrNoProof    = errors.New("this token is bound to a device's key: send a proof (DPoP) in the header DPoP or as subprotocol dpop.<proof>")
	ErrOtherKey   = errors.New("this token is bound to a different device's key: it was copied")
	ErrProofAgain = errors.New("this proof was used before")
	ErrProofsFull = errors.New("too many proofs at the same time; try again")
)

// A UsedProof is an accepted proof, in the form that relays exchange.
type UsedProof struct {
	auth.Proof

	// Person is the owner of the device with this key: tenant and subject. It is "" for a
	// pairing's key, and in messages from old relays.
	Person string `json:",omitempty"`
}

// Proofs remembers used proofs until their nonces expire, so that each proof is valid
// once. The relays in a cluster exchange used proofs. Two relays accept the same proof
// only if it reaches both before they have exchanged it.
//
// A new process does not know which proofs were used before. So it accepts only proofs
// whose nonce was made after it began to receive used proofs; all proofs used earlier
// have older nonces. A client with an older nonce gets a new one. The same applies after
// an interruption of the contact to other relays.
type Proofs struct {
	Others func(UsedProof) // sends a proof to other relays; nil: none. Set before the first proof

	mu    sync.Mutex // guards the fields below
	since time.Time  // used is complete for proofs accepted after this time
	used  map[string]bool
	count map[string]int // used proofs by group name
	queue []rememberedProof
}

// A rememberedProof is an entry in Proofs.queue, which is sorted by age, oldest first.
type rememberedProof struct {
	UsedProof
	until time.Time
}

func newProofs() *Proofs {
	p := &Proofs{used: map[string]bool{}, count: map[string]int{}}
	p.HearsSince(time.Now())
	return p
}

// HearsSince sets the time since which the process has received all proofs that other
// relays accept.
func (p *Proofs) HearsSince(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = t.Truncate(time.Millisecond) // the precision of nonces
}

// A proofGroup is a group in which used proofs are counted, with its limit. The limit is less
// by the proofs in the group beside, if there is one.
type proofGroup struct {
	name   string
	most   int
	beside string
}

func (u *UsedProof) groups() []proofGroup {
	if u.Person == "" {
		return []proofGroup{{"pairings", maxOfPairings, ""}, {"pairing " + u.Thumbprint, maxOfPairing, ""}}
	}
	tenant, _, _ := strings.Cut(u.Person, " ")
	return []proofGroup{
		{"devices", maxOfDevices, ""}, {"tenant " + tenant, maxOfDevices, "devices"}, {"person " + u.Person, maxOfPerson, ""}, {"device " + u.Thumbprint, maxOfDevice, ""},
	}
}

// Use accepts a verified proof, and sends it to the other relays.
func (p *Proofs) Use(u UsedProof, now time.Time) error {
	err := p.use(u, now)
	if err == nil && p.Others != nil {
		p.Others(u)
	}
	return err
}

func (p *Proofs) use(u UsedProof, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetLocked(now)
	if err := p.unusedLocked(u.Proof, now); err != nil {
		return err
	}
	for _, g := range u.groups() {
		if p.count[g.name] >= g.most-p.count[g.beside] {
			return ErrProofsFull
		}
	}
	p.rememberLocked(u, now)
	return nil
}

// Unused returns an error if a proof was used before, or may have been. It does not
// remember the proof.
func (p *Proofs) Unused(proof auth.Proof, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unusedLocked(proof, now)
}

func (p *Proofs) unusedLocked(proof auth.Proof, now time.Time) error {
	if now.Before(p.since) { // the clock was set back
		p.since = now.Truncate(time.Millisecond)
	}
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

// Note remembers a proof that a different relay has accepted. The limits do not apply: that
// relay has applied its own, and a forgotten proof could be used again here.
func (p *Proofs) Note(u UsedProof, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetLocked(now)
	if !p.used[u.ID] {
		p.rememberLocked(u, now)
	}
}

func (p *Proofs) rememberLocked(u UsedProof, now time.Time) {
	for _, g := range u.groups() {
		p.count[g.name]++
	}
	p.used[u.ID] = true
	p.queue = append(p.queue, rememberedProof{u, now.Add(auth.ChallengeTTL + auth.Leeway)})
}

// forgetLocked forgets proofs whose nonces have expired.
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

// Authenticate verifies a client token and, for a device's token, the proof.
func (c *Checker) Authenticate(r *http.Request, token string) (auth.Client, error) {
	who, err := c.VerifyClient(r.Context(), token)
	if err != nil || who.Key == "" {
		return who, err
	}
	return who, c.ProveKey(r, token, who.Key, PersonOf(who.Tenant, who.Subject))
}

// PersonOf returns the value of UsedProof.Person.
func PersonOf(tenant, subject string) string { return tenant + " " + subject }

// ProveKey verifies that a request proves a known key, and marks the proof as used.
// person is as in [UsedProof]. It verifies the signature last: a client that does not
// know the key is refused before this costly step.
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

// ProveNewKey verifies that a request proves an unknown key. The caller marks the proof
// as used when the key belongs to a device or a pairing.
func (c *Checker) ProveNewKey(r *http.Request) (auth.Proof, error) {
	claimed, err := claimedProof(r)
	if err != nil {
		return auth.Proof{}, err
	}
	proof, err := c.checkProof(r, claimed, "", "")
	if err == nil {
		err = c.Proofs.Unused(proof, time.Now())
	}
	return proof, err
}

// checkProof verifies a request's proof. key is the key if known, and otherwise "". After
// too many failures, an address is refused before the signature is verified. Failures
// with a known key count separately, so that other clients at the same address cannot
// block a device.
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

// claimedProof parses a request's proof, from the DPoP header or, for a WebSocket, from
// the list of subprotocols.
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

// WantsProof reports whether the error means a missing or outdated proof, and then adds a
// nonce to the response (RFC 9449, sections 7.1 and 8).
func (c *Checker) WantsProof(w http.ResponseWriter, err error) bool {
	if !errors.Is(err, auth.ErrProofStale) && !errors.Is(err, ErrNoProof) {
		return false
	}
	w.Header().Set("DPoP-Nonce", c.Keys.NewChallenge())
	w.Header().Set("WWW-Authenticate", `DPoP error="use_dpop_nonce", algs="ES256"`)
	return true
}
