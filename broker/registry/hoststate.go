package registry

import (
	"errors"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/internal/clock"
)

// A hostState is a host's entry in the store. Its times come from the clocks of several
// relays, so no lease expires by them.
type hostState struct {
	Key      string    `json:"host"` // "<tenant>.<name>"
	Enrolled time.Time `json:"enrolled"`
	LastSeen time.Time `json:"lastSeen,omitzero"` // when the host-agent was last heard, as of the entry's last change
	Lease    *lease    `json:"lease,omitempty"`   // the latest lease, which may have ended; nil: there was none; never changed in place
	Users    natsUsers `json:"users,omitempty"`   // NATS users of its host-agents
}

// A knownHost is a host as one relay knows it.
type knownHost struct {
	hostState        // the entry in the store, as last read
	rev       uint64 // the entry's revision; 0: unknown, or the store has no entry
	epoch     uint64 // the watch that last delivered the entry
	home      *view  // view of the home region; nil: this relay's region

	// Only this relay's memory has the fields below. While own is set, own counts instead of
	// Lease. It is set as long as this relay keeps the lease, or the store lacks the lease.
	own       *lease
	kept      bool      // this relay keeps the lease: the host is in leaseKeeper.kept
	renewed   time.Time // last renewal, or when the holder's connection last delivered something
	renewals  uint64    // number of renewals
	dirty     bool      // own must be written to the store
	unwritten natsUsers // users that the store does not have yet

	indexed []auth.RevocationKey // revocation keys under which tenantAccounts.tokens lists the host

	last Host // as last reported to subscribers, without LastSeen and Enrolled
}

func hostKey(tenant, host string) string { return tenant + "." + host }

func tenantOfKey(key string) string {
	tenant, _, _ := strings.Cut(key, ".")
	return tenant
}

func (s *hostState) tenant() string { return tenantOfKey(s.Key) }

func (s *hostState) check() error {
	tenant, host, _ := strings.Cut(s.Key, ".")
	if err := errors.Join(ahp.CheckName("tenant", tenant), ahp.CheckName("host", host)); err != nil {
		return err
	}
	if err := s.Users.check(); err != nil {
		return err
	}
	if s.Lease.held() {
		return errors.Join(ahp.CheckName("instance", s.Lease.Instance), s.Lease.Presence.check())
	}
	return nil
}

// lease returns the latest lease that this relay knows, or nil.
func (k *knownHost) lease() *lease {
	if k.own != nil {
		return k.own
	}
	return k.Lease
}

// outdates reports whether this relay knows a later lease than the store. That happens
// if the store was filled with old data, or has lost its last changes in a power
// failure. The later lease stays valid. If the host was forgotten and enrolled again
// in the same store, its lease numbers begin anew, and the result is false.
func (k *knownHost) outdates(stored *hostState, newStore bool) bool {
	again := !newStore && stored.Enrolled.After(k.Enrolled)
	return !again && stored.Lease.number() < k.lease().number()
}

// overtaken reports whether the store's lease replaces this relay's own, because a
// different writer was first. A lease of the same instance with a lower Seq is a late
// write and replaces nothing: the instance has sent a newer request to this relay
// since.
func (k *knownHost) overtaken(stored *lease, relay string) bool {
	own, was := k.own, k.Lease
	switch {
	case stored == nil:
		return !k.kept
	case stored.Instance != own.Instance:
		return true
	case stored.Seq < own.Seq:
		return false
	case stored.Released, stored.Seq > own.Seq:
		return true
	case stored.Lost && k.kept:
		return false // this relay hears the holder; the relay which reported the loss does not
	case was.held() && was.Instance == stored.Instance && was.Keeper == stored.Keeper && was.Lost == stored.Lost:
		return false // only other fields have changed
	}
	return stored.Keeper != relay
}

// earlier returns the earlier of two times, ignoring zero times.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// downSince returns since when a host without a current lease has been offline.
func (k *knownHost) downSince() time.Time {
	switch l := k.lease(); {
	case l == nil:
		return k.Enrolled
	case l.Presence.State != Online:
		return l.Since
	}
	return k.LastSeen
}

// describe returns a host's description for a relay of the given version. Alive
// reports whether the host still has the state in its lease. Seen is when the
// host-agent was last heard here.
func (k *knownHost) describe(version string, alive bool, seen time.Time) Host {
	tenant, name, _ := strings.Cut(k.Key, ".")
	h := Host{
		Tenant: tenant, Name: name, State: Offline, Since: k.downSince(), Reason: reasonLost,
		LastSeen: clock.Later(k.LastSeen, seen), Enrolled: k.Enrolled,
	}
	l := k.lease()
	if l == nil {
		h.Reason = reasonNever
		return h
	}
	p := l.Presence
	h.AgentVersion, h.HostVersion, h.Sealed, h.Wake, h.Fence = p.AgentVersion, p.HostVersion, p.Sealed, p.Wake, l.number()
	switch {
	case l.Released:
		h.Reason, h.Released = p.Reason, l.Instance
	case alive:
		h.State, h.Since, h.Reason = p.State, l.Since, p.Reason
		h.AgentInstance, h.Clients, h.Silent, h.KeptAwake = l.Instance, p.Clients, l.Silent, p.KeptAwake
		if _, err := link.CommonWire(p.Wire, "host-agent", p.AgentVersion, "relay", version); err != nil {
			h.State, h.Since, h.Reason = Incompatible, l.Acquired, err.Error()
		}
	case p.State == Asleep: // its last report before it became silent
		h.State, h.Reason = p.State, p.Reason
	}
	return h
}

// sameForRelays reports whether two leases are equal, except for fields that other
// relays may know late.
func (l *lease) sameForRelays(o *lease) bool {
	a, b := l.Presence, o.Presence
	a.Clients, b.Clients, a.Silent, b.Silent = 0, 0, 0, 0
	return a == b && l.Instance == o.Instance && l.Keeper == o.Keeper && l.Released == o.Released && l.Lost == o.Lost && l.number() == o.number() && l.Silent.Equal(o.Silent)
}
