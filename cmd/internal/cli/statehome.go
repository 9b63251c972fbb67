package cli

import (
	"os"
	"path/filepath"
)

// StateHome is the directory for the state of this user's that a program keeps, as the XDG
// Base Directory Specification has it: $XDG_STATE_HOME or ~/.local/state, and a folder of
// the program's there. It may not exist.
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
