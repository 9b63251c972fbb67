package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"ahprelay/auth"

	"golang.org/x/sys/unix"
)

// TestRevokeWithoutTheRightToChangeOwners revokes for the next start as root without the right to change owners, as in
// a container without this capability, in another user's data directory. The revocation is stored there, so the command
// must not claim that nothing is revoked.
func TestRevokeWithoutTheRightToChangeOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make another user's directory")
	}
	dir := t.TempDir()
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 4711, 4711); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread, which loses the right, ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var rights [2]unix.CapUserData
		err := unix.Capget(&header, &rights[0])
		if err == nil {
			rights[0].Effective &^= 1 << unix.CAP_CHOWN
			err = unix.Capset(&header, &rights[0])
		}
		if err == nil {
			_, _, err = relay(t, "revoke", "--data-dir", dir, "--relay", "http://127.0.0.1:1", "--subject", "ada")
		}
		done <- err
	}()
	err := <-done
	if !errors.Is(err, errNotReceived) || !errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "nothing is revoked") {
		t.Errorf("revoking for the next start: %v; want that it is stored, and that its owner cannot be changed", err)
	}
	if stored, err := os.ReadFile(filepath.Join(dir, "revocations.json")); err != nil || !strings.Contains(string(stored), "ada") {
		t.Errorf("the file has %s, %v; want ada's revocation", stored, err)
	}
}
