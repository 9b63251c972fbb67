package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"ahprelay/auth"
)

// Limits. What a client may use is counted in five scopes that it belongs
// to: its address, its token, that one's subject, its host and its tenant. Each
// relay counts for itself.
//
// A connection too many, at a time or in a time, is refused before the handshake: HTTP 429, with
// Retry-After. Messages that come too fast are read later, so that the client
// is slowed down by its own connection. If that would take longer than
// maxDelay, it is told: the request with error 4290 and data {limit,
// retryAfterMs}, and close 1013.
//
// Addresses of the machine itself have no limits: behind a proxy that is not
// trusted (Config.TrustProxy) all clients have one. IPv6 addresses count by
// /64, which is what one customer has.

// Limits are how much clients may use.
type Limits struct {
	Address, Subject, Token, Host, Tenant Limit

	// Failures is how many requests without a good token one address may send
	// in a minute before it gets 429 instead of 401. Default: 120; below 0: any.
	Failures int
}

// A Limit is how much one scope allows. Zero means the default, and less no
// limit.
type Limit struct {
	Connections int // at a time
	Pending     int // of these, not connected to their hosts yet
	Frames      int // messages from clients in a second, on average over rateWindow
	Bytes       int // the same of their bytes
	Opens       int // times in a second, on the same average, that clients come: connections, and requests to begin anew on one
}

// defaultLimits are far from what clients do that mean no harm.
var defaultLimits = Limits{
	Address:  Limit{Connections: 4096, Pending: 1024, Frames: 10_000, Bytes: 128 << 20, Opens: 200},
	Subject:  Limit{Connections: 2048, Pending: 1024, Frames: 5_000, Bytes: 64 << 20, Opens: 20},
	Token:    Limit{Opens: 10},
	Host:     Limit{Connections: 8192, Pending: 4096, Frames: 20_000, Bytes: 256 << 20, Opens: 400},
	Tenant:   Limit{Connections: 32768, Pending: 16384, Frames: 50_000, Bytes: 512 << 20, Opens: 1000},
	Failures: 120,
}

// Times and bounds of limits.
const (
	// rateWindow is for how long the average of a rate is taken: what is
	// allowed in that time may come at once.
	rateWindow = 10 * time.Second

	// maxDelay is how long a message may wait. Clients that are not heard give
	// up after 25 s.
	maxDelay = 10 * time.Second

	// maxAgentConns is how many connections to NATS the agents of a host may
	// have: each has one, or two while it changes.
	maxAgentConns = 32

	// agentOpens is how many they may make in a second: each waits longer from
	// one to the next.
	agentOpens = 5

	// A host-agent changes its credential after weeks, or at once if the one
	// that it got was lost.
	tradesEvery  = 10 * time.Minute
	tradesAtOnce = 20

	connectRetry = 5 * time.Second // what who has too many connections is told

	// maxIdle is how many scopes without connections are remembered, so that
	// nobody gets new allowances by leaving and coming back.
	maxIdle = 16384
)

func (l Limits) withDefaults() Limits {
	fill := func(n *int, byDefault int) {
		if *n == 0 {
			*n = byDefault
		}
	}
	for _, p := range []struct{ to, from *Limit }{
		{&l.Address, &defaultLimits.Address}, {&l.Subject, &defaultLimits.Subject},
		{&l.Token, &defaultLimits.Token}, {&l.Host, &defaultLimits.Host}, {&l.Tenant, &defaultLimits.Tenant},
	} {
		fill(&p.to.Connections, p.from.Connections)
		fill(&p.to.Pending, p.from.Pending)
		fill(&p.to.Frames, p.from.Frames)
		fill(&p.to.Bytes, p.from.Bytes)
		fill(&p.to.Opens, p.from.Opens)
	}
	fill(&l.Failures, defaultLimits.Failures)
	return l
}

// An overLimit says which limit is reached, and when to try again.
type overLimit struct {
	Limit string // "connections of this subject"
	Max   int
	Retry time.Duration
}

func (e *overLimit) Error() string {
	return fmt.Sprintf("%s reached; try again in %v", e.name(), e.Retry.Round(time.Millisecond))
}

// name returns the limit, without the moment.
func (e *overLimit) name() string { return fmt.Sprintf("limit of %d %s", e.Max, e.Limit) }

// A scopeKey names what is counted together. The kind, address or tenant and so on, is for people.
type scopeKey struct{ kind, name string }

// A limitScope is what is used in one scope now.
type limitScope struct {
	kind          string
	limit         Limit
	frames, bytes *rate.Limiter // nil: no limit
	opens         *rate.Limiter

	// Guarded by the mutex of limiter.
	connections, pending int
	idle                 bool // its key is in limiter.idle
}

// A limiter counts.
type limiter struct {
	limits Limits
	frame  int // longest message, in bytes: fits at once

	failures, trades *buckets

	mu     sync.Mutex // guards the fields below, and what scopes say it guards
	scopes map[scopeKey]*limitScope
	idle   []scopeKey // that had no connection at some time, the longest ago first
}

func newLimiter(limits Limits, maxFrame int) *limiter {
	return &limiter{
		limits: limits, frame: maxFrame, scopes: map[scopeKey]*limitScope{},
		failures: newBuckets(time.Minute/time.Duration(max(limits.Failures, 1)), max(limits.Failures, 1)),
		trades:   newBuckets(tradesEvery, tradesAtOnce),
	}
}

// An admission is what one connection takes of the limits of its scopes.
type admission struct {
	limiter *limiter
	scopes  []*limitScope
	keys    []scopeKey
	pending bool
	left    bool
}

// connect admits a client's connection that is about to be made.
func (l *limiter) connect(who auth.Client, host, address string) (*admission, *overLimit) {
	a := &admission{limiter: l, pending: true}
	l.mu.Lock()
	defer l.mu.Unlock()
	ofToken := l.ofToken(who)
	most := ofToken.Connections // that there may have been of the token
	if most <= 0 {
		most = l.limits.Subject.Connections
	}
	a.joinLocked("token", who.ID, ofToken, most)
	a.joinLocked("subject", who.Tenant+" "+who.Subject, l.limits.Subject, l.limits.Subject.Connections)
	if who.MayReach(who.Tenant, host) {
		a.joinLocked("host", who.Tenant+" "+host, l.limits.Host, l.limits.Host.Connections)
	}
	a.joinLocked("tenant", who.Tenant, l.limits.Tenant, l.limits.Tenant.Connections)
	a.joinLocked("address", addressGroup(address), l.limits.Address, l.limits.Address.Connections)
	return a.fitLocked()
}

// ofToken returns the limits of a token: it may have one of its own.
func (l *limiter) ofToken(who auth.Client) Limit {
	limit := l.limits.Token
	if own := who.MaxConnections; own > 0 && (limit.Connections <= 0 || own < limit.Connections) {
		limit.Connections = own
	}
	return limit
}

// connectAgent admits a host-agent's connection to NATS.
func (l *limiter) connectAgent(host auth.Enrolment, address string) (*admission, *overLimit) {
	a := &admission{limiter: l, pending: true}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.joinLocked("host's agents", host.Tenant+" "+host.Host, Limit{Connections: maxAgentConns, Opens: agentOpens}, maxAgentConns)
	a.joinLocked("address", addressGroup(address), l.limits.Address, l.limits.Address.Connections)
	a.openedLocked()
	return a.fitLocked()
}

// fitLocked returns the admission, unless it is one too many, or comes too soon.
func (a *admission) fitLocked() (*admission, *overLimit) {
	for _, p := range a.scopes {
		for _, count := range []struct {
			what      string
			used, max int
		}{{"connections", p.connections, p.limit.Connections}, {"connections that wait for a host", p.pending, p.limit.Pending}} {
			if count.max > 0 && count.used > count.max {
				a.leaveLocked()
				return nil, &overLimit{count.what + " of this " + p.kind, count.max, connectRetry}
			}
		}
	}
	if over := a.comeLocked(time.Now()); over != nil {
		a.leaveLocked()
		return nil, over
	}
	return a, nil
}

// comeLocked counts that somebody comes, unless that is too often. Who is
// refused is not counted: with the allowance of one scope nobody uses up another's.
func (a *admission) comeLocked(now time.Time) *overLimit {
	for _, p := range a.scopes {
		if lack := p.lackOf(now); lack > 0 {
			return &overLimit{opensName + p.kind, p.limit.Opens, lack}
		}
	}
	for _, p := range a.scopes {
		if p.opens != nil {
			p.opens.AllowN(now, 1)
		}
	}
	return nil
}

// opensName is what is limited, before the kind of scope.
const opensName = "connections made in a second of this "

// lackOf returns after what time the scope lets somebody come again.
func (p *limitScope) lackOf(now time.Time) time.Duration {
	if p.opens == nil {
		return 0
	}
	lack := 1 - p.opens.TokensAt(now)
	return max(0, time.Duration(lack/float64(p.opens.Limit())*float64(time.Second)))
}

// joinLocked counts the connection in a scope, if there are limits for it.
// Back is how many of it may come at once: who was connected comes back.
func (a *admission) joinLocked(kind, name string, limit Limit, back int) {
	if name == "" || limit.Connections <= 0 && limit.Pending <= 0 && limit.Frames <= 0 && limit.Bytes <= 0 && limit.Opens <= 0 {
		return
	}
	key := scopeKey{kind, name}
	p := a.limiter.scopes[key]
	if p == nil {
		p = &limitScope{
			kind: kind, limit: limit,
			frames: bucket(limit.Frames, 1), bytes: bucket(limit.Bytes, a.limiter.frame),
			opens: bucket(limit.Opens, max(back, 1)),
		}
		a.limiter.scopes[key] = p
	}
	p.connections++
	p.pending++
	a.scopes, a.keys = append(a.scopes, p), append(a.keys, key)
}

// bucket allows so many a second, and at least so many at once.
func bucket(perSecond, least int) *rate.Limiter {
	if perSecond <= 0 {
		return nil
	}
	burst := perSecond * int(rateWindow/time.Second)
	return rate.NewLimiter(rate.Limit(perSecond), max(burst, least))
}

// opened notes that the connection waits for its host no longer.
func (a *admission) opened() {
	a.limiter.mu.Lock()
	defer a.limiter.mu.Unlock()
	a.openedLocked()
}

func (a *admission) openedLocked() {
	if !a.pending {
		return
	}
	a.pending = false
	for _, p := range a.scopes {
		p.pending--
	}
}

// leave gives the admission back.
func (a *admission) leave() {
	a.limiter.mu.Lock()
	defer a.limiter.mu.Unlock()
	a.leaveLocked()
}

func (a *admission) leaveLocked() {
	if a.left {
		return
	}
	a.openedLocked()
	a.left = true
	for i, p := range a.scopes {
		p.connections--
		if p.connections == 0 && !p.idle {
			p.idle = true
			a.limiter.idle = append(a.limiter.idle, a.keys[i])
		}
	}
	a.limiter.forgetLocked()
}

// forgetLocked forgets the scopes that have been idle for longest.
func (l *limiter) forgetLocked() {
	for len(l.idle) > maxIdle {
		p := l.scopes[l.idle[0]]
		p.idle = false
		if p.connections == 0 {
			delete(l.scopes, l.idle[0])
		}
		l.idle = l.idle[1:]
	}
}

// awaitRate counts a message of so many bytes, and waits until there is room for
// it. It returns an overLimit at once if that would take too long. A message
// with which the client begins anew is as much work for the host as one more
// connection, and counts as that too.
func (a *admission) awaitRate(ctx context.Context, bytes int, anew bool) *overLimit {
	now := time.Now()
	var w rateWait
	for _, p := range a.scopes {
		if w.use(now, p.frames, 1) && w.use(now, p.bytes, bytes) && (!anew || w.use(now, p.opens, 1)) {
			continue
		}
		w.cancel(now)
		switch w.refused {
		case p.frames:
			return &overLimit{"messages a second of this " + p.kind, p.limit.Frames, w.delay}
		case p.bytes:
			return &overLimit{"bytes a second of this " + p.kind, p.limit.Bytes, w.delay}
		}
		return &overLimit{opensName + p.kind, p.limit.Opens, w.delay}
	}
	if w.delay > 0 {
		timer := time.NewTimer(w.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// rateWait is for how long a message waits, and for what.
type rateWait struct {
	delay   time.Duration
	taken   []*rate.Reservation // of the buckets that had not enough
	refused *rate.Limiter       // where the wait would be too long
}

// use takes n of a bucket, and reports whether the wait is not too long.
func (w *rateWait) use(now time.Time, bucket *rate.Limiter, n int) bool {
	if bucket == nil {
		return true
	}
	n = min(n, bucket.Burst())
	if bucket.AllowN(now, n) {
		return true
	}
	r := bucket.ReserveN(now, n)
	w.taken = append(w.taken, r)
	delay := r.DelayFrom(now)
	if delay > maxDelay {
		w.delay, w.refused = delay, bucket
		return false
	}
	w.delay = max(w.delay, delay)
	return true
}

// cancel gives back what was reserved. What was there at once is not: the
// connection ends.
func (w *rateWait) cancel(now time.Time) {
	for _, r := range w.taken {
		r.CancelAt(now)
	}
}

// failed counts a request without a good token, and reports whether there were
// too many from that address.
func (l *limiter) failed(address string) *overLimit {
	group := addressGroup(address)
	if group == "" || l.limits.Failures < 0 {
		return nil
	}
	delay := l.failures.take(group)
	if delay == 0 {
		return nil
	}
	return &overLimit{"requests a minute without a good token from this address", l.limits.Failures, delay}
}

// traded counts a credential that a host-agent gets for another or for an
// enrolment token: relays have to remember each for long.
func (l *limiter) traded(host auth.Enrolment) *overLimit {
	delay := l.trades.take(host.Tenant + " " + host.Host)
	if delay == 0 {
		return nil
	}
	return &overLimit{"credentials in so short a time for this host", tradesAtOnce, delay}
}

// buckets are rates of many, of which those are forgotten that were quiet. They
// are safe for concurrent use.
type buckets struct {
	rate  rate.Limit
	burst int

	mu sync.Mutex // guards of
	of map[string]*rate.Limiter
}

func newBuckets(every time.Duration, burst int) *buckets {
	return &buckets{rate: rate.Every(every), burst: burst, of: map[string]*rate.Limiter{}}
}

// take takes one of somebody's, or returns after what time there is one again.
func (b *buckets) take(whose string) (wait time.Duration) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.of[whose]
	if bucket == nil {
		b.forgetLocked(now)
		bucket = rate.NewLimiter(b.rate, b.burst)
		b.of[whose] = bucket
	}
	r := bucket.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// forgetLocked makes room: those that were quiet go, and of the others as many
// that half is free, so that this is not to be done each time.
func (b *buckets) forgetLocked(now time.Time) {
	if len(b.of) < maxIdle {
		return
	}
	for whose, bucket := range b.of {
		if bucket.TokensAt(now) >= float64(bucket.Burst()) {
			delete(b.of, whose)
		}
	}
	for whose := range b.of {
		if len(b.of) <= maxIdle/2 {
			return
		}
		delete(b.of, whose)
	}
}

// addressGroup is what addresses are counted by, "" for one that is not.
func addressGroup(address string) string {
	at, err := netip.ParseAddr(strings.Trim(address, "[]"))
	switch {
	case err != nil || at.IsLoopback():
		return ""
	case at.Is6():
		return netip.PrefixFrom(at, 64).Masked().String()
	}
	return at.String()
}
