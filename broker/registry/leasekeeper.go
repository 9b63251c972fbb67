package registry

import (
	"context"
	"strings"
	"time"

	"ahprelay/broker/link"
	"ahprelay/internal/clock"
	"ahprelay/internal/signal"
)

// If a host-agent is connected to this relay, its lease rarely needs a renewal request:
// everything that it sends, at least a ping, proves that it is alive. This relay
// therefore looks at the connection when the lease would expire, and allows a long
// renewal interval in its answers ([leaseAnswer.Every]). An idle host thus costs no more
// than its pings.

// renewLined is the renewal interval allowed to a host-agent connected to this relay.
const renewLined = 2 * time.Minute

// A Line is a host-agent's connection to this relay.
type Line struct {
	Tenant, Host string
	Instance     string           // the host-agent's instance, as it claims
	Heard        func() time.Time // when bytes last arrived; must not block
	Cut          func()           // closes the connection; must not block
}

// A leaseKeeper keeps leases of host-agents, and knows which host-agents are connected to
// this relay. Registry.mu guards its fields.
type leaseKeeper struct {
	r       *Registry
	kept    map[*knownHost]bool       // hosts with a lease that this relay keeps: it ends the lease if the holder falls silent
	lines   map[string]map[*Line]bool // connections of host-agents, by host key
	recheck map[string]string         // instances that must be told to check their lease, by host key
	rivals  map[string]bool           // kept leases that a different instance has requested since the last sweep, by host key
}

// Attend adds a host-agent's connection until ended is called. An instance may have
// several, because a lost connection may end late.
func (r *Registry) Attend(l *Line) (ended func()) {
	key := hostKey(l.Tenant, l.Host)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keeping.lines[key] == nil {
		r.keeping.lines[key] = map[*Line]bool{}
	}
	r.keeping.lines[key][l] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.keeping.checkLocked(r.hosts[key]) // the connection's last sign of life
		delete(r.keeping.lines[key], l)
		if len(r.keeping.lines[key]) == 0 {
			delete(r.keeping.lines, key)
		}
	}
}

// lastHeardLocked returns when the holder of a kept lease was last heard, through a
// renewal or on its connection.
func (lk *leaseKeeper) lastHeardLocked(k *knownHost) time.Time {
	heard := k.renewed
	for l := range lk.lines[k.Key] {
		if l.Instance == k.own.Instance {
			heard = clock.Later(heard, l.Heard())
		}
	}
	return heard
}

// checkLocked renews a kept lease if its holder was heard on its connection. K may be
// nil.
func (lk *leaseKeeper) checkLocked(k *knownHost) {
	if k == nil || !k.kept {
		return
	}
	if heard := lk.lastHeardLocked(k); heard.After(k.renewed) {
		lk.keepLocked(k, heard)
	}
}

// check is checkLocked before an instance's request. It notes a request for a different instance's
// lease, for sweep. It ends no lease itself: this process may have been paused, and then silence
// proves nothing.
func (lk *leaseKeeper) check(key, instance string) {
	lk.r.mu.Lock()
	defer lk.r.mu.Unlock()
	k := lk.r.hosts[key]
	if lk.checkLocked(k); k != nil && k.kept && k.own.Instance != instance {
		lk.rivals[key] = true
	}
}

// renewEvery returns the renewal interval allowed to an instance, in milliseconds. It is
// 0 unless this relay keeps the lease and has the instance's connection; the instance
// then uses its own interval.
func (lk *leaseKeeper) renewEvery(key, instance string) int64 {
	lk.r.mu.RLock()
	defer lk.r.mu.RUnlock()
	if k := lk.r.hosts[key]; k == nil || !k.kept || k.own.Instance != instance || !lk.connectedLocked(key, instance) {
		return 0
	}
	return renewLined.Milliseconds()
}

// connectedLocked reports whether an instance has a connection here.
func (lk *leaseKeeper) connectedLocked(key, instance string) bool {
	for l := range lk.lines[key] {
		if l.Instance == instance {
			return true
		}
	}
	return false
}

// cutLocked closes an instance's connections, because the instance has lost its lease or
// its host was removed. The instance reconnects, and learns the reason.
func (lk *leaseKeeper) cutLocked(key, instance string) {
	for l := range lk.lines[key] {
		if l.Instance == instance {
			l.Cut()
		}
	}
}

// recheckLocked makes an instance check its lease soon. It is called when this relay
// stops keeping the lease or the lease was lost, because the instance may renew at a long
// interval.
func (lk *leaseKeeper) recheckLocked(key, instance string) {
	lk.recheck[key] = instance
	signal.Send(lk.r.wake)
}

// sendRechecks sends the messages that recheckLocked has requested.
func (lk *leaseKeeper) sendRechecks() {
	lk.r.mu.Lock()
	var due map[string]string
	if len(lk.recheck) > 0 {
		due, lk.recheck = lk.recheck, map[string]string{}
	}
	lk.r.mu.Unlock()
	for key, instance := range due {
		tenant, host, _ := strings.Cut(key, ".")
		subject, packet := link.Recheck(tenant, host, instance, lk.r.cfg.Instance)
		_ = lk.r.cfg.Tenants.Publish(subject, packet) // if it is lost, the instance still renews in time
	}
}

// keepLocked records a sign of life from a lease's holder. This relay becomes the lease's
// keeper if it was not.
func (lk *leaseKeeper) keepLocked(k *knownHost, at time.Time) {
	k.renewed = at
	k.renewals++
	k.kept, lk.kept[k] = true, true
}

// sweep ends the leases whose holders have been silent for the lease time. While relays expect
// host-agents that they have refused, a silent holder may be among these. Its lease then lasts
// maxExpected longer, unless another instance requests it.
func (lk *leaseKeeper) sweep(now time.Time) {
	lk.r.mu.Lock()
	defer lk.r.mu.Unlock()
	patience := lk.r.cfg.LeaseTTL
	end := func(k *knownHost) {
		if lk.checkLocked(k); now.Sub(k.renewed) > patience {
			lk.endLocked(k)
		}
	}
	for key := range lk.rivals {
		if k := lk.r.hosts[key]; k != nil && k.kept {
			end(k)
		}
	}
	clear(lk.rivals)
	if lk.r.relays.expectsLocked() {
		patience += maxExpected
	}
	for k := range lk.kept {
		if now.Sub(k.renewed) > patience {
			end(k)
		}
	}
}

// endLocked ends a kept lease, because its holder is silent.
func (lk *leaseKeeper) endLocked(k *knownHost) {
	seen := k.renewed.UTC().Round(0)
	l := *k.own
	l.Lost, l.Keeper = true, lk.r.cfg.Instance
	lk.cutLocked(k.Key, l.Instance)
	lk.recheckLocked(k.Key, l.Instance)
	lk.dropLocked(k)
	k.own, k.dirty, k.LastSeen = &l, true, clock.Later(k.LastSeen, seen)
	lk.r.writer.dirty[k.Key] = true
	lk.r.changedLocked(k.Key)
	signal.Send(lk.r.writer.wake)
}

// hold handles a host-agent's request. keeper is the relay that has received the request;
// it keeps a granted lease. Each case in which the store is unreachable has its branch at
// the end.
func (lk *leaseKeeper) hold(ctx context.Context, key string, req leaseRequest, keeper string) leaseAnswer {
	if answer, done := lk.renew(key, req, keeper); done {
		return answer
	}
	lk.check(key, req.Instance) // changes the revision in the answer, which shows a rival that the holder is alive
	var answer leaseAnswer
	var next *lease
	now := time.Now().UTC()
	change := func(k *knownHost, alive bool) *hostState {
		current := k.lease()
		if current.held() && !alive && !lk.continues(k, req.Instance) {
			current = nil
		}
		next, answer = decide(current, k.downSince(), k.renewals, req, now)
		answer.Fence = k.lease().number()
		if next == nil {
			return nil
		}
		next.Keeper = keeper
		s := k.hostState
		s.Lease, s.LastSeen, s.Enrolled = next, now, earlier(k.Enrolled, now)
		next.Fence = k.lease().number()
		if current == nil || current.Released || current.Instance != next.Instance {
			next.Fence++
		}
		answer.Fence = next.Fence
		return &s
	}
	err := lk.r.writer.update(ctx, key, change)
	if err == nil && next == nil && answer.Result != leaseHeld && lk.maybeOld(key) && lk.r.writer.refresh(ctx, key) == nil {
		err = lk.r.writer.update(ctx, key, change)
	}
	switch {
	case err != nil && req.Op == opRelease && lk.releaseHere(key, req):
		return leaseAnswer{Result: leaseReleased}
	case err != nil && next.held() && lk.holdHere(key, next):
	case err != nil:
		return leaseAnswer{Result: leaseRetry, Error: err.Error()}
	}
	if next.held() && keeper == lk.r.cfg.Instance {
		lk.r.accounts.open(tenantOfKey(key))
	}
	return answer
}

// maybeOld reports whether the store may have a later lease than this relay's memory. For a lease
// that this relay keeps, the memory decides.
func (lk *leaseKeeper) maybeOld(key string) bool {
	if lk.r.storeAway() != nil {
		return false
	}
	k, _ := lk.r.known(key)
	return !k.kept
}

// continues reports whether an instance may continue its expired lease, because its host is
// still listed as online. Then the host has never been offline, and its lease keeps its times.
func (lk *leaseKeeper) continues(k *knownHost, instance string) bool {
	lk.r.mu.RLock()
	defer lk.r.mu.RUnlock()
	return k.lease().Instance == instance && lk.r.relays.onlineLocked(k)
}

// renew answers the current holder of a host from memory, and thus also while the store
// is unreachable. It returns false if the request is not a renewal.
func (lk *leaseKeeper) renew(key string, req leaseRequest, keeper string) (answer leaseAnswer, done bool) {
	if req.Op != opHold || keeper != lk.r.cfg.Instance {
		return answer, false
	}
	lk.r.mu.Lock()
	defer lk.r.mu.Unlock()
	k := lk.r.hosts[key]
	if k == nil || !lk.r.aliveLocked(k) || k.lease().Instance != req.Instance {
		return answer, false
	}
	was, now := k.lease(), time.Now()
	next, answer := decide(was, k.downSince(), k.renewals, req, now.UTC())
	if next == nil && req.Seq < was.Seq { // a later request has overtaken this one, perhaps at a different relay, which then keeps the lease
		answer.Fence = was.number()
		return answer, true
	}
	if next == nil { // a repeated request
		same := *was
		next = &same
	}
	next.Keeper, next.Fence = keeper, was.number()
	answer.Fence = next.Fence
	k.own = next
	if !next.sameForRelays(was) {
		k.dirty = true
	}
	if k.dirty || next.Presence.Clients != was.Presence.Clients {
		lk.r.changedLocked(key)
	}
	lk.keepLocked(k, now)
	if k.dirty || k.Lease.Presence.Clients != k.lease().Presence.Clients {
		lk.r.writer.dirty[key] = true
	}
	if k.dirty {
		signal.Send(lk.r.writer.wake)
	}
	return answer, true
}

// adoptLocked makes this relay keep a lease whose keeper, according to the store, is this
// relay. A different relay may have granted it. The host-agent may not have received the
// answer, but that does not matter: until this relay ends the lease, no other instance
// can get it.
func (lk *leaseKeeper) adoptLocked(k *knownHost) {
	l := k.Lease
	if k.own != nil || !l.runs() || l.Keeper != lk.r.cfg.Instance {
		return
	}
	own := *l
	k.own = &own
	lk.keepLocked(k, time.Now())
}

// holdHere grants a lease to a known host while the store cannot be written. It does so
// only if the store belongs to this relay alone, because then no other relay can grant a
// lease. The lease is written to the store later.
func (lk *leaseKeeper) holdHere(key string, next *lease) bool {
	lk.r.mu.Lock()
	defer lk.r.mu.Unlock()
	k := lk.r.hosts[key]
	if k == nil || !lk.r.decidesAlone() || next.number() < k.lease().number() {
		return false
	}
	if k.kept && k.own.Instance != next.Instance {
		lk.cutLocked(key, k.own.Instance)
	}
	lk.dropLocked(k)
	k.own, k.dirty = next, true
	lk.keepLocked(k, time.Now())
	lk.r.writer.dirty[key] = true
	lk.r.changedLocked(key)
	return true
}

// releaseHere records the release of a host while the store is unreachable.
func (lk *leaseKeeper) releaseHere(key string, req leaseRequest) bool {
	lk.r.mu.Lock()
	defer lk.r.mu.Unlock()
	k := lk.r.hosts[key]
	if k == nil || !k.lease().held() || k.lease().Instance != req.Instance {
		return false
	}
	next, _ := decide(k.lease(), k.downSince(), k.renewals, req, time.Now().UTC())
	if next == nil {
		return false
	}
	next.Keeper, next.Fence = lk.r.cfg.Instance, k.lease().number()
	lk.dropLocked(k)
	k.own, k.dirty = next, true
	lk.r.writer.dirty[key] = true
	lk.r.changedLocked(key)
	return true
}

// overtakenLocked replaces this relay's lease with the store's.
func (lk *leaseKeeper) overtakenLocked(k *knownHost) {
	instance, kept := k.own.Instance, k.kept
	lk.dropLocked(k)
	switch {
	case k.Lease != nil && k.Lease.Instance != instance:
		lk.cutLocked(k.Key, instance)
	case kept && k.Lease.held() && lk.connectedLocked(k.Key, instance):
		lk.recheckLocked(k.Key, instance)
	}
}

func (lk *leaseKeeper) dropLocked(k *knownHost) {
	k.own, k.dirty, k.kept = nil, false, false
	delete(lk.kept, k)
	delete(lk.r.writer.dirty, k.Key)
}

// keeper returns the relay that keeps the lease of a rival instance. It returns "" if
// there is none, or if it is this relay.
func (lk *leaseKeeper) keeper(key, instance string) string {
	lk.r.mu.RLock()
	defer lk.r.mu.RUnlock()
	k := lk.r.hosts[key]
	if k == nil || k.kept || !lk.r.aliveLocked(k) {
		return ""
	}
	l := k.lease()
	p := lk.r.relays.peers[l.Keeper]
	if l.Instance == instance || l.Keeper == lk.r.cfg.Instance || p == nil || p.rev == 0 || p.Bye {
		return ""
	}
	return l.Keeper
}
