package registry

import (
	"maps"
	"slices"
	"time"
)

// Times of sessions.
const (
	beatEvery = 2 * time.Second // each relay writes its session this often, more often if leases are short

	formerAfter = 2               // beats that a relay must have missed for its successor's word to count
	goneFor     = time.Minute     // for this long host-agents are told of a crashed relay
	maxGone     = 64              // crashed relays that they are told of
	forgetAfter = 5 * time.Minute // the session of a relay that was not heard for so long is removed, in beats
)

// patience is how many beats a relay may miss until leases have run out that it alone
// has kept. Those of one that was stopped, and is back within the time of a lease, have
// not: it may have been stopped just before its next beat, and the one that misses it
// may have counted one right after its last.
func patience(lease, beat time.Duration) int { return int(lease/beat) + 2 }

// A session says that a relay runs. It is in the store, and proves nothing by what
// it says, but by being written again and again.
type session struct {
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Started  time.Time `json:"started"`          // for people
	Node     string    `json:"node,omitempty"`   // name of its NATS server, if that is one of a cluster
	Port     string    `json:"port,omitempty"`   // where that listens for others
	URL      string    `json:"url,omitempty"`    // where clients reach it, and no other
	Keys     []string  `json:"keys,omitempty"`   // sets of keys that it has
	Former   []string  `json:"former,omitempty"` // instances that it has succeeded after a crash
	Bye      bool      `json:"bye,omitempty"`    // it ends, in good order
}

// A peer is another relay, as far as this one knows. Whether it is there is told
// by the beats that this relay itself has got into the store since: so nobody is
// missed while the store is away, while this process was stopped, or because
// of what clocks say.
type peer struct {
	session
	rev    uint64 // of its session in the store; 0: it is not there
	epoch  uint64 // of the watch that last saw it
	missed int    // own beats since it was last heard
	home   *view  // of the region whose store has its session; nil: this relay's
	there  int    // like missed, only of beats in which that region was heard
	heard  time.Time
	keeps  map[string]bool // hosts whose lease it keeps, as the store says
}

// peerLocked returns what is known of a relay.
func (r *Registry) peerLocked(instance string) *peer {
	p := r.peers[instance]
	if p == nil {
		p = &peer{keeps: map[string]bool{}, heard: time.Now()}
		p.Instance = instance
		r.peers[instance] = p
	}
	return p
}

// lostLocked reports whether the relay that keeps a lease has been silent for the whole
// time of one. Then those leases have run out that it alone has kept. That of a region
// from which nothing is heard at all proves nothing, except about hosts of which this
// region decides.
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

// silent reports whether a relay has been silent for so many beats, in any of the ways
// in which that counts.
func (p *peer) silent(beats int) bool { return p.missed > beats || p.there > beats }

// heardLocked returns when a relay was last heard, for people; zero if that is not
// known.
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

// hearSession takes a session as the store has it. One that is gone (rev 0) leaves
// the time of a lease for the hosts that its relay kept to be taken by others.
func (r *Registry) hearSession(v *view, instance string, s session, rev, epoch uint64, now time.Time) {
	r.mu.Lock()
	p := r.peerLocked(instance)
	was := p.silent(r.patience)
	p.home = r.foreign(v)
	news := rev > p.rev // else a new watch has brought again what is old
	p.rev, p.epoch = rev, epoch
	if news && s.Bye {
		p.session = s
	} else if news {
		met := p.Started.IsZero()
		p.session, p.missed, p.there, p.heard = s, 0, 0, now
		delete(r.gone, instance)
		if met && instance != r.cfg.Instance {
			r.cfg.Log.Info("another relay is there", "relay", instance, "version", s.Version)
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

// beat counts one beat of this relay that has come back from the store.
func (r *Registry) beat(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.beaten) < r.beatEvery/2 {
		return // several that were held up count once
	}
	r.beaten = now
	former := r.formerLocked(now)
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
		if p.missed <= formerAfter {
			former = append(former, p.Former...)
		}
		if p.missed == r.patience+1 {
			if len(p.keeps) > 0 && p.home == nil {
				r.cfg.Log.Warn("another relay is not heard any more: hosts that no other relay hears are listed as offline", "relay", instance, "hosts", len(p.keeps))
			}
			r.changedLocked(slices.Collect(maps.Keys(p.keeps))...)
		}
		if p.missed > int(forgetAfter/r.beatEvery) && p.rev == 0 && len(p.keeps) == 0 {
			delete(r.peers, instance)
		}
	}
	for _, instance := range former {
		// One that is heard is not gone: its data directory was copied.
		p := r.peers[instance]
		heard := p != nil && p.rev != 0 && p.missed <= formerAfter
		if !heard && now.Sub(r.started) > formerAfter*r.beatEvery && instance != r.cfg.Instance {
			r.loseLocked(instance, "its successor has started", now)
		}
	}
	maps.DeleteFunc(r.gone, func(_ string, since time.Time) bool { return now.Sub(since) > 2*goneFor })
}

// loseLocked notes that a relay is gone for good.
func (r *Registry) loseLocked(instance, why string, now time.Time) {
	if _, known := r.gone[instance]; known {
		return
	}
	r.gone[instance] = now
	r.cfg.Log.Warn("a relay is gone: host-agents are told to close its connections", "relay", instance, "because", why)
}

// formerLocked returns the instances that this one has succeeded, while that
// is news.
func (r *Registry) formerLocked(now time.Time) []string {
	if now.Sub(r.started) > goneFor {
		return nil
	}
	return slices.Clone(r.cfg.Former)
}

// goneRelays returns the relays that host-agents are to be told of.
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

// HasEnded reports whether a relay is known to have ended, and cannot come back.
func (r *Registry) HasEnded(instance string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, gone := r.gone[instance]
	return gone || slices.Contains(r.cfg.Former, instance)
}
