package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/test/natssite"
)

// TestBackupRestoresTheDataDirectory backs up a data directory and restores it. All
// files must be there, except those that belong to the former machine.
func TestBackupRestoresTheDataDirectory(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	keys, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"hosts.json": "[]", "lock": "", "node": "n", "instances": "i", "jetstream/x/y": "store", "people/a": "b"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"backup", "--data-dir", dir, file}, &out, &out); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup's mode is %v, %v; want it readable by its owner only", info.Mode(), err)
	}
	if err := run(t.Context(), []string{"backup", "--data-dir", dir, file}, &out, &out); err == nil {
		t.Error("backup replaces an existing file; want an error")
	}
	to := filepath.Join(t.TempDir(), "new")
	if err := run(t.Context(), []string{"restore", "--data-dir", to, file}, &out, &out); err != nil {
		t.Fatal(err)
	}
	restored, err := auth.ExistingKeys(to)
	if err != nil || !restored.Links().RelayKeys()[0].Equal(keys.Links().RelayKeys()[0]) {
		t.Errorf("the restored keys differ: %v; want the same", err)
	}
	for name, want := range map[string]bool{"hosts.json": true, "people/a": true, "lock": false, "node": false, "instances": false, "jetstream": false} {
		if _, err := os.Stat(filepath.Join(to, name)); (err == nil) != want {
			t.Errorf("the restored directory has %s: %v; want %v", name, err == nil, want)
		}
	}
	if err := run(t.Context(), []string{"restore", "--data-dir", to, file}, &out, &out); err == nil || !strings.Contains(err.Error(), "not empty; stop the relay there") {
		t.Errorf("restore into a directory with files: %v; want not empty, and the remedy", err)
	}
}

// TestLinkedDataDirectory backs up a data directory through a symbolic link, as systemd
// makes it for a service with DynamicUser. The backup must restore, and the listing of
// relay diag must have the files.
func TestLinkedDataDirectory(t *testing.T) {
	real := t.TempDir()
	if _, err := auth.LoadKeys(real); err != nil {
		t.Fatal(err)
	}
	dir, file, to := filepath.Join(t.TempDir(), "link"), filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "new")
	if err := os.Symlink(real, dir); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, args := range [][]string{{"backup", "--data-dir", dir, file}, {"restore", "--data-dir", to, file}} {
		if err := run(t.Context(), args, &out, &out); err != nil {
			t.Fatalf("relay %s: %v; want no error", args[0], err)
		}
	}
	c := &diagCmd{}
	c.DataDir = dir
	if listing, err := c.listing(); err != nil || !strings.Contains(string(listing), "keys/account.nk") {
		t.Errorf("relay diag lists %q, %v; want keys/account.nk", listing, err)
	}
}

// TestLinksInTheDataDirectory backs up a data directory in which the keys and a file are links to another
// volume, and one link leads back to the directory. The backup must contain the keys and the file.
func TestLinksInTheDataDirectory(t *testing.T) {
	dir, volume := t.TempDir(), t.TempDir()
	if _, err := auth.LoadKeys(volume); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volume, "hosts.json"), []byte("[]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"keys": filepath.Join(volume, "keys"), "hosts.json": filepath.Join(volume, "hosts.json"), "here": dir} {
		if err := os.Symlink(to, filepath.Join(dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	file, to := filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "new")
	for _, args := range [][]string{{"backup", "--data-dir", dir, file}, {"restore", "--data-dir", to, file}} {
		if err := run(t.Context(), args, &out, &out); err != nil {
			t.Fatalf("relay %s: %v; want no error", args[0], err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(to, "hosts.json")); err != nil || string(text) != "[]" {
		t.Errorf("the restored hosts.json is %q, %v; want []", text, err)
	}
}

// TestBackupInTheDataDirectoryIsRefused writes a backup into the data directory, whose next backup would
// contain it: by its own path, through a link, and through standard output.
func TestBackupInTheDataDirectoryIsRefused(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, file := range []string{filepath.Join(dir, "backup"), filepath.Join(dir, "keys", "backup"), filepath.Join(link, "backup")} {
		err := run(t.Context(), []string{"backup", "--data-dir", dir, file}, &out, &out)
		if err == nil || !strings.Contains(err.Error(), "outside of the data directory") {
			t.Errorf("backup into %s: %v; want an error with the remedy", file, err)
		}
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("%s remains after the error: %v", file, err)
		}
	}
	redirected, err := os.Create(filepath.Join(dir, "backup"))
	if err != nil {
		t.Fatal(err)
	}
	defer redirected.Close()
	if err := backUp(redirected, dir); err == nil {
		t.Error("a backup through standard output into the data directory has no error; want one")
	}
}

// TestRestoreWritesBelowDirectoryOnly restores files with paths that lead out of the
// directory. Nothing may be written outside.
func TestRestoreWritesBelowDirectoryOnly(t *testing.T) {
	for _, name := range []string{"../x", "/tmp/x", "a/../../x", "node", "a\\b"} {
		var file bytes.Buffer
		zip := gzip.NewWriter(&file)
		files := tar.NewWriter(zip)
		if err := files.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: 1, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		_, _ = files.Write([]byte("x"))
		_, _ = files.Close(), zip.Close()
		dir := filepath.Join(t.TempDir(), "a", "b")
		if _, err := restore(&file, dir); err == nil {
			t.Errorf("restore of %s returns no error; want one", name)
		}
	}
}

// TestRestoreRefusesADamagedBackup changes the check sum at the end of a backup, and cuts a
// second copy there. restore must refuse both: it has to read the check sum to notice that
// any byte before has changed.
func TestRestoreRefusesADamagedBackup(t *testing.T) {
	dir := t.TempDir()
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if err := backUp(&backup, dir); err != nil {
		t.Fatal(err)
	}
	whole := backup.Bytes()
	changed := bytes.Clone(whole)
	changed[len(changed)-8] ^= 1 // the first byte of gzip's check sum
	for name, data := range map[string][]byte{"changed": changed, "cut": whole[:len(whole)-8], "cut inside a file": whole[:len(whole)/2]} {
		if _, err := restore(bytes.NewReader(data), filepath.Join(t.TempDir(), "new")); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("restore of a backup that was %s: %v; want an error that calls it damaged", name, err)
		}
	}
	if _, err := restore(bytes.NewReader(whole), filepath.Join(t.TempDir(), "new")); err != nil {
		t.Errorf("restore of the whole backup: %v", err)
	}
}

// TestFailedRestoreLeavesNothing restores a damaged backup and then the whole one, into the
// same directory.
func TestFailedRestoreLeavesNothing(t *testing.T) {
	dir, file, to := t.TempDir(), filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "new")
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	var backup, out bytes.Buffer
	if err := backUp(&backup, dir); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		data []byte
		ok   bool
	}{{backup.Bytes()[:backup.Len()-1], false}, {backup.Bytes(), true}} {
		if err := os.WriteFile(file, test.data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), []string{"restore", "--data-dir", to, file}, &out, &out); (err == nil) != test.ok {
			t.Errorf("restore of %d bytes of %d: %v; want an error for the damaged backup only", len(test.data), backup.Len(), err)
		}
		if there, err := os.ReadDir(to); err != nil || len(there) == 0 == test.ok {
			t.Errorf("after restore of %d bytes of %d, the directory has %d files, %v; want files of the whole backup only", len(test.data), backup.Len(), len(there), err)
		}
	}
}

// TestFailedRestoreKeepsOtherFiles starts a relay in the directory while restore reads a damaged backup. The files of the relay must stay.
func TestFailedRestoreKeepsOtherFiles(t *testing.T) {
	dir, to := t.TempDir(), t.TempDir()
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	var backup, out bytes.Buffer
	if err := backUp(&backup, dir); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	in := standardInput(t)
	go func() { ended <- run(t.Context(), []string{"restore", "--data-dir", to, "-"}, &out, &out) }()
	if _, err := in.Write(backup.Bytes()[:backup.Len()-1]); err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the keys are restored", func() bool { there, _ := os.ReadDir(filepath.Join(to, "keys")); return len(there) > 0 })
	if err := os.WriteFile(filepath.Join(to, "keys", "relay"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("restore of a backup without its end has no error; want one")
	}
	if there, err := os.ReadDir(filepath.Join(to, "keys")); err != nil || len(there) != 1 || there[0].Name() != "relay" {
		t.Errorf("after a failed restore, the directory has %v, %v; want the relay's file only", there, err)
	}
}

// TestRestoreEndsAtAnInterrupt interrupts restore while it waits for standard input.
func TestRestoreEndsAtAnInterrupt(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	in := standardInput(t)
	var out bytes.Buffer
	go func() { ended <- run(ctx, []string{"restore", "--data-dir", t.TempDir(), "-"}, &out, &out) }()
	interrupt()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("an interrupted restore ends with %v; want the interrupt", err)
		}
	case <-time.After(natssite.Patience):
		t.Error("an interrupted restore waits for standard input; want its end")
	}
	_ = in.Close()
}

// standardInput replaces this process's standard input until the test ends, and returns the other end.
func standardInput(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	was := os.Stdin
	os.Stdin = r
	t.Cleanup(func() {
		os.Stdin = was
		_ = w.Close()
		_ = r.Close()
	})
	return w
}

// TestFailedBackupIsNoBackup backs up a data directory with a file that cannot be read, as to
// standard output. backUp must fail, and restore must refuse what it has written: in a
// pipeline, the status of relay backup is easily lost.
func TestFailedBackupIsNoBackup(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc/self/mem, which every user can open and nobody can read at its beginning")
	}
	dir := t.TempDir()
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self/mem", filepath.Join(dir, "unreadable")); err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if err := backUp(&backup, dir); err == nil {
		t.Fatal("backUp has read /proc/self/mem; want an error")
	}
	if _, err := restore(&backup, filepath.Join(t.TempDir(), "new")); err == nil {
		t.Error("restore accepts a backup without the unreadable file; want an error")
	}
	file := filepath.Join(t.TempDir(), "backup")
	if err := run(t.Context(), []string{"backup", "--data-dir", dir, file}, &backup, &backup); err == nil {
		t.Error("relay backup has read /proc/self/mem; want an error")
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a failed backup leaves its file: %v; want it removed", err)
	}
}
