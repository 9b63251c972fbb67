package registry_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// TestHostIsServedWhileTheDiskIsFull fills the store's disk and then frees space.
// Meanwhile a restarted host-agent must still serve its host. Pending changes must be
// written without a restart, and the log must report the full disk once. The test needs
// the permission to mount.
func TestHostIsServedWhileTheDiskIsFull(t *testing.T) {
	t.Parallel()
	disk := natssite.NewDisk(t, "16m")
	s := &natssite.Site{Keys: natssite.NewKeys(t), Store: disk.Dir}
	s.Start(t, "127.0.0.1:0")
	log := natssite.LogLines{Lines: make(chan string, 1000)}
	r := registryWith(t, s, registry.Config{Revive: s.Server.ReviveStore, Room: s.Server.StoreRoom, LeaseTTL: 5 * time.Second, Log: slog.New(log)})
	held, _ := holder(t, s, named("first"))
	acquire(t, held)
	stop := run(t, held)

	disk.Fill(t)
	hosts := 0
	for ; r.Enrol("acme", fmt.Sprintf("h%d", hosts)) == nil; hosts++ { // an open block still has space
	}
	natssite.Eventually(t, "the store cannot be written", func() bool { return r.Degraded() != "" })
	wantHost(t, r, registry.Online, "")
	natssite.Eventually(t, "the full disk is reported", func() bool { return strings.Contains(r.Degraded(), "no space left") })
	_ = stop() // the context's end
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
	wantHost(t, r, registry.Offline, "")
	next, _ := holder(t, s, named("next"))
	acquire(t, next)
	run(t, next)
	if h := wantHost(t, r, registry.Online, ""); h.AgentInstance != "next" {
		t.Errorf("host = %+v; want it served by the host-agent that has started again", h)
	}
	disk.Free(t)
	natssite.Eventually(t, "the store can be written again", func() bool { return r.Degraded() == "" && r.Enrol("acme", "new") == nil })
	if h := wantHost(t, r, registry.Online, ""); h.AgentInstance != "next" {
		t.Errorf("host = %+v; want that it stays at its host-agent", h)
	}
	lines := 0
	for len(log.Lines) > 0 {
		if line := <-log.Lines; strings.Contains(line, "no space left") && strings.Contains(line, "data directory cannot be written") {
			lines++
		}
	}
	if lines != 1 {
		t.Errorf("%d lines in the log about the full disk; want one", lines)
	}
	for i := range hosts {
		if _, known := r.Lookup("acme", fmt.Sprintf("h%d", i)); !known {
			t.Errorf("host %d of %d, which was written, is not known any more", i, hosts)
		}
	}
}

// TestStoreThatWritesNothingIsRestarted fills the disk of a relay which cannot see why
// its store has stopped to confirm writes.
func TestStoreThatWritesNothingIsRestarted(t *testing.T) {
	t.Parallel()
	disk := natssite.NewDisk(t, "16m")
	s := &natssite.Site{Keys: natssite.NewKeys(t), Store: disk.Dir}
	s.Start(t, "127.0.0.1:0")
	r := registryWith(t, s, registry.Config{Revive: s.Server.ReviveStore, LeaseTTL: 5 * time.Second})
	disk.Fill(t)
	for n := 0; r.Enrol("acme", fmt.Sprintf("h%d", n)) == nil; n++ { // an open block still has space
	}
	natssite.Eventually(t, "the store cannot be written", func() bool { return r.Degraded() != "" })
	disk.Free(t)
	natssite.Eventually(t, "the store can be written again", func() bool { return r.Degraded() == "" && r.Enrol("acme", "new") == nil })
}
