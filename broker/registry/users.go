package registry

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/internal/clock"

	"github.com/nats-io/nkeys"
)

// maxUsers bounds the NATS users that are recorded per host. Beyond it, the users that
// expire first are merged into auth.AllUsers. To disconnect a merged user, NATS must
// disconnect all users of the tenant, who then log in again.
const maxUsers = 16

// userSlack allows for a NATS server's clock that is late.
const userSlack = time.Minute

// A natsUser is the NATS user that a host-agent has received for a token.
type natsUser struct {
	NKey    string    `json:"nkey"`    // public key, or auth.AllUsers
	Token   string    `json:"token"`   // id of the token; empty for auth.AllUsers
	Issued  time.Time `json:"issued"`  // when the token was issued; the earliest time for auth.AllUsers
	Expires time.Time `json:"expires"` // when the user's credentials expire

	Origins []auth.Origin `json:"origins,omitempty"` // origins of the token
}

// newer reports whether u replaces another user with the same nkey.
func (u natsUser) newer(than natsUser) bool {
	return cmp.Or(u.Expires.Compare(than.Expires), u.Issued.Compare(than.Issued), strings.Compare(u.Token, than.Token)) > 0
}

func (u natsUser) equal(o natsUser) bool {
	return u.NKey == o.NKey && u.Token == o.Token && u.Issued == o.Issued && u.Expires == o.Expires && slices.Equal(u.Origins, o.Origins)
}

// natsUsers are a host's users, sorted by NKey. A list is never changed in place.
type natsUsers []natsUser

func (u natsUsers) equal(o natsUsers) bool { return slices.EqualFunc(u, o, natsUser.equal) }

// with returns the union of u and more. For equal nkeys, the newer user stays.
func (u natsUsers) with(more ...natsUser) natsUsers {
	if len(more) == 0 {
		return u
	}
	all := slices.Clone(u)
	for _, m := range more {
		i, found := slices.BinarySearchFunc(all, m.NKey, func(a natsUser, key string) int { return strings.Compare(a.NKey, key) })
		switch {
		case !found:
			all = slices.Insert(all, i, m)
		case m.NKey == auth.AllUsers:
			all[i].Issued, all[i].Expires = earlier(all[i].Issued, m.Issued), clock.Later(all[i].Expires, m.Expires)
		case m.newer(all[i]):
			all[i] = m
		}
	}
	return all.bounded()
}

// bounded merges users beyond maxUsers into auth.AllUsers.
func (u natsUsers) bounded() natsUsers {
	named := slices.DeleteFunc(slices.Clone(u), func(user natsUser) bool { return user.NKey == auth.AllUsers })
	if len(named) <= maxUsers {
		return u
	}
	slices.SortFunc(named, func(a, b natsUser) int { return cmp.Or(a.Expires.Compare(b.Expires), strings.Compare(a.NKey, b.NKey)) })
	rest := named[:len(named)-maxUsers]
	kept := slices.DeleteFunc(slices.Clone(u), func(user natsUser) bool {
		return slices.ContainsFunc(rest, func(r natsUser) bool { return r.NKey == user.NKey })
	})
	for i := range rest {
		rest[i].NKey, rest[i].Token, rest[i].Origins = auth.AllUsers, "", nil
	}
	return kept.with(rest...)
}

func (u natsUsers) current(now time.Time) natsUsers {
	over := func(user natsUser) bool { return now.After(user.Expires.Add(userSlack)) }
	if !slices.ContainsFunc(u, over) {
		return u
	}
	return slices.DeleteFunc(slices.Clone(u), over)
}

func (u natsUsers) check() error {
	if len(u) > maxUsers+1 {
		return errors.New("too many NATS users")
	}
	for i, user := range u {
		if user.NKey != auth.AllUsers && !nkeys.IsValidPublicUserKey(user.NKey) {
			return errors.New("NATS user without an nkey")
		}
		if i > 0 && u[i-1].NKey >= user.NKey {
			return errors.New("NATS users are not sorted")
		}
	}
	return nil
}
