package people

import (
	"cmp"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
)

// maxShares bounds the links of a person's that are good at a time.
const maxShares = 256

// A Share is a link that somebody has made for others. Who has it gets a token of its own, the same
// for all: so the link is short, and ends with the token.
type Share struct {
	ID      string      `json:"id"`               // of the token
	Secret  string      `json:"secret,omitempty"` // of the link, as a hash; "": it is not shown
	Tenant  string      `json:"tenant"`
	By      string      `json:"by"` // who has made it
	Subject string      `json:"subject"`
	Host    string      `json:"host"`
	Session string      `json:"session"`
	Access  auth.Access `json:"access"`
	Files   bool        `json:"files,omitempty"`
	Methods []string    `json:"methods,omitempty"`
	Device  string      `json:"device,omitempty"` // with which it ends; "": none
	People  int         `json:"people"`           // connections at a time
	Made    time.Time   `json:"made"`
	Expires time.Time   `json:"expires"`

	Origins []auth.Origin `json:"origins,omitempty"` // the grants that made it, with each of which it ends
}

// Client returns what the link's token allows. Who only looks watches with the others.
func (s *Share) Client() auth.Client {
	c := auth.Client{
		ID: s.ID, Tenant: s.Tenant, Subject: s.Subject, Hosts: []string{s.Host}, Channels: []string{s.Session}, Methods: s.Methods,
		Access: s.Access, Files: s.Files, MaxConnections: s.People, Device: s.Device, Expires: s.Expires, Origins: s.Origins,
	}
	if c.Access == auth.AccessRead {
		c.Audience = c.Subject
	}
	return c
}

const sharePrefix = "share."

// Keep keeps a share, and returns the secret of its link.
func (d *Directory) Keep(s Share) (secret string, err error) {
	theirs, err := d.Shares(s.Tenant, s.By)
	if err != nil {
		return "", err
	}
	if len(theirs) >= maxShares {
		return "", ErrTooMany
	}
	secret = rand.Text()
	s.Secret = hashed(secret)
	return secret, update(d.store, sharePrefix+s.ID, func(*Share) (*Share, error) { return &s, nil })
}

// Follow returns the share whose link has the secret. The error is ErrNone for one that was taken back, or
// is over.
func (d *Directory) Follow(secret string) (Share, error) {
	found, err := all[Share](d.store, sharePrefix)
	if err != nil {
		return Share{}, err
	}
	hash := []byte(hashed(secret))
	for _, s := range found {
		if subtle.ConstantTimeCompare([]byte(s.Secret), hash) == 1 && !d.now().After(s.Expires) {
			return s, d.stillIn(s.Tenant, s.Device, s.Origins)
		}
	}
	return Share{}, ErrNone
}

// Shares returns those of a person, or of all of a tenant for "", that are good now, the newest
// first.
func (d *Directory) Shares(tenant, by string) (list []Share, err error) {
	found, err := all[Share](d.store, sharePrefix)
	for _, s := range found {
		if !d.now().After(s.Expires) && s.Tenant == tenant && (by == "" || s.By == by) && !d.Revoked(tenant, s.Origins) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b Share) int { return b.Made.Compare(a.Made) })
	return list, err
}

// EndShares forgets the shares that are over, and returns those that nobody else has forgotten.
func (d *Directory) EndShares() ([]Share, error) {
	return forget(d.store, sharePrefix, func(s *Share) bool { return d.now().After(s.Expires) })
}

// EndInvites is EndShares of invitations that nobody has used.
func (d *Directory) EndInvites() ([]Invite, error) {
	list, err := forget(d.store, invitePrefix, func(i *Invite) bool { return d.now().After(i.Expires) })
	return slices.DeleteFunc(list, func(i Invite) bool { return i.Key != "" }), err
}

// An OpenInvite is an invitation that is good now, under a name that does not let anybody in.
type OpenInvite struct {
	ID string
	Invite
}

// inviteIDLen is how much of the hash of its secret names an invitation.
const inviteIDLen = 16

// Invites returns the open invitations of a tenant, the one that ends last first.
func (d *Directory) Invites(tenant string) (list []OpenInvite, err error) {
	found, err := all[Invite](d.store, invitePrefix)
	owned, e := d.HasOwner(tenant)
	for key, one := range found {
		open := one.Person.Tenant == tenant && one.Key == "" && !d.now().After(one.Expires) && !(one.Setup && owned)
		if open && d.stillIn(tenant, one.By, one.Person.Origins) == nil {
			list = append(list, OpenInvite{key[len(invitePrefix):][:inviteIDLen], one})
		}
	}
	slices.SortFunc(list, func(a, b OpenInvite) int { return cmp.Or(b.Expires.Compare(a.Expires), strings.Compare(a.ID, b.ID)) })
	return list, errors.Join(err, e)
}

// Withdraw forgets an open invitation of a tenant. The error is ErrNone for an invitation that was used, or is over.
func (d *Directory) Withdraw(tenant, id string) error {
	found, err := all[Invite](d.store, invitePrefix)
	if err != nil {
		return err
	}
	for key := range found {
		if key[len(invitePrefix):][:inviteIDLen] != id {
			continue
		}
		return update(d.store, key, func(old *Invite) (*Invite, error) {
			if old == nil || old.Person.Tenant != tenant || old.Key != "" {
				return nil, ErrNone
			}
			return nil, nil
		})
	}
	return ErrNone
}

// EndRevoked forgets everything that was derived from a grant that is revoked, and devices that are removed. It
// returns the links and invitations among them, as EndShares and EndInvites do. Revocations are forgotten once
// the tokens that they ended have expired, and a device never expires: so it must not stay in the store.
func (d *Directory) EndRevoked() (shares []Share, invites []Invite, err error) {
	_, err = forget(d.store, devicePrefix, func(one *Device) bool { return d.Removed(*one) })
	shares, e := forget(d.store, sharePrefix, func(s *Share) bool { return d.Revoked(s.Tenant, s.Origins) })
	err = errors.Join(err, e)
	invites, e = forget(d.store, invitePrefix, func(i *Invite) bool { return d.Revoked(i.Person.Tenant, i.Person.Origins) })
	err = errors.Join(err, e)
	_, e = forget(d.store, requestPrefix, func(r *Request) bool {
		return r.Approved != nil && d.Revoked(r.Approved.Tenant, r.Approved.Origins)
	})
	return shares, invites, errors.Join(err, e, d.endRevokedPeople())
}

// endRevokedPeople forgets the people who came in by a grant that is revoked. A person with a device that came in by
// another grant stays, with the origins of that one.
func (d *Directory) endRevokedPeople() error {
	found, err := all[Person](d.store, personPrefix)
	for key, p := range found {
		if !d.Revoked(p.Tenant, p.Origins) {
			continue
		}
		devices, e := d.Devices(p.Tenant, p.Subject)
		if e == nil {
			e = update(d.store, key, func(old *Person) (*Person, error) {
				if old == nil || !d.Revoked(old.Tenant, old.Origins) {
					return old, nil
				}
				if len(devices) == 0 {
					return nil, nil
				}
				old.Origins = devices[len(devices)-1].Origins
				return old, nil
			})
		}
		err = errors.Join(err, e)
	}
	return err
}

// forget removes the records of a type that are over, and returns those that it was who removed.
func forget[T any](s Store, prefix string, over func(*T) bool) (list []T, err error) {
	found, err := all[T](s, prefix)
	for key, one := range found {
		if !over(&one) {
			continue
		}
		first := false
		e := s.Update(key, func(old []byte) ([]byte, error) {
			first = old != nil
			return nil, nil
		})
		if first && e == nil {
			list = append(list, one)
		}
		err = errors.Join(err, e)
	}
	return list, err
}

// TakeBack forgets a share. Its token the caller revokes.
func (d *Directory) TakeBack(id string) error {
	return d.store.Update(sharePrefix+id, func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, ErrNone
		}
		return nil, nil
	})
}
