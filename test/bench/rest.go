package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// These are the durations for measuring a site at rest.
const (
	settleTime = 12 * time.Second // from the start until the programs are at rest
	restTime   = 5 * time.Second  // duration of a round
	wakeLook   = 10 * time.Millisecond
)

// rest measures a relay, a host-agent and the host-agent's sentinel while nothing
// happens: how much memory they have, and how often the host-agent wakes the machine.
func rest(b *testbed) ([]Figure, error) {
	s, err := b.site(siteConfig{name: "rest"})
	if err != nil {
		return nil, err
	}
	relay, agent := s.relay.Pid(), s.agents[0].Pid()
	sentinels, err := children(agent)
	if err != nil {
		return nil, err
	}
	time.Sleep(b.long(settleTime))
	var wakes, both, relays series
	err = b.rounds(func(int) error {
		woken, err := wakeUps(append(sentinels, agent), b.long(restTime))
		if err != nil {
			return err
		}
		sizes, err := residents(append([]int{relay, agent}, sentinels...))
		if err != nil {
			return err
		}
		var machine float64
		for _, size := range sizes[1:] {
			machine += size / 1e6
		}
		wakes, both, relays = append(wakes, woken), append(both, machine), append(relays, sizes[0]/1e6)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []Figure{
		newFigure("host-agent and sentinel of an idle host, wake-ups", "/s", wakes).want(atMost(5)).means("A laptop at rest stays at rest."),
		newFigure("host-agent and sentinel of an idle host, memory", "MB", both).want(atMost(20)),
		newFigure("relay with one idle host, memory", "MB", relays).want(atMost(35)),
	}, nil
}

// children returns the ids of the processes that a process has started.
func children(pid int) (pids []int, err error) {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			return nil, err
		}
		for _, field := range bytes.Fields(text) {
			child, err := strconv.Atoi(string(field))
			if err != nil {
				return nil, fmt.Errorf("%s is %q", list, text)
			}
			pids = append(pids, child)
		}
	}
	return pids, nil
}

// wakeUps returns how often a second the processes begin to work after they were idle.
// It looks at intervals of wakeLook. Work in two successive intervals counts once.
func wakeUps(pids []int, d time.Duration) (perSecond float64, err error) {
	var count int
	last, worked := -1, false
	start := time.Now()
	for time.Since(start) < d {
		runs := 0
		for _, pid := range pids {
			n, err := timesRun(pid)
			if err != nil {
				return 0, err
			}
			runs += n
		}
		works := last >= 0 && runs != last
		if works && !worked {
			count++
		}
		last, worked = runs, works && !worked
		time.Sleep(wakeLook)
	}
	return float64(count) / time.Since(start).Seconds(), nil
}

// timesRun returns how often the kernel has run a thread of the process so far.
func timesRun(pid int) (runs int, err error) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			return 0, err
		}
		fields := bytes.Fields(text)
		if len(fields) != 3 {
			return 0, fmt.Errorf("%s is %q", stat, text)
		}
		n, err := strconv.Atoi(string(fields[2]))
		if err != nil {
			return 0, fmt.Errorf("%s is %q", stat, text)
		}
		runs += n
	}
	if len(stats) == 0 {
		return 0, fmt.Errorf("process %d has no threads", pid)
	}
	return runs, nil
}
