//go:build unix

package hostagent

import (
	"os/exec"
	"syscall"
)

// ownGroup has a program start in a process group of its own, so that all that
// it starts can be ended with it, and a Ctrl-C for the host-agent does not
// reach it first.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// ownSession has a program start in a session of its own: what a terminal sends
// to the processes in it does not reach the program.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// killGroup ends a program and all that it has started.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
