package registry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/test/natssite"
)

// TestRenewedIsNotRevoked renews host-agents' credentials at one relay, and revokes the old ones at
// another relay, before the store has delivered the new credentials there. The other relay must not
// refuse the host-agents.
func TestRenewedIsNotRevoked(t *testing.T) {
	t.Parallel()
	server := newTestServer(t)
	a, b := startTest(t, server, Config{Instance: "a"}), startTest(t, server, Config{Instance: "b"})
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	const hosts = 50
	for i := range hosts {
		for _, token := range []string{"former", "next"} {
			e := auth.Enrolment{ID: fmt.Sprint(token, i), Tenant: "acme", Host: fmt.Sprintf("host-%d", i), IssuedAt: time.Now()}
			if err := a.Admit(t.Context(), e, key.Public(), time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(time.Minute); token == "former" && len(b.usersOf(e)) == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the second relay does not know the host after a minute; want it known")
				}
			}
		}
		if err := b.Revocations().Add(auth.Revocation{Token: fmt.Sprint("former", i), At: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	b.Close() // and wait for its work
	if refused := b.accounts.tenants["acme"].refused; len(refused) > 0 {
		t.Errorf("users with valid credentials are refused: %v; want none", refused)
	}
}

func (r *Registry) usersOf(e auth.Enrolment) natsUsers {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.hosts[hostKey(e.Tenant, e.Host)]; k != nil {
		return k.Users
	}
	return nil
}

// TestRevocationWaitsForHomeStore revokes a token for a host in another region. The revoker
// must wait until that region's store is read up to its newest entry.
func TestRevocationWaitsForHomeStore(t *testing.T) {
	t.Parallel()
	r := startTest(t, newTestServer(t), Config{Instance: "a", Region: "near"})
	far := &view{r: r, name: "far", store: storeOfRegion(t, r, "far")}
	const key = "acme.laptop"
	users := natsUsers{{NKey: "U", Token: "former", Expires: time.Now().Add(time.Hour)}}
	rev := put(t, far.store, hostKeys+key, hostState{Key: key, Users: users})
	r.mu.Lock()
	k := &knownHost{hostState: hostState{Key: key, Users: users}, home: far}
	r.addLocked(k)
	r.accounts.tokensLocked(k)
	r.mu.Unlock()
	homes := r.revoker.homesOf([]auth.Revocation{{Token: "former", At: time.Now()}})
	if len(homes) != 1 || homes[0] != far {
		t.Fatalf("homes %v; want the region that decides of the host", homes)
	}
	known := make(chan bool, 1)
	go func() { known <- r.revoker.catchUp(t.Context(), homes[0]) }()
	select {
	case <-known:
		t.Fatal("catchUp returns before it has read the store of the host's region; want it to wait")
	case <-time.After(100 * time.Millisecond): // shorter than the revoker waits at most
	}
	far.noteProgress(rev)
	select {
	case all := <-known:
		if !all {
			t.Error("catchUp = false although the store of the host's region has answered; want true")
		}
	case <-time.After(time.Minute):
		t.Error("catchUp has not returned a minute after the store answered; want true")
	}
}

// A claimRecorder records the revoked users with which a tenant's account was last loaded.
type claimRecorder struct {
	broker.Server
	mu      sync.Mutex
	revoked map[string]time.Time
}

func (c *claimRecorder) SetTenant(tenant string, revoked map[string]time.Time) error {
	err := c.Server.SetTenant(tenant, revoked)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revoked = revoked
	return err
}

func (c *claimRecorder) refuses(user string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.revoked[user].IsZero()
}

// TestUnreadStoreEndsNoLease revokes a token while the store of the host's region does not answer.
// NATS must refuse the user that is known, but the host must stay online: its renewed user may be in
// the store. When the store has delivered that user, NATS must accept it at once. A revocation of
// that user must end the lease, and so must, all the time, a revocation for a host of this region.
func TestUnreadStoreEndsNoLease(t *testing.T) {
	t.Parallel()
	server := newTestServer(t)
	claims := &claimRecorder{Server: server.Server}
	server.Server = claims
	r := startTest(t, server, Config{Instance: "a", Region: "near", LeaseTTL: time.Hour}) // the test renews no lease
	far := &view{r: r, name: "far", store: storeOfRegion(t, r, "far")}
	const key, nearKey = "acme.laptop", "acme.desktop"
	state := func(key, user, token string) hostState {
		return hostState{
			Key: key, Users: natsUsers{{NKey: user, Token: token, Issued: time.Now(), Expires: time.Now().Add(time.Hour)}},
			Lease: &lease{Instance: "agent", Keeper: "a", Seq: 1, Fence: 1, Presence: online},
		}
	}
	former, next, desktop := state(key, "U", "former"), state(key, "U", "next"), state(nearKey, "V", "desktop")
	r.applyHost(&r.view, desktop, put(t, r.view.store, hostKeys+desktop.Key, desktop), 0, false)
	r.applyHost(far, former, put(t, far.store, hostKeys+former.Key, former), 0, false)
	renewed := put(t, far.store, hostKeys+next.Key, next) // not read yet
	r.accounts.open("acme")
	revoke := func(token string) {
		t.Helper()
		if err := r.Revocations().Add(auth.Revocation{Token: token, At: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(key string) bool {
		_, alive := r.known(key)
		return alive
	}
	revoke("former")
	natssite.Eventually(t, "the user is refused although the store does not answer", func() bool { return claims.refuses("U") })
	revoke("desktop")
	natssite.Eventually(t, "the lease of this region's host has ended", func() bool { return !holds(nearKey) })
	if !holds(key) {
		t.Fatal("the lease ended although the store may have a renewed user; want it to run")
	}
	r.applyHost(far, next, renewed, 0, false)
	far.noteProgress(renewed)
	for deadline := time.Now().Add(tidyEvery / 2); claims.refuses("U"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the renewed user is still refused; want it accepted without the next tidy")
		}
	}
	if !claims.refuses("V") {
		t.Error("the revoked user of this region's host is accepted; want it refused")
	}
	if !holds(key) {
		t.Error("the lease ended although the host has a renewed user; want it to run")
	}
	revoke("next")
	natssite.Eventually(t, "the lease has ended", func() bool { return !holds(key) })
	natssite.Eventually(t, "the user whose lease ended is refused", func() bool { return claims.refuses("U") })
}

// storeOfRegion creates the store of another region on the server of r, and returns it.
func storeOfRegion(t *testing.T, r *Registry, region string) *store {
	t.Helper()
	s, err := r.regions.storeOf(region)
	if err != nil {
		t.Fatal(err)
	}
	s.found = false // open creates the store
	openStore(t, s)
	return s
}

// openStore opens a store. Like a relay, it tries again if a slow disk or machine takes longer than
// openTimeout.
func openStore(t *testing.T, s *store) {
	t.Helper()
	natssite.Eventually(t, "the store "+s.name+" is open", func() bool {
		_, err := s.open(t.Context())
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("opening the store %s: %v; want no error, or one of time", s.name, err)
		}
		return err == nil
	})
}

// TestSurplusLeaseRaisesFence stores a host with a lease in a region that turns out not to be its
// home. That region must remove its surplus entry. The home region's store must then have a lease
// number at least as high as both had.
func TestSurplusLeaseRaisesFence(t *testing.T) {
	t.Parallel()
	const key = "t.h"
	held := leased("west", "relay-west", 7, 2)
	held.LastSeen = time.Now().Add(-time.Hour).UTC()
	released, ahead := leased("east", "relay-east", 3, 1), leased("east", "relay-east", 3, 5)
	released.Lease.Released = true
	for _, test := range []struct {
		name     string
		there    hostState // the host in its home region's store
		instance string    // instance with the last lease in the home region
		number   uint64
		online   bool
	}{
		{"held there", leased("east", "relay-east", 3, 1), "east", 3, true},
		{"released there", released, "east", 3, false},
		{"with a later one there", ahead, "east", 5, true},
		{"never held there", hostState{Key: key}, "west", 2, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := startTest(t, newTestServer(t), Config{Instance: "relay-west", Region: "west"})
			here, there := r.view.store, storeOfRegion(t, r, "east")
			if _, err := here.write(t.Context(), hostKeys+key, held, 0); err != nil {
				t.Fatal(err)
			}
			natssite.Eventually(t, "the host is known", func() bool { h, known := r.Lookup("t", "h"); return known && h.Region == "west" })
			if _, err := there.write(t.Context(), hostKeys+key, test.there, 0); err != nil {
				t.Fatal(err)
			}
			r.regions.receive([]byte("east"))
			natssite.Eventually(t, "this region's store has forgotten the host", func() bool {
				rev, err := here.read(t.Context(), hostKeys+key, &struct{}{})
				return rev == 0 && err == nil
			})
			var now hostState
			if _, err := there.read(t.Context(), hostKeys+key, &now); err != nil {
				t.Fatal(err)
			}
			if l := now.Lease; l.number() != test.number || l.Instance != test.instance || l.runs() != test.online {
				t.Errorf("the store that decides has %+v; want a lease of %s, number %d, that runs: %v", l, test.instance, test.number, test.online)
			}
			natssite.Eventually(t, "it is known whose the host is", func() bool { h, _ := r.Lookup("t", "h"); return h.Region == "east" && h.Fence == test.number })
			if h, _ := r.Lookup("t", "h"); test.instance == "west" && !h.LastSeen.Equal(held.LastSeen) {
				t.Errorf("the home store has the host's LastSeen %v; want the time from the surplus lease, %v", h.LastSeen, held.LastSeen)
			}
		})
	}
}

// TestSurplusIsKeptUntilHomeIsHeard calls removeSurplus for a surplus entry. If this region is the
// host's home again, the entry must no longer count as surplus. If the home region is unreachable
// or silent, removal must fail and be tried later. The store's entry must stay in all cases.
func TestSurplusIsKeptUntilHomeIsHeard(t *testing.T) {
	t.Parallel()
	const key = "t.h"
	r := startTest(t, newTestServer(t), Config{Instance: "relay-west", Region: "west"})
	far := &view{r: r, name: "east", store: storeOfRegion(t, r, "east")}
	rev, err := r.view.store.write(t.Context(), hostKeys+key, leased("west", "relay-west", 7, 2), 0)
	if err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the host is known", func() bool { _, known := r.Lookup("t", "h"); return known })
	r.mu.RLock()
	k := r.hosts[key]
	r.mu.RUnlock()
	for _, test := range []struct {
		name string
		now  func()
		kept bool // the entry must stay in surplus
	}{
		{"decides again", func() {}, false},
		{"away", func() { k.home, far.storeErr = far, ErrStoreAway }, true},
		{"not heard", func() { far.storeErr, far.silent = nil, time.Now() }, true},
	} {
		r.mu.Lock()
		r.regions.surplus[key] = surplus{rev: rev, last: &lease{Fence: 2}}
		test.now()
		r.mu.Unlock()
		err := r.regions.removeSurplus(t.Context())
		r.mu.Lock()
		_, kept := r.regions.surplus[key]
		r.mu.Unlock()
		if kept != test.kept || (err != nil) != test.kept {
			t.Errorf("%s: the relay keeps the surplus lease for later: %v, %v; want %v", test.name, kept, err, test.kept)
		}
		if at, err := r.view.store.read(t.Context(), hostKeys+key, &struct{}{}); at != rev || err != nil {
			t.Errorf("%s: the host's entry in the store has the revision %d, %v; want it unchanged", test.name, at, err)
		}
	}
}
