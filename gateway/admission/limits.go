package admission

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"ahprelay/auth"
	"ahprelay/internal/fair"
)

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
	Frames      int // messages from clients in a second, on average over RateWindow
	Bytes       int // the same of their bytes
	Opens       int // times in a second, on the same average, that clients come: connections, and requests to begin anew on one
}

// DefaultLimits are far from what clients do that mean no harm.
var DefaultLimits = Limits{
	Address:  Limit{Connections: 4096, Pending: 1024, Frames: 10_000, Bytes: 128 << 20, Opens: 200},
	Subject:  Limit{Connections: 2048, Pending: 1024, Frames: 5_000, Bytes: 64 << 20, Opens: 20},
	Token:    Limit{Opens: 10},
	Host:     Limit{Connections: 8192, Pending: 4096, Frames: 20_000, Bytes: 256 << 20, Opens: 400},
	Tenant:   Limit{Connections: 32768, Pending: 16384, Frames: 50_000, Bytes: 512 << 20, Opens: 1000},
	Failures: 120,
}

// Times and bounds of limits.
const (
	// RateWindow is for how long the average of a rate is taken: what is
	// allowed in that time may come at once.
	RateWindow = 10 * time.Second

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

// WithDefaults fills in what is zero.
func (l Limits) WithDefaults() Limits {
	fill := func(n *int, byDefault int) {
		if *n == 0 {
			*n = byDefault
		}
	}
	for _, p := range []struct{ to, from *Limit }{
		{&l.Address, &DefaultLimits.Address}, {&l.Subject, &DefaultLimits.Subject},
		{&l.Token, &DefaultLimits.Token}, {&l.Host, &DefaultLimits.Host}, {&l.Tenant, &DefaultLimits.Tenant},
	} {
		fill(&p.to.Connections, p.from.Connections)
		fill(&p.to.Pending, p.from.Pending)
		fill(&p.to.Frames, p.from.Frames)
		fill(&p.to.Bytes, p.from.Bytes)
		fill(&p.to.Opens, p.from.Opens)
	}
	fill(&l.Failures, DefaultLimits.Failures)
	return l
}

// An OverLimit says which limit is reached, and when to try again.
type OverLimit struct {
	Limit string // "connections of this subject"
	Max   int
	Retry time.Duration
}

func (e *OverLimit) Error() string {
	return fmt.Sprintf("%s reached; try again in %v", e.Name(), e.Retry.Round(time.Millisecond))
}

// Name returns the limit, without the moment.
func (e *OverLimit) Name() string { return fmt.Sprintf("limit of %d %s", e.Max, e.Limit) }

// A scopeKey names what is counted together. The kind, address or tenant and so on, is for people.
type scopeKey struct{ kind, name string }

// A limitScope is what is used in one scope now.
type limitScope struct {
	kind          string
	limit         Limit
	frames, bytes *rate.Limiter // nil: no limit
	opens         *rate.Limiter

	// Guarded by the mutex of Limiter.
	connections, pending int
	idle                 bool // its key is in Limiter.idle
}

// A Limiter counts.
type Limiter struct {
	limits Limits
	frame  int // longest message, in bytes: fits at once

	failures, trades *Buckets

	mu     sync.Mutex // guards the fields below, and what scopes say it guards
	scopes map[scopeKey]*limitScope
	idle   []scopeKey // that had no connection at some time, the longest ago first
}

// New returns a Limiter for messages of at most maxFrame bytes.
func New(limits Limits, maxFrame int) *Limiter {
	return &Limiter{
		limits: limits, frame: maxFrame, scopes: map[scopeKey]*limitScope{},
		failures: NewBuckets(time.Minute/time.Duration(max(limits.Failures, 1)), max(limits.Failures, 1)),
		trades:   NewBuckets(tradesEvery, tradesAtOnce),
	}
}

// An Admission is what one connection takes of the limits of its scopes.
type Admission struct {
	limiter *Limiter
	scopes  []*limitScope
	keys    []scopeKey
	pending bool
	left    bool
}

// Connect admits a client's connection that is about to be made.
func (l *Limiter) Connect(who auth.Client, host, address string) (*Admission, *OverLimit) {
	a := &Admission{limiter: l, pending: true}
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
	a.joinLocked("address", AddressGroup(address), l.limits.Address, l.limits.Address.Connections)
	return a.fitLocked()
}

// ofToken returns the limits of a token: it may have one of its own.
func (l *Limiter) ofToken(who auth.Client) Limit {
	limit := l.limits.Token
	if own := who.MaxConnections; own > 0 && (limit.Connections <= 0 || own < limit.Connections) {
		limit.Connections = own
	}
	return limit
}

// ConnectAgent admits a host-agent's connection to NATS.
func (l *Limiter) ConnectAgent(host auth.Enrolment, address string) (*Admission, *OverLimit) {
	a := &Admission{limiter: l, pending: true}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.joinLocked("host's agents", host.Tenant+" "+host.Host, Limit{Connections: maxAgentConns, Opens: agentOpens}, maxAgentConns)
	a.joinLocked("address", AddressGroup(address), l.limits.Address, l.limits.Address.Connections)
	a.openedLocked()
	return a.fitLocked()
}

// fitLocked returns the admission, unless it is one too many, or comes too soon.
func (a *Admission) fitLocked() (*Admission, *OverLimit) {
	for _, p := range a.scopes {
		for _, count := range []struct {
			what      string
			used, max int
		}{{"connections", p.connections, p.limit.Connections}, {"connections that wait for a host", p.pending, p.limit.Pending}} {
			if count.max > 0 && count.used > count.max {
				a.leaveLocked()
				return nil, &OverLimit{count.what + " of this " + p.kind, count.max, connectRetry}
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
func (a *Admission) comeLocked(now time.Time) *OverLimit {
	for _, p := range a.scopes {
		if lack := p.lackOf(now); lack > 0 {
			return &OverLimit{opensName + p.kind, p.limit.Opens, lack}
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
func (a *Admission) joinLocked(kind, name string, limit Limit, back int) {
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
	burst := perSecond * int(RateWindow/time.Second)
	return rate.NewLimiter(rate.Limit(perSecond), max(burst, least))
}

// Opened notes that the connection waits for its host no longer.
func (a *Admission) Opened() {
	a.limiter.mu.Lock()
	defer a.limiter.mu.Unlock()
	a.openedLocked()
}

func (a *Admission) openedLocked() {
	if !a.pending {
		return
	}
	a.pending = false
	for _, p := range a.scopes {
		p.pending--
	}
}

// Leave gives the admission back.
func (a *Admission) Leave() {
	a.limiter.mu.Lock()
	defer a.limiter.mu.Unlock()
	a.leaveLocked()
}

func (a *Admission) leaveLocked() {
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
func (l *Limiter) forgetLocked() {
	for len(l.idle) > maxIdle {
		p := l.scopes[l.idle[0]]
		p.idle = false
		if p.connections == 0 {
			delete(l.scopes, l.idle[0])
		}
		l.idle = l.idle[1:]
	}
}

// AwaitRate counts a message of so many bytes, and waits until there is room for
// it. It returns an OverLimit at once if that would take too long. A message
// with which the client begins anew is as much work for the host as one more
// connection, and counts as that too.
func (a *Admission) AwaitRate(ctx context.Context, bytes int, anew bool) *OverLimit {
	now := time.Now()
	var w rateWait
	for _, p := range a.scopes {
		if w.use(now, p.frames, 1) && w.use(now, p.bytes, bytes) && (!anew || w.use(now, p.opens, 1)) {
			continue
		}
		w.cancel(now)
		switch w.refused {
		case p.frames:
			return &OverLimit{"messages a second of this " + p.kind, p.limit.Frames, w.delay}
		case p.bytes:
			return &OverLimit{"bytes a second of this " + p.kind, p.limit.Bytes, w.delay}
		}
		return &OverLimit{opensName + p.kind, p.limit.Opens, w.delay}
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

// Failed counts a request without a good token, and reports whether there were
// too many from that address. Failures with a device's key are counted apart; "" is none.
func (l *Limiter) Failed(address, key string) *OverLimit {
	return l.failing(address, key, l.failures.Take)
}

// FailedTooOften reports whether there were too many, and counts nothing.
func (l *Limiter) FailedTooOften(address, key string) *OverLimit {
	return l.failing(address, key, l.failures.Wait)
}

func (l *Limiter) failing(address, key string, wait func(whose string) time.Duration) *OverLimit {
	group := AddressGroup(address)
	if group == "" || l.limits.Failures < 0 {
		return nil
	}
	delay := wait(group + " " + key)
	if delay == 0 {
		return nil
	}
	return &OverLimit{"requests a minute without a good token from this address", l.limits.Failures, delay}
}

// Traded counts a credential that a host-agent gets for another or for an
// enrolment token: relays have to remember each for long.
func (l *Limiter) Traded(host auth.Enrolment) *OverLimit {
	delay := l.trades.Take(host.Tenant + " " + host.Host)
	if delay == 0 {
		return nil
	}
	return &OverLimit{"credentials in so short a time for this host", tradesAtOnce, delay}
}

// Buckets are rates of many, of which those are forgotten that were quiet. They
// are safe for concurrent use.
type Buckets struct {
	rate  rate.Limit
	burst int

	mu sync.Mutex // guards of
	of map[string]*rate.Limiter
}

// NewBuckets returns rates of one in a time, and of so many at once.
func NewBuckets(every time.Duration, burst int) *Buckets {
	return &Buckets{rate: rate.Every(every), burst: burst, of: map[string]*rate.Limiter{}}
}

// Take takes one of somebody's, or returns after what time there is one again.
func (b *Buckets) Take(whose string) (wait time.Duration) {
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

// Wait returns after what time there is one of somebody's, and takes none.
func (b *Buckets) Wait(whose string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.of[whose]
	if bucket == nil {
		return 0
	}
	lack := 1 - bucket.TokensAt(time.Now())
	return max(0, time.Duration(lack/float64(b.rate)*float64(time.Second)))
}

// forgetLocked makes room: those that were quiet go, and of the others as many
// that half is free, so that this is not to be done each time.
func (b *Buckets) forgetLocked(now time.Time) {
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

// AddressGroup is what addresses are counted by ([fair.Site]), "" for one that is not: the relay's
// own machine's, where proxies are.
func AddressGroup(address string) string {
	if at, ok := counted(address); ok {
		return fair.Site(at)
	}
	return ""
}

// NetworkGroup is the wider network of an address ([fair.Networks]), "" for an address that
// is not counted.
func NetworkGroup(address string) string {
	if at, ok := counted(address); ok {
		return fair.Networks(at)[0].String()
	}
	return ""
}

func counted(address string) (at netip.Addr, ok bool) {
	at, err := netip.ParseAddr(strings.Trim(address, "[]"))
	return at, err == nil && !at.IsLoopback()
}
