package auth

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ahprelay/ahp"
)

// Limits of a grant's origins. A canvas session carries them in a cookie, so they are short.
const (
	// MaxOrigins is how many grants may stand between a grant and that of the operator.
	MaxOrigins = 16

	// MaxOriginsText is how many bytes the names in a grant's origins may have together.
	MaxOriginsText = 1 << 10
)

// ErrTooDerived reports a grant that would have more origins than a token can carry.
var ErrTooDerived = errors.New("too many grants stand between this one and the operator's: ask the operator for a link of your own (relay setup-link)")

// An Origin is a grant from which another grant of the same tenant was derived: a token, a device, or the
// credential of a host-agent. Each grant carries all of its origins, the nearest first, so that any relay sees without
// a store that one of them is revoked.
type Origin struct {
	ID      string `json:"id"`             // of the token or device
	Subject string `json:"sub,omitempty"`  // of that grant; "": it is a host-agent's
	Host    string `json:"host,omitempty"` // of a host-agent's
	Issued  int64  `json:"iat"`            // of that grant, in Unix seconds
}

// CheckOrigins reports why origins cannot be those of a grant.
func CheckOrigins(origins []Origin) error {
	if len(origins) > MaxOrigins {
		return ErrTooDerived
	}
	size := 0
	for _, o := range origins {
		size += len(o.ID) + len(o.Subject) + len(o.Host)
		switch {
		case CheckSubject(o.ID) != nil || len(o.ID) > maxOriginID:
			return errors.New("origin: its ID is none")
		case (o.Subject == "") == (o.Host == ""):
			return errors.New("origin: want one of subject and host")
		case o.Subject != "" && CheckSubject(o.Subject) != nil:
			return errors.New("origin: its subject is none")
		case o.Host != "" && ahp.CheckName("host", o.Host) != nil:
			return errors.New("origin: its host is none")
		}
	}
	if size > MaxOriginsText {
		return fmt.Errorf("%w (%d bytes; want at most %d)", ErrTooDerived, size, MaxOriginsText)
	}
	return nil
}

// Derive returns the origins of a grant that the client's token makes. A token that is bound to a device's key lasts for
// minutes, and its device stands for it.
func (c Client) Derive() []Origin {
	origins := c.Origins
	if c.Device != "" && !slices.ContainsFunc(origins, func(o Origin) bool { return o.ID == c.Device }) {
		// The relay that made the token did not know origins.
		origins = before(Origin{ID: c.Device, Subject: c.Subject, Issued: c.IssuedAt.Unix()}, origins)
	}
	if c.Key != "" && c.Device != "" {
		return origins
	}
	return before(Origin{ID: c.ID, Subject: c.Subject, Issued: c.IssuedAt.Unix()}, origins)
}

// DeriveFromDevice returns the origins of a grant that a device makes. Added is when the device came in, origins are its own.
func DeriveFromDevice(id, subject string, added time.Time, origins []Origin) []Origin {
	return before(Origin{ID: id, Subject: subject, Issued: added.Unix()}, origins)
}

// Derive returns the origins of a grant that the holder of the enrolment makes.
func (e Enrolment) Derive() []Origin {
	return before(Origin{ID: e.ID, Host: e.Host, Issued: e.IssuedAt.Unix()}, e.Origins)
}

// Renewed returns the origins of the credential that replaces the enrolment. Its family begins with at most two
// origins of the host: an enrolment token and the first credential, or the first two credentials.
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

// AllOrigins returns the origins of the enrolment, with the credential that it replaces.
func (e Enrolment) AllOrigins() []Origin {
	if e.Former == nil {
		return e.Origins
	}
	return before(Origin{ID: e.Former.ID, Host: e.Host, Issued: e.IssuedAt.Unix()}, e.Origins)
}

// before returns origins with one more in front, in memory of its own.
func before(nearest Origin, origins []Origin) []Origin {
	return append([]Origin{nearest}, origins...)
}

// keys returns the keys of revocations that end what was derived from the origin.
func (o Origin) keys(tenant string) [2]RevocationKey {
	if o.Host != "" {
		return [2]RevocationKey{{Token: derivedPrefix + o.ID}, {Tenant: tenant, Host: o.Host}}
	}
	return [2]RevocationKey{{Token: derivedPrefix + o.ID}, {Tenant: tenant, Subject: o.Subject}}
}

// EachOrigin calls see with each key that ends a grant with these origins when it is revoked, and with the time at which
// that origin was issued.
func EachOrigin(tenant string, origins []Origin, see func(key RevocationKey, issued time.Time)) {
	for _, o := range origins {
		for _, key := range o.keys(tenant) {
			see(key, time.Unix(o.Issued, 0))
		}
	}
}
