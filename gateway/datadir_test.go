package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDataDirRemembersCrashedInstances opens a data directory after relays have crashed
// or ended cleanly. openDataDir names the instances that crashed since the last clean
// end.
func TestDataDirRemembersCrashedInstances(t *testing.T) {
	path := t.TempDir()
	open := func(want ...string) *dataDir {
		t.Helper()
		d, err := openDataDir(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, d.crashed); diff != "" {
			t.Errorf("the crashed instances found in the data directory (-want +got):\n%s", diff)
		}
		return d
	}
	note := func(d *dataDir, instance string) {
		t.Helper()
		if err := d.note(instance); err != nil {
			t.Fatal(err)
		}
	}
	end := func(d *dataDir) {
		t.Helper()
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}
	crash := func(d *dataDir) {
		if err := d.lock.Close(); err != nil {
			t.Error(err)
		}
	}

	d := open()
	note(d, "one")
	if _, err := openDataDir(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("openDataDir of a directory in use = %v; want an error that names it", err)
	}
	end(d)
	d = open() // the first instance has ended cleanly
	note(d, "two")
	crash(d)
	end(open("two")) // a relay that does not get to note its instance changes nothing
	d = open("two")
	note(d, "three")
	crash(d)
	d = open("three", "two")
	note(d, "four")
	end(d)
	end(open())

	many := strings.Repeat("x\n", maxCrashed+5) + "no.name\n"
	if err := os.WriteFile(filepath.Join(path, runsName), []byte("../etc\n"+many), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := openDataDir(path)
	if err != nil || len(d.crashed) != maxCrashed || d.crashed[0] != "x" {
		t.Errorf("openDataDir = %v, %v; want %d instance names", d.crashed, err, maxCrashed)
	}
	end(d)
}

// TestDataDirNeedsFileLocks opens a data directory on a file system without file locks. The relay must not start there, and the error
// must not blame another relay.
func TestDataDirNeedsFileLocks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no file locks, and relays start there")
	}
	defer func(was func(*os.File) (bool, error)) { lockFile = was }(lockFile)
	lockFile = func(*os.File) (bool, error) { return false, nil }
	path := t.TempDir()
	if _, err := openDataDir(path); err == nil || errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "local disk") {
		t.Errorf("openDataDir without file locks = %v; want an error that names the directory and the remedy", err)
	}
}
