package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMissingReleaseIsNamed runs the checks without a release, and with one that is not signed. The error must name the command that
// makes it.
func TestMissingReleaseIsNamed(t *testing.T) {
	dist := t.TempDir()
	for range 2 {
		if err := run(dist, t.TempDir(), "bookworm", "signatures"); err == nil || !strings.Contains(err.Error(), "make release ARGS='-key") || !strings.Contains(err.Error(), dist) {
			t.Errorf("without a signed release: %v; want an error that names the folder and make release", err)
		}
		if err := os.WriteFile(filepath.Join(dist, "SHA256SUMS"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
