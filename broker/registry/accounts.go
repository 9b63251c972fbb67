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

// A relay keeps the NATS accounts of the tenants that it serves open: it keeps a lease
// of the tenant, the account is in use or a token was just presented here, or, on an
// embedded server, a connection uses the account. External NATS servers do not report
// connections. There, for each tenant with unexpired credentials (hostState.Users),
// one extra relay keeps the account open for host-agents whose relay has ended.
const (
	// tidyEvery is the interval between searches for unused accounts.
	tidyEvery = time.Minute

	// accountIdle is the time without use after which an account is closed.
	accountIdle = 2 * time.Minute

	// admitTimeout bounds the wait until the store and NATS know new credentials.
	admitTimeout = 4 * time.Second

	// catchUpEvery is the polling interval for a write to come back.
	catchUpEvery = 5 * time.Millisecond

	// reasonRevoked is the published reason for a host whose credentials were revoked.
	reasonRevoked = "access of the host-agent was revoked"
)

// A tenant is a relay's knowledge of a tenant.
type tenant struct {
	name    string
	hosts   map[string]*knownHost
	shown   time.Time            // when a host-agent last presented a token here
	refused map[string]time.Time // users that NATS must refuse; never changed in place
}

func (r *Registry) tenantLocked(name string) *tenant {
	t := r.tenants[name]
	if t == nil {
		t = &tenant{name: name, hosts: map[string]*knownHost{}}
		r.tenants[name] = t
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
// ErrStoreAway.
func (r *Registry) Admit(ctx context.Context, e auth.Enrolment, nkey string, until time.Time) error {
	fail := func(err error) error {
		if err != nil {
			return fmt.Errorf("admit a host-agent to %s/%s: %w", e.Tenant, e.Host, err)
		}
		return nil
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
	err := r.update(ctx, key, func(k *knownHost, _ bool) *hostState {
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
	r.openTenant(e.Tenant)
	return fail(r.cfg.Tenants.Await(ctx, e.Tenant))
}

// AllWritten reports whether the store has all known users of a host. Other relays
// then learn of them before any later write.
func (r *Registry) AllWritten(tenant, host string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	k := r.hosts[hostKey(tenant, host)]
	return k == nil || len(k.unwritten) == 0
}

// admitHere records users of a known host, to be written later.
func (r *Registry) admitHere(key string, users natsUsers, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.hosts[key]
	if k == nil {
		return ErrStoreAway
	}
	k.Users = k.Users.current(now).with(users...)
	k.unwritten = k.unwritten.with(users...)
	r.tokensLocked(k)
	r.dirty[key] = true
	wakeUp(r.write)
	return nil
}

// tokensLocked indexes the revocation keys of a host's users, and updates the users
// that NATS must refuse.
func (r *Registry) tokensLocked(k *knownHost) {
	for _, token := range k.indexed {
		delete(r.tokens[token], k.Key)
		if len(r.tokens[token]) == 0 {
			delete(r.tokens, token)
		}
	}
	k.indexed = nil
	index := func(of auth.RevocationKey) {
		if r.tokens[of] == nil {
			r.tokens[of] = map[string]bool{}
		}
		r.tokens[of][k.Key] = true
		k.indexed = append(k.indexed, of)
	}
	for _, user := range k.Users {
		if user.Token != "" {
			index(auth.RevocationKey{Token: user.Token})
		}
		auth.EachOrigin(k.tenant(), user.Origins, func(of auth.RevocationKey, _ time.Time) { index(of) })
	}
	t := r.tenantLocked(k.tenant())
	refused := k.refused(r.cfg.Revocations, time.Now())
	if len(refused) > 0 || len(t.refused) > 0 {
		t.refused = mergeRefused(t.refused, refused)
	}
}

// openTenant opens a tenant's account if needed, with the users to refuse.
func (r *Registry) openTenant(name string) {
	r.mu.RLock()
	var refused map[string]time.Time
	if t := r.tenants[name]; t != nil {
		refused = t.refused
	}
	r.mu.RUnlock()
	if err := r.cfg.Tenants.Open(name, refused); err != nil {
		r.cfg.Log.Error("tenant account not opened", "tenant", name, "error", err)
	}
}

// demand opens accounts on demand.
func (r *Registry) demand() broker.Demand {
	return broker.Demand{
		Open: func(name string) error {
			r.mu.RLock()
			known := r.tenants[name] != nil
			r.mu.RUnlock()
			if !known {
				return fmt.Errorf("tenant %s: %w", name, ErrUnknownHost)
			}
			r.openTenant(name)
			return nil
		},
		Find: func(account string) (string, map[string]time.Time, bool) {
			name := r.accounts.tenant(account, r.tenantNames)
			r.mu.RLock()
			defer r.mu.RUnlock()
			t := r.tenants[name]
			if t == nil {
				return "", nil, false
			}
			return name, t.refused, true
		},
	}
}

func (r *Registry) tenantNames() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Keys(r.tenants))
}

// An accountIndex finds the tenant of a NATS account. Deriving an account takes some
// 50 µs, so the index grows on demand.
type accountIndex struct {
	of func(tenant string) (account string, err error) // set once

	mu      sync.Mutex
	tenants map[string]string // by account
	known   map[string]bool   // tenants in the index
}

// tenant returns the tenant of an account, or "" if none of names has it.
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
func (r *Registry) usedLocked(t *tenant, now time.Time) bool {
	if !t.shown.IsZero() && now.Sub(t.shown) <= accountIdle {
		return true
	}
	standby := r.standsByLocked(t.name)
	for _, k := range t.hosts {
		if k.kept != nil || standby && (r.aliveLocked(k) || len(k.Users.current(now)) > 0) {
			return true
		}
	}
	return false
}

// standsByLocked reports whether this relay keeps a tenant's account open in any case.
// Relays that know the same relays agree on the choice.
func (r *Registry) standsByLocked(name string) bool {
	if !r.cfg.Tenants.External() {
		return false
	}
	own := standbyRank(r.cfg.Instance, name)
	for instance, p := range r.relays.peers {
		if instance != r.cfg.Instance && p.presentLocked(absentAfter) && standbyRank(instance, name) > own {
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

// tidyTenants closes unused accounts and opens used ones.
func (r *Registry) tidyTenants(now time.Time) {
	r.mu.Lock()
	used := map[string]bool{}
	for name, t := range r.tenants {
		used[name] = r.usedLocked(t, now)
		refused := map[string]time.Time{}
		for _, k := range t.hosts {
			refused = mergeRefused(refused, k.refused(r.cfg.Revocations, now))
		}
		t.refused = refused
	}
	r.mu.Unlock()
	closed := r.closed
	r.closed = nil
	for _, name := range r.cfg.Tenants.Names() {
		if !used[name] && r.cfg.Tenants.DropIdle(name, now.Add(-accountIdle)) {
			r.closed = append(r.closed, name)
		}
	}
	for _, name := range closed { // a connection may have come during the close
		used[name] = used[name] || r.cfg.Tenants.Stray(name)
	}
	for name, used := range used {
		if used {
			r.openTenant(name)
		}
	}
}

// dropForgotten closes the accounts of tenants without hosts when no connection uses
// them. A connected host-agent may still restore its host.
func (r *Registry) dropForgotten() {
	r.mu.Lock()
	names := r.forgotten
	r.forgotten = nil
	r.mu.Unlock()
	var wait []string
	for _, name := range names {
		r.mu.RLock()
		again := r.tenants[name] != nil
		r.mu.RUnlock()
		if !again && !r.cfg.Tenants.DropIdle(name, time.Now()) {
			wait = append(wait, name)
		}
	}
	if len(wait) > 0 {
		r.mu.Lock()
		r.forgotten = append(wait, r.forgotten...)
		r.mu.Unlock()
	}
}

// refused returns a host's users with a revoked enrolment, and until when NATS must
// refuse their credentials, by nkey. Users that are not known individually count as
// having any of the host's tokens.
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
