package registry

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"ahprelay/ahp"
	"ahprelay/broker/link"
	"ahprelay/broker/wake"
)

// How relays learn about hosts. A host-agent sends a leaseRequest to any relay, on
//
//	ahp.v1.<tenant>.<host>.ctl.lease
//
// with one of its own inboxes as reply subject. One instance holds a host at a time.
// It renews every third of the lease time with its current presence, and at once when
// its presence changes, after each NATS login, and when it stops (to release the
// host). A relay that has its connection allows an interval of one minute: see [Line].
// While clients are connected the interval stays short, because answers list crashed
// relays. Any relay may answer, and answers may be lost: requests are numbered, and a
// repeated request changes nothing.
//
// The relay that answers keeps the lease, and renewals change nothing else. Its answer
// contains its name, and the host-agent asks it on
//
//	ahp.v1.<tenant>.<host>.ctl.lease.<relay>
//
// until the next login. Changes go into the store, in the hostState of the host. All
// its times are relays' times, never host-agents'.

func leaseSubject(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.lease" }

// leaseSubjectOf returns the subject for one relay.
func leaseSubjectOf(tenant, host, relay string) string {
	return leaseSubject(tenant, host) + "." + relay
}

// A State is a host's reachability.
type State string

// A host's states. A host-agent reports Online, Offline or Asleep.
const (
	Online       State = "online"       // host-agent and AHP host are present
	Offline      State = "offline"      // the host-agent or the AHP host is absent
	Asleep       State = "asleep"       // the machine has announced its sleep, and nothing was heard since
	Incompatible State = "incompatible" // the host-agent and this relay share no wire version
)

// Limits of a host-agent's report, in bytes.
const (
	maxReasonLen  = 256
	maxVersionLen = 64
	maxLeaseBody  = 4096
)

// A Presence is a host-agent's report about itself and its host.
type Presence struct {
	State        State      `json:"state"`                  // Online, Offline or Asleep: is the AHP host up
	Reason       string     `json:"reason,omitempty"`       // for people: why it is offline
	AgentVersion string     `json:"agentVersion,omitempty"` // of the host-agent
	HostVersion  string     `json:"hostVersion,omitempty"`  // of the AHP host, if known
	Silent       int64      `json:"silent,omitempty"`       // online: the host does not answer; milliseconds of silence at the first report
	Clients      int        `json:"clients,omitempty"`      // connected to the AHP host, through all relays
	KeptAwake    [2]int     `json:"keptAwake,omitzero"`     // what keeps the machine from idle sleep: sessions that work, and connected people
	Sealed       bool       `json:"sealed,omitempty"`       // the host takes sealed connections only
	Wake         wake.Terms `json:"wake,omitzero"`          // this host-agent's part in waking machines

	Wire [2]int `json:"wire"` // the host-agent's lowest and highest wire version; default: this program's
}

func (p Presence) check() error {
	if p.State != Online && p.State != Offline && p.State != Asleep {
		return fmt.Errorf("state %.20q; want %s, %s or %s", p.State, Online, Offline, Asleep)
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"reason", p.Reason, maxReasonLen},
		{"agentVersion", p.AgentVersion, maxVersionLen},
		{"hostVersion", p.HostVersion, maxVersionLen},
	} {
		if err := checkText(f.name, f.value, f.limit); err != nil {
			return err
		}
	}
	if err := p.Wake.Check(); err != nil {
		return err
	}
	if p.Clients < 0 || p.Silent < 0 || p.KeptAwake[0] < 0 || p.KeptAwake[1] < 0 {
		return errors.New("clients, keptAwake or silent is negative")
	}
	return nil
}

// checkText rejects a text that is too long, in bytes, or has control characters.
func checkText(name, value string, limit int) error {
	if len(value) > limit {
		return fmt.Errorf("%s is %d bytes long; want at most %d", name, len(value), limit)
	}
	if strings.ContainsFunc(value, unicode.IsControl) {
		return fmt.Errorf("%s has control characters", name)
	}
	return nil
}

// A leaseOp is a request's operation.
type leaseOp string

const (
	opHold    leaseOp = "hold"    // acquire or keep the host, with the given presence
	opRelease leaseOp = "release" // release the host
)

// A leaseRequest goes from a host-agent to any relay, on ctl.lease.
type leaseRequest struct {
	Op       leaseOp  `json:"op"`
	Instance string   `json:"instance"`           // of the host-agent
	Seq      uint64   `json:"seq"`                // rises with each request, repeated requests included
	TakeOver bool     `json:"takeOver,omitempty"` // acquire the host even if another instance holds it
	Reason   string   `json:"reason,omitempty"`   // of a release, for people; default: the host-agent stopped
	Presence Presence `json:"presence"`
}

func (r leaseRequest) check() error {
	if err := ahp.CheckName("instance", r.Instance); err != nil {
		return err
	}
	switch r.Op {
	case opHold:
		return r.Presence.check()
	case opRelease:
		return checkText("reason", r.Reason, maxReasonLen)
	}
	return errors.New("op is neither hold nor release")
}

// A leaseResult is a request's outcome.
type leaseResult string

const (
	leaseHeld     leaseResult = "held"     // by the requester
	leaseTaken    leaseResult = "taken"    // by another instance: see Holder, Since, Revision
	leaseReleased leaseResult = "released" // not held by the requester
	leaseRefused  leaseResult = "refused"  // the request is invalid: see Error
	leaseRetry    leaseResult = "retry"    // the relay could not decide: see Error
)

// A leaseAnswer is the answer to a leaseRequest.
type leaseAnswer struct {
	Result   leaseResult `json:"result"`
	Error    string      `json:"error,omitempty"`
	Holder   string      `json:"holder,omitempty"`   // taken: the instance that holds the host
	Since    time.Time   `json:"since,omitzero"`     // taken: when its lease began
	Revision uint64      `json:"revision,omitempty"` // taken: changes with each renewal
	Gone     []string    `json:"gone,omitempty"`     // relay instances crashed within the last minute
	Fence    uint64      `json:"fence,omitempty"`    // held: the lease's number
	Relay    string      `json:"relay,omitempty"`    // held: the lease's keeper, to be asked from now on
	After    int64       `json:"after,omitempty"`    // retry: milliseconds to wait
	Every    int64       `json:"every,omitempty"`    // held: allowed renewal interval in milliseconds while this connection lasts, because the relay hears the instance anyway
	Upgrade  string      `json:"upgrade,omitempty"`  // held: why clients cannot connect all the same, and which program must be upgraded
}

// A lease names the host-agent instance serving a host. It ends one lease time after
// its last renewal, or when its keeper is lost.
type lease struct {
	Instance string    `json:"instance"`
	Acquired time.Time `json:"acquired"`           // when the instance got it
	Seq      uint64    `json:"seq"`                // of the last applied request
	Keeper   string    `json:"keeper,omitempty"`   // the relay renewing it and reporting its end
	Fence    uint64    `json:"fence,omitempty"`    // its number among the host's leases; see number
	Lost     bool      `json:"lost,omitempty"`     // it expired
	Released bool      `json:"released,omitempty"` // the instance released it
	Since    time.Time `json:"since"`              // when Presence.State was first reported
	Silent   time.Time `json:"silent,omitzero"`    // when the host fell silent; zero: it answers
	Presence Presence  `json:"presence"`
}

// held reports whether an instance holds l.
func (l *lease) held() bool { return l != nil && !l.Released }

// runs reports whether l is held and not known to have expired.
func (l *lease) runs() bool { return l.held() && !l.Lost }

// number returns the lease's number among the host's leases. It rises with each
// instance, across stores, because it is part of the lease. It is 0 without a lease.
func (l *lease) number() uint64 {
	if l == nil {
		return 0
	}
	return max(l.Fence, 1) // relays without a store did not count
}

// Relays' reasons for an offline host.
const (
	reasonNever   = "host-agent has never connected"
	reasonStopped = "host-agent stopped"
	reasonLost    = "host-agent unreachable"
)

// decide computes the effect of a request on a lease. Next is the lease to write, or
// nil. Current is nil if there is no lease or it has expired; the host has then been
// offline since downSince, if that is not zero. It has one branch for each case of the
// table in TestLatestLeaseDecidesThePresence.
func decide(current *lease, downSince time.Time, revision uint64, req leaseRequest, now time.Time) (next *lease, answer leaseAnswer) {
	own := current != nil && current.Instance == req.Instance
	switch {
	case current.held() && !own && req.Op == opRelease:
		return nil, leaseAnswer{Result: leaseReleased}
	case current.held() && !own && !req.TakeOver:
		return nil, leaseAnswer{
			Result: leaseTaken, Holder: current.Instance, Since: current.Acquired, Revision: revision,
		}
	case own && req.Seq <= current.Seq && current.Released: // repeated, or late
		return nil, leaseAnswer{Result: leaseReleased}
	case own && req.Seq <= current.Seq:
		return nil, leaseAnswer{Result: leaseHeld}
	case req.Op == opRelease && !current.held():
		return nil, leaseAnswer{Result: leaseReleased}
	}
	next = &lease{Instance: req.Instance, Acquired: now, Seq: req.Seq, Since: now, Presence: req.Presence}
	answer.Result = leaseHeld
	if req.Op == opRelease {
		next.Released = true
		next.Presence = current.Presence
		next.Presence.State, next.Presence.Reason = Offline, cmp.Or(req.Reason, reasonStopped)
		answer.Result = leaseReleased
	}
	if own && current.held() {
		next.Acquired = current.Acquired
	}
	next.Silent = next.Presence.silentSince(current, now)
	switch {
	case current != nil && current.Presence.State == next.Presence.State:
		next.Since = current.Since
	case current == nil && !downSince.IsZero() && next.Presence.State == Offline:
		next.Since = downSince
	}
	return next, answer
}

// maxSilent bounds how long ago a host-agent may date its host's silence.
const maxSilent = time.Hour

// silentSince returns when the host fell silent, or the zero time. The current lease
// may know it already.
func (p Presence) silentSince(current *lease, now time.Time) time.Time {
	switch {
	case p.State != Online || p.Silent == 0:
		return time.Time{}
	case current != nil && !current.Silent.IsZero():
		return current.Silent
	}
	return now.Add(-time.Duration(min(p.Silent, maxSilent.Milliseconds())) * time.Millisecond)
}
