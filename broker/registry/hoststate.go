package registry

import (
	"errors"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
)

// A hostState is a host's store entry. Its times are for people: no relay compares
// them with its clock.
type hostState struct {
	Key      string    `json:"host"` // "<tenant>.<name>"
	Enrolled time.Time `json:"enrolled"`
	LastSeen time.Time `json:"lastSeen,omitzero"` // when its host-agent was last heard, as of the last change
	Lease    *lease    `json:"lease,omitempty"`   // the last lease, which may have ended; nil: none yet; never changed in place
	Users    natsUsers `json:"users,omitempty"`   // issued to its host-agents
}

// A knownHost is a host as a relay knows it.
type knownHost struct {
	hostState        // the store's last known entry
	rev       uint64 // its revision; 0: the store has none
	epoch     uint64 // the watch that last delivered it
	home      *view  // its home view; nil: this relay's region

	// This relay's own knowledge. Own replaces Lease until the store has it, and while
	// this relay keeps the lease.
	own       *lease
	kept      *keptLease // in leaseKeeper.kept; nil: this relay does not keep the lease
	renewed   time.Time  // last renewal, or last sign of life from the holder
	renewals  uint64     // of that lease
	dirty     bool       // own has to be written
	unwritten natsUsers  // those of Users missing in the store

	indexed []auth.RevocationKey // the keys under which tenantAccounts.tokens lists the host

	last Host // as last reported to subscribers, without times that only progress
}

// hostKey returns a host's key.
func hostKey(tenant, host string) string { return tenant + "." + host }

func tenantOfKey(key string) string {
	tenant, _, _ := strings.Cut(key, ".")
	return tenant
}

// tenant returns the host's tenant.
func (s *hostState) tenant() string { return tenantOfKey(s.Key) }

// check rejects an invalid state.
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

// lease returns the current lease as this relay knows it.
func (k *knownHost) lease() *lease {
	if k.own != nil {
		return k.own
	}
	return k.Lease
}

// outdates reports whether this relay knows a later lease than the store. The store
// may have been filled with old knowledge, or have lost its last changes in a power
// failure; the later lease stays valid. A host forgotten and enrolled again in the
// same store starts to count anew.
func (k *knownHost) outdates(stored *hostState, newStore bool) bool {
	again := !newStore && stored.Enrolled.After(k.Enrolled)
	return !again && stored.Lease.number() < k.lease().number()
}

// overtaken reports whether the store's lease supersedes this relay's: another writer
// came first. A lower Seq of the same instance is a late write, and never does: the
// instance has asked this relay since.
func (k *knownHost) overtaken(stored *lease, relay string) bool {
	own, was := k.own, k.Lease
	switch {
	case stored == nil:
		return k.kept == nil
	case stored.Instance != own.Instance:
		return true
	case stored.Seq < own.Seq:
		return false
	case stored.Released, stored.Seq > own.Seq:
		return true
	case stored.Lost && k.kept != nil:
		return false // this relay hears the holder, unlike the relay that reported the loss
	case was.held() && was.Instance == stored.Instance && was.Keeper == stored.Keeper && was.Lost == stored.Lost:
		return false // a different field has changed
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

// downSince returns when a host without a lease went offline.
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
// reports whether its lease is in force. Seen is when its host-agent was last heard,
// if later than LastSeen.
func (k *knownHost) describe(version string, alive bool, seen time.Time) Host {
	tenant, name, _ := strings.Cut(k.Key, ".")
	h := Host{
		Tenant: tenant, Name: name, State: Offline, Since: k.downSince(), Reason: reasonLost,
		LastSeen: later(k.LastSeen, seen), Enrolled: k.Enrolled,
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
	case p.State == Asleep: // the last report before the silence
		h.State, h.Reason = p.State, p.Reason
	}
	return h
}

// sameForRelays reports whether two leases are equal apart from fields that may be
// stale at other relays.
func (l *lease) sameForRelays(o *lease) bool {
	a, b := l.Presence, o.Presence
	a.Clients, b.Clients, a.Silent, b.Silent = 0, 0, 0, 0
	return a == b && l.Instance == o.Instance && l.Keeper == o.Keeper && l.Released == o.Released && l.Lost == o.Lost && l.number() == o.number() && l.Silent.Equal(o.Silent)
}
