package cli

import (
	"strings"
	"testing"
)

// TestProgramThatSystemdRefuses checks paths of programs. systemd installs a unit with a quotation mark or a backslash in the
// program's path, and refuses to start it.
func TestProgramThatSystemdRefuses(t *testing.T) {
	for _, path := range []string{"/home/o'brien/host-agent", `/a"b/host-agent`, `/a\b/host-agent`} {
		if err := checkProgram(path); err == nil || !strings.Contains(err.Error(), "move "+path) {
			t.Errorf("%s: %v; want an error that names the remedy", path, err)
		}
	}
	if err := checkProgram("/home/ada 100%/é/host-agent"); err != nil {
		t.Errorf("a path that systemd accepts: %v; want no error", err)
	}
}
