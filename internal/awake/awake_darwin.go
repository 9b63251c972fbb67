package awake

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// Hold runs caffeinate, which ends with this process.
func Hold(string) (release func(), err error) {
	cmd := exec.Command("/usr/bin/caffeinate", "-i", "-w", strconv.Itoa(os.Getpid()))
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}, nil
}

// Mains reports whether the machine runs on mains power.
func Mains() bool {
	out, err := exec.Command("/usr/bin/pmset", "-g", "ps").Output()
	return err != nil || !strings.Contains(string(out), "'Battery Power'")
}
