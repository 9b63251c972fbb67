package registry

import (
	"container/heap"
	"time"
)

// A host-agent whose connection ends at this relay renews its lease rarely: everything
// that it sends, at least a ping, proves that it is alive. The relay checks that
// connection only when the lease would expire, and grants the long interval in its
// answer ([leaseAnswer.Every]). An idle host thus costs only its pings.

// renewLined is the renewal interval of a host-agent whose connection ends at this
// relay.
const renewLined = time.Minute

// A Line is a host-agent's connection that ends at this relay.
type Line struct {
	Tenant, Host string
	Instance     string           // of the host-agent, as it claims
	Heard        func() time.Time // when a message last arrived; must not block
	Cut          func()           // closes it; must not block
}

// Attend adds a connection until ended is called. An instance may have several,
// because the end of an abandoned connection is noticed late.
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
		r.heardHereLocked(r.hosts[key]) // its last sign of life
		delete(r.lines[key], l)
		if len(r.lines[key]) == 0 {
			delete(r.lines, key)
		}
	}
}

// lineHeardLocked returns when the holder of a kept lease was last heard, by a renewal
// or on its connection.
func (r *Registry) lineHeardLocked(k *knownHost) time.Time {
	heard := k.renewed
	for l := range r.lines[k.Key] {
		if l.Instance == k.own.Instance {
			heard = later(heard, l.Heard())
		}
	}
	return heard
}

// heardHereLocked updates the renewal time of a lease that this relay keeps. K may be
// nil.
func (r *Registry) heardHereLocked(k *knownHost) {
	if k == nil || k.kept == nil {
		return
	}
	if heard := r.lineHeardLocked(k); heard.After(k.renewed) {
		r.keptLocked(k, heard)
	}
}

// heardHere calls heardHereLocked for a host key.
func (r *Registry) heardHere(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heardHereLocked(r.hosts[key])
}

// renewEvery returns the renewal interval for an instance in milliseconds. It returns
// 0, for the instance's own interval, unless this relay keeps its lease and has its
// connection.
func (r *Registry) renewEvery(key, instance string) int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.hosts[key]; k == nil || k.kept == nil || k.own.Instance != instance || !r.hasLineLocked(key, instance) {
		return 0
	}
	return renewLined.Milliseconds()
}

// hasLineLocked reports whether an instance has a connection here.
func (r *Registry) hasLineLocked(key, instance string) bool {
	for l := range r.lines[key] {
		if l.Instance == instance {
			return true
		}
	}
	return false
}

// cutLocked closes the connections of an instance that has lost its host, so that it
// asks why.
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

// keptLeases is a heap ordered by renewal time: the first lease expires first.
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

// keptLocked records that the holder of a lease was heard, and keeps that lease.
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

// sweep ends the kept leases whose holders have been silent for too long.
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
