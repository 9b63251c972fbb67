package procgroup

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestKillSparesANewProcessWithTheSameNumber kills the group of a program that has ended and was waited for,
// after a new program got the same number. The new program must not be killed. The test needs the right to
// choose the next number, which root has.
func TestKillSparesANewProcessWithTheSameNumber(t *testing.T) {
	former := exec.Command("true")
	Own(former)
	if err := former.Run(); err != nil {
		t.Fatal(err)
	}
	other := sameNumber(t, former.Process.Pid)
	Kill(former)
	if err := other.Process.Signal(syscall.SIGTERM); err != nil { // comes after a SIGKILL
		t.Fatal(err)
	}
	_ = other.Wait() // the program ended by a signal
	if status := other.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
		t.Errorf("the new program ended by %v; want %v", status.Signal(), syscall.SIGTERM)
	}
}

// sameNumber starts a program with this process number.
func sameNumber(t *testing.T, pid int) *exec.Cmd {
	t.Helper()
	for range 100 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", fmt.Append(nil, pid-1), 0); err != nil {
			t.Skip(err)
		}
		cmd := exec.Command("sleep", "60")
		Own(cmd)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if cmd.Process.Pid == pid {
			return cmd
		}
		_, _ = cmd.Process.Kill(), cmd.Wait() // a different process was faster
	}
	t.Skip("other processes take the numbers")
	return nil
}

// TestKillEndsTheChildrenOfAnEndedProgram waits for a program whose child goes on, and kills its group. The child
// must end.
func TestKillEndsTheChildrenOfAnEndedProgram(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.Command("sh", "-c", "sleep 60 &")
	cmd.Stdout = out
	Own(cmd)
	err = cmd.Run()
	_ = out.Close()
	if err != nil {
		t.Fatal(err)
	}
	Kill(cmd)
	_ = in.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := in.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the child's output ends with %v; want its end", err)
	}
}
