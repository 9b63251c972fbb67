//go:build !unix

package acp

import "os/exec"

// ownGroup does nothing: this system has no process groups.
func ownGroup(*exec.Cmd) {}

// killGroup kills a program.
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
