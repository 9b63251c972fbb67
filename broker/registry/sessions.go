package registry

import (
	"maps"
	"slices"
	"time"
)

// Times of sessions.
const (
	beatEvery = 2 * time.Second // interval of session writes; shorter if leases are short

	absentAfter = 2               // beats that a relay must miss before its successor's claim counts
	goneFor     = time.Minute     // host-agents are notified of a crashed relay for this long
	maxGone     = 64              // crashed relays in one answer
	forgetAfter = 5 * time.Minute // silence, counted in beats, after which a session is removed
)

// patience returns the beats that a relay may miss before the leases that it keeps
// have expired. A relay that pauses for less than a lease must not lose them: it may
// have paused just before a beat, and the observer may have counted a beat just after
// the last one.
func patience(lease, beat time.Duration) int { return int(lease/beat) + 2 }

// A session announces a running relay. Only the repeated writes prove that the relay
// runs, not the contents.
type session struct {
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Started  time.Time `json:"started"`          // for people
	Node     string    `json:"node,omitempty"`   // name of its NATS server in a cluster
	Port     string    `json:"port,omitempty"`   // cluster port of that server
	URL      string    `json:"url,omitempty"`    // base URL at which clients reach exactly this relay
	Keys     []string  `json:"keys,omitempty"`   // names of its key sets
	Previous []string  `json:"former,omitempty"` // crashed instances that it succeeded
	Bye      bool      `json:"bye,omitempty"`    // it ends in good order
}

// A peer is another relay. Its presence is measured in beats that this relay has
// completed through the store since. A relay is therefore never missed because the
// store was away, this process was paused, or clocks differ.
type peer struct {
	session
	rev    uint64 // of its session in the store; 0: missing
	epoch  uint64 // of the watch that last delivered it
	missed int    // own beats since it was last heard
	home   *view  // the view of its region; nil: this relay's region
	there  int    // like missed, but counts only beats in which that region was heard
	heard  time.Time
	keeps  map[string]bool // hosts whose lease it keeps, by the store
}

// peerLocked returns a relay's entry, which it creates if needed.
func (r *Registry) peerLocked(instance string) *peer {
	p := r.peers[instance]
	if p == nil {
		p = &peer{keeps: map[string]bool{}, heard: time.Now()}
		p.Instance = instance
		r.peers[instance] = p
	}
	return p
}

// lostLocked reports whether the relay that keeps a lease has been silent for a whole
// lease time, so that its leases have expired. Silence of a whole region proves
// nothing, except for hosts of this region.
func (r *Registry) lostLocked(k *knownHost, keeper string) bool {
	p := r.peers[keeper]
	switch {
	case p == nil:
		return false
	case k.home != nil && p.home != nil:
		return p.there > r.patience
	}
	return p.missed > r.patience
}

// silent reports whether a relay has missed more than the given beats, by either
// count.
func (p *peer) silent(beats int) bool { return p.missed > beats || p.there > beats }

// heardLocked returns when a relay was last heard, for people, or the zero time.
func (r *Registry) heardLocked(instance string) time.Time {
	if p := r.peers[instance]; p != nil && p.rev != 0 {
		return p.heard.UTC().Round(0)
	}
	return time.Time{}
}

func (r *Registry) lastHeard(instance string) time.Time {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.heardLocked(instance)
}

// applySession applies a session from a store. After a removed session (rev 0), the
// leases of that relay still last for one lease time.
func (r *Registry) applySession(v *view, instance string, s session, rev, epoch uint64, now time.Time) {
	r.mu.Lock()
	p := r.peerLocked(instance)
	was := p.silent(r.patience)
	p.home = r.foreign(v)
	news := rev > p.rev // otherwise a new watch has repeated it
	p.rev, p.epoch = rev, epoch
	if news && s.Bye {
		p.session = s
	} else if news {
		met := p.Started.IsZero()
		p.session, p.missed, p.there, p.heard = s, 0, 0, now
		delete(r.gone, instance)
		if met && instance != r.cfg.Instance {
			r.cfg.Log.Info("relay found", "relay", instance, "version", s.Version)
		}
	}
	if was && !p.silent(r.patience) {
		r.changedLocked(slices.Collect(maps.Keys(p.keeps))...)
	}
	r.mu.Unlock()
	if instance == r.cfg.Instance && news {
		r.beat(now)
	}
}

// beat counts one session write that has come back from the store.
func (r *Registry) beat(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.beaten) < r.beatEvery/2 {
		return // delayed beats that arrive together count once
	}
	r.beaten = now
	previous := r.previousLocked(now)
	heard := r.heardRegionsLocked()
	for instance, p := range r.peers {
		if instance == r.cfg.Instance {
			continue
		}
		p.missed++
		if heard[p.home] {
			p.there++
		}
		if p.there == r.patience+1 {
			r.changedLocked(slices.Collect(maps.Keys(p.keeps))...)
		}
		if p.missed <= absentAfter {
			previous = append(previous, p.Previous...)
		}
		if p.missed == r.patience+1 {
			if len(p.keeps) > 0 && p.home == nil {
				r.cfg.Log.Warn("relay silent: hosts at no other relay are listed as offline", "relay", instance, "hosts", len(p.keeps))
			}
			r.changedLocked(slices.Collect(maps.Keys(p.keeps))...)
		}
		if p.missed > int(forgetAfter/r.beatEvery) && p.rev == 0 && len(p.keeps) == 0 {
			delete(r.peers, instance)
		}
	}
	for _, instance := range previous {
		// A relay that is heard is not gone: its data directory was copied.
		p := r.peers[instance]
		heard := p != nil && p.rev != 0 && p.missed <= absentAfter
		if !heard && now.Sub(r.started) > absentAfter*r.beatEvery && instance != r.cfg.Instance {
			r.loseLocked(instance, "its successor has started", now)
		}
	}
	maps.DeleteFunc(r.gone, func(_ string, since time.Time) bool { return now.Sub(since) > 2*goneFor })
}

// loseLocked records that a relay has crashed.
func (r *Registry) loseLocked(instance, why string, now time.Time) {
	if _, known := r.gone[instance]; known {
		return
	}
	r.gone[instance] = now
	r.cfg.Log.Warn("relay crashed: host-agents close its connections", "relay", instance, "because", why)
}

// previousLocked returns the instances that this relay succeeded, for the first
// minute.
func (r *Registry) previousLocked(now time.Time) []string {
	if now.Sub(r.started) > goneFor {
		return nil
	}
	return slices.Clone(r.cfg.Previous)
}

// goneRelays returns the crashed relays to report to host-agents.
func (r *Registry) goneRelays() []string {
	now := time.Now()
	r.mu.RLock()
	defer r.mu.RUnlock()
	var names []string
	for instance, since := range r.gone {
		if now.Sub(since) < goneFor {
			names = append(names, instance)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return r.gone[b].Compare(r.gone[a]) })
	return names[:min(len(names), maxGone)]
}

// HasEnded reports whether a relay has ended for good.
func (r *Registry) HasEnded(instance string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, gone := r.gone[instance]
	return gone || slices.Contains(r.cfg.Previous, instance)
}
