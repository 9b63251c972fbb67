package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
)

// Which accounts of tenants a relay has open: those in which a host-agent may
// be. That takes credentials that have not expired, and relays tell each other
// to whom they gave some (hostState.Users); or it has just shown a token here, or
// has a lease.
const (
	// tidyEvery is how often accounts are looked for that are of no use.
	tidyEvery = time.Minute

	// admitTimeout is how long credentials wait until NATS knows of them.
	admitTimeout = 2 * time.Second

	// reasonRevoked is why a host is offline of which the credentials were
	// revoked.
	reasonRevoked = "access of the host-agent was revoked"
)

// Admit makes a host known and notes a NATS user, given by its public nkey, who
// may act for it until the given time because of an enrolment. Call it before a
// host-agent gets the credentials of that user: its tenant's account is open
// then. An error says that they could not be used.
//
// When the enrolment is revoked, at any relay, the user is cut off, and so is
// the lease of a host that has no other.
func (r *Registry) Admit(ctx context.Context, e auth.Enrolment, nkey string, until time.Time) error {
	if err := r.Enrol(e.Tenant, e.Host); err != nil {
		return err
	}
	user := natsUsers{{NKey: nkey, Token: e.ID, Issued: e.IssuedAt.UTC(), Expires: until.UTC()}}
	if err := user.check(); err != nil {
		return fmt.Errorf("admit a host-agent of %s/%s: %w", e.Tenant, e.Host, err)
	}
	key, now := hostKey(e.Tenant, e.Host), time.Now()
	r.mu.Lock()
	k := r.hosts[key]
	k.Users = k.Users.current(now).with(user...)
	r.changedLocked(key, true)
	news := k.wire(now)
	r.mu.Unlock()
	r.seeToTenants(now, e.Tenant)
	r.tellRelays(news)
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	if err := r.cfg.Tenants.Await(ctx, e.Tenant); err != nil {
		return fmt.Errorf("admit a host-agent of %s/%s: %w", e.Tenant, e.Host, err)
	}
	return nil
}

// endRevoked has NATS refuse the users whose enrolment is revoked, and ends the
// leases of hosts that have no other users.
func (r *Registry) endRevoked(now time.Time) {
	r.seeToTenants(now)
	for key, holder := range r.revokedHolders(now) {
		r.hold(key, leaseRequest{Op: opRelease, Instance: holder, Seq: crashSeq, Reason: reasonRevoked})
	}
}

// revokedHolders returns the instances that hold a host and may not, by host.
func (r *Registry) revokedHolders(now time.Time) map[string]string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	holders := map[string]string{}
	for key, k := range r.hosts {
		users := k.Users.current(now)
		if k.alive && len(users) > 0 && len(k.refused(r.cfg.Revocations, now)) == len(users) {
			holders[key] = k.Lease.Instance
		}
	}
	return holders
}

// A tenantUse says what a relay needs of a tenant's account.
type tenantUse struct {
	open    bool                 // a host-agent may be connected to NATS
	refused map[string]time.Time // users that NATS is to refuse
}

// seeToTenants opens the accounts that are of use, with the users that they are
// to refuse: those of the tenants given, or of all.
func (r *Registry) seeToTenants(now time.Time, tenants ...string) {
	for tenant, use := range r.tenantUses(now, tenants...) {
		if !use.open {
			continue // closed by tidyTenants
		}
		if err := r.cfg.Tenants.Open(tenant, use.refused); err != nil {
			r.cfg.Log.Error("account of a tenant", "tenant", tenant, "error", err)
		}
	}
}

// tidyTenants closes the accounts that are of no use any more.
func (r *Registry) tidyTenants(now time.Time) {
	uses := r.tenantUses(now)
	for _, tenant := range r.cfg.Tenants.Names() {
		if !uses[tenant].open {
			r.cfg.Tenants.Drop(tenant)
			r.seeToTenants(now, tenant) // it may have come into use meanwhile
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.shown, func(_ string, at time.Time) bool { return now.Sub(at) > auth.DefaultAgentTTL })
	for _, k := range r.hosts {
		k.Users = k.Users.current(now)
	}
}

// tenantUses returns what is needed for the tenants given, or for all.
func (r *Registry) tenantUses(now time.Time, tenants ...string) map[string]tenantUse {
	r.mu.RLock()
	defer r.mu.RUnlock()
	uses := map[string]tenantUse{}
	for _, k := range r.hosts {
		tenant := k.tenant()
		if len(tenants) > 0 && !slices.Contains(tenants, tenant) {
			continue
		}
		use, known := uses[tenant]
		if !known {
			at, shown := r.shown[tenant]
			use = tenantUse{open: shown && now.Sub(at) <= auth.DefaultAgentTTL, refused: map[string]time.Time{}}
		}
		use.open = use.open || k.alive || len(k.Users.current(now)) > 0
		mergeRefused(use.refused, k.refused(r.cfg.Revocations, now))
		uses[tenant] = use
	}
	return uses
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

func mergeRefused(into, more map[string]time.Time) {
	for nkey, until := range more {
		into[nkey] = later(into[nkey], until)
	}
}

// StoredTenants returns the tenants of the hosts that a registry has kept in its
// file, each with the users that are to be refused: see [Tenants.Open]. With
// these a server accepts, from its start, the host-agents that come back. Of a
// file that cannot be read the registry says what is wrong.
func StoredTenants(file string, revoked *Revocations) map[string]map[string]time.Time {
	states, _, _ := (&stateFile{path: file}).read()
	tenants, now := map[string]map[string]time.Time{}, time.Now()
	for _, s := range states {
		tenant, _, _ := strings.Cut(s.Key, ".")
		if tenants[tenant] == nil {
			tenants[tenant] = map[string]time.Time{}
		}
		mergeRefused(tenants[tenant], s.refused(revoked, now))
	}
	return tenants
}

// tenant returns whose host it is.
func (k *knownHost) tenant() string {
	tenant, _, _ := strings.Cut(k.Key, ".")
	return tenant
}
