package main

import (
	"os"

	"ahprelay/hostagent"
	"ahprelay/internal/orphan"
)

type sentinelCmd struct{}

// Run waits for the end of the host-agent that started this process. After a crash, it
// releases the host. It ignores the signals that end all processes of a service.
func (c *sentinelCmd) Run(s *streams) error {
	orphan.Outlive()
	return hostagent.RunSentinel(orphan.Input(), s.log)
}

// sentinelCommand returns the command that starts a sentinel. The first process of a
// container has none, because all processes end with it.
func sentinelCommand(s *streams) hostagent.SentinelCommand {
	program, err := os.Executable()
	switch {
	case os.Getpid() == 1:
		return hostagent.SentinelCommand{}
	case err != nil:
		s.log.Warn("sentinel unavailable", "effect", "clients learn of a crash only when the resume time is over", "error", err)
		return hostagent.SentinelCommand{}
	}
	return hostagent.SentinelCommand{Command: append([]string{program, orphan.Command}, s.logs.Args()...), Stderr: s.err}
}
