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

// TestHostIsServedWhileTheDiskIsFull fills the store's disk. A host-agent that restarts meanwhile
// must still serve its host. When the disk has space again, the relay must write all pending
// changes without a restart. The log must report the full disk once. The test needs permission to
// mount.
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
	for ; r.Enrol("acme", fmt.Sprintf("h%d", hosts)) == nil; hosts++ { // the open block takes some more writes
	}
	natssite.Eventually(t, "the store cannot be written", func() bool { return r.Degraded() != "" })
	wantHost(t, r, registry.Online, "")
	natssite.Eventually(t, "the full disk is reported", func() bool { return strings.Contains(r.Degraded(), "no space left") })
	_ = stop() // the error is the end of the context
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
		if line := <-log.Lines; strings.Contains(line, "no space left") && strings.Contains(line, "data directory not writable") {
			lines++
		}
	}
	if lines != 1 {
		t.Errorf("%d lines in the log about the full disk; want one", lines)
	}
	for i := range hosts {
		if _, known := r.Lookup("acme", fmt.Sprintf("h%d", i)); !known {
			t.Errorf("the written host %d of %d is unknown after the disk was full; want it known", i, hosts)
		}
	}
}

// TestStoreThatWritesNothingIsRestarted fills the disk of a relay whose registry cannot ask how
// much room the disk has (no Room). When the disk has space again, the relay must be able to write.
func TestStoreThatWritesNothingIsRestarted(t *testing.T) {
	t.Parallel()
	disk := natssite.NewDisk(t, "16m")
	s := &natssite.Site{Keys: natssite.NewKeys(t), Store: disk.Dir}
	s.Start(t, "127.0.0.1:0")
	r := registryWith(t, s, registry.Config{Revive: s.Server.ReviveStore, LeaseTTL: 5 * time.Second})
	disk.Fill(t)
	for n := 0; r.Enrol("acme", fmt.Sprintf("h%d", n)) == nil; n++ { // the open block takes some more writes
	}
	natssite.Eventually(t, "the store cannot be written", func() bool { return r.Degraded() != "" })
	disk.Free(t)
	natssite.Eventually(t, "the store can be written again", func() bool { return r.Degraded() == "" && r.Enrol("acme", "new") == nil })
}
