package registry

import (
	"cmp"
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
	"ahprelay/internal/clock"
	"ahprelay/internal/signal"
)

// A relay keeps a tenant's NATS account open in these cases: it keeps a lease of the
// tenant, the account is in use, a host-agent has just presented a token here, or the
// embedded server has a connection in the account. External NATS servers do not report
// connections. With them, one additional relay keeps the account of each tenant with
// unexpired credentials (hostState.Users) open, for host-agents whose relay has ended.
const (
	// tidyEvery is the interval between searches for unused accounts.
	tidyEvery = time.Minute

	// accountIdle is how long an account must be unused before it is closed.
	accountIdle = 2 * time.Minute

	// admitTimeout bounds the wait until store and NATS have received new credentials.
	admitTimeout = 4 * time.Second

	// catchUpEvery is the polling interval while a revocation waits until the watch has
	// delivered the store's newest entry.
	catchUpEvery = 5 * time.Millisecond

	// reasonRevoked is the published reason why a host with revoked credentials is
	// offline.
	reasonRevoked = "access of the host-agent was revoked"
)

// A tenant is what a relay knows about a tenant.
type tenant struct {
	name    string
	hosts   map[string]*knownHost
	shown   time.Time            // when a host-agent last presented a token here
	refused map[string]time.Time // users that NATS must refuse; never changed in place
}

// tenantAccounts opens and closes the NATS accounts of tenants. Registry.mu guards all
// fields except index and closed.
type tenantAccounts struct {
	r      *Registry
	index  accountIndex
	closed []string // tenants whose account the last tidy has closed; owned by Registry.run

	tenants   map[string]*tenant
	forgotten []string                               // tenants whose last host was forgotten
	full      uint64                                 // host-agents refused because of HostLimits
	tokens    map[auth.RevocationKey]map[string]bool // hosts by revocation key, for all keys that affect their users

	// former has the forgotten hosts whose users have credentials that have not expired, by
	// tenant and host key. If these users are revoked, NATS must still refuse them.
	former map[string]map[string]*knownHost
}

func newTenantAccounts(r *Registry) *tenantAccounts {
	return &tenantAccounts{
		r: r, index: accountIndex{of: func(tenant string) (string, error) { return r.cfg.Tenants.Account(tenant) }, tenants: map[string]string{}, known: map[string]bool{}},
		tenants: map[string]*tenant{}, tokens: map[auth.RevocationKey]map[string]bool{}, former: map[string]map[string]*knownHost{},
	}
}

func (ta *tenantAccounts) tenantLocked(name string) *tenant {
	t := ta.tenants[name]
	if t == nil {
		t = &tenant{name: name, hosts: map[string]*knownHost{}}
		t.refused = ta.refusedLocked(name, time.Now())
		ta.tenants[name] = t
	}
	return t
}

// hostLocked returns a host that is known, or that was forgotten and has users.
func (ta *tenantAccounts) hostLocked(key string) *knownHost {
	return cmp.Or(ta.r.hosts[key], ta.former[tenantOfKey(key)][key])
}

// forgetLocked keeps the users of a host that is forgotten.
func (ta *tenantAccounts) forgetLocked(k *knownHost) {
	if len(k.Users.current(time.Now())) == 0 {
		ta.unindexLocked(k)
		return
	}
	if ta.former[k.tenant()] == nil {
		ta.former[k.tenant()] = map[string]*knownHost{}
	}
	ta.former[k.tenant()][k.Key] = k
}

// applyFormer adds the users of a host that a relay has forgotten, or is about to forget. The host
// may have returned since.
func (ta *tenantAccounts) applyFormer(v *view, s hostState) {
	s.Users = s.Users.current(time.Now())
	ta.r.mu.Lock()
	k := ta.hostLocked(s.Key)
	if k == nil {
		k = &knownHost{hostState: hostState{Key: s.Key, Users: s.Users}, home: ta.r.regions.foreign(v)}
		ta.forgetLocked(k)
	}
	if all := k.Users.with(s.Users...); !all.equal(k.Users) {
		k.Users, k.unwritten = all, k.unwritten.with(s.Users...)
	}
	refuses := ta.tokensLocked(k)
	ta.r.mu.Unlock()
	if refuses {
		ta.openAgain(s.tenant())
	}
}

// returnLocked removes a host from the former hosts, and returns its users.
func (ta *tenantAccounts) returnLocked(key string) natsUsers {
	of := ta.former[tenantOfKey(key)]
	k := of[key]
	if k == nil {
		return nil
	}
	ta.unindexLocked(k)
	if delete(of, key); len(of) == 0 {
		delete(ta.former, k.tenant())
	}
	return k.Users.current(time.Now())
}

// Admit records a NATS user of a host-agent: its public nkey, its enrolment, and when
// its credentials expire. It creates the host if necessary, and waits until the
// tenant's account is open. Call it before giving the credentials to the host-agent;
// after an error they would not work.
//
// If any relay later revokes the enrolment, NATS disconnects the user. The lease also
// ends, unless the host has other users. While the store is unreachable, known hosts
// are still admitted, and other relays learn of the user later; for unknown hosts the
// error wraps ErrStoreAway. If the tenant's limit is reached, the error is a
// [*FullError].
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
	if err != nil && !(errors.Is(err, ErrStoreAway) && r.admitHere(key, user, now)) {
		return fail(err)
	}
	r.accounts.open(e.Tenant)
	return fail(r.cfg.Tenants.Await(ctx, e.Tenant))
}

// AllWritten reports whether all known users of a host are in the store. If so, other
// relays read these users before any change that is written later.
func (r *Registry) AllWritten(tenant, host string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	k := r.hosts[hostKey(tenant, host)]
	return k == nil || len(k.unwritten) == 0
}

// admitHere records users of a known host in memory, to be written to the store later. It returns
// false for an unknown host.
func (r *Registry) admitHere(key string, users natsUsers, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.hosts[key]
	if k == nil {
		return false
	}
	k.Users = k.Users.current(now).with(users...)
	k.unwritten = k.unwritten.with(users...)
	r.accounts.tokensLocked(k)
	r.writer.dirty[key] = true
	signal.Send(r.writer.wake)
	return true
}

// tokensLocked updates the index from revocation keys to a host, and the users that
// NATS must refuse. It reports whether the host has users that NATS must refuse.
func (ta *tenantAccounts) tokensLocked(k *knownHost) (refuses bool) {
	ta.unindexLocked(k)
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
	refused := k.refused(ta.r.cfg.Revocations, time.Now())
	if t := ta.tenants[k.tenant()]; t != nil && len(refused) > 0 {
		t.refused = mergeRefused(t.refused, refused)
	}
	return len(refused) > 0
}

func (ta *tenantAccounts) unindexLocked(k *knownHost) {
	for _, token := range k.indexed {
		delete(ta.tokens[token], k.Key)
		if len(ta.tokens[token]) == 0 {
			delete(ta.tokens, token)
		}
	}
	k.indexed = nil
}

// openAgain gives the users that NATS must refuse to a tenant's account, if it is open. An
// embedded server loads the remaining accounts on demand.
func (ta *tenantAccounts) openAgain(name string) {
	if ta.r.cfg.Tenants.External() || slices.Contains(ta.r.cfg.Tenants.Names(), name) {
		ta.open(name)
	}
}

// open opens a tenant's account if necessary, with the users that NATS must refuse.
func (ta *tenantAccounts) open(name string) {
	ta.r.mu.RLock()
	var refused map[string]time.Time
	if t := ta.tenants[name]; t != nil {
		refused = t.refused
	} else { // a former host-agent may still use the account
		refused = ta.refusedLocked(name, time.Now())
	}
	ta.r.mu.RUnlock()
	if err := ta.r.cfg.Tenants.Open(name, refused); err != nil {
		ta.r.cfg.Log.Error("tenant account not opened", "tenant", name, "error", err)
	}
}

// demand returns the functions with which broker.Tenants opens accounts on demand.
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

// An accountIndex maps NATS accounts to tenants. Computing a tenant's account takes
// some 50 µs, so the index computes accounts only when needed.
type accountIndex struct {
	of func(tenant string) (account string, err error) // returns the account of a tenant; set once

	mu      sync.Mutex
	tenants map[string]string // tenants in the index, by account
	known   map[string]bool   // tenants in the index
}

// tenant returns the tenant, of those in names, to which an account belongs, or "".
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

// AwaitTenant returns when this relay answers lease requests of a tenant's
// host-agents, or when ctx ends.
func (r *Registry) AwaitTenant(ctx context.Context, name string) error {
	return r.cfg.Tenants.Await(ctx, name)
}

// usedLocked reports whether a tenant's account must stay open even if the NATS server
// has no connections in it.
func (ta *tenantAccounts) usedLocked(t *tenant, now time.Time) bool {
	if !t.shown.IsZero() && now.Sub(t.shown) <= accountIdle {
		return true
	}
	standby := ta.standsByLocked(t.name)
	for _, k := range t.hosts {
		if k.kept || standby && (ta.r.aliveLocked(k) || len(k.Users.current(now)) > 0) {
			return true
		}
	}
	return false
}

// standsByLocked reports whether this relay is the additional relay that keeps a
// tenant's account open. Relays that know the same relays agree on the choice.
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

// standbyRank returns a relay's rank for standsByLocked; the highest rank is chosen.
func standbyRank(relay, tenant string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, tenant+"."+relay)
	x := h.Sum64() // FNV's upper bits depend little on the last letters, so mix them
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

// tidy opens the accounts that are needed, and closes unused accounts.
func (ta *tenantAccounts) tidy(now time.Time) {
	ta.r.mu.Lock()
	used := map[string]bool{}
	for name, t := range ta.tenants {
		used[name] = ta.usedLocked(t, now)
	}
	ta.correctLocked(now)
	ta.r.mu.Unlock()
	closed := ta.closed
	ta.closed = nil
	for _, name := range ta.r.cfg.Tenants.Names() {
		if !used[name] && ta.r.cfg.Tenants.DropIdle(name, now.Add(-accountIdle)) {
			ta.closed = append(ta.closed, name)
		}
	}
	for _, name := range closed { // a connection may have been made during the close
		used[name] = used[name] || ta.r.cfg.Tenants.Stray(name)
	}
	for name, used := range used {
		if used {
			ta.open(name)
		}
	}
}

// correct computes the users that NATS must refuse from the users that are known now, and
// gives them to the open accounts.
func (ta *tenantAccounts) correct(now time.Time) {
	ta.r.mu.Lock()
	ta.correctLocked(now)
	ta.r.mu.Unlock()
	for _, name := range ta.r.cfg.Tenants.Names() {
		ta.open(name)
	}
}

func (ta *tenantAccounts) correctLocked(now time.Time) {
	for _, of := range ta.former {
		for key, k := range of {
			if len(k.Users.current(now)) == 0 {
				ta.returnLocked(key)
			}
		}
	}
	for name, t := range ta.tenants {
		t.refused = ta.refusedLocked(name, now)
	}
}

// refusedLocked returns the users of a tenant that NATS must refuse.
func (ta *tenantAccounts) refusedLocked(name string, now time.Time) (refused map[string]time.Time) {
	add := func(hosts map[string]*knownHost) {
		for _, k := range hosts {
			refused = mergeRefused(refused, k.refused(ta.r.cfg.Revocations, now))
		}
	}
	add(ta.former[name])
	if t := ta.tenants[name]; t != nil {
		add(t.hosts)
	}
	return refused
}

// dropForgotten closes the accounts of tenants that have no hosts any more, unless a
// connection uses them: its host-agent may still restore its host.
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

// refused returns a host's users with a revoked enrolment, by nkey. NATS must refuse
// their credentials if these were issued up to the returned time. If users were merged
// into auth.AllUsers, a revocation of any token of the host affects all of them.
func (s *hostState) refused(revoked *Revocations, now time.Time) map[string]time.Time {
	refused := map[string]time.Time{}
	var last time.Time
	for _, user := range s.Users.current(now) {
		if at, ok := s.revokedAt(revoked, user); ok {
			refused[user.NKey], last = user.Expires, clock.Later(last, at)
		}
	}
	for _, user := range s.Users.current(now) {
		if user.NKey == auth.AllUsers && !last.IsZero() {
			refused[auth.AllUsers] = last.Add(auth.Leeway) // another relay's clock may be ahead
		}
	}
	return refused
}

func (s *hostState) revokedAt(revoked *Revocations, user natsUser) (time.Time, bool) {
	tenant, host, _ := strings.Cut(s.Key, ".")
	at, ok := revoked.since(user.Issued, auth.Enrolment{ID: user.Token, Tenant: tenant, Host: host}.Keys()...)
	if by, derived := revoked.originSince(tenant, user.Origins); derived {
		return clock.Later(at, by), true
	}
	return at, ok
}

// mergeRefused returns the union of two sets, with the later times.
func mergeRefused(a, b map[string]time.Time) map[string]time.Time {
	if len(b) == 0 {
		return a
	}
	all := maps.Clone(a)
	if all == nil {
		all = map[string]time.Time{}
	}
	for nkey, until := range b {
		all[nkey] = clock.Later(all[nkey], until)
	}
	return all
}
