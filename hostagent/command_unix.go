//go:build unix

package hostagent

import (
	"os/exec"
	"syscall"
)

// ownGroup starts a program in its own process group. The group can then be killed as
// a whole, and a Ctrl-C for the host-agent does not reach the program first.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// ownSession starts a program in its own session, so a terminal's signals do not reach
// it.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// killGroup kills a program and all its children.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
