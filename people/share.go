package people

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"slices"
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
}

// Client returns what the link's token allows. Who only looks watches with the others.
func (s *Share) Client() auth.Client {
	c := auth.Client{
		ID: s.ID, Tenant: s.Tenant, Subject: s.Subject, Hosts: []string{s.Host}, Channels: []string{s.Session}, Methods: s.Methods,
		Access: s.Access, Files: s.Files, MaxConnections: s.People, Device: s.Device, Expires: s.Expires,
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
			return s, d.stillIn(s.Device)
		}
	}
	return Share{}, ErrNone
}

// Shares returns those of a person, or of all of a tenant for "", that are good now, the newest
// first.
func (d *Directory) Shares(tenant, by string) (list []Share, err error) {
	found, err := all[Share](d.store, sharePrefix)
	for _, s := range found {
		if !d.now().After(s.Expires) && s.Tenant == tenant && (by == "" || s.By == by) {
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
