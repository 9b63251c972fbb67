package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/gateway/audit"
)

// TestChangedAuditFilesAreDetected checks and prints audit files, also after a
// rotation. A change in a file must be detected.
func TestChangedAuditFilesAreDetected(t *testing.T) {
	dir := t.TempDir()
	path, old := filepath.Join(dir, "audit"), filepath.Join(dir, "audit.1")
	write := func(events ...string) {
		f, err := audit.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.NewJSONHandler(f, nil))
		for _, event := range events {
			log.Info("audit", "event", event, "subject", "ada")
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write("connect", "share", "revoke")
	out, _, err := relay(t, "audit", "verify", path)
	if err != nil || !strings.HasPrefix(out, "3 lines in an unbroken chain") {
		t.Fatalf("verify = %q, %v; want 3 lines in an unbroken chain", out, err)
	}
	last := strings.TrimSuffix(out[strings.LastIndex(out, " ")+1:], "\n")
	if _, _, err := relay(t, "audit", "verify", path, "--last", last); err != nil {
		t.Errorf("verify with the file's last hash: %v; want no error", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old, text, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := audit.OpenFile(path) // the relay keeps the file open while it is copied and truncated
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	slog.New(slog.NewJSONHandler(f, nil)).Info("audit", "event", "setup", "subject", "bob")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := relay(t, "audit", "verify", old, path, "--last", last); err != nil {
		t.Errorf("verify with an earlier hash of a chain that has grown: %v; want no error", err)
	}
	other := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(other, []byte("level=INFO msg=audit\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, err := relay(t, "audit", "verify", other); err == nil || !strings.Contains(err.Error(), "--audit-file") {
		t.Errorf("verify of a file without an audit line: %q, %v; want an error that names --audit-file", out, err)
	}
	if out, _, err := relay(t, "audit", "verify", old, path); err != nil || !strings.HasPrefix(out, "4 lines") {
		t.Errorf("verify over a rotation: %q, %v; want 4 lines", out, err)
	}
	if _, _, err := relay(t, "audit", "verify", path, old); err == nil {
		t.Error("verify with the files in the wrong order succeeds; want an error")
	}
	out, _, err = relay(t, "audit", "export", old, path, "--event", "share", "--event", "setup", "--format", "csv", "--since", "2020-01-01T00:00:00Z")
	if err != nil || strings.Count(out, "\n") != 3 || !strings.Contains(out, ",share,,,ada,") || !strings.Contains(out, ",setup,,,bob,") {
		t.Errorf("export = %q, %v; want a head and two events", out, err)
	}
	if out, _, err := relay(t, "audit", "export", old, "--subject", "bob"); err != nil || out != "" {
		t.Errorf("export of an absent subject = %q, %v; want no lines", out, err)
	}
	if err := os.WriteFile(old, []byte(strings.Replace(string(text), "share", "sharE", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := relay(t, "audit", "verify", old); err == nil || !strings.Contains(err.Error(), "line 3 does not follow") {
		t.Errorf("verify of a changed file: %v; want that line 3 does not follow", err)
	}
	if _, _, err := relay(t, "audit", "verify", path, "--last", last); err == nil {
		t.Error("verify with a different last hash succeeds; want an error")
	}
}
