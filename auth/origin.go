package auth

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ahprelay/ahp"
)

// Limits for a grant's origins. They are low because a canvas session carries the origins
// in a cookie.
const (
	// MaxOrigins is the largest number of a grant's origins.
	MaxOrigins = 16

	// MaxOriginsText is the largest total length of the names in a grant's origins, in
	// bytes.
	MaxOriginsText = 1 << 10
)

// ErrTooDerived reports a grant with more origins than a token can contain.
var ErrTooDerived = errors.New("too many grants between this grant and the operator's: ask the operator for a direct link (relay setup-link)")

// An Origin is a grant from which another grant in the same tenant was derived: a token,
// a device, or a host-agent's credential. Each grant contains all its origins, nearest
// first. So a relay can detect that an origin is revoked without a lookup.
type Origin struct {
	ID      string `json:"id"`             // ID of the token or device
	Subject string `json:"sub,omitempty"`  // the origin's subject; "": it is a host-agent's
	Host    string `json:"host,omitempty"` // the host-agent's host
	Issued  int64  `json:"iat"`            // in Unix seconds
}

// CheckOrigins returns an error if a grant cannot have these origins.
func CheckOrigins(origins []Origin) error {
	if len(origins) > MaxOrigins {
		return ErrTooDerived
	}
	size := 0
	for _, o := range origins {
		size += len(o.ID) + len(o.Subject) + len(o.Host)
		switch {
		case CheckSubject(o.ID) != nil || len(o.ID) > maxOriginID:
			return errors.New("origin: invalid ID")
		case (o.Subject == "") == (o.Host == ""):
			return errors.New("origin: want either subject or host")
		case o.Subject != "" && CheckSubject(o.Subject) != nil:
			return errors.New("origin: invalid subject")
		case o.Host != "" && ahp.CheckName("host", o.Host) != nil:
			return errors.New("origin: invalid host")
		}
	}
	if size > MaxOriginsText {
		return fmt.Errorf("%w (%d bytes; want at most %d)", ErrTooDerived, size, MaxOriginsText)
	}
	return nil
}

// Derive returns the origins for a grant that is made with the client's token. A token
// bound to a device's key is valid for minutes only, so the device is the origin instead
// of the token.
func (c Client) Derive() []Origin {
	origins := c.Origins
	if c.Device != "" && !slices.ContainsFunc(origins, func(o Origin) bool { return o.ID == c.Device }) {
		// This token was made before relays recorded origins.
		origins = before(Origin{ID: c.Device, Subject: c.Subject, Issued: c.IssuedAt.Unix()}, origins)
	}
	if c.Key != "" && c.Device != "" {
		return origins
	}
	return before(Origin{ID: c.ID, Subject: c.Subject, Issued: c.IssuedAt.Unix()}, origins)
}

// DeriveFromDevice returns the origins for a grant made by a device.
func DeriveFromDevice(id, subject string, added time.Time, origins []Origin) []Origin {
	return before(Origin{ID: id, Subject: subject, Issued: added.Unix()}, origins)
}

// Derive returns the origins for a grant made with the enrolment.
func (e Enrolment) Derive() []Origin {
	return before(Origin{ID: e.ID, Host: e.Host, Issued: e.IssuedAt.Unix()}, e.Origins)
}

// Renewed returns the origins for the credential that replaces this enrolment. It limits
// the origins that belong to the host itself to two: an enrolment token and the first
// credential, or the first two credentials.
func (e Enrolment) Renewed() []Origin {
	family := 0
	for _, o := range e.Origins {
		if o.Host != "" {
			family++
		}
	}
	if family < 2 {
		return e.Derive()
	}
	return e.Origins
}

// AllOrigins returns the enrolment's origins, including the credential that it replaces.
func (e Enrolment) AllOrigins() []Origin {
	if e.Replaces == nil {
		return e.Origins
	}
	return before(Origin{ID: e.Replaces.ID, Host: e.Host, Issued: e.IssuedAt.Unix()}, e.Origins)
}

// before returns a new slice with nearest in front of origins.
func before(nearest Origin, origins []Origin) []Origin {
	return append([]Origin{nearest}, origins...)
}

// keys returns the revocation targets that end everything derived from the origin.
func (o Origin) keys(tenant string) [2]RevocationKey {
	if o.Host != "" {
		return [2]RevocationKey{{Token: derivedPrefix + o.ID}, {Tenant: tenant, Host: o.Host}}
	}
	return [2]RevocationKey{{Token: derivedPrefix + o.ID}, {Tenant: tenant, Subject: o.Subject}}
}

// EachOrigin calls see for each revocation target that ends a grant with these origins.
// issued is when the origin with this target was issued.
func EachOrigin(tenant string, origins []Origin, see func(key RevocationKey, issued time.Time)) {
	for _, o := range origins {
		for _, key := range o.keys(tenant) {
			see(key, time.Unix(o.Issued, 0))
		}
	}
}
