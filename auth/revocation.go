package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
)

// ErrTokenRevoked reports that a token is revoked but otherwise valid.
var ErrTokenRevoked = errors.New("token revoked")

// A Revocation ends tokens before they expire: a single token, or all tokens that a
// subject or a host got up to some time. Exactly one of Token, Subject and Host is set.
type Revocation struct {
	Token   string `json:"token,omitempty"`   // ID of a token, or of a device whose tokens are all revoked
	Subject string `json:"subject,omitempty"` // subject of client tokens in Tenant
	Host    string `json:"host,omitempty"`    // host of enrolments in Tenant
	Tenant  string `json:"tenant,omitempty"`  // tenant of Subject or Host

	// At is when the revocation was decided. For a subject or host, tokens issued in a
	// later second are valid.
	At time.Time `json:"at"`

	// Until is when all revoked tokens have expired anyway. Zero means unknown.
	Until time.Time `json:"until,omitzero"`

	// Alone keeps grants derived from the revoked one valid. It is set if the revoked
	// grant is no longer needed, but not mistrusted.
	Alone bool `json:"alone,omitempty"`

	// Derived is set in a merged revocation of a subject or host whose later part is alone: of
	// the derived grants, only those of tokens issued up to this time end. Older relays end
	// all that At covers.
	Derived time.Time `json:"derived,omitzero"`

	// By is the tenant whose people have decided this, or whose token is used up; "" stands for
	// operators. The revocations of a tenant leave room for others.
	By string `json:"by,omitempty"`
}

// MaxDerivedTTL is the longest lifetime of a token that is derived from another grant:
// that of host-agents' credentials. Devices never expire, but relays delete each device
// whose origin is revoked.
const MaxDerivedTTL = 366 * 24 * time.Hour

// Spanning returns the revocation with an Until after which all derived tokens have
// expired.
func (r Revocation) Spanning() Revocation {
	if last := r.At.Add(MaxDerivedTTL + time.Hour); !r.Until.IsZero() && r.Until.Before(last) {
		r.Until = last
	}
	return r
}

// derivedPrefix begins the target of a revocation that ends everything derived from a
// token. It is a separate target, because a token that was used up or renewed is revoked
// too, without ending what was derived from it.
const derivedPrefix = "derived:"

// maxOriginID is the longest ID of a token from which a grant can be derived, in bytes.
const maxOriginID = MaxSubjectLen - len(derivedPrefix)

// OfDerived returns the revocation that ends everything derived from r's token. ok is
// false if r does not name a token, or revokes it alone.
func (r Revocation) OfDerived() (derived Revocation, ok bool) {
	if r.Token == "" || r.Alone || len(r.Token) > maxOriginID || r.IsOfDerived() {
		return Revocation{}, false
	}
	r.Token = derivedPrefix + r.Token
	return r, true
}

// IsOfDerived reports whether the revocation comes from OfDerived.
func (r Revocation) IsOfDerived() bool { return strings.HasPrefix(r.Token, derivedPrefix) }

// CoversDerived reports whether the revocation ends the grants derived from a grant that
// has its target and was issued at the given time.
func (r Revocation) CoversDerived(issued time.Time) bool {
	r.At = r.derived()
	return !r.At.IsZero() && r.Covers(issued)
}

// derived returns the time up to which tokens' derived grants end, or zero if they stay.
func (r Revocation) derived() time.Time {
	switch {
	case r.Alone:
		return time.Time{}
	case r.Derived.IsZero():
		return r.At
	}
	return r.Derived
}

// A RevocationKey names the target of a revocation.
type RevocationKey struct{ Token, Tenant, Subject, Host string }

// Key returns the revocation's target. Revocations with the same target can be merged.
func (r Revocation) Key() RevocationKey {
	return RevocationKey{r.Token, r.Tenant, r.Subject, r.Host}
}

// Check returns an error if the revocation is malformed.
func (r Revocation) Check() error {
	named := slices.DeleteFunc([]string{r.Token, r.Subject, r.Host}, func(name string) bool { return name == "" })
	switch {
	case len(named) != 1:
		return errors.New("revocation: want exactly one of token, subject and host")
	case r.At.IsZero():
		return errors.New("revocation: no time")
	case r.Token != "" && r.Tenant != "":
		return errors.New("revocation: token with tenant; want the token's ID alone")
	case r.Token != "":
		if CheckSubject(r.Token) != nil {
			return fmt.Errorf("revocation: token ID is longer than %d bytes, or unprintable", MaxSubjectLen)
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

// Covers reports whether the revocation ends a token that has its target and was issued at
// the given time. If the target is a single token, the time does not count.
func (r Revocation) Covers(issued time.Time) bool {
	return r.Token != "" || issued.Unix() <= r.At.Unix() // tokens have times in seconds
}

// Expired reports whether all revoked tokens have expired.
func (r Revocation) Expired(now time.Time) bool {
	return !r.Until.IsZero() && now.After(r.Until.Add(Leeway))
}

// Merge combines two revocations with the same target. The result ends everything that
// either of them ends.
func (r Revocation) Merge(o Revocation) Revocation {
	derived := r.derived()
	if o.derived().After(derived) {
		derived = o.derived()
	}
	if o.At.After(r.At) {
		r.At = o.At
	}
	r.Alone = r.Alone && o.Alone
	if r.By != o.By {
		r.By = ""
	}
	if r.Derived = derived; r.Token != "" || r.Alone || derived.Equal(r.At) { // a token's derived grants have a revocation of their own
		r.Derived = time.Time{}
	}
	switch {
	case o.Until.IsZero():
		r.Until = o.Until
	case !r.Until.IsZero() && o.Until.After(r.Until):
		r.Until = o.Until
	}
	return r
}

// Keys returns the revocation targets that end the client's token.
func (c Client) Keys() []RevocationKey {
	keys := []RevocationKey{{Token: c.ID}, {Tenant: c.Tenant, Subject: c.Subject}}
	if c.Device != "" {
		keys = append(keys, RevocationKey{Token: c.Device})
	}
	return keys
}

// A Holder identifies a client that has received something from a host, such as its keys.
// Host-agents ask relays which holders are revoked.
type Holder struct {
	Token   string    `json:"token,omitempty"`
	Device  string    `json:"device,omitempty"`
	Subject string    `json:"subject"`
	At      time.Time `json:"at"`                // revocations of Subject before this time do not count
	Origins []Origin  `json:"origins,omitempty"` // origins of the token
}

// Holder returns the client as a Holder.
func (c Client) Holder() Holder {
	return Holder{Token: c.ID, Device: c.Device, Subject: c.Subject, At: c.IssuedAt, Origins: c.Origins}
}

// Keys returns the revocation targets that end the enrolment.
func (e Enrolment) Keys() []RevocationKey {
	return []RevocationKey{{Token: e.ID}, {Tenant: e.Tenant, Host: e.Host}}
}
