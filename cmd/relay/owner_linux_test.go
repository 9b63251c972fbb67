package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ahprelay/auth"
)

// TestCommandsOfRootKeepTheOwner runs, as root, the commands that write into the data directory
// of a stopped relay whose service has a user of its own. All files must belong to that user:
// otherwise the relay cannot read them, and does not start.
func TestCommandsOfRootKeepTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run commands in a different user's directory")
	}
	const user = 64321
	dir, empty, file := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "backup")
	keys, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dir, empty} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, user, user)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	foreign := strings.Repeat("x.", 2) + "x" // a token that only a running relay can read
	if err := run(t.Context(), []string{"revoke", "--data-dir", dir, "--token", foreign}, &out, &out); err == nil {
		t.Error("relay revoke of a foreign token without a relay ends with status 0; want 1")
	}
	wantOwner(t, dir, user)
	if err := run(t.Context(), []string{"revoke", "--data-dir", dir, "--subject", "ada"}, &out, &out); err == nil {
		t.Error("relay revoke without a relay ends with status 0; want 1")
	}
	for _, args := range [][]string{
		{"keys", "add", "--data-dir", dir, "--sign-after", "0s"},
		{"keys", "retire", "--data-dir", dir, "--force", keys.SetIDs()[0]},
		{"backup", "--data-dir", dir, file},
		{"restore", "--data-dir", empty, file},
	} {
		if err := run(t.Context(), args, &out, &out); err != nil {
			t.Fatalf("relay %v: %v; want no error", args, err)
		}
	}
	for _, dir := range []string{dir, empty} {
		if files := wantOwner(t, dir, user); files < 8 {
			t.Errorf("%s has %d files; want keys, revocations and more", dir, files)
		}
	}
}

// wantOwner fails unless a directory's files belong to a user. It returns their number.
func wantOwner(t *testing.T, dir string, user uint32) (files int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if stat := info.Sys().(*syscall.Stat_t); stat.Uid != user || stat.Gid != user {
			t.Errorf("%s belongs to %d:%d; want the directory's owner %d", path, stat.Uid, stat.Gid, user)
		}
		files++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
