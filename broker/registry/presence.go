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
)

// How relays learn which hosts there are. A host-agent asks any relay, with a
// leaseRequest on
//
//	ahp.v1.<tenant>.<host>.ctl.lease
//
// whose reply subject is one of its own inboxes, to hold its host. One instance
// holds a host at a time. It asks again every third of the lease time, with
// its presence of that moment, and at once when its presence changes, after
// each login to NATS and when it stops (then to release). A relay that has its
// connection says in its answer that once a minute is enough: see [Line]. While clients are
// there it asks as often as ever, because answers tell which relays are gone. It makes no
// difference which relay answers, and whether an answer got lost: requests are
// numbered, and repeating one changes nothing.
//
// The relay that answers keeps the lease: as long as it is asked again, that is all
// that happens. It says in its answer who it is, and is asked on
//
//	ahp.v1.<tenant>.<host>.ctl.lease.<relay>
//
// from then on, until a connection is made anew. What changes goes into the store,
// as the hostState of the host. All times in it are those of relays, never of
// host-agents.

func leaseSubject(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.lease" }

// leaseSubjectOf is where one relay is asked.
func leaseSubjectOf(tenant, host, relay string) string {
	return leaseSubject(tenant, host) + "." + relay
}

// State says whether a host can be reached.
type State string

// The states of a host. A host-agent reports Online or Offline.
const (
	Online       State = "online"       // its host-agent is there, and so is the AHP host
	Offline      State = "offline"      // the host-agent or the AHP host is not there
	Incompatible State = "incompatible" // the host-agent has no wire version in common with this relay
)

// Limits of what a host-agent may report, in bytes.
const (
	maxReasonLen  = 256
	maxVersionLen = 64
	maxLeaseBody  = 4096
)

// A Presence is what a host-agent says about itself and its host.
type Presence struct {
	State        State  `json:"state"`                  // Online or Offline: is the AHP host up
	Reason       string `json:"reason,omitempty"`       // for people: why it is offline
	AgentVersion string `json:"agentVersion,omitempty"` // of the host-agent
	HostVersion  string `json:"hostVersion,omitempty"`  // of the AHP host, if known
	Silent       int64  `json:"silent,omitempty"`       // online: the host does not answer; for how many milliseconds it had not when that was first said
	Clients      int    `json:"clients,omitempty"`      // connected to the AHP host, through all relays
	Wire         [2]int `json:"wire"`                   // lowest and highest wire version of the host-agent; default: this program's
}

func (p Presence) check() error {
	if p.State != Online && p.State != Offline {
		return fmt.Errorf("state is not %s or %s", Online, Offline)
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
	if p.Clients < 0 || p.Silent < 0 {
		return errors.New("clients or silent is negative")
	}
	return nil
}

// checkText reports a text that is too long, in bytes, or would spoil a log.
func checkText(name, value string, limit int) error {
	if len(value) > limit {
		return fmt.Errorf("%s is %d bytes long; want at most %d", name, len(value), limit)
	}
	if strings.ContainsFunc(value, unicode.IsControl) {
		return fmt.Errorf("%s has control characters", name)
	}
	return nil
}

// A leaseOp is what a host-agent asks for.
type leaseOp string

const (
	opHold    leaseOp = "hold"    // have or keep the host, and be listed as said
	opRelease leaseOp = "release" // give the host up
)

// A leaseRequest goes from a host-agent to any relay, on ctl.lease.
type leaseRequest struct {
	Op       leaseOp  `json:"op"`
	Instance string   `json:"instance"`           // of the host-agent
	Seq      uint64   `json:"seq"`                // higher in each request of an instance, repeated ones included
	TakeOver bool     `json:"takeOver,omitempty"` // hold the host even if another instance does
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
	return errors.New("op is not hold or release")
}

// A leaseResult is the first thing to look at in an answer.
type leaseResult string

const (
	leaseHeld     leaseResult = "held"     // by the one who asked
	leaseTaken    leaseResult = "taken"    // by another: see holder, since, revision
	leaseReleased leaseResult = "released" // not held by the one who asked
	leaseRefused  leaseResult = "refused"  // the request is wrong: see error
	leaseRetry    leaseResult = "retry"    // the relay could not tell: see error
)

// A leaseAnswer goes back.
type leaseAnswer struct {
	Result   leaseResult `json:"result"`
	Error    string      `json:"error,omitempty"`
	Holder   string      `json:"holder,omitempty"`   // taken: the instance that holds the host
	Since    time.Time   `json:"since,omitzero"`     // taken: when it began to
	Revision uint64      `json:"revision,omitempty"` // taken: differs after each renewal of the holder
	Gone     []string    `json:"gone,omitempty"`     // relay instances that crashed within the last minute
	Fence    uint64      `json:"fence,omitempty"`    // held: the number of that lease, see lease
	Relay    string      `json:"relay,omitempty"`    // held: who keeps the lease, and is to be asked from now on
	After    int64       `json:"after,omitempty"`    // retry: milliseconds to wait
	Every    int64       `json:"every,omitempty"`    // held: the relay hears that instance anyway; milliseconds after which it is to ask again at the latest, while the connection lasts
	Upgrade  string      `json:"upgrade,omitempty"`  // held: why clients cannot come all the same, and who must be upgraded
}

// A lease says which host-agent instance serves a host. It ends a lease time
// after it was last renewed, or when the relay that keeps it is lost.
type lease struct {
	Instance string    `json:"instance"`
	Acquired time.Time `json:"acquired"`           // when the instance got it
	Seq      uint64    `json:"seq"`                // of the request that wrote this
	Keeper   string    `json:"keeper,omitempty"`   // the relay that is asked to renew it, and that says when it has run out
	Fence    uint64    `json:"fence,omitempty"`    // its number among all leases that the host ever had; see number
	Lost     bool      `json:"lost,omitempty"`     // it ran out
	Released bool      `json:"released,omitempty"` // the instance gave it up
	Since    time.Time `json:"since"`              // when Presence.State was first said
	Silent   time.Time `json:"silent,omitzero"`    // since when the host does not answer; zero: it does
	Presence Presence  `json:"presence"`
}

// held reports whether l is a lease that an instance has.
func (l *lease) held() bool { return l != nil && !l.Released }

// runs reports whether l is a lease that has not run out, as far as anybody said.
func (l *lease) runs() bool { return l.held() && !l.Lost }

// number returns the lease's number among all that the host ever had, which is higher
// for each instance that gets it: by any store, because it is kept with the lease. 0:
// there was none.
func (l *lease) number() uint64 {
	if l == nil {
		return 0
	}
	return max(l.Fence, 1) // relays that had no store did not count
}

// Reasons for being offline that no host-agent gives.
const (
	reasonNever   = "host-agent has never connected"
	reasonStopped = "host-agent stopped"
	reasonLost    = "host-agent unreachable"
)

// decide says what becomes of a lease: next is what to write, nil if nothing.
// Current is nil if there is no lease, or if it has ended by itself. A host
// that is offline then has been so since downSince; zero means that it is not.
func decide(current *lease, downSince time.Time, revision uint64, req leaseRequest, now time.Time) (next *lease, answer leaseAnswer) {
	own := current != nil && current.Instance == req.Instance
	switch {
	case current.held() && !own && req.Op == opRelease:
		return nil, leaseAnswer{Result: leaseReleased}
	case current.held() && !own && !req.TakeOver:
		return nil, leaseAnswer{
			Result: leaseTaken, Holder: current.Instance, Since: current.Acquired, Revision: revision,
		}
	case own && req.Seq <= current.Seq && current.Released: // repeated, or overtaken by another
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

// maxSilent bounds how far back a host-agent may say that its host fell silent.
const maxSilent = time.Hour

// silentSince returns since when the host has not answered, and the zero time if
// it does. A lease that has said so already knows when.
func (p Presence) silentSince(current *lease, now time.Time) time.Time {
	switch {
	case p.State != Online || p.Silent == 0:
		return time.Time{}
	case current != nil && !current.Silent.IsZero():
		return current.Silent
	}
	return now.Add(-time.Duration(min(p.Silent, maxSilent.Milliseconds())) * time.Millisecond)
}
