//go:build unix && !solaris && !aix

package auth_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"ahprelay/auth"
)

// TestLockEndsBesideAChild closes a locked file while a child process, for which a duplicate of the
// descriptor stands, has not started its program yet. Another process must get the lock at once.
func TestLockEndsBesideAChild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first, second := open(), open()
	defer second.Close()
	if locked, err := auth.LockFile(first); !locked || err != nil {
		t.Fatalf("LockFile = %v, %v; want the lock", locked, err)
	}
	if locked, err := auth.LockFile(second); locked || err == nil {
		t.Errorf("LockFile of a locked file = %v, %v; want an error", locked, err)
	}
	child, err := syscall.Dup(int(first.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(child)
	if err := auth.CloseLocked(first); err != nil {
		t.Fatal(err)
	}
	if locked, err := auth.LockFile(second); !locked || err != nil {
		t.Errorf("LockFile after CloseLocked = %v, %v; want the lock", locked, err)
	}
}

// TestFileSystemWithoutLocks locks a file on file systems that have no locks, and then a file that a different process has locked.
// Only the latter is an error.
func TestFileSystemWithoutLocks(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, answer := range []error{syscall.ENOSYS, syscall.ENOTSUP, syscall.ENOLCK} {
		restore := auth.ReplaceFlock(func(int, int) error { return answer })
		if locked, err := auth.LockFile(f); locked || err != nil {
			t.Errorf("LockFile where flock answers %v = %v, %v; want no lock and no error", answer, locked, err)
		}
		restore()
	}
	defer auth.ReplaceFlock(func(int, int) error { return syscall.EWOULDBLOCK })()
	if locked, err := auth.LockFile(f); locked || err == nil {
		t.Errorf("LockFile of a locked file = %v, %v; want an error", locked, err)
	}
}
