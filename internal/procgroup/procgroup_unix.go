//go:build unix

package procgroup

import (
	"os/exec"
	"syscall"
)

// Own makes a program start in its own process group. [Kill] then ends the whole group, and
// a Ctrl-C for this program does not reach the group.
func Own(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// OwnSession makes a program start in its own session, so signals from the terminal do
// not reach it.
func OwnSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// Kill kills a program started after [Own] or [OwnSession], with its process group.
func Kill(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
