package registry

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"ahprelay/link"
)

// A hostState is what relays know of one host, tell each other and keep.
// [hostState.newer] says which of two counts.
type hostState struct {
	Key      string    `json:"host"` // "<tenant>.<name>"
	Enrolled time.Time `json:"enrolled"`
	LastSeen time.Time `json:"lastSeen,omitzero"`  // when Lease was last renewed or released, by the clock of the relay that was asked
	Lease    *lease    `json:"lease,omitempty"`    // the last one, which may have ended; nil: nobody ever held the host. Never changed in place
	Revision uint64    `json:"revision,omitempty"` // higher after each change, wherever it is made
	Age      int64     `json:"age,omitempty"`      // on the wire: milliseconds since Lease was renewed
	Users    natsUsers `json:"users,omitempty"`    // that its host-agents were given
}

// A knownHost is a hostState at one relay.
type knownHost struct {
	hostState
	renewed time.Time // when Lease was, by this process's clock
	alive   bool      // Lease is held, and has not run out

	last Host // what subscribers were told, without times that only progress
}

// empty reports whether a state says nothing.
func (s *hostState) empty() bool { return s.Enrolled.IsZero() && s.Lease == nil }

// hostKey is the key of a host.
func hostKey(tenant, host string) string { return tenant + "." + host }

// newer reports whether a counts, of two states of the same host. Requests of
// one instance are numbered. A lease that is renewed comes before one that has
// run out, which relays that could not hear the renewals may not know. Else the
// later change counts; where two relays made one at the same time, all relays
// must agree on any of the two.
func (k *knownHost) newer(than *knownHost) bool {
	a, b := k.Lease, than.Lease
	switch {
	case a == nil || b == nil:
		return a != nil
	case a.Instance == b.Instance:
		return a.Seq > b.Seq
	case k.alive != than.alive:
		return k.alive
	case !k.alive && !k.LastSeen.Equal(than.LastSeen):
		return k.LastSeen.After(than.LastSeen)
	}
	return cmp.Or(cmp.Compare(k.Revision, than.Revision), strings.Compare(a.Instance, b.Instance)) > 0
}

// merge takes what another relay, or the run before this, knows of the host. It
// reports whether that was something new, and whether more than a renewal.
func (k *knownHost) merge(o *knownHost) (changed, news bool) {
	take := o.newer(k)
	k.Revision = max(k.Revision, o.Revision)
	if first := earlier(k.Enrolled, o.Enrolled); !first.Equal(k.Enrolled) {
		k.Enrolled, changed, news = first, true, true
	}
	if users := k.Users.with(o.Users...); !slices.Equal(users, k.Users) {
		k.Users, changed = users, true
	}
	if take {
		news = news || !o.renews(k)
		k.Lease, k.LastSeen, k.renewed, k.alive = o.Lease, o.LastSeen, o.renewed, o.alive
	}
	return changed || take, news
}

// renews reports whether k says nothing new but that the lease goes on.
func (k *knownHost) renews(o *knownHost) bool {
	return k.alive && o.alive && k.Lease.Instance == o.Lease.Instance && k.Lease.Presence == o.Lease.Presence
}

// earlier returns the earlier of two times, of which zero ones do not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// known returns a state as of now, that came from elsewhere.
func (s *hostState) known(now time.Time, ttl time.Duration) *knownHost {
	age := time.Duration(min(max(s.Age, 0), 2*ttl.Milliseconds())) * time.Millisecond
	k := &knownHost{hostState: *s, renewed: now.Add(-age), alive: s.Lease.held() && age < ttl}
	k.Age, k.Users = 0, s.Users.current(now)
	return k
}

// wire returns the state for other relays.
func (k *knownHost) wire(now time.Time) hostState {
	s := k.hostState
	s.Age = max(now.Sub(k.renewed).Milliseconds(), 0)
	return s
}

// current returns the lease that a request meets: nil if there is none, or if
// it ran out.
func (k *knownHost) current() *lease {
	if k.Lease.held() && !k.alive {
		return nil
	}
	return k.Lease
}

// downSince returns since when a host is offline that nobody holds.
func (k *knownHost) downSince() time.Time {
	switch {
	case k.Lease == nil:
		return k.Enrolled
	case k.Lease.Presence.State == Offline:
		return k.Lease.Since
	}
	return k.LastSeen
}

// describe says what a state comes to, for a relay of the given version.
func (k *knownHost) describe(version string) Host {
	tenant, name, _ := strings.Cut(k.Key, ".")
	h := Host{
		Tenant: tenant, Name: name, State: Offline, Since: k.downSince(), Reason: reasonLost,
		LastSeen: k.LastSeen, Enrolled: k.Enrolled,
	}
	if k.Lease == nil {
		h.Reason = reasonNever
		return h
	}
	p := k.Lease.Presence
	h.AgentVersion, h.HostVersion = p.AgentVersion, p.HostVersion
	switch {
	case k.Lease.Released:
		h.Reason, h.Released = p.Reason, k.Lease.Instance
	case k.alive:
		h.State, h.Since, h.Reason = p.State, k.Lease.Since, p.Reason
		h.AgentInstance, h.Clients, h.Silent = k.Lease.Instance, p.Clients, k.Lease.Silent
		if _, err := link.CommonWire(p.Wire, "host-agent", p.AgentVersion, "relay", version); err != nil {
			h.State, h.Since, h.Reason = Incompatible, k.Lease.Acquired, err.Error()
		}
	}
	return h
}
