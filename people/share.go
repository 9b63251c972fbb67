package people

import (
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

// Keep keeps a share, and forgets those that are over.
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
	for key, s := range found {
		switch {
		case d.now().After(s.Expires):
			if e := d.store.Update(key, func([]byte) ([]byte, error) { return nil, nil }); e != nil {
				return nil, e
			}
		case s.Tenant == tenant && (by == "" || s.By == by):
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b Share) int { return b.Made.Compare(a.Made) })
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
