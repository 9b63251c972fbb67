//go:build !unix

package procgroup

import "os/exec"

// Own does nothing: this system has no process groups.
func Own(*exec.Cmd) {}

// OwnSession does nothing: this system has no sessions.
func OwnSession(*exec.Cmd) {}

// Kill kills a started program.
func Kill(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
