package registry

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
)

// A relay keeps the NATS accounts of its tenants open: it keeps a lease of the tenant,
// the account is in use or a token was just presented here, or, on an embedded server,
// a connection uses the account. External NATS servers do not report connections.
// There, for each tenant with unexpired credentials (hostState.Users), one extra relay
// keeps the account open for host-agents whose relay has ended.
const (
	// tidyEvery is the interval between searches for unused accounts.
	tidyEvery = time.Minute

	// accountIdle is the time without use after which an account is closed.
	accountIdle = 2 * time.Minute

	// admitTimeout bounds the wait until the store and NATS know new credentials.
	admitTimeout = 4 * time.Second

	// catchUpEvery is the polling interval for a write to come back.
	catchUpEvery = 5 * time.Millisecond

	// reasonRevoked is published for a host with revoked credentials.
	reasonRevoked = "access of the host-agent was revoked"
)

// A tenant is a relay's knowledge about a tenant.
type tenant struct {
	name    string
	hosts   map[string]*knownHost
	shown   time.Time            // when a host-agent last presented a token here
	refused map[string]time.Time // users to refuse; never changed in place
}

// tenantAccounts opens and closes the accounts of tenants. Registry.mu guards the
// changing fields, except index and closed.
type tenantAccounts struct {
	r      *Registry
	index  accountIndex
	closed []string // tenants whose account the last tidy closed; owned by Registry.run

	tenants   map[string]*tenant
	forgotten []string                               // tenants whose last host was forgotten
	full      uint64                                 // host-agents refused beyond HostLimits
	tokens    map[auth.RevocationKey]map[string]bool // hosts by the revocation keys that affect their users
}

func newTenantAccounts(r *Registry) *tenantAccounts {
	return &tenantAccounts{
		r: r, index: accountIndex{of: func(tenant string) (string, error) { return r.cfg.Tenants.Account(tenant) }, tenants: map[string]string{}, known: map[string]bool{}},
		tenants: map[string]*tenant{}, tokens: map[auth.RevocationKey]map[string]bool{},
	}
}

func (ta *tenantAccounts) tenantLocked(name string) *tenant {
	t := ta.tenants[name]
	if t == nil {
		t = &tenant{name: name, hosts: map[string]*knownHost{}}
		ta.tenants[name] = t
	}
	return t
}

// Admit creates a host if needed, and records a NATS user, given by its public nkey,
// with the enrolment that permits it until the given time. Call it before a host-agent
// gets that user's credentials: the tenant's account is then open. An error means that
// the credentials would not work.
//
// When any relay revokes the enrolment, the user is disconnected. The lease ends too
// if the host has no other user. While the store is away, known hosts are still
// admitted, and other relays learn of that later; for unknown hosts the error wraps
// ErrStoreAway. Beyond the tenant's limit it is a [*FullError].
func (r *Registry) Admit(ctx context.Context, e auth.Enrolment, nkey string, until time.Time) error {
	fail := func(err error) error {
		if err != nil {
			return fmt.Errorf("admit a host-agent to %s/%s: %w", e.Tenant, e.Host, err)
		}
		return nil
	}
	if err := r.accounts.roomFor(e.Tenant, e.Host); err != nil {
		return fail(err)
	}
	if err := r.Enrol(e.Tenant, e.Host); err != nil {
		return fail(err)
	}
	user := natsUsers{{NKey: nkey, Token: e.ID, Issued: e.IssuedAt.UTC(), Expires: until.UTC(), Origins: e.AllOrigins()}}
	if err := user.check(); err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	key, now := hostKey(e.Tenant, e.Host), time.Now()
	err := r.writer.update(ctx, key, func(k *knownHost, _ bool) *hostState {
		s := k.hostState
		s.Enrolled, s.Users = earlier(s.Enrolled, now.UTC()), s.Users.current(now).with(user...)
		return &s
	})
	if errors.Is(err, ErrStoreAway) {
		err = r.admitHere(key, user, now)
	}
	if err != nil {
		return fail(err)
	}
	r.accounts.open(e.Tenant)
	return fail(r.cfg.Tenants.Await(ctx, e.Tenant))
}

// AllWritten reports whether the store has all known users for a host. Other relays
// then learn of them before any later write.
func (r *Registry) AllWritten(tenant, host string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	k := r.hosts[hostKey(tenant, host)]
	return k == nil || len(k.unwritten) == 0
}

// admitHere records a known host's users, to be written later.
func (r *Registry) admitHere(key string, users natsUsers, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.hosts[key]
	if k == nil {
		return ErrStoreAway
	}
	k.Users = k.Users.current(now).with(users...)
	k.unwritten = k.unwritten.with(users...)
	r.accounts.tokensLocked(k)
	r.writer.dirty[key] = true
	wakeUp(r.writer.wake)
	return nil
}

// tokensLocked indexes the revocation keys for a host's users, and updates the users
// to refuse.
func (ta *tenantAccounts) tokensLocked(k *knownHost) {
	for _, token := range k.indexed {
		delete(ta.tokens[token], k.Key)
		if len(ta.tokens[token]) == 0 {
			delete(ta.tokens, token)
		}
	}
	k.indexed = nil
	index := func(of auth.RevocationKey) {
		if ta.tokens[of] == nil {
			ta.tokens[of] = map[string]bool{}
		}
		ta.tokens[of][k.Key] = true
		k.indexed = append(k.indexed, of)
	}
	for _, user := range k.Users {
		if user.Token != "" {
			index(auth.RevocationKey{Token: user.Token})
		}
		auth.EachOrigin(k.tenant(), user.Origins, func(of auth.RevocationKey, _ time.Time) { index(of) })
	}
	t := ta.tenantLocked(k.tenant())
	refused := k.refused(ta.r.cfg.Revocations, time.Now())
	if len(refused) > 0 || len(t.refused) > 0 {
		t.refused = mergeRefused(t.refused, refused)
	}
}

// open opens a tenant's account if needed, with the users to refuse.
func (ta *tenantAccounts) open(name string) {
	ta.r.mu.RLock()
	var refused map[string]time.Time
	if t := ta.tenants[name]; t != nil {
		refused = t.refused
	}
	ta.r.mu.RUnlock()
	if err := ta.r.cfg.Tenants.Open(name, refused); err != nil {
		ta.r.cfg.Log.Error("tenant account not opened", "tenant", name, "error", err)
	}
}

// demand opens accounts on demand.
func (ta *tenantAccounts) demand() broker.Demand {
	return broker.Demand{
		Open: func(name string) error {
			ta.r.mu.RLock()
			known := ta.tenants[name] != nil
			ta.r.mu.RUnlock()
			if !known {
				return fmt.Errorf("tenant %s: %w", name, ErrUnknownHost)
			}
			ta.open(name)
			return nil
		},
		Find: func(account string) (string, map[string]time.Time, bool) {
			name := ta.index.tenant(account, ta.names)
			ta.r.mu.RLock()
			defer ta.r.mu.RUnlock()
			t := ta.tenants[name]
			if t == nil {
				return "", nil, false
			}
			return name, t.refused, true
		},
	}
}

func (ta *tenantAccounts) names() []string {
	ta.r.mu.RLock()
	defer ta.r.mu.RUnlock()
	return slices.Collect(maps.Keys(ta.tenants))
}

// An accountIndex finds a NATS account's tenant. Deriving an account takes some 50 µs,
// so the index grows on demand.
type accountIndex struct {
	of func(tenant string) (account string, err error) // set once

	mu      sync.Mutex
	tenants map[string]string // by account
	known   map[string]bool   // tenants in the index
}

// tenant returns an account's tenant among names, or "".
func (x *accountIndex) tenant(account string, names func() []string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if name := x.tenants[account]; name != "" {
		return name
	}
	for _, name := range names() {
		if x.known[name] {
			continue
		}
		x.known[name] = true
		if account, err := x.of(name); err == nil {
			x.tenants[account] = name
		}
	}
	return x.tenants[account]
}

// AwaitTenant returns when this relay answers a tenant's host-agents, or ctx ends.
func (r *Registry) AwaitTenant(ctx context.Context, name string) error {
	return r.cfg.Tenants.Await(ctx, name)
}

// usedLocked reports whether a tenant's account must stay open even without
// connections.
func (ta *tenantAccounts) usedLocked(t *tenant, now time.Time) bool {
	if !t.shown.IsZero() && now.Sub(t.shown) <= accountIdle {
		return true
	}
	standby := ta.standsByLocked(t.name)
	for _, k := range t.hosts {
		if k.kept != nil || standby && (ta.r.aliveLocked(k) || len(k.Users.current(now)) > 0) {
			return true
		}
	}
	return false
}

// standsByLocked reports whether this relay keeps a tenant's account open in any case.
// Relays that know the same relays agree on the choice.
func (ta *tenantAccounts) standsByLocked(name string) bool {
	if !ta.r.cfg.Tenants.External() {
		return false
	}
	own := standbyRank(ta.r.cfg.Instance, name)
	for instance, p := range ta.r.relays.peers {
		if instance != ta.r.cfg.Instance && p.presentLocked(absentAfter) && standbyRank(instance, name) > own {
			return false
		}
	}
	return true
}

// standbyRank ranks a relay among the candidates for a tenant.
func standbyRank(relay, tenant string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, tenant+"."+relay)
	x := h.Sum64() // its upper bits depend little on the last letters
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

// tidy closes unused accounts and opens used ones.
func (ta *tenantAccounts) tidy(now time.Time) {
	ta.r.mu.Lock()
	used := map[string]bool{}
	for name, t := range ta.tenants {
		used[name] = ta.usedLocked(t, now)
		refused := map[string]time.Time{}
		for _, k := range t.hosts {
			refused = mergeRefused(refused, k.refused(ta.r.cfg.Revocations, now))
		}
		t.refused = refused
	}
	ta.r.mu.Unlock()
	closed := ta.closed
	ta.closed = nil
	for _, name := range ta.r.cfg.Tenants.Names() {
		if !used[name] && ta.r.cfg.Tenants.DropIdle(name, now.Add(-accountIdle)) {
			ta.closed = append(ta.closed, name)
		}
	}
	for _, name := range closed { // a connection may have come during the close
		used[name] = used[name] || ta.r.cfg.Tenants.Stray(name)
	}
	for name, used := range used {
		if used {
			ta.open(name)
		}
	}
}

// dropForgotten closes the accounts of tenants without hosts when no connection uses
// them. A connected host-agent may still restore its host.
func (ta *tenantAccounts) dropForgotten() {
	ta.r.mu.Lock()
	names := ta.forgotten
	ta.forgotten = nil
	ta.r.mu.Unlock()
	var wait []string
	for _, name := range names {
		ta.r.mu.RLock()
		again := ta.tenants[name] != nil
		ta.r.mu.RUnlock()
		if !again && !ta.r.cfg.Tenants.DropIdle(name, time.Now()) {
			wait = append(wait, name)
		}
	}
	if len(wait) > 0 {
		ta.r.mu.Lock()
		ta.forgotten = append(wait, ta.forgotten...)
		ta.r.mu.Unlock()
	}
}

// refused returns a host's users with a revoked enrolment, and until when NATS must
// refuse their credentials, by nkey. Users known only in sum count as having any of
// the host's tokens.
func (s *hostState) refused(revoked *Revocations, now time.Time) map[string]time.Time {
	refused := map[string]time.Time{}
	var last time.Time
	for _, user := range s.Users.current(now) {
		if at, ok := s.revokedAt(revoked, user); ok {
			refused[user.NKey], last = user.Expires, later(last, at)
		}
	}
	for _, user := range s.Users.current(now) {
		if user.NKey == auth.AllUsers && !last.IsZero() {
			refused[auth.AllUsers] = last.Add(auth.Leeway) // another relay's clock may be ahead
		}
	}
	return refused
}

// revokedAt returns when a user's enrolment was revoked.
func (s *hostState) revokedAt(revoked *Revocations, user natsUser) (time.Time, bool) {
	tenant, host, _ := strings.Cut(s.Key, ".")
	at, ok := revoked.since(user.Issued, auth.Enrolment{ID: user.Token, Tenant: tenant, Host: host}.Keys()...)
	if by, derived := revoked.originSince(tenant, user.Origins); derived {
		return later(at, by), true
	}
	return at, ok
}

// mergeRefused returns the union, with the later times.
func mergeRefused(a, b map[string]time.Time) map[string]time.Time {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]time.Time{}
	}
	for nkey, until := range b {
		all[nkey] = later(all[nkey], until)
	}
	return all
}
