package registry

import (
	"errors"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
)

// A hostState is what the store has of one host. Times in it are for people:
// no relay compares them with its clock.
type hostState struct {
	Key      string    `json:"host"` // "<tenant>.<name>"
	Enrolled time.Time `json:"enrolled"`
	LastSeen time.Time `json:"lastSeen,omitzero"` // when its host-agent was last heard, as of the last change
	Lease    *lease    `json:"lease,omitempty"`   // the last one, which may have ended; nil: nobody ever held the host. Never changed in place
	Users    natsUsers `json:"users,omitempty"`   // that its host-agents were given
}

// A knownHost is a host at one relay.
type knownHost struct {
	hostState        // as the store has it, as far as is known
	rev       uint64 // of that in the store; 0: it has none
	epoch     uint64 // of the watch that last saw it
	home      *view  // of the region whose store has it; nil: this relay's

	// What this relay says beyond the store. Own replaces Lease, while the store
	// does not have it, and while this relay keeps the lease.
	own       *lease
	kept      *keptLease // in Registry.kept; nil: this relay does not keep the lease
	renewed   time.Time  // when the lease that is kept was, or its holder was heard
	renewals  uint64     // of that lease
	dirty     bool       // own is to be written
	unwritten natsUsers  // of Users: those that the store does not have

	indexed []auth.RevocationKey // under which Registry.tokens has the host

	last Host // what subscribers were told, without times that only progress
}

// hostKey is the key of a host.
func hostKey(tenant, host string) string { return tenant + "." + host }

func tenantOfKey(key string) string {
	tenant, _, _ := strings.Cut(key, ".")
	return tenant
}

// tenant returns whose host it is.
func (s *hostState) tenant() string { return tenantOfKey(s.Key) }

// check reports a state that no relay would write.
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

// lease returns the lease as this relay knows it.
func (k *knownHost) lease() *lease {
	if k.own != nil {
		return k.own
	}
	return k.Lease
}

// outdates reports whether this relay knows of a later lease than the store has: one
// that was begun anew with what some relay knew long ago, or that has lost its last
// changes with the power of its servers. Who was given the host since is not forgotten
// for that. A host that was forgotten and enrolled again in one and the same store begins
// to count again.
func (k *knownHost) outdates(stored *hostState, newStore bool) bool {
	again := !newStore && stored.Enrolled.After(k.Enrolled)
	return !again && stored.Lease.number() < k.lease().number()
}

// overtaken reports whether what this relay says of the host's lease is out of date,
// now that the store has another: somebody else has come in between.
func (k *knownHost) overtaken(stored *lease, relay string) bool {
	own, was := k.own, k.Lease
	switch {
	case stored == nil:
		return k.kept == nil
	case stored.Instance != own.Instance:
		return true
	case stored.Released, stored.Seq > own.Seq:
		return true
	case stored.Lost && k.kept != nil:
		return false // for the relay that said so: its holder is heard here
	case was.held() && was.Instance == stored.Instance && was.Keeper == stored.Keeper && was.Lost == stored.Lost:
		return false // something else has changed
	}
	return stored.Keeper != relay
}

// earlier returns the earlier of two times, of which zero ones do not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// downSince returns since when a host is offline that nobody holds.
func (k *knownHost) downSince() time.Time {
	switch l := k.lease(); {
	case l == nil:
		return k.Enrolled
	case l.Presence.State == Offline:
		return l.Since
	}
	return k.LastSeen
}

// describe says what is known of a host, for a relay of the given version. Alive
// says that its lease is held, and seen when its host-agent was heard, if that is
// known to be later than LastSeen.
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
	h.AgentVersion, h.HostVersion, h.Fence = p.AgentVersion, p.HostVersion, l.number()
	switch {
	case l.Released:
		h.Reason, h.Released = p.Reason, l.Instance
	case alive:
		h.State, h.Since, h.Reason = p.State, l.Since, p.Reason
		h.AgentInstance, h.Clients, h.Silent = l.Instance, p.Clients, l.Silent
		if _, err := link.CommonWire(p.Wire, "host-agent", p.AgentVersion, "relay", version); err != nil {
			h.State, h.Since, h.Reason = Incompatible, l.Acquired, err.Error()
		}
	}
	return h
}
