package bench

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"ahprelay/test/procs"
)

// A Machine describes the computer on which a run was made.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Load   string `json:"load"` // load average of the minute before the run
	Slack  string `json:"timer_slack,omitempty"`
}

// ThisMachine describes this computer.
func ThisMachine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), Go: runtime.Version(), Load: "unknown"}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = field(string(text), "model name")
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(text), " ")
	}
	if slack, err := procs.TimerSlack(); err == nil {
		m.Slack = slack.String()
	}
	return m
}

// field returns the value of the first line "name : value" in a text.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// String returns the description in one line.
func (m Machine) String() string {
	text := fmt.Sprintf("%s, %d cores, %s, %s, load before the run %s", m.CPU, m.Cores, m.Kernel, m.Go, m.Load)
	if m.Slack != "" {
		text += ", timer slack " + m.Slack
	}
	return text
}
