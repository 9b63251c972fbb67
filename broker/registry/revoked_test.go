package registry_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"

	"github.com/nats-io/nats.go"
)

// TestRevokedEverywhere adds revocations at the relays of a cluster. The relay itself must apply
// each at once, even without the store, and the other relay as soon as it is connected. Both must
// have them in their files.
func TestRevokedEverywhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) *registry.Revocations {
		r, err := registry.LoadRevocations(filepath.Join(dir, name), nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	members := newCluster(t, 2, registry.Config{})
	a, b := members[0], members[1]
	a.config.Revocations, b.config.Revocations = file("a"), file("b")
	a.serve(t)
	a.join(t) // there is no store before the other server
	first := a.Registry
	early := auth.Revocation{Tenant: "acme", Host: "laptop", At: time.Now().UTC()}
	if err := first.Revocations().Add(early); err != nil {
		t.Fatal(err)
	}
	if !first.Revocations().Revoked(early.At, early.Key()) {
		t.Error("a revocation made while the store is unreachable is not in force; want it")
	}

	b.serve(t)
	b.join(t)
	second := b.Registry
	natssite.Eventually(t, "the second relay knows what was revoked", func() bool { return second.Revocations().Revoked(early.At, early.Key()) })
	awaitStore(t, a)
	awaitStore(t, b)

	told := make(chan struct{}, 10)
	defer first.Revocations().Subscribe(func() { told <- struct{}{} })()
	late := auth.Revocation{Tenant: "acme", Subject: "ada", At: time.Now().UTC()}
	if err := second.Revocations().Add(late); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "word of a revocation", told)
	if !first.Revocations().Revoked(late.At, late.Key()) {
		t.Errorf("the first relay has the revocations %+v; want the later one too", first.Revocations().List())
	}
	natssite.Eventually(t, "both have it in their files", func() bool {
		return file("a").Revoked(late.At, late.Key()) && file("b").Revoked(early.At, early.Key())
	})
}

// TestRevocationBeforeItsUser gives a relay a revocation before the user that it affects, as happens
// when a relay reads the store late. The relay keeps no lease of the tenant, and its NATS server
// already has a connection in the tenant's account. The server must refuse the user.
func TestRevocationBeforeItsUser(t *testing.T) {
	t.Parallel()
	members := startCluster(t, 2, registry.Config{})
	two, first, second := members[1].Site, members[0].Registry, members[1].Registry
	natssite.DialAgent(t, admitFor(t, two, first, auth.Enrolment{ID: "t2", Tenant: "acme", Host: "desktop", IssuedAt: time.Now()}))

	rev := auth.Revocation{Tenant: "acme", Host: "laptop", At: time.Now().UTC()}
	if err := first.Revocations().Add(rev); err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the second relay knows the revocation", func() bool { return second.Revocations().Revoked(rev.At, rev.Key()) })
	laptop := admitFor(t, two, first, auth.Enrolment{ID: "t1", Tenant: "acme", Host: "laptop", IssuedAt: rev.At.Add(-time.Hour)})
	var credentials string
	var err error
	natssite.Eventually(t, "the store answers", func() bool {
		credentials, err = laptop.Credentials(t.Context())
		return !errors.Is(err, registry.ErrStoreAway)
	})
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, two, credentials, laptop.Sign)
}

// wantRefused waits until a site's server refuses a user's credentials.
func wantRefused(t *testing.T, s *natssite.Site, credentials string, sign nats.SignatureHandler) {
	t.Helper()
	natssite.Eventually(t, "the credentials are refused", func() bool {
		nc, err := natssite.Connect(s.URL(), nats.UserJWT(func() (string, error) { return credentials, nil }, sign))
		if err == nil {
			nc.Close()
		}
		return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthRevoked)
	})
}
