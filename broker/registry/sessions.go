package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Times of sessions.
const (
	beatEvery = 2 * time.Second // interval at which a session is written; shorter if leases are short

	absentAfter = 2               // missed beats after which a relay counts as absent
	goneFor     = time.Minute     // how long host-agents are told of a crashed relay, and relays of a crashed predecessor
	maxGone     = 64              // bound for the crashed relays in one answer
	forgetAfter = 5 * time.Minute // silence, in beats, after which a session is removed, and the leases that it keeps are ended
)

// patience returns after how many missed beats a relay's leases have expired. Two are
// added to the beats of a lease time, so that a relay that pauses for less than a
// lease time does not lose its leases: it may have paused just before a beat, and the
// observer may count its own beat just after the relay's last one.
func patience(lease, beat time.Duration) int { return int(lease/beat) + 2 }

// A session is a relay's entry in the store. Its repeated writes prove that the relay
// runs; its contents describe the relay.
type session struct {
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Started  time.Time `json:"started"`           // for display
	Node     string    `json:"node,omitempty"`    // name of its NATS server in a cluster
	Port     string    `json:"port,omitempty"`    // cluster port of that server
	URL      string    `json:"url,omitempty"`     // base URL at which clients reach this relay and no other
	Keys     []string  `json:"keys,omitempty"`    // names of its key sets
	Previous []string  `json:"former,omitempty"`  // its predecessors that have crashed
	Bye      bool      `json:"bye,omitempty"`     // it is ending normally
	Expects  bool      `json:"expects,omitempty"` // host-agents that it has refused are about to return
}

// A peer is a relay. Its silence is counted in this relay's own completed beats.
// So a relay is not considered silent because the store was unreachable, this process
// was paused, or clocks differ.
type peer struct {
	session
	rev    uint64 // revision of its session; 0: unknown, or it has none
	epoch  uint64 // the watch that last delivered its session
	missed int    // this relay's beats since the peer was last heard
	home   *view  // view of its region; nil: this relay's region
	there  int    // like missed, but counts only beats in which the peer's region was heard
	heard  time.Time
	keeps  map[string]bool // hosts whose lease it keeps, according to the store

	expected int // how many of the missed beats passed while host-agents returned or were expected; at most maxExpected, in beats
	kept     int // len(keeps) at this relay's last beat
}

// relaySessions are the sessions of all relays, including this one. Registry.mu guards
// the changing fields.
type relaySessions struct {
	r        *Registry
	patience int // missed beats after which a peer's leases have expired

	peers  map[string]*peer     // all known relays, by instance
	gone   map[string]time.Time // crashed instances, and when this relay learnt of the crash
	beaten time.Time            // when the store last delivered this relay's own session
}

func newRelaySessions(r *Registry) *relaySessions {
	return &relaySessions{
		r: r, patience: patience(r.cfg.LeaseTTL, r.beatEvery),
		peers: map[string]*peer{}, gone: map[string]time.Time{},
	}
}

// getLocked returns a relay's entry, which it creates if needed.
func (rs *relaySessions) getLocked(instance string) *peer {
	p := rs.peers[instance]
	if p == nil {
		p = &peer{keeps: map[string]bool{}, heard: time.Now()}
		p.Instance = instance
		rs.peers[instance] = p
	}
	return p
}

// missedOf returns how many beats of a host's keeper were missed. If the host and that
// relay belong to other regions, beats in which the relay's region was silent do not
// count: silence of a whole region proves nothing.
func (p *peer) missedOf(k *knownHost) int {
	if k.home != nil && p.home != nil {
		return p.there
	}
	return p.missed
}

// lostLocked reports whether the relay that keeps a host's lease has been silent for a
// lease time, so that the lease has expired.
func (rs *relaySessions) lostLocked(k *knownHost, keeper string) bool {
	p := rs.peers[keeper]
	return p != nil && p.missedOf(k) > rs.patience
}

// onlineLocked reports whether a host still has the state in its lease. It is offline
// instead once the lease's keeper has been silent for a lease time. Two kinds of beats do not
// count here: those in which relays expect host-agents, and those in which a host of the same
// keeper has got a new lease. After a restart of all relays, the host-agent may have been told
// to return later, or it has no answer yet because relays serve others first. In lostLocked
// these beats count, so that a restarted host-agent gets its host.
func (rs *relaySessions) onlineLocked(k *knownHost) bool {
	l := k.lease()
	if !l.runs() || k.kept {
		return l.runs()
	}
	p := rs.peers[l.Keeper]
	return p == nil || p.missedOf(k)-p.expected <= rs.patience
}

// expectsLocked reports whether a running relay expects host-agents that it has refused.
func (rs *relaySessions) expectsLocked() bool {
	for _, p := range rs.peers {
		if p.Expects && p.presentLocked(absentAfter) {
			return true
		}
	}
	return false
}

// silent reports whether at least one of the relay's two counts of missed beats exceeds beats.
func (p *peer) silent(beats int) bool { return p.missed > beats || p.there > beats }

// heardLocked returns when a relay was last heard, or the zero time. It is for display only.
func (rs *relaySessions) heardLocked(instance string) time.Time {
	if p := rs.peers[instance]; p != nil && p.rev != 0 {
		return p.heard.UTC().Round(0)
	}
	return time.Time{}
}

func (rs *relaySessions) lastHeard(instance string) time.Time {
	rs.r.mu.RLock()
	defer rs.r.mu.RUnlock()
	return rs.heardLocked(instance)
}

// apply handles a relay's session that a store has delivered; rev is 0 if the session was removed.
// A removal ends no leases that the relay keeps: its silence does.
func (rs *relaySessions) apply(v *view, instance string, s session, rev, epoch uint64, now time.Time) {
	rs.r.mu.Lock()
	p := rs.getLocked(instance)
	was := p.silent(rs.patience)
	p.home = rs.r.regions.foreign(v)
	news := rev > p.rev // otherwise a new watch has delivered it again
	p.rev, p.epoch = rev, epoch
	if news && s.Bye {
		p.session = s
	} else if news {
		met := p.Started.IsZero()
		p.session, p.missed, p.there, p.expected, p.heard = s, 0, 0, 0, now
		delete(rs.gone, instance)
		if met && instance != rs.r.cfg.Instance {
			rs.r.cfg.Log.Info("relay found", "relay", instance, "version", s.Version)
		}
	}
	if was && !p.silent(rs.patience) {
		rs.r.changedLocked(slices.Collect(maps.Keys(p.keeps))...)
	}
	rs.r.mu.Unlock()
	if instance == rs.r.cfg.Instance && news {
		rs.beat(now)
	}
}

// beat is called when the store delivers this relay's own session, which it has written. For each
// other relay, this counts as one more beat without a sign of life.
func (rs *relaySessions) beat(now time.Time) {
	rs.r.mu.Lock()
	defer rs.r.mu.Unlock()
	if now.Sub(rs.beaten) < rs.r.beatEvery/2 {
		return // delayed beats that arrive together count once
	}
	rs.beaten = now
	previous := rs.previousLocked(now)
	heard, expects := rs.r.regions.heardLocked(), rs.expectsLocked()
	for instance, p := range rs.peers {
		if instance == rs.r.cfg.Instance {
			continue
		}
		p.missed++
		if heard[p.home] {
			p.there++
		}
		if p.missed <= absentAfter {
			previous = append(previous, p.Previous...)
		}
		returned := len(p.keeps) < p.kept
		p.kept = len(p.keeps)
		if (expects || returned) && p.expected < int(maxExpected/rs.r.beatEvery) {
			p.expected++
		} else {
			rs.endOnlineLocked(p)
		}
		if p.missed > int(forgetAfter/rs.r.beatEvery) && p.rev == 0 && len(p.keeps) == 0 {
			delete(rs.peers, instance)
		}
	}
	rs.losePreviousLocked(previous, now)
	maps.DeleteFunc(rs.gone, func(_ string, since time.Time) bool { return now.Sub(since) > 2*goneFor })
}

// endOnlineLocked reports the hosts of a relay as changed if they have just become
// offline because of its silence.
func (rs *relaySessions) endOnlineLocked(p *peer) {
	missed, there := p.missed-p.expected, p.there-p.expected
	if missed == rs.patience+1 && len(p.keeps) > 0 && p.home == nil {
		rs.r.cfg.Log.Warn("relay silent", "effect", "its hosts are listed as offline", "relay", p.Instance, "hosts", len(p.keeps))
	}
	if missed == rs.patience+1 || there == rs.patience+1 {
		rs.r.changedLocked(slices.Collect(maps.Keys(p.keeps))...)
	}
}

// losePreviousLocked marks relays as crashed whose successors have started.
func (rs *relaySessions) losePreviousLocked(previous []string, now time.Time) {
	for _, instance := range previous {
		// A relay that is still heard has not crashed: its data directory was copied.
		p := rs.peers[instance]
		heard := p != nil && p.rev != 0 && p.missed <= absentAfter
		if !heard && now.Sub(rs.r.started) > absentAfter*rs.r.beatEvery && instance != rs.r.cfg.Instance {
			rs.loseLocked(instance, "its successor has started", now)
		}
	}
}

func (rs *relaySessions) loseLocked(instance, why string, now time.Time) {
	if _, known := rs.gone[instance]; known {
		return
	}
	rs.gone[instance] = now
	rs.r.cfg.Log.Warn("relay crashed", "effect", "host-agents close its connections", "relay", instance, "reason", why)
}

// previousLocked returns this relay's crashed predecessors, during its first minute.
func (rs *relaySessions) previousLocked(now time.Time) []string {
	if now.Sub(rs.r.started) > goneFor {
		return nil
	}
	return slices.Clone(rs.r.cfg.Previous)
}

// goneRelays returns the crashed relays to list in answers to host-agents.
func (rs *relaySessions) goneRelays() []string {
	now := time.Now()
	rs.r.mu.RLock()
	defer rs.r.mu.RUnlock()
	var names []string
	for instance, since := range rs.gone {
		if now.Sub(since) < goneFor {
			names = append(names, instance)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return rs.gone[b].Compare(rs.gone[a]) })
	return names[:min(len(names), maxGone)]
}

// HasEnded reports whether a relay is known to have crashed.
func (r *Registry) HasEnded(instance string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, gone := r.relays.gone[instance]
	return gone || slices.Contains(r.cfg.Previous, instance)
}

// leads reports whether this relay maintains its region's store on behalf of all
// relays.
func (rs *relaySessions) leads() bool {
	rs.r.mu.RLock()
	defer rs.r.mu.RUnlock()
	for instance, p := range rs.peers {
		if p.home == nil && p.presentLocked(rs.patience) && instance < rs.r.cfg.Instance {
			return false
		}
	}
	return true
}

// otherKeysLocked returns a text that names a relay with different key sets, or "".
// Such relays cannot verify each other's signatures.
func (rs *relaySessions) otherKeysLocked() string {
	own := rs.r.cfg.Keys()
	for instance, p := range rs.peers {
		if instance != rs.r.cfg.Instance && p.presentLocked(absentAfter) && len(p.Keys) > 0 && len(own) > 0 && !slices.Equal(p.Keys, own) {
			return fmt.Sprintf("relay %s has the keys %v, and this relay %v: copy the directory keys from the relay where they were changed", instance, p.Keys, own)
		}
	}
	return ""
}

// present returns a text that lists the running relays, to notice a change.
func (rs *relaySessions) present() string {
	rs.r.mu.RLock()
	defer rs.r.mu.RUnlock()
	var there []string
	for instance, p := range rs.peers {
		if p.presentLocked(absentAfter) {
			there = append(there, instance)
		}
	}
	slices.Sort(there)
	return strings.Join(there, " ")
}

// ended returns the sessions to remove because their relays have ended or been silent for
// long, with their revisions.
func (rs *relaySessions) ended() map[string]uint64 {
	rs.r.mu.RLock()
	defer rs.r.mu.RUnlock()
	old := map[string]uint64{}
	for instance, p := range rs.peers {
		if p.rev != 0 && p.home == nil && (p.Bye || p.missed > int(forgetAfter/rs.r.beatEvery)) {
			old[relayKeys+instance] = p.rev
		}
	}
	return old
}
