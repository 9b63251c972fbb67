package bench

import (
	"errors"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"ahprelay/test/must"
	"ahprelay/test/procs"
)

// starts measures the time from a host-agent's start until its host is online. For
// comparison, it measures how long the same program takes to start and print its
// version.
func starts(b *testbed) []Figure {
	s := b.site(siteConfig{name: "starts"})
	tokens := s.tokens(0)
	agent := s.agents[0]
	var whole, version series
	b.rounds(func(int) {
		must.Do(agent.End(syscall.SIGTERM))
		await(b.ctx, func() error {
			if s.state(0, tokens[0]) == nil {
				return errors.New("the host is online before its host-agent has started")
			}
			return nil
		})
		began := time.Now()
		must.Do(agent.Start())
		s.online(0, agent, tokens[0])
		whole = append(whole, ms(time.Since(began)))
		began = time.Now()
		out, err := exec.CommandContext(b.ctx, filepath.Join(b.o.Programs, procs.AgentProgram), "--version").CombinedOutput()
		if err != nil {
			must.Fail("host-agent --version: %w: %s", err, out)
		}
		version = append(version, ms(time.Since(began)))
	})
	return []Figure{
		newFigure("a host-agent's start, until its host is online", "ms", whole).beside("host-agent --version", whole, version).
			orient(atMost(150)).means("A host-agent that starts again is hardly missed."),
	}
}
