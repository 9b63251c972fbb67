package bench

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"ahprelay/test/procs"
)

// starts measures the time from a host-agent's start until its host is online. For
// comparison, it measures how long the same program takes to start and print its
// version.
func starts(b *testbed) ([]Figure, error) {
	s, err := b.site(siteConfig{name: "starts"})
	if err != nil {
		return nil, err
	}
	tokens, err := s.tokens(0)
	if err != nil {
		return nil, err
	}
	agent := s.agents[0]
	var whole, version series
	err = b.rounds(func(int) error {
		if err := agent.End(syscall.SIGTERM); err != nil {
			return err
		}
		err := await(b.ctx, func() error {
			if s.state(0, tokens[0]) == nil {
				return errors.New("the host is online before its host-agent has started")
			}
			return nil
		})
		if err != nil {
			return err
		}
		began := time.Now()
		if err := agent.Start(); err != nil {
			return err
		}
		if err := s.online(0, agent, tokens[0]); err != nil {
			return err
		}
		whole = append(whole, ms(time.Since(began)))
		began = time.Now()
		out, err := exec.CommandContext(b.ctx, filepath.Join(b.o.Programs, procs.AgentProgram), "--version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("host-agent --version: %w: %s", err, out)
		}
		version = append(version, ms(time.Since(began)))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []Figure{
		newFigure("a host-agent's start, until its host is online", "ms", whole).beside("host-agent --version", whole, version).
			orient(atMost(150)).means("A host-agent that starts again is hardly missed."),
	}, nil
}
