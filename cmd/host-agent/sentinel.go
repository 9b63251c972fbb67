package main

import (
	"os"
	"os/signal"
	"syscall"

	"ahprelay/hostagent"
)

type sentinelCmd struct{}

// Run waits for the end of the host-agent that has started this process. It ends
// soon after that by itself, and so takes no notice of signals that end all
// processes of a session or service at once.
func (c *sentinelCmd) Run(s *streams) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	return hostagent.RunSentinel(os.Stdin, s.log)
}

// sentinelCommand is how run starts one: there is none for the first process of a
// container, with which all others end.
func sentinelCommand(s *streams) hostagent.SentinelCommand {
	program, err := os.Executable()
	switch {
	case os.Getpid() == 1:
		return hostagent.SentinelCommand{}
	case err != nil:
		s.log.Warn("no sentinel: clients would have to wait if this host-agent crashed", "error", err)
		return hostagent.SentinelCommand{}
	}
	return hostagent.SentinelCommand{Command: append([]string{program, "sentinel"}, s.logs.Args()...), Stderr: s.err}
}
