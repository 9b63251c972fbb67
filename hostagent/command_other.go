//go:build !unix

package hostagent

import "os/exec"

// ownGroup does nothing where there are no process groups.
func ownGroup(*exec.Cmd) {}

// ownSession does nothing where there are no sessions.
func ownSession(*exec.Cmd) {}

// killGroup ends a program.
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
