package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/test/procs"
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
	err := procs.WithoutChown(func() error {
		_, _, err := relay(t, "revoke", "--data-dir", dir, "--relay", "http://127.0.0.1:1", "--subject", "ada")
		return err
	})
	if !errors.Is(err, errNotReceived) || !errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "nothing is revoked") {
		t.Errorf("revoking for the next start: %v; want that it is stored, and that its owner cannot be changed", err)
	}
	if stored, err := os.ReadFile(filepath.Join(dir, "revocations.json")); err != nil || !strings.Contains(string(stored), "ada") {
		t.Errorf("the file has %s, %v; want ada's revocation", stored, err)
	}
}
