package registry_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// TestDiskFull fills the store's disk and then frees space: pending changes are
// written without a restart. It needs the permission to mount.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skip("no right to mount a disk:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := &natssite.Site{Keys: natssite.NewKeys(t), Store: dir}
	s.Start(t, "127.0.0.1:0")
	r := registryWith(t, s, registry.Config{Revive: s.Server.ReviveStore, LeaseTTL: 5 * time.Second})
	held, _ := holder(t, s, nil)
	acquire(t, held)
	run(t, held)

	full := filepath.Join(dir, "other")
	f, err := os.Create(full)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(bytes.Repeat([]byte{1}, 4096))
	}
	_ = f.Close() // full
	hosts := 0
	for ; r.Enrol("acme", fmt.Sprintf("h%d", hosts)) == nil; hosts++ { // an open block still has space
	}
	natssite.Eventually(t, "the store cannot be written", func() bool { return r.Degraded() != "" })
	wantHost(t, r, registry.Online, "")
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the store can be written again", func() bool { return r.Degraded() == "" && r.Enrol("acme", "new") == nil })
	wantHost(t, r, registry.Online, "")
	for i := range hosts {
		if _, known := r.Lookup("acme", fmt.Sprintf("h%d", i)); !known {
			t.Errorf("host %d of %d, which was written, is not known any more", i, hosts)
		}
	}
}
