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

// Which accounts of tenants a relay has open: those that it serves. That is where it
// keeps a lease, where somebody here uses the account or has just shown a token, and, at an
// embedded server, where somebody is connected to it. Of NATS servers that are somebody
// else's nobody knows who is there; so of each tenant to which relays gave credentials
// that have not expired, as the store says (hostState.Users), one relay has the account
// open beside those that serve it: for host-agents whose relay has ended.
const (
	// tidyEvery is how often accounts are looked for that are of no use.
	tidyEvery = time.Minute

	// accountIdle is for how long nobody must have used an account until it is closed.
	accountIdle = 2 * time.Minute

	// admitTimeout is how long credentials wait until the store and NATS know of
	// them.
	admitTimeout = 4 * time.Second

	// catchUpEvery is how often it is looked whether what is written has come back.
	catchUpEvery = 5 * time.Millisecond

	// reasonRevoked is why a host is offline of which the credentials were
	// revoked.
	reasonRevoked = "access of the host-agent was revoked"
)

// A tenant is what a relay knows of one.
type tenant struct {
	name    string
	hosts   map[string]*knownHost
	shown   time.Time            // when a host-agent last showed a token here
	refused map[string]time.Time // users that NATS is to refuse; never changed in place
}

func (r *Registry) tenantLocked(name string) *tenant {
	t := r.tenants[name]
	if t == nil {
		t = &tenant{name: name, hosts: map[string]*knownHost{}}
		r.tenants[name] = t
	}
	return t
}

// Admit makes a host known and notes a NATS user, given by its public nkey, who
// may act for it until the given time because of an enrolment. Call it before a
// host-agent gets the credentials of that user: its tenant's account is open
// then. An error says that they could not be used.
//
// When the enrolment is revoked, at any relay, the user is cut off, and so is
// the lease of a host that has no other. While the store is away, hosts that are
// known are admitted all the same, so that they go on, and other relays hear of
// that later; the error wraps ErrStoreAway for others.
func (r *Registry) Admit(ctx context.Context, e auth.Enrolment, nkey string, until time.Time) error {
	fail := func(err error) error {
		if err != nil {
			return fmt.Errorf("admit a host-agent of %s/%s: %w", e.Tenant, e.Host, err)
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

// AllWritten reports whether the store has all users of a host that this relay knows of, so that
// other relays hear of them before they hear of anything that is written later.
func (r *Registry) AllWritten(tenant, host string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	k := r.hosts[hostKey(tenant, host)]
	return k == nil || len(k.unwritten) == 0
}

// admitHere notes users of a host that is known, to be written later.
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

// tokensLocked notes which tokens and origins the users of a host have, and whom NATS is to
// refuse of them.
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

// openTenant opens the account of a tenant, if it is not, with the users that it is
// to refuse.
func (r *Registry) openTenant(name string) {
	r.mu.RLock()
	var refused map[string]time.Time
	if t := r.tenants[name]; t != nil {
		refused = t.refused
	}
	r.mu.RUnlock()
	if err := r.cfg.Tenants.Open(name, refused); err != nil {
		r.cfg.Log.Error("account of a tenant", "tenant", name, "error", err)
	}
}

// demand is how accounts are opened that somebody needs.
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

// An accountIndex tells which tenant's a NATS account is. To derive the account from the tenant costs
// some 50 µs, so it is done when it is asked for.
type accountIndex struct {
	of func(tenant string) (account string, err error) // set once

	mu      sync.Mutex
	tenants map[string]string // by account
	known   map[string]bool   // tenants that are in it
}

// tenant returns whose an account is, "" if it is nobody's of those that names returns.
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

// AwaitTenant returns when host-agents of a tenant are answered here, or ctx ends.
func (r *Registry) AwaitTenant(ctx context.Context, name string) error {
	return r.cfg.Tenants.Await(ctx, name)
}

// usedLocked reports whether this relay is to have the account of a tenant open, whether or not
// somebody uses it just now.
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

// standsByLocked reports whether this is the relay that has the account of a tenant open in any
// case. All relays that know of the same others agree on that.
func (r *Registry) standsByLocked(name string) bool {
	if !r.cfg.Tenants.External() {
		return false
	}
	own := standbyRank(r.cfg.Instance, name)
	for instance, p := range r.peers {
		if instance != r.cfg.Instance && p.thereLocked(formerAfter) && standbyRank(instance, name) > own {
			return false
		}
	}
	return true
}

// standbyRank is the place of a relay among those that could stand by for a tenant.
func standbyRank(relay, tenant string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, tenant+"."+relay)
	x := h.Sum64() // whose upper bits say little of the last letters
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

// relaysThere names the other relays that are there. They change seldom.
func (r *Registry) relaysThere() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var there []string
	for instance, p := range r.peers {
		if p.thereLocked(formerAfter) {
			there = append(there, instance)
		}
	}
	slices.Sort(there)
	return strings.Join(there, " ")
}

// seeToRevoked has what was revoked end, until ctx ends.
func (r *Registry) seeToRevoked(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.revoke:
		}
		news := r.cfg.Revocations.takeNews()
		for _, home := range r.homesOf(news) {
			limit, cancel := context.WithTimeout(ctx, writeTimeout)
			known := r.catchUp(limit, home)
			cancel()
			if !known && ctx.Err() == nil {
				r.cfg.Log.Warn("what was revoked counts before it is known what was renewed: the store does not tell", "region", home.name)
			}
		}
		if ctx.Err() != nil {
			return
		}
		r.endRevoked(news, time.Now())
	}
}

// homesOf returns the regions that decide of hosts with users, known by name, whose token
// was revoked.
func (r *Registry) homesOf(news []auth.Revocation) (homes []*view) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, rev := range news {
		for key := range r.tokens[rev.Key()] {
			if home := r.homeOf(r.hosts[key]); !slices.Contains(homes, home) {
				homes = append(homes, home)
			}
		}
	}
	return homes
}

// catchUp returns when this relay knows what the store of a region had when it was called, or
// false when it cannot, or ctx ends. A token that was renewed is revoked after the store of its host knows of the user
// with its successor, but relays tell each other faster than a store does.
func (r *Registry) catchUp(ctx context.Context, v *view) bool {
	rev, err := r.newest(ctx, v)
	if err != nil {
		return false
	}
	look := time.NewTicker(catchUpEvery)
	defer look.Stop()
	for {
		r.mu.RLock()
		there := v.seen >= rev
		r.mu.RUnlock()
		if there {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-look.C:
		}
	}
}

// newest returns a revision of the store of a region that is as high as any there was when it
// was called: into this region's it writes something, another is asked.
func (r *Registry) newest(ctx context.Context, v *view) (uint64, error) {
	if v != &r.view {
		return v.store.last(ctx)
	}
	if err := r.storeAway(); err != nil {
		return 0, err
	}
	return r.putSession(ctx, false)
}

// endRevoked has NATS refuse the users whose enrolment was just revoked, and ends the
// leases of hosts that have no other users.
func (r *Registry) endRevoked(news []auth.Revocation, now time.Time) {
	tenants := map[string]bool{}
	holders := map[string]string{}
	r.mu.Lock()
	for _, key := range r.hitLocked(news) {
		k := r.hosts[key]
		r.tokensLocked(k)
		tenants[k.tenant()] = true
		users := k.Users.current(now)
		if r.aliveLocked(k) && len(users) > 0 && len(k.refused(r.cfg.Revocations, now)) == len(users) {
			holders[key] = k.lease().Instance
		}
	}
	r.mu.Unlock()
	open := r.cfg.Tenants.Names()
	for name := range tenants {
		// One that an embedded server does not know hears of it when somebody comes.
		if r.cfg.Tenants.External() || slices.Contains(open, name) {
			r.openTenant(name)
		}
	}
	for key, holder := range holders {
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		r.hold(ctx, key, leaseRequest{Op: opRelease, Instance: holder, Seq: crashSeq, Reason: reasonRevoked}, r.cfg.Instance)
		cancel()
	}
}

// hitLocked returns the hosts that revocations may be about.
func (r *Registry) hitLocked(news []auth.Revocation) (keys []string) {
	for _, rev := range news {
		if key := hostKey(rev.Tenant, rev.Host); rev.Host != "" && r.hosts[key] != nil {
			keys = append(keys, key)
		}
		for key := range r.tokens[rev.Key()] {
			keys = append(keys, key)
		}
	}
	return keys
}

// tidyTenants closes the accounts that are of no use any more, and opens those that are.
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
	for _, name := range closed { // one may have come as it was closed
		used[name] = used[name] || r.cfg.Tenants.Stray(name)
	}
	for name, used := range used {
		if used {
			r.openTenant(name)
		}
	}
}

// dropForgotten closes the accounts of tenants that have no host any more, when nobody is
// connected there: whose host-agent is may make its host known again.
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

// refused returns the users of a host whose enrolment is revoked, with the time
// up to which NATS is to refuse their credentials: all of one nkey. Of users
// that are not known by name it is as if they had any of the host's tokens.
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

// revokedAt returns when the enrolment of a user was revoked.
func (s *hostState) revokedAt(revoked *Revocations, user natsUser) (time.Time, bool) {
	tenant, host, _ := strings.Cut(s.Key, ".")
	at, ok := revoked.since(user.Issued, auth.Enrolment{ID: user.Token, Tenant: tenant, Host: host}.Keys()...)
	if by, derived := revoked.originSince(tenant, user.Origins); derived {
		return later(at, by), true
	}
	return at, ok
}

// mergeRefused returns the users of both.
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
