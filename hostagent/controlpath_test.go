//go:build unix

package hostagent_test

import (
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/hostagent"
)

// TestControlPathNeedsADirectory has no directory for temporary files. The error must name the
// directory and the remedies: --control and TMPDIR.
func TestControlPathNeedsADirectory(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", missing)
	_, err := hostagent.ControlPath(nil, []string{"https://relay.example.com"}, "default", "laptop")
	for _, want := range []string{missing, "--control", "TMPDIR"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s in it", err, want)
		}
	}
}
