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

// Limits bound the use of a relay by clients.
type Limits struct {
	Address, Subject, Token, Host, Tenant Limit

	// Failures bounds the requests per minute without a good token from one address;
	// above, it gets 429 instead of 401. Default: 120; negative: no limit.
	Failures int
}

// A Limit bounds the use in a scope. Zero means the default, a negative value no
// limit.
type Limit struct {
	Connections int // concurrent
	Pending     int // connections not yet accepted by their hosts
	Frames      int // client messages per second, averaged over RateWindow
	Bytes       int // bytes in client messages per second, averaged likewise
	Opens       int // connections, and repeated initialize or reconnect requests, per second, averaged likewise
}

// DefaultLimits are far above the use by well-behaved clients.
var DefaultLimits = Limits{
	Address:  Limit{Connections: 4096, Pending: 1024, Frames: 10_000, Bytes: 128 << 20, Opens: 200},
	Subject:  Limit{Connections: 2048, Pending: 1024, Frames: 5_000, Bytes: 64 << 20, Opens: 20},
	Token:    Limit{Opens: 10},
	Host:     Limit{Connections: 8192, Pending: 4096, Frames: 20_000, Bytes: 256 << 20, Opens: 400},
	Tenant:   Limit{Connections: 32768, Pending: 16384, Frames: 50_000, Bytes: 512 << 20, Opens: 1000},
	Failures: 120,
}

// Times and bounds.
const (
	// RateWindow is the averaging time of rates: the amount allowed in it may come at
	// once.
	RateWindow = 10 * time.Second

	// maxDelay bounds the delay of a message. Clients give up after 25 s without a
	// sign of life.
	maxDelay = 10 * time.Second

	// maxAgentConns bounds the NATS connections of a host's agents. Each has one or
	// two during a reconnect.
	maxAgentConns = 32

	// agentOpens bounds their new connections per second. Each agent backs off between
	// attempts.
	agentOpens = 5

	// A host-agent renews its credential after weeks, or at once if the new credential
	// was lost.
	tradesEvery  = 10 * time.Minute
	tradesAtOnce = 20

	connectRetry = 5 * time.Second // Retry-After for a connection above the limit

	// maxIdle bounds the remembered scopes without connections.
	maxIdle = 16384
)

// WithDefaults replaces zero values by their defaults.
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

// An OverLimit reports a reached limit, and when to try again.
type OverLimit struct {
	Limit string // "connections of this subject"
	Max   int
	Retry time.Duration
}

func (e *OverLimit) Error() string {
	return fmt.Sprintf("%s reached; try again in %v", e.Name(), e.Retry.Round(time.Millisecond))
}

// Name returns the limit without the time.
func (e *OverLimit) Name() string { return fmt.Sprintf("limit of %d %s", e.Max, e.Limit) }

// A scopeKey identifies a scope. The kind, such as address or tenant, appears in
// messages.
type scopeKey struct{ kind, name string }

// A limitScope holds the current use in a scope.
type limitScope struct {
	kind          string
	limit         Limit
	frames, bytes *rate.Limiter // nil: no limit
	opens         *rate.Limiter

	// Guarded by the mutex of Limiter.
	connections, pending int
	idle                 bool // its key is in Limiter.idle
}

// A Limiter counts connections, messages and requests.
type Limiter struct {
	limits Limits
	frame  int // longest message in bytes: always allowed at once

	failures, trades *fair.Buckets

	mu     sync.Mutex // guards the fields below, and the marked fields of scopes
	scopes map[scopeKey]*limitScope
	idle   []scopeKey // scopes that have lost their last connection, oldest first
}

// New returns a Limiter for messages of at most maxFrame bytes.
func New(limits Limits, maxFrame int) *Limiter {
	return &Limiter{
		limits: limits, frame: maxFrame, scopes: map[scopeKey]*limitScope{},
		failures: fair.NewBuckets(time.Minute/time.Duration(max(limits.Failures, 1)), max(limits.Failures, 1)),
		trades:   fair.NewBuckets(tradesEvery, tradesAtOnce),
	}
}

// An Admission is one connection's use of its scopes.
type Admission struct {
	limiter *Limiter
	scopes  []*limitScope
	keys    []scopeKey
	pending bool
	left    bool
}

// Connect admits a client's connection before its handshake.
func (l *Limiter) Connect(who auth.Client, host, address string) (*Admission, *OverLimit) {
	a := &Admission{limiter: l, pending: true}
	l.mu.Lock()
	defer l.mu.Unlock()
	ofToken := l.ofToken(who)
	most := ofToken.Connections // connections that the token can have had
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

// ofToken returns the limits for a token, including the token's own limit.
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

// fitLocked returns the admission, unless a limit is exceeded.
func (a *Admission) fitLocked() (*Admission, *OverLimit) {
	for _, p := range a.scopes {
		for _, count := range []struct {
			what      string
			used, max int
		}{{"connections", p.connections, p.limit.Connections}, {"connections waiting for a host", p.pending, p.limit.Pending}} {
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

// comeLocked counts a new connection, unless it exceeds a rate. A refused connection
// counts in no scope, so a client limited in one scope cannot exhaust a different scope.
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

// opensName is the name of the limit Opens, before the kind of scope.
const opensName = "connections made in a second of this "

// lackOf returns the time until the scope allows a new connection.
func (p *limitScope) lackOf(now time.Time) time.Duration {
	if p.opens == nil {
		return 0
	}
	lack := 1 - p.opens.TokensAt(now)
	return max(0, time.Duration(lack/float64(p.opens.Limit())*float64(time.Second)))
}

// joinLocked counts the connection in a scope with limits. Back is how many
// connections may come at once: all that were connected may reconnect.
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

// bucket returns a limiter with the given rate, whose burst is at least least.
func bucket(perSecond, least int) *rate.Limiter {
	if perSecond <= 0 {
		return nil
	}
	burst := perSecond * int(RateWindow/time.Second)
	return rate.NewLimiter(rate.Limit(perSecond), max(burst, least))
}

// Opened records that the host has accepted the connection.
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

// Leave returns the admission.
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

// forgetLocked forgets the scopes idle for longest.
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

// AwaitRate counts a message, and waits until there is room for it. If the wait would
// be too long, it returns an OverLimit at once. A message that begins anew costs the
// host as much as a new connection, and also counts as a connection.
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

// rateWait is a message's wait.
type rateWait struct {
	delay   time.Duration
	taken   []*rate.Reservation // reservations in buckets without enough tokens
	refused *rate.Limiter       // the bucket with too long a wait
}

// use takes n tokens from a bucket, and reports whether the wait is short enough.
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

// cancel returns the reservations. Tokens taken at once are not returned: the
// connection ends.
func (w *rateWait) cancel(now time.Time) {
	for _, r := range w.taken {
		r.CancelAt(now)
	}
}

// Failed counts a request without a good token, and reports too many from the address.
// Failures count separately for each device key; "" means no key.
func (l *Limiter) Failed(address, key string) *OverLimit {
	return l.failing(address, key, l.failures.Take)
}

// FailedTooOften reports too many failures, and does not count.
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

// Traded counts an exchange of a host-agent's credential or enrolment token. Relays
// must remember each for long.
func (l *Limiter) Traded(host auth.Enrolment) *OverLimit {
	delay := l.trades.Take(host.Tenant + " " + host.Host)
	if delay == 0 {
		return nil
	}
	return &OverLimit{"recent credentials for this host", tradesAtOnce, delay}
}

// AddressGroup returns the group in which an address is counted ([fair.Site]). It
// returns "" for loopback addresses, which proxies use.
func AddressGroup(address string) string {
	if at, ok := counted(address); ok {
		return fair.Site(at)
	}
	return ""
}

// NetworkGroup returns the wider network of an address ([fair.Networks]), or "" for an
// address that is not counted.
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
