package registry_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// savedHosts is a state file. It contains a served host, a
// host without any lease, and a released host.
const savedHosts = `{"version":2,"store":"2026-03-04T00:00:00Z","hosts":[
	{"host":"acme.laptop","enrolled":"2026-03-04T00:00:00Z","lastSeen":"2026-03-05T00:00:00Z","revision":7,
	 "lease":{"instance":"agent","acquired":"2026-03-04T00:00:00Z","seq":9,"since":"2026-03-04T01:00:00Z","presence":{"state":"online","agentVersion":"1.0","wire":[1,2]}}},
	{"host":"acme.spare","enrolled":"2026-03-04T00:00:00Z"},
	{"host":"acme.old","enrolled":"2026-03-04T00:00:00Z","lastSeen":"2026-03-05T00:00:00Z","revision":8,
	 "lease":{"instance":"gone","acquired":"2026-03-04T00:00:00Z","seq":9,"released":true,"since":"2026-03-05T00:00:00Z","presence":{"state":"offline","reason":"host-agent stopped","wire":[1,1]}}}
]}`

// TestStateFileFillsANewStore starts a relay with a state file and a new store. It must know the
// hosts, continue the served host, and write all hosts into the store.
func TestStateFileFillsANewStore(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	path := filepath.Join(t.TempDir(), "hosts.json")
	if err := os.WriteFile(path, []byte(savedHosts), 0o600); err != nil {
		t.Fatal(err)
	}
	r := registryWith(t, s, registry.Config{File: path})
	h := wantHost(t, r, registry.Online, "")
	if since := time.Date(2026, 3, 4, 1, 0, 0, 0, time.UTC); h.AgentInstance != "agent" || !h.Since.Equal(since) || h.AgentVersion != "1.0" {
		t.Errorf("the served host: %+v; want its instance, time and version", h)
	}
	for name, reason := range map[string]string{"spare": "host-agent has never connected", "old": "host-agent stopped"} {
		if h, ok := r.Lookup("acme", name); !ok || h.State != registry.Offline || h.Reason != reason {
			t.Errorf("the host %s is %+v, known: %v; want it offline, %s", name, h, ok, reason)
		}
	}
	other := registryWith(t, s, registry.Config{}) // this registry has no file
	for _, name := range []string{"laptop", "spare", "old"} {
		natssite.Eventually(t, name+" is in the store", func() bool { _, ok := other.Lookup("acme", name); return ok })
	}
}

// TestStoreIsLost restarts the server with an empty store. The relay must know the host from its
// file, and write it into the new store.
func TestStoreIsLost(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	file := filepath.Join(t.TempDir(), "hosts.json")
	r := registryWith(t, s, registry.Config{File: file})
	natssite.Enrol(t, r, "acme", "laptop")
	r.Close()
	s.Store = t.TempDir()
	s.Restart(t)
	if h := wantHost(t, registryWith(t, s, registry.Config{File: file}), registry.Offline, "never"); h.Enrolled.IsZero() {
		t.Errorf("the host is %+v; want its time of enrolment", h)
	}
	other := registryWith(t, s, registry.Config{})
	natssite.Eventually(t, "the store has it", func() bool { _, ok := other.Lookup("acme", "laptop"); return ok })
}

// TestForgottenHostIsKnownWhenItReturns forgets a host. That must fail while the host is served,
// and work at all relays afterwards. When the host's host-agent returns, all relays must know the
// host again.
func TestForgottenHostIsKnownWhenItReturns(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	one, two := startRegistry(t, s, 0), startRegistry(t, s, 0)
	first, _ := holder(t, s, named("first"))
	acquire(t, first)
	wantHost(t, two, registry.Online, "")
	if err := two.Forget(t.Context(), "acme", "laptop"); err == nil {
		t.Error("Forget of a served host succeeded; want an error")
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantHost(t, two, registry.Offline, "stopped")
	if err := two.Forget(t.Context(), "acme", "laptop"); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*registry.Registry{one, two} {
		natssite.Eventually(t, "the host is forgotten", func() bool { _, ok := r.Lookup("acme", "laptop"); return !ok && len(r.Hosts("acme")) == 0 })
	}
	if err := one.Forget(t.Context(), "acme", "laptop"); err == nil {
		t.Error("a second Forget of a host succeeded; want an error")
	}
	second, _ := holder(t, s, named("second"))
	acquire(t, second)
	wantHost(t, one, registry.Online, "")
	wantHost(t, two, registry.Online, "")
}
