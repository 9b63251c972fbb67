package calm

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// role says what this program is when the test has started it.
const role = "CALM_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "calm":
		Down("serve")
		fmt.Println(os.Getpid(), now(), os.Args[1:])
		cmd := exec.Command(os.Args[0])
		cmd.Env, cmd.Stdout = []string{role + "=child"}, os.Stdout
		if err := Usually(cmd.Start); err != nil {
			fmt.Println(err)
		}
		_ = cmd.Wait()
		fmt.Println(now() >= slack)
	case "child":
		fmt.Println("child", now())
	}
}

// TestDown has a program begin anew as the same process, with its arguments, its threads with the slack,
// and what it starts without. One that does something else stays as it is.
func TestDown(t *testing.T) {
	for command, want := range map[string]string{
		"serve": fmt.Sprintf("PID %d [serve --x]\nchild %d\ntrue\n", slack, usual),
		"token": fmt.Sprintf("PID %d [token --x]\nchild %[1]d\nfalse\n", usual),
	} {
		runtime.LockOSThread() // what it has, the program has
		if err := set(usual); err != nil {
			t.Skip("the kernel has no timer slack here: ", err)
		}
		var out strings.Builder
		cmd := exec.Command(os.Args[0], command, "--x")
		cmd.Env, cmd.Stdout = append(os.Environ(), role+"=calm"), &out
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		runtime.UnlockOSThread()
		if got := strings.Replace(out.String(), fmt.Sprint(cmd.Process.Pid)+" ", "PID ", 1); got != want {
			t.Errorf("%s: %q; want %q", command, got, want)
		}
	}
}
