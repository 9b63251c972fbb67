package registry

import (
	"container/heap"
	"time"
)

// A host-agent whose connection ends at this relay itself need not ask for its lease again
// and again: that it is there is told by whatever comes from it, a ping at least. So the
// relay looks at its connection when the lease would run out, and not before, and the
// host-agent is told to ask for it now and then only ([leaseAnswer.Every]): while nothing is
// said, a host costs what a ping does.

// renewLined is how often a host-agent asks whose connection is looked at.
const renewLined = time.Minute

// A Line is the connection of a host-agent that ends at this relay.
type Line struct {
	Tenant, Host string
	Instance     string           // of the host-agent, as it says itself
	Heard        func() time.Time // when something last came from it; must not block
	Cut          func()           // ends it; must not block
}

// Attend has the registry look at a connection, until it has ended. Several may be of one
// instance, while one that it has given up is not known to have ended.
func (r *Registry) Attend(l *Line) (ended func()) {
	key := hostKey(l.Tenant, l.Host)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lines[key] == nil {
		r.lines[key] = map[*Line]bool{}
	}
	r.lines[key][l] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.heardHereLocked(r.hosts[key]) // this was the last of it
		delete(r.lines[key], l)
		if len(r.lines[key]) == 0 {
			delete(r.lines, key)
		}
	}
}

// lineHeardLocked returns when the holder of a lease that is kept was last heard, by a
// renewal or on its connection.
func (r *Registry) lineHeardLocked(k *knownHost) time.Time {
	heard := k.renewed
	for l := range r.lines[k.Key] {
		if l.Instance == k.own.Instance {
			heard = later(heard, l.Heard())
		}
	}
	return heard
}

// heardHereLocked notes when the holder of a lease that this relay keeps was last heard. It may be nil.
func (r *Registry) heardHereLocked(k *knownHost) {
	if k == nil || k.kept == nil {
		return
	}
	if heard := r.lineHeardLocked(k); heard.After(k.renewed) {
		r.keptLocked(k, heard)
	}
}

// heardHere is heardHereLocked of a host, by its key.
func (r *Registry) heardHere(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heardHereLocked(r.hosts[key])
}

// renewEvery is how often an instance is to ask for its lease, in milliseconds; 0: as often as it
// does by itself, because its lease is not kept here, or it is not heard here.
func (r *Registry) renewEvery(key, instance string) int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.hosts[key]; k == nil || k.kept == nil || k.own.Instance != instance || !r.hasLineLocked(key, instance) {
		return 0
	}
	return renewLined.Milliseconds()
}

// hasLineLocked reports whether there is a connection of an instance.
func (r *Registry) hasLineLocked(key, instance string) bool {
	for l := range r.lines[key] {
		if l.Instance == instance {
			return true
		}
	}
	return false
}

// cutLocked ends the connections of an instance that has the host no more, so that it asks why.
func (r *Registry) cutLocked(key, instance string) {
	for l := range r.lines[key] {
		if l.Instance == instance {
			l.Cut()
		}
	}
}

// A keptLease is a lease that this relay keeps.
type keptLease struct {
	host  *knownHost
	place int // in keptLeases
}

// keptLeases are a heap, by when leases were renewed: the first is the one that runs out
// first.
type keptLeases []*keptLease

// Len implements [heap.Interface].
func (h keptLeases) Len() int { return len(h) }

// Less implements [heap.Interface].
func (h keptLeases) Less(i, j int) bool { return h[i].host.renewed.Before(h[j].host.renewed) }

// Swap implements [heap.Interface].
func (h keptLeases) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements [heap.Interface].
func (h *keptLeases) Push(x any) {
	kept := x.(*keptLease)
	kept.place = len(*h)
	*h = append(*h, kept)
}

// Pop implements [heap.Interface].
func (h *keptLeases) Pop() any {
	last := len(*h) - 1
	kept := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return kept
}

// keptLocked notes that this relay has heard the holder of a lease, which it keeps.
func (r *Registry) keptLocked(k *knownHost, at time.Time) {
	k.renewed = at
	k.renewals++
	if k.kept == nil {
		k.kept = &keptLease{host: k}
		heap.Push(&r.kept, k.kept)
		return
	}
	heap.Fix(&r.kept, k.kept.place)
}

// sweep ends the leases that this relay keeps and of whose holders nothing was heard.
func (r *Registry) sweep(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.kept) > 0 && now.Sub(r.kept[0].host.renewed) > r.cfg.LeaseTTL {
		k := r.kept[0].host
		if r.heardHereLocked(k); now.Sub(k.renewed) <= r.cfg.LeaseTTL {
			continue
		}
		seen := k.renewed.UTC().Round(0)
		l := *k.own
		l.Lost, l.Keeper = true, r.cfg.Instance
		r.cutLocked(k.Key, l.Instance)
		r.dropLocked(k)
		k.own, k.dirty, k.LastSeen = &l, true, later(k.LastSeen, seen)
		r.dirty[k.Key] = true
		r.changedLocked(k.Key)
		wakeUp(r.write)
	}
}
