package procs

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// slackRole is an environment variable. With it, this test binary prints its timer
// slack and ends.
const slackRole = "PROCS_TEST_SLACK"

func TestMain(m *testing.M) {
	if text := os.Getenv(slackRole); text != "" {
		slack, err := time.ParseDuration(text)
		if err == nil && slack != 0 {
			err = RestartWithSlack(slack)
		}
		now, nowErr := TimerSlack()
		fmt.Print(now, err, nowErr)
		return
	}
	os.Exit(m.Run())
}

func TestProcessesHaveTheSlackTheyAreGiven(t *testing.T) {
	for _, c := range []struct {
		given   time.Duration // slack from the parent; 0: inherited
		restart string        // slack with which the process restarts itself
		want    string
	}{
		{3 * time.Millisecond, "0s", "3ms <nil> <nil>"},
		{KernelSlack, "0s", "50µs <nil> <nil>"},
		{KernelSlack, "2ms", "2ms <nil> <nil>"},
	} {
		var out []byte
		err := StartWithSlack(c.given, func() (err error) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), slackRole+"="+c.restart)
			out, err = cmd.Output()
			return err
		})
		if err != nil || string(out) != c.want {
			t.Errorf("given %v, restarted with %s: %q, %v; want %q", c.given, c.restart, out, err, c.want)
		}
	}
	if slack, err := TimerSlack(); err != nil || slack == 3*time.Millisecond {
		t.Errorf("this thread has the timer slack of the started process: %v, %v; want its own", slack, err)
	}
}
