package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// resident returns how many bytes of memory a process has.
func resident(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm is %q", pid, text)
	}
	pages, err := strconv.Atoi(string(fields[1]))
	return float64(pages * os.Getpagesize()), err
}

// idleTime is how long clients are idle before memory is looked at.
const idleTime = 700 * time.Millisecond

// memory is how much an idle client takes of relay and host-agent, of fresh
// processes in each round.
func memory(l *lab) ([]Figure, error) {
	n := l.many(5000)
	var relay, agent, nats, writer series
	err := l.rounds(func(round int) error {
		s, err := l.site(siteConfig{name: fmt.Sprintf("site-%d", round)})
		if err != nil {
			return err
		}
		defer s.end()
		way, err := s.system(0)
		if err != nil {
			return err
		}
		each, err := l.perClient(way, n, s.relay.Pid(), s.agents[0].Pid())
		if err != nil {
			return err
		}
		relay, agent = append(relay, each[0]), append(agent, each[1])
		for other, start := range map[*series]func() (*system, error){&nats: l.natsServer, &writer: l.writer} {
			way, err := start()
			if err != nil {
				return err
			}
			each, err := l.perClient(way, n, way.pid)
			if err != nil {
				return err
			}
			*other = append(*other, each[0])
			way.stop()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	const work = "5000 idle clients of one host, each at the "
	return []Figure{
		newFigure(work+"relay", "KiB", relay).beside("nats-server WebSocket", relay, nats).want(atMost(16)).means("Tabs that are left open cost a relay next to nothing."),
		newFigure(work+"relay", "KiB", relay).beside("coder/websocket, one handler each", relay, writer).want(atMost(16)),
		newFigure(work+"host-agent", "KiB", agent).beside("nats-server WebSocket", agent, nats).want(atMost(24)).means("And the host's own machine little."),
	}, nil
}

// perClient returns by how much, in KiB, each of n clients makes processes
// larger.
func (l *lab) perClient(way *system, n int, pids ...int) (each []float64, err error) {
	for _, pid := range pids {
		before, err := resident(pid)
		if err != nil {
			return nil, err
		}
		each = append(each, -before)
	}
	c, err := l.join(way, "idle", n, 0, actionSize)
	if err != nil {
		return nil, err
	}
	time.Sleep(l.long(idleTime))
	for i, pid := range pids {
		after, err := resident(pid)
		if err != nil {
			return nil, err
		}
		each[i] = (each[i] + after) / float64(n) / 1024
	}
	if err := c.whole(); err != nil {
		return nil, err
	}
	return each, c.leave()
}
