//go:build unix

package procgroup

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// Own makes a program start in its own process group. [Kill] then ends the whole group, and
// a Ctrl-C for this program does not reach the group.
func Own(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// OwnSession makes a program start in its own session, so signals from the terminal do
// not reach it.
func OwnSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// Kill kills a program started after [Own] or [OwnSession], with its process group. The program may
// have ended: its children may go on. No process gets the number of a group that exists, so if a new process has
// the program's number, the group has ended too.
func Kill(cmd *exec.Cmd) {
	pid := cmd.Process.Pid
	if errors.Is(cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone) && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
}
