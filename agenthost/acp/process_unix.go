//go:build unix

package acp

import (
	"os/exec"
	"syscall"
)

// ownGroup starts a program in its own process group, which can be killed as a whole.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills a program and its children.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
