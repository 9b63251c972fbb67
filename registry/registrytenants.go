package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
)

// Which accounts of tenants a relay has open: those in which a host-agent may
// be. That takes credentials that have not expired, and the store tells to whom
// relays gave some (hostState.Users); or it has just shown a token here, or
// has a lease.
const (
	// tidyEvery is how often accounts are looked for that are of no use.
	tidyEvery = time.Minute

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
	hosts   map[string]*knownHost
	shown   time.Time            // when a host-agent last showed a token here
	refused map[string]time.Time // users that NATS is to refuse; never changed in place
}

func (r *Registry) tenantLocked(name string) *tenant {
	t := r.tenants[name]
	if t == nil {
		t = &tenant{hosts: map[string]*knownHost{}}
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
	user := natsUsers{{NKey: nkey, Token: e.ID, Issued: e.IssuedAt.UTC(), Expires: until.UTC()}}
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

// tokensLocked notes which tokens the users of a host have, and whom NATS is to
// refuse of them.
func (r *Registry) tokensLocked(k *knownHost) {
	for _, token := range k.indexed {
		delete(r.tokens[token], k.Key)
		if len(r.tokens[token]) == 0 {
			delete(r.tokens, token)
		}
	}
	k.indexed = nil
	for _, user := range k.Users {
		if user.Token == "" {
			continue
		}
		if r.tokens[user.Token] == nil {
			r.tokens[user.Token] = map[string]bool{}
		}
		r.tokens[user.Token][k.Key] = true
		k.indexed = append(k.indexed, user.Token)
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

// openTenants opens the accounts that are of use.
func (r *Registry) openTenants() {
	now := time.Now()
	r.mu.RLock()
	var names []string
	for name, t := range r.tenants {
		if r.usedLocked(t, now) {
			names = append(names, name)
		}
	}
	r.mu.RUnlock()
	for _, name := range names {
		r.openTenant(name)
	}
}

// usedLocked reports whether a host-agent of the tenant may be connected to NATS.
func (r *Registry) usedLocked(t *tenant, now time.Time) bool {
	if !t.shown.IsZero() && now.Sub(t.shown) <= auth.DefaultAgentTTL {
		return true
	}
	for _, k := range t.hosts {
		if r.aliveLocked(k) || len(k.Users.current(now)) > 0 {
			return true
		}
	}
	return false
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
		if r.ofUsers(news) {
			r.catchUp(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		r.endRevoked(news, time.Now())
	}
}

// ofUsers reports whether tokens of users were revoked that are known by name.
func (r *Registry) ofUsers(news []auth.Revocation) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.ContainsFunc(news, func(rev auth.Revocation) bool { return rev.Host == "" && len(r.tokens[rev.Token]) > 0 })
}

// catchUp returns when this relay knows what the store had when it was called, or cannot.
// A token that was renewed is revoked after the store knows of the user with its
// successor, but relays tell each other faster than the store does.
func (r *Registry) catchUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if r.storeAway() != nil {
		return
	}
	rev, err := r.putSession(ctx, false)
	if err != nil {
		return
	}
	look := time.NewTicker(catchUpEvery)
	defer look.Stop()
	for {
		r.mu.RLock()
		there := r.seen >= rev
		r.mu.RUnlock()
		if there {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
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
	for name := range tenants {
		r.openTenant(name)
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
		switch {
		case rev.Host != "":
			if key := hostKey(rev.Tenant, rev.Host); r.hosts[key] != nil {
				keys = append(keys, key)
			}
		case rev.Token != "":
			for key := range r.tokens[rev.Token] {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// tidyTenants closes the accounts that are of no use any more.
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
	for _, name := range r.cfg.Tenants.Names() {
		if used[name] {
			r.openTenant(name)
			continue
		}
		r.cfg.Tenants.Drop(name)
		r.mu.RLock()
		t := r.tenants[name]
		again := t != nil && r.usedLocked(t, now) // it has come into use meanwhile
		r.mu.RUnlock()
		if again {
			r.openTenant(name)
		}
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
	return revoked.since(user.Issued, auth.Enrolment{ID: user.Token, Tenant: tenant, Host: host}.Keys()...)
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

// StoredTenants returns the tenants of the hosts that a registry has kept in its
// file, each with the users that are to be refused: see [broker.Tenants.Open]. With
// these a server accepts, from its start, the host-agents that come back. Of a
// file that cannot be read the registry says what is wrong.
func StoredTenants(file string, revoked *Revocations) map[string]map[string]time.Time {
	kept, _, _ := (&stateFile{path: file}).read()
	tenants, now := map[string]map[string]time.Time{}, time.Now()
	for _, s := range kept.Hosts {
		tenants[s.tenant()] = mergeRefused(tenants[s.tenant()], s.refused(revoked, now))
	}
	return tenants
}
