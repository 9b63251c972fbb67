package auth

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"ahprelay/ahp"
)

// ErrTokenRevoked reports a token that was good until somebody took it back.
var ErrTokenRevoked = errors.New("token revoked")

// A Revocation ends tokens before they expire: one token, or all that a
// subject or a host had got by some time. It names exactly one of the three.
type Revocation struct {
	Token   string `json:"token,omitempty"`   // the ID of a token of any kind, or of the device whose tokens they are
	Subject string `json:"subject,omitempty"` // of client tokens of Tenant
	Host    string `json:"host,omitempty"`    // of enrolments of Tenant
	Tenant  string `json:"tenant,omitempty"`  // of Subject or Host

	// At is when this was decided. Of a subject or host, tokens issued in a
	// later second are good.
	At time.Time `json:"at"`

	// Until is when all tokens that this ends have expired anyway, zero if
	// nobody knows.
	Until time.Time `json:"until,omitzero"`

	// Alone leaves valid the grants that were derived from those that this ends. It is for what was retired, which is
	// no reason for mistrust.
	Alone bool `json:"alone,omitempty"`
}

// MaxDerivedTTL is the longest time for which a token is good that was derived from another grant; credentials of
// host-agents are the longest. A device has no such end: relays remove it from their store while its origin is revoked.
const MaxDerivedTTL = 366 * 24 * time.Hour

// Spanning returns the revocation of a token or device with an Until after which no token is good that was derived from it.
func (r Revocation) Spanning() Revocation {
	if last := r.At.Add(MaxDerivedTTL + time.Hour); !r.Until.IsZero() && r.Until.Before(last) {
		r.Until = last
	}
	return r
}

// derivedPrefix begins, in the place of a token's ID, the revocation of what was derived from the token. It is a key of its
// own, because a token that was used up or renewed is revoked, too, and what was derived from that stays valid.
const derivedPrefix = "derived:"

// maxOriginID is the limit of the ID of a token from which a grant can be derived, in bytes.
const maxOriginID = MaxSubjectLen - len(derivedPrefix)

// OfDerived returns the revocation of what was derived from the token that r revokes; ok is false if r is of a different
// kind, or revokes a token alone.
func (r Revocation) OfDerived() (derived Revocation, ok bool) {
	if r.Token == "" || r.Alone || len(r.Token) > maxOriginID || r.IsOfDerived() {
		return Revocation{}, false
	}
	r.Token = derivedPrefix + r.Token
	return r, true
}

// IsOfDerived reports whether OfDerived has returned the revocation.
func (r Revocation) IsOfDerived() bool { return strings.HasPrefix(r.Token, derivedPrefix) }

// CoversDerived reports whether a grant is revoked that was derived from one that was issued then, if that is one of
// those that the revocation is about.
func (r Revocation) CoversDerived(issued time.Time) bool { return !r.Alone && r.Covers(issued) }

// RevocationKey names what a revocation is about.
type RevocationKey struct{ Token, Tenant, Subject, Host string }

// Key returns what the revocation is about. There is no need for two
// revocations with the same key: see Merge.
func (r Revocation) Key() RevocationKey {
	return RevocationKey{r.Token, r.Tenant, r.Subject, r.Host}
}

// Check reports what keeps a revocation from being one.
func (r Revocation) Check() error {
	named := 0
	for _, name := range []string{r.Token, r.Subject, r.Host} {
		if name != "" {
			named++
		}
	}
	switch {
	case named != 1:
		return errors.New("revocation: want one of token, subject and host")
	case r.At.IsZero():
		return errors.New("revocation: no time")
	case r.Token != "" && r.Tenant != "":
		return errors.New("revocation: a token is named by its ID alone")
	case r.Token != "":
		if CheckSubject(r.Token) != nil {
			return fmt.Errorf("revocation: token ID is longer than %d bytes, or cannot be printed", MaxSubjectLen)
		}
		return nil
	}
	if err := ahp.CheckName("tenant", r.Tenant); err != nil {
		return fmt.Errorf("revocation: %w", err)
	}
	if r.Host != "" {
		return ahp.CheckName("host", r.Host)
	}
	return CheckSubject(r.Subject)
}

// Covers reports whether a token that was issued then is revoked, if it is
// one of those that the revocation is about.
func (r Revocation) Covers(issued time.Time) bool {
	return r.Token != "" || issued.Unix() <= r.At.Unix() // tokens know seconds
}

// Expired reports whether all tokens that the revocation ends have expired.
func (r Revocation) Expired(now time.Time) bool {
	return !r.Until.IsZero() && now.After(r.Until.Add(Leeway))
}

// Merge returns the one that says what both say, of two with the same key.
func (r Revocation) Merge(o Revocation) Revocation {
	if o.At.After(r.At) {
		r.At = o.At
	}
	r.Alone = r.Alone && o.Alone
	switch {
	case o.Until.IsZero():
		r.Until = o.Until
	case !r.Until.IsZero() && o.Until.After(r.Until):
		r.Until = o.Until
	}
	return r
}

// Keys returns what revocations of the client's token may be about.
func (c Client) Keys() []RevocationKey {
	keys := []RevocationKey{{Token: c.ID}, {Tenant: c.Tenant, Subject: c.Subject}}
	if c.Device != "" {
		keys = append(keys, RevocationKey{Token: c.Device})
	}
	return keys
}

// Keys returns what revocations of the enrolment may be about.
func (e Enrolment) Keys() []RevocationKey {
	return []RevocationKey{{Token: e.ID}, {Tenant: e.Tenant, Host: e.Host}}
}
