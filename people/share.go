package people

import (
	"errors"
	"slices"
	"time"

	"ahprelay/auth"
)

// maxShares bounds the links of a person's that are good at a time.
const maxShares = 256

// A Share is a link that somebody has made for others. It is a token of its own, which is
// not kept: its ID is.
type Share struct {
	ID      string      `json:"id"` // of the token
	Tenant  string      `json:"tenant"`
	By      string      `json:"by"` // who has made it
	Subject string      `json:"subject"`
	Host    string      `json:"host"`
	Session string      `json:"session"`
	Access  auth.Access `json:"access"`
	People  int         `json:"people"` // connections at a time
	Made    time.Time   `json:"made"`
	Expires time.Time   `json:"expires"`
}

const sharePrefix = "share."

// Keep keeps a share.
func (d *Desk) Keep(s Share) error {
	theirs, err := d.Shares(s.Tenant, s.By)
	if err != nil {
		return err
	}
	if len(theirs) >= maxShares {
		return ErrTooMany
	}
	return update(d.store, sharePrefix+s.ID, func(*Share) (*Share, error) { return &s, nil })
}

// Shares returns those of a person, or of all of a tenant for "", that are good now, the newest
// first.
func (d *Desk) Shares(tenant, by string) (list []Share, err error) {
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
func (d *Desk) EndShares() ([]Share, error) {
	return forget(d.store, sharePrefix, func(s *Share) bool { return d.now().After(s.Expires) })
}

// EndInvites is EndShares of invitations that nobody has used.
func (d *Desk) EndInvites() ([]Invite, error) {
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
func (d *Desk) TakeBack(id string) error {
	return d.store.Update(sharePrefix+id, func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, ErrNone
		}
		return nil, nil
	})
}
