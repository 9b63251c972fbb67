package admission

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"ahprelay/auth"
	"ahprelay/internal/clock"
	"ahprelay/internal/fair"
)

// Limits limit what clients may use at a relay.
type Limits struct {
	Address, Subject, Token, Host, Tenant Limit

	// Failures is the number of requests without a valid token per minute from one
	// address, beyond which the response is 429 instead of 401. Default: 120. Negative:
	// no limit.
	Failures int
}

// A Limit limits the use in a scope. Zero means the default, and a negative value no
// limit.
type Limit struct {
	Connections int // concurrent
	Pending     int // connections not yet accepted by their hosts
	Frames      int // client messages per second, averaged over RateWindow
	Bytes       int // bytes in client messages per second, averaged over RateWindow
	Opens       int // new connections, and repeated initialize or reconnect requests, per second, averaged over RateWindow
}

// DefaultLimits are far above what well-behaved clients need.
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
	// RateWindow is the time over which rates are averaged. The amount permitted in it
	// may be used at once.
	RateWindow = 10 * time.Second

	// maxDelay is the longest delay for a message. It is short because clients give up
	// after 25 s without data.
	maxDelay = 10 * time.Second

	// maxAgentConns is the largest number of NATS connections by host-agents for a host.
	// Each host-agent has one, or two while it reconnects.
	maxAgentConns = 32

	// agentOpens is the largest number of new NATS connections per second for a host.
	// Host-agents increase the pause between attempts.
	agentOpens = 5

	// A host-agent exchanges its credential every few weeks, or again at once if the
	// response was lost.
	tradesEvery  = 10 * time.Minute
	tradesAtOnce = 20

	connectRetry = 5 * time.Second // Retry-After for a connection that exceeds a limit

	// maxIdle is the largest number of remembered scopes without connections.
	maxIdle = 16384
)

// WithDefaults replaces zero values by their defaults.
func (l Limits) WithDefaults() Limits {
	for _, p := range []struct{ to, from *Limit }{
		{&l.Address, &DefaultLimits.Address}, {&l.Subject, &DefaultLimits.Subject},
		{&l.Token, &DefaultLimits.Token}, {&l.Host, &DefaultLimits.Host}, {&l.Tenant, &DefaultLimits.Tenant},
	} {
		p.to.Connections = cmp.Or(p.to.Connections, p.from.Connections)
		p.to.Pending = cmp.Or(p.to.Pending, p.from.Pending)
		p.to.Frames = cmp.Or(p.to.Frames, p.from.Frames)
		p.to.Bytes = cmp.Or(p.to.Bytes, p.from.Bytes)
		p.to.Opens = cmp.Or(p.to.Opens, p.from.Opens)
	}
	l.Failures = cmp.Or(l.Failures, DefaultLimits.Failures)
	return l
}

// An OverLimit is the error for a client that exceeds a limit.
type OverLimit struct {
	Limit string // such as "connections of this subject"
	Max   int
	Retry time.Duration
}

func (e *OverLimit) Error() string {
	return fmt.Sprintf("%s reached; try again in %v", e.Name(), e.Retry.Round(time.Millisecond))
}

// Name returns the text that describes the limit.
func (e *OverLimit) Name() string { return fmt.Sprintf("limit of %d %s", e.Max, e.Limit) }

// A scopeKey identifies a scope. Its kind, such as address or tenant, appears in error
// messages.
type scopeKey struct{ kind, name string }

// A limitScope holds the current use in a scope.
type limitScope struct {
	kind          string
	limit         Limit
	frames, bytes *rate.Limiter // nil: no limit
	opens         *rate.Limiter

	// Guarded by Limiter.mu.
	connections, pending int
	idle                 bool // the scope's key is in Limiter.idle
}

// A Limiter counts connections, messages and requests.
type Limiter struct {
	limits Limits
	frame  int // longest message in bytes; rates always permit one such message

	failures, trades *fair.Buckets

	mu     sync.Mutex // guards the fields below, and connections, pending and idle of each scope
	scopes map[scopeKey]*limitScope
	idle   []scopeKey // scopes without connections, idle for longest first
}

// New returns a Limiter. maxFrame is the length in bytes of the longest message.
func New(limits Limits, maxFrame int) *Limiter {
	return &Limiter{
		limits: limits, frame: maxFrame, scopes: map[scopeKey]*limitScope{},
		failures: fair.NewBuckets(time.Minute/time.Duration(max(limits.Failures, 1)), max(limits.Failures, 1)),
		trades:   fair.NewBuckets(tradesEvery, tradesAtOnce),
	}
}

// An Admission is a connection that counts in its scopes.
type Admission struct {
	limiter *Limiter
	scopes  []*limitScope
	keys    []scopeKey
	pending bool
	left    bool
}

// Connect admits a client's connection before the handshake, or returns the limit that it
// exceeds.
func (l *Limiter) Connect(who auth.Client, host, address string) (*Admission, *OverLimit) {
	a := &Admission{limiter: l, pending: true}
	l.mu.Lock()
	defer l.mu.Unlock()
	ofToken := l.ofToken(who)
	most := ofToken.Connections // so many may return after an outage
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

// ofToken returns the limits for a token: the configured ones, with the token's own
// maximum for connections if that is lower.
func (l *Limiter) ofToken(who auth.Client) Limit {
	limit := l.limits.Token
	if own := who.MaxConnections; own > 0 && (limit.Connections <= 0 || own < limit.Connections) {
		limit.Connections = own
	}
	return limit
}

// ConnectAgent admits a host-agent's connection to NATS, or returns the limit that it
// exceeds.
func (l *Limiter) ConnectAgent(host auth.Enrolment, address string) (*Admission, *OverLimit) {
	a := &Admission{limiter: l, pending: true}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.joinLocked("host's agents", host.Tenant+" "+host.Host, Limit{Connections: maxAgentConns, Opens: agentOpens}, maxAgentConns)
	a.joinLocked("address", AddressGroup(address), l.limits.Address, l.limits.Address.Connections)
	a.openedLocked()
	return a.fitLocked()
}

// fitLocked returns the admission, or the limit that it exceeds.
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

// comeLocked counts a new connection against the rates for new connections. A refused
// connection counts in no scope, so a client that exceeds one scope's rate does not use
// up another scope's.
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

// opensName begins the name of the limit Opens; the kind of scope follows.
const opensName = "connections made in a second of this "

// lackOf returns how long until the scope permits a new connection.
func (p *limitScope) lackOf(now time.Time) time.Duration {
	if p.opens == nil {
		return 0
	}
	lack := 1 - p.opens.TokensAt(now)
	return max(0, time.Duration(lack/float64(p.opens.Limit())*float64(time.Second)))
}

// joinLocked counts the connection in a scope with limits. back is the number of
// connections that may arrive at once, because after an outage all clients reconnect.
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

// bucket returns a rate limiter whose burst is the amount for RateWindow, but at least
// least. It returns nil for no limit.
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

// Leave ends the admission: the connection no longer counts.
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

// forgetLocked forgets the scopes that were idle for longest, until at most maxIdle
// remain.
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

// AwaitRate counts a message, and waits until all scopes permit it. If the wait would be
// too long, it returns an OverLimit at once. anew marks a repeated initialize or
// reconnect, which also counts as a new connection, because it costs the host as much.
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
		clock.Sleep(ctx, w.delay)
	}
	return nil
}

// rateWait is the delay for a message, over all scopes.
type rateWait struct {
	delay   time.Duration
	taken   []*rate.Reservation // reservations that wait for tokens
	refused *rate.Limiter       // the limiter whose wait is too long
}

// use takes n tokens from a rate limiter. It returns false if the wait is too long.
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

// cancel gives back the reservations. Tokens that were available at once are not given
// back, because the connection ends anyway.
func (w *rateWait) cancel(now time.Time) {
	for _, r := range w.taken {
		r.CancelAt(now)
	}
}

// Failed counts a request without a valid token, and returns an OverLimit if there were
// too many from the address. Failures count separately for each device key; "" means no
// key.
func (l *Limiter) Failed(address, key string) *OverLimit {
	return l.failing(address, key, l.failures.Take)
}

// FailedTooOften returns an OverLimit if there were too many failures. It counts nothing.
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

// Traded counts an exchange of a host-agent's credential or enrolment token. These are
// limited because relays must remember each exchange for a long time.
func (l *Limiter) Traded(host auth.Enrolment) *OverLimit {
	delay := l.trades.Take(host.Tenant + " " + host.Host)
	if delay == 0 {
		return nil
	}
	return &OverLimit{"recent credentials for this host", tradesAtOnce, delay}
}

// AddressGroup returns the group in which an address counts ([fair.Site]), or "" for
// loopback addresses, because all clients of a proxy share those.
func AddressGroup(address string) string {
	if at, ok := counted(address); ok {
		return fair.Site(at)
	}
	return ""
}

// NetworkGroup returns the larger network to which an address belongs ([fair.Networks]),
// or "" for loopback addresses.
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
