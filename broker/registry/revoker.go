package registry

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"ahprelay/auth"
	"ahprelay/internal/signal"

	"github.com/nats-io/nats.go"
)

// revokedSubject is the subject on which relays send new revocations. It works while the store
// is unreachable.
const revokedSubject = relayRoot + "revoked"

// Some subjects of relays. Host-agents have no permission for them.
//
//	ahp.relays.v1.revoked                  auth.Revocation, for all
//	ahp.relays.v1.region                   the name of a region, for all
//	ahp.relays.v1.to.<instance>.lease      a request about a lease that another relay keeps
//	ahp.relays.v1.records.<key>            a record, see package store
//	ahp.relays.v1.looking                  announcements of attended sessions, see package notify
const relayRoot = "ahp.relays.v1."

func relaySubject(instance, what string) string { return relayRoot + "to." + instance + "." + what }

// A revoker exchanges revocations with other relays and enforces them.
type revoker struct {
	r    *Registry
	in   chan *nats.Msg // revocations from other relays
	wake chan struct{}  // wakes run, because there are new revocations
}

// publish sends a revocation to all relays.
func (rv *revoker) publish(rev auth.Revocation) {
	body, err := json.Marshal(rev)
	if err == nil {
		err = rv.r.cfg.Conn.Publish(revokedSubject, body)
	}
	if err != nil && rv.r.cfg.Conn.Connected() { // while disconnected, the broker.Conn reports the error
		rv.r.cfg.Log.Warn("revocation not sent to other relays", "error", err)
	}
}

func (rv *revoker) receive(msg *nats.Msg) {
	var rev auth.Revocation
	if err := json.Unmarshal(msg.Data, &rev); err != nil {
		rv.r.cfg.Log.Warn("message from another relay invalid", "subject", msg.Subject, "error", err)
		return
	}
	rv.r.cfg.Revocations.receive([]auth.Revocation{rev})
}

func (rv *revoker) write(ctx context.Context) error {
	list, revs := rv.r.cfg.Revocations.toStore()
	for i, rev := range list {
		key := revokedKey(rev)
		at, err := rv.r.view.store.write(ctx, key, rev, revs[i])
		if errors.Is(err, errConflict) {
			var there auth.Revocation
			if at, err = rv.r.view.store.read(ctx, key, &there); err == nil {
				if at != 0 {
					rv.r.cfg.Revocations.stored(there, at)
				} else { // another relay has just removed the former one, which had expired
					rv.r.cfg.Revocations.removed(key)
				}
				signal.Send(rv.r.writer.wake) // some may remain to be written
				continue
			}
		}
		if err != nil {
			return err
		}
		rv.r.cfg.Revocations.stored(rev, at)
	}
	return nil
}

// enforceRetry is the interval between attempts to read a store for revocations that were
// enforced without it.
const enforceRetry = time.Second

// run enforces new revocations until ctx ends. While the store of a host's region is
// unreachable, NATS refuses the host's known users, but its lease stays: the store may have
// renewed credentials. When the store has been read, run corrects the users and ends the lease.
func (rv *revoker) run(ctx context.Context) {
	var early []auth.Revocation // enforced while a store was unreachable
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-rv.wake:
		case <-retry:
		}
		news := rv.r.cfg.Revocations.takeNews()
		revs := slices.Concat(early, news)
		unread := rv.catchUpHomes(ctx, revs)
		if ctx.Err() != nil {
			return
		}
		if len(early) > 0 && len(unread) == 0 {
			rv.r.accounts.correct(time.Now())
		}
		rv.refuse(revs)
		rv.endLeases(revs, unread, time.Now())
		early, retry = nil, nil
		if len(unread) > 0 {
			early, retry = revs, time.After(enforceRetry)
		}
		for _, home := range unread {
			if len(news) > 0 {
				rv.r.cfg.Log.Warn("revocation enforced without renewed credentials", "reason", "registry store unreachable", "region", home.name)
			}
		}
	}
}

// catchUpHomes reads the stores of all regions with affected hosts, and returns the regions
// whose store was unreachable.
func (rv *revoker) catchUpHomes(ctx context.Context, revs []auth.Revocation) (unread []*view) {
	for _, home := range rv.homesOf(revs) {
		limit, cancel := context.WithTimeout(ctx, writeTimeout)
		if !rv.catchUp(limit, home) {
			unread = append(unread, home)
		}
		cancel()
	}
	return unread
}

// homesOf returns the home regions of hosts whose users are affected by revocations.
func (rv *revoker) homesOf(news []auth.Revocation) (homes []*view) {
	rv.r.mu.RLock()
	defer rv.r.mu.RUnlock()
	for _, rev := range news {
		for key := range rv.r.accounts.tokens[rev.Key()] {
			if home := rv.r.regions.homeOf(rv.r.accounts.hostLocked(key)); !slices.Contains(homes, home) {
				homes = append(homes, home)
			}
		}
	}
	return homes
}

// catchUp returns true when this relay has read a region's store up to the time of the call. It
// returns false on failure, or when ctx ends. It is called before a revocation is enforced: a
// renewed token is revoked only after its successor's user is in the store, but the revocation
// may arrive before that change.
func (rv *revoker) catchUp(ctx context.Context, v *view) bool {
	rev, err := rv.newest(ctx, v)
	if err != nil {
		return false
	}
	look := time.Tick(catchUpEvery)
	for {
		if v.hasSeen(rev) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-look:
		}
	}
}

// newest returns a revision of a region's store at least as high as any at the call.
// It writes to this region's store, and queries another region's.
func (rv *revoker) newest(ctx context.Context, v *view) (uint64, error) {
	if v != &rv.r.view {
		return v.store.last(ctx)
	}
	if err := rv.r.storeAway(); err != nil {
		return 0, err
	}
	return rv.r.upkeep.putSession(ctx, false)
}

// refuse makes NATS refuse users with revoked enrolments.
func (rv *revoker) refuse(revs []auth.Revocation) {
	tenants := map[string]bool{}
	rv.r.mu.Lock()
	for _, key := range rv.affectedLocked(revs) {
		k := rv.r.accounts.hostLocked(key)
		rv.r.accounts.tokensLocked(k)
		tenants[k.tenant()] = true
	}
	rv.r.mu.Unlock()
	for name := range tenants {
		rv.r.accounts.openAgain(name)
	}
}

// endLeases ends the lease of each affected host whose users are all revoked, except in the
// unread regions.
func (rv *revoker) endLeases(revs []auth.Revocation, unread []*view, now time.Time) {
	holders := map[string]string{}
	rv.r.mu.RLock()
	for _, key := range rv.affectedLocked(revs) {
		k := rv.r.accounts.hostLocked(key)
		users := k.Users.current(now)
		switch {
		case rv.r.hosts[key] == nil: // forgotten
		case slices.Contains(unread, rv.r.regions.homeOf(k)):
		case rv.r.aliveLocked(k) && len(users) > 0 && len(k.refused(rv.r.cfg.Revocations, now)) == len(users):
			holders[key] = k.lease().Instance
		}
	}
	rv.r.mu.RUnlock()
	for key, holder := range holders {
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		rv.r.keeping.hold(ctx, key, leaseRequest{Op: opRelease, Instance: holder, Seq: crashSeq, Reason: reasonRevoked}, rv.r.cfg.Instance)
		cancel()
	}
}

func (rv *revoker) affectedLocked(news []auth.Revocation) (keys []string) {
	for _, rev := range news {
		if key := hostKey(rev.Tenant, rev.Host); rev.Host != "" && rv.r.accounts.hostLocked(key) != nil {
			keys = append(keys, key)
		}
		for key := range rv.r.accounts.tokens[rev.Key()] {
			keys = append(keys, key)
		}
	}
	return keys
}
