package cli

import (
	"os"
	"path/filepath"
)

// StateHome returns this user's state directory for a program, after the XDG Base
// Directory Specification: a folder in $XDG_STATE_HOME or ~/.local/state. It may not
// exist.
func StateHome(program string) (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, program), nil
}
