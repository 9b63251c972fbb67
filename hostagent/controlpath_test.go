//go:build unix

package hostagent_test

import (
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/hostagent"
)

// TestControlPathNeedsADirectory: without /tmp, the error names the remedies.
func TestControlPathNeedsADirectory(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", missing)
	_, err := hostagent.ControlPath("default", "laptop")
	for _, want := range []string{missing, "--control", "TMPDIR"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s in it", err, want)
		}
	}
}
