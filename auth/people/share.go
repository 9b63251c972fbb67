package people

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
)

// maxShares is the largest number of valid links made by a person.
const maxShares = 256

// A Share is a link to a session that a person has made for others. All who use the link
// get the same token, and the link expires with that token.
type Share struct {
	ID      string      `json:"id"`               // of the token
	Secret  string      `json:"secret,omitempty"` // hash of the link's secret; "": there is no short link
	Tenant  string      `json:"tenant"`
	By      string      `json:"by"` // the person who made it
	Subject string      `json:"subject"`
	Host    string      `json:"host"`
	Session string      `json:"session"`
	Access  auth.Access `json:"access"`
	Files   bool        `json:"files,omitempty"`
	Methods []string    `json:"methods,omitempty"`
	Device  string      `json:"device,omitempty"` // the link ends when this device is removed; "": no device
	People  int         `json:"people"`           // connections at the same time, at each relay
	Made    time.Time   `json:"made"`
	Expires time.Time   `json:"expires"`

	Origins []auth.Origin `json:"origins,omitempty"` // grants from which the link is derived; it ends when any of them is revoked
}

// Client returns the authority of the link's token. Viewers with the level look may share
// connections.
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

// Keep stores a share, and returns the secret for its link.
func (d *Directory) Keep(s Share) (secret string, err error) {
	theirs, err := d.Shares(s.Tenant, s.By)
	if err != nil {
		return "", err
	}
	if len(theirs) >= maxShares {
		return "", ErrTooMany
	}
	if err := d.roomIn(s.Tenant); err != nil {
		return "", err
	}
	secret = rand.Text()
	s.Secret = hashed(secret)
	return secret, update(d.store, sharePrefix+s.ID, func(*Share) (*Share, error) { return &s, nil })
}

// Follow returns the share for a link's secret. It returns ErrNone if the share was
// withdrawn or has expired, and another error if its device or an origin is revoked, or if
// the store is unreachable and the share is not known here.
func (d *Directory) Follow(secret string) (Share, error) {
	s, err := d.follow(hashed(secret))
	if errors.Is(err, ErrNone) {
		if err := d.store.CatchUp(); err != nil { // a different relay may just have stored the share
			return Share{}, err
		}
		s, err = d.follow(hashed(secret))
	}
	return s, err
}

func (d *Directory) follow(hash string) (Share, error) {
	raws, err := d.store.All(sharePrefix)
	if err != nil {
		return Share{}, err
	}
	for _, raw := range raws {
		if !bytes.Contains(raw, []byte(hash)) { // anybody may ask, and decoding thousands of records takes long
			continue
		}
		var s Share
		if json.Unmarshal(raw, &s) == nil && s.Secret == hash && !d.now().After(s.Expires) {
			return s, d.stillIn(s.Tenant, s.Device, s.Origins)
		}
	}
	return Share{}, ErrNone
}

// Shares returns the valid shares made by a person, newest first. If by is "", it returns
// those of all people in the tenant.
func (d *Directory) Shares(tenant, by string) ([]Share, error) {
	found, err := all[Share](d.store, sharePrefix)
	list := slices.DeleteFunc(slices.Collect(maps.Values(found)), func(s Share) bool {
		return d.now().After(s.Expires) || s.Tenant != tenant || by != "" && s.By != by || d.Revoked(tenant, s.Origins)
	})
	slices.SortFunc(list, func(a, b Share) int { return b.Made.Compare(a.Made) })
	return list, exceptDamaged(err)
}

// EndShares deletes expired shares. It returns the deleted shares, without those that a
// different relay has deleted first.
func (d *Directory) EndShares() ([]Share, error) {
	return forget(d.store, sharePrefix, func(s *Share) bool { return d.now().After(s.Expires) })
}

// EndInvites deletes expired invitations. It returns the unused ones among them, without
// those that a different relay has deleted first. It also deletes setups whose time is over.
func (d *Directory) EndInvites() ([]Invite, error) {
	list, err := forget(d.store, invitePrefix, func(i *Invite) bool { return d.now().After(i.Expires) })
	_, e := forget(d.store, setupPrefix, func(s *setup) bool { return d.now().After(s.Until) })
	return slices.DeleteFunc(list, func(i Invite) bool { return i.Key != "" }), errors.Join(err, e)
}

// An OpenInvite is a valid invitation, with an ID that does not reveal its secret.
type OpenInvite struct {
	ID string
	Invite
}

// inviteIDLen is the length of an invitation's ID, a prefix of its secret's hash.
const inviteIDLen = 16

// Invites returns the open invitations in a tenant, latest expiry first.
func (d *Directory) Invites(tenant string) (list []OpenInvite, err error) {
	found, err := all[Invite](d.store, invitePrefix)
	owned, e := d.HasOwner(tenant)
	for key, one := range found {
		open := one.Person.Tenant == tenant && one.Key == "" && !d.now().After(one.Expires) && !(one.Setup && owned)
		if open && one.stands(d) == nil {
			list = append(list, OpenInvite{key[len(invitePrefix):][:inviteIDLen], one})
		}
	}
	slices.SortFunc(list, func(a, b OpenInvite) int { return cmp.Or(b.Expires.Compare(a.Expires), strings.Compare(a.ID, b.ID)) })
	return list, errors.Join(exceptDamaged(err), e)
}

// Withdraw deletes an open invitation. It returns ErrNone if the invitation was used or
// has expired.
func (d *Directory) Withdraw(tenant, id string) error {
	found, err := all[Invite](d.store, invitePrefix)
	if err := exceptDamaged(err); err != nil {
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

// EndRevoked deletes removed devices and everything derived from a revoked grant. It
// returns the deleted links and invitations, as EndShares and EndInvites do. Devices must
// be deleted, because they never expire, while their revocation is forgotten when their
// tokens have expired.
func (d *Directory) EndRevoked() (shares []Share, invites []Invite, err error) {
	_, err = forget(d.store, devicePrefix, func(one *Device) bool { return d.Removed(*one) })
	shares, e := forget(d.store, sharePrefix, func(s *Share) bool { return d.Revoked(s.Tenant, s.Origins) })
	err = errors.Join(err, e)
	invites, e = forget(d.store, invitePrefix, func(i *Invite) bool { return d.Revoked(i.Person.Tenant, i.Person.Origins) })
	invites = slices.DeleteFunc(invites, func(i Invite) bool { return i.Key != "" })
	err = errors.Join(err, e)
	_, e = forget(d.store, requestPrefix, func(r *Request) bool {
		return r.Approved != nil && d.Revoked(r.Approved.Tenant, r.Approved.Origins)
	})
	return shares, invites, errors.Join(err, e, d.endRevokedPeople())
}

// endRevokedPeople deletes people whose access is derived from a revoked grant. If such a
// person has devices that are not removed, the person stays, with the origins of the oldest
// of these devices.
func (d *Directory) endRevokedPeople() error {
	found, err := all[Person](d.store, personPrefix)
	for key, p := range found {
		if !d.Revoked(p.Tenant, p.Origins) {
			continue
		}
		devices, e := d.allDevices(p.Tenant, p.Subject)
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

// forget deletes the records of a type for which over returns true. It returns the deleted
// records, without those that a different relay has deleted first. It keeps damaged records.
func forget[T any](s Store, prefix string, over func(*T) bool) (list []T, err error) {
	found, err := all[T](s, prefix)
	err = exceptDamaged(err)
	for key, one := range found {
		if !over(&one) {
			continue
		}
		var gone *T
		e := update(s, key, func(old *T) (*T, error) { // it may have changed since it was read
			if gone = nil; old == nil || !over(old) {
				return old, nil
			}
			gone = old
			return nil, nil
		})
		if gone != nil && e == nil {
			list = append(list, *gone)
		}
		err = errors.Join(err, e)
	}
	return list, err
}

// TakeBack deletes a share. The caller must revoke its token.
func (d *Directory) TakeBack(id string) error {
	return d.store.Update(sharePrefix+id, func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, ErrNone
		}
		return nil, nil
	})
}
