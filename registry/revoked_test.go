package registry_test

import (
	"path/filepath"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/registry"
	"ahprelay/test/natssite"
)

// TestRevokedEverywhere has relays of a cluster hear of a revocation: those
// that see each other at once, and one that comes later before it serves.
func TestRevokedEverywhere(t *testing.T) {
	t.Parallel()
	keys := natssite.NewKeys(t)
	dir := t.TempDir()
	file := func(name string) *registry.Revocations {
		r, err := registry.LoadRevocations(filepath.Join(dir, name), nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	one := node(t, keys, nil, "127.0.0.1:0")
	first := registryWith(t, one, registry.Config{Instance: "a", Cluster: true, Revocations: file("a")})
	early := auth.Revocation{Tenant: "acme", Host: "laptop", At: time.Now().UTC()}
	if err := first.Revocations().Add(early); err != nil {
		t.Fatal(err)
	}

	two := node(t, keys, nil, "127.0.0.1:0", one.Server.ClusterAddr())
	awaitRoute(t, two)
	revoked := file("b")
	second := registryWith(t, two, registry.Config{Instance: "b", Cluster: true, Linked: true, Revocations: revoked})
	if !revoked.Revoked(early.At, early.Key()) {
		t.Errorf("the second relay starts with %+v", revoked.List())
	}
	natssite.Eventually(t, "the relays hear each other", func() bool { return first.Degraded()+second.Degraded() == "" })

	told := make(chan struct{}, 10)
	defer first.Revocations().Subscribe(func() { told <- struct{}{} })()
	late := auth.Revocation{Tenant: "acme", Subject: "ada", At: time.Now().UTC()}
	if err := second.Revocations().Add(late); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "word of a revocation", told)
	if !first.Revocations().Revoked(late.At, late.Key()) {
		t.Errorf("the first relay knows %+v", first.Revocations().List())
	}
	natssite.Eventually(t, "both have it in their files", func() bool {
		return file("a").Revoked(late.At, late.Key()) && file("b").Revoked(early.At, early.Key())
	})
}
