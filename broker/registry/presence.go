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

// How relays learn of hosts: a host-agent sends a leaseRequest to any relay, on
//
//	ahp.v1.<tenant>.<host>.ctl.lease
//
// with one of its own inboxes as reply subject. Only one instance at a time holds a
// host. The holder renews after each third of the lease time, with its current presence.
// It also sends a request at once when its presence changes, after each NATS login, and
// when it stops (which releases the host). The relay to which the holder is connected
// allows it to renew only once in two minutes, see [Line]. A holder with clients keeps the short
// interval, because answers list crashed relays. Any relay may answer, and answers may be
// lost. Requests are therefore numbered: a request that is late, or that arrives twice,
// changes nothing.
//
// The relay that answers becomes the lease's keeper. Its answer contains its name, and
// until the next login the host-agent sends its requests to
//
//	ahp.v1.<tenant>.<host>.ctl.lease.<relay>
//
// Changes are written to the host's hostState in the store. Its times come from
// relays, never from host-agents.

func leaseSubject(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.lease" }

func leaseSubjectOf(tenant, host, relay string) string {
	return leaseSubject(tenant, host) + "." + relay
}

// A State is a host's reachability.
type State string

// A host's states. A host-agent reports Online, Offline or Asleep.
const (
	Online       State = "online"       // host-agent and AHP host are running
	Offline      State = "offline"      // the AHP host is not running, or its host-agent is unreachable
	Asleep       State = "asleep"       // the machine has announced sleep, and the host-agent was not heard since
	Incompatible State = "incompatible" // the host-agent and this relay support no common wire version
)

// Limits of a host-agent's report, in bytes.
const (
	maxReasonLen  = 256
	maxVersionLen = 64
	maxLeaseBody  = 4096
)

// A Presence is a host-agent's report about itself and its host.
type Presence struct {
	State        State      `json:"state"`                  // Online, Offline or Asleep: whether the AHP host runs
	Reason       string     `json:"reason,omitempty"`       // shown to users: why the host is offline
	AgentVersion string     `json:"agentVersion,omitempty"` // version of the host-agent
	HostVersion  string     `json:"hostVersion,omitempty"`  // version of the AHP host, if known
	Silent       int64      `json:"silent,omitempty"`       // while online: 0 if the host answers; else how many milliseconds it had not answered when its silence was first reported
	Clients      int        `json:"clients,omitempty"`      // number of clients at the AHP host, through all relays
	KeptAwake    [2]int     `json:"keptAwake,omitzero"`     // what prevents idle sleep: the numbers of working sessions, and of connected people
	Sealed       bool       `json:"sealed,omitempty"`       // the host accepts only sealed connections
	Wake         wake.Terms `json:"wake,omitzero"`          // what this host-agent contributes to waking machines, see package wake

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

// checkText rejects a text that exceeds limit bytes or has control characters.
func checkText(name, value string, limit int) error {
	if len(value) > limit {
		return fmt.Errorf("%s is %d bytes long; want at most %d", name, len(value), limit)
	}
	if strings.ContainsFunc(value, unicode.IsControl) {
		return fmt.Errorf("%s has control characters", name)
	}
	return nil
}

// A leaseOp is the operation that a request asks for.
type leaseOp string

const (
	opHold    leaseOp = "hold"    // acquire the host, or renew its lease
	opRelease leaseOp = "release" // release the host
)

// A leaseRequest is a host-agent's request to a relay.
type leaseRequest struct {
	Op       leaseOp  `json:"op"`
	Instance string   `json:"instance"`           // the host-agent's instance
	Seq      uint64   `json:"seq"`                // rises with each request, also when the host-agent asks again
	TakeOver bool     `json:"takeOver,omitempty"` // acquire the host even if a different instance holds it
	Reason   string   `json:"reason,omitempty"`   // reason of a release, shown to users; default: the host-agent stopped
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

type leaseResult string

const (
	leaseHeld     leaseResult = "held"     // the requester holds the host
	leaseTaken    leaseResult = "taken"    // a different instance holds the host: see Holder, Since, Revision
	leaseReleased leaseResult = "released" // the requester does not hold the host
	leaseRefused  leaseResult = "refused"  // the request is invalid: see Error
	leaseRetry    leaseResult = "retry"    // the relay could not decide: see Error
)

// A leaseAnswer is a relay's answer to a leaseRequest.
type leaseAnswer struct {
	Result   leaseResult `json:"result"`
	Error    string      `json:"error,omitempty"`
	Holder   string      `json:"holder,omitempty"`   // taken: the instance that holds the host
	Since    time.Time   `json:"since,omitzero"`     // taken: when its lease began
	Revision uint64      `json:"revision,omitempty"` // taken: changes with each renewal
	Gone     []string    `json:"gone,omitempty"`     // relay instances that crashed within the last minute
	Fence    uint64      `json:"fence,omitempty"`    // held: the lease's number
	Relay    string      `json:"relay,omitempty"`    // held: the relay that keeps the lease, to send further requests to
	After    int64       `json:"after,omitempty"`    // retry: milliseconds to wait
	Every    int64       `json:"every,omitempty"`    // held: allowed renewal interval in milliseconds, as long as the instance stays connected to this relay
	Upgrade  string      `json:"upgrade,omitempty"`  // to opHold: why clients still cannot connect, and which program must be upgraded
}

// A lease names the host-agent instance that serves a host. It ends one lease time
// after its last renewal, or when its keeper is lost.
type lease struct {
	Instance string    `json:"instance"`
	Acquired time.Time `json:"acquired"`           // when the instance acquired it
	Seq      uint64    `json:"seq"`                // number of the last applied request
	Keeper   string    `json:"keeper,omitempty"`   // the relay that renews it and reports its end
	Fence    uint64    `json:"fence,omitempty"`    // its number among the host's leases; see number
	Lost     bool      `json:"lost,omitempty"`     // the lease has expired
	Released bool      `json:"released,omitempty"` // the instance has released it
	Since    time.Time `json:"since"`              // since when Presence.State has been reported
	Silent   time.Time `json:"silent,omitzero"`    // when the host fell silent; zero: it answers
	Presence Presence  `json:"presence"`
}

// held reports whether the lease was not released. It may have expired.
func (l *lease) held() bool { return l != nil && !l.Released }

// runs reports whether the lease is held and is not known to have expired.
func (l *lease) runs() bool { return l.held() && !l.Lost }

// number returns the lease's number, or 0 without a lease. A host's later lease has a
// higher number, even in a different store.
func (l *lease) number() uint64 {
	if l == nil {
		return 0
	}
	return max(l.Fence, 1) // leases of relays without a store have no number
}

// Reasons that relays give for an offline host.
const (
	reasonNever   = "host-agent has never connected"
	reasonStopped = "host-agent stopped"
	reasonLost    = "host-agent unreachable"
)

// decide computes the result of a request. Next is the lease to write; nil: no change.
// Current is nil if there is no lease or it has expired; downSince is then since when
// the host has been offline, zero if unknown. The function has one branch for each
// case of the table in TestLatestLeaseDecidesThePresence.
func decide(current *lease, downSince time.Time, revision uint64, req leaseRequest, now time.Time) (next *lease, answer leaseAnswer) {
	own := current != nil && current.Instance == req.Instance
	switch {
	case current.held() && !own && req.Op == opRelease:
		return nil, leaseAnswer{Result: leaseReleased}
	case current.held() && !own && !req.TakeOver:
		return nil, leaseAnswer{
			Result: leaseTaken, Holder: current.Instance, Since: current.Acquired, Revision: revision,
		}
	case own && req.Seq <= current.Seq && current.Released: // a repeated or late request
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

// maxSilent bounds how long ago a host-agent may claim that its host became silent.
const maxSilent = time.Hour

// silentSince returns when the host became silent, or the zero time. If the current
// lease has a time, that time stays.
func (p Presence) silentSince(current *lease, now time.Time) time.Time {
	switch {
	case p.State != Online || p.Silent == 0:
		return time.Time{}
	case current != nil && !current.Silent.IsZero():
		return current.Silent
	}
	return now.Add(-time.Duration(min(p.Silent, maxSilent.Milliseconds())) * time.Millisecond)
}
