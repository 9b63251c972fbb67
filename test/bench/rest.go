package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"ahprelay/test/must"
)

// These are the durations for measuring a site at rest.
const (
	settleTime = 12 * time.Second // from the start until the programs are at rest
	restTime   = 5 * time.Second  // duration of a round
	wakeLook   = 10 * time.Millisecond
)

// rest measures a relay, a host-agent and the host-agent's sentinel while nothing
// happens: how much memory they have, and how often the host-agent wakes the machine.
func rest(b *testbed) []Figure {
	s := b.site(siteConfig{name: "rest"})
	relay, agent := s.relay.Pid(), s.agents[0].Pid()
	sentinels := children(agent)
	time.Sleep(b.long(settleTime))
	var wakes, both, relays series
	b.rounds(func(int) {
		woken := wakeUps(append(sentinels, agent), b.long(restTime))
		sizes := residents(append([]int{relay, agent}, sentinels...))
		var machine float64
		for _, size := range sizes[1:] {
			machine += size / 1e6
		}
		wakes, both, relays = append(wakes, woken), append(both, machine), append(relays, sizes[0]/1e6)
	})
	return []Figure{
		newFigure("host-agent and sentinel of an idle host, wake-ups", "/s", wakes).want(atMost(5)).means("A laptop at rest stays at rest."),
		newFigure("host-agent and sentinel of an idle host, memory", "MB", both).want(atMost(20)),
		newFigure("relay with one idle host, memory", "MB", relays).want(atMost(35)),
	}
}

// children returns the ids of the processes that a process has started.
func children(pid int) (pids []int) {
	for _, list := range must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))) {
		for _, field := range bytes.Fields(must.Get(os.ReadFile(list))) {
			pids = append(pids, must.Get(strconv.Atoi(string(field))))
		}
	}
	return pids
}

// wakeUps returns how often a second the processes begin to work after they were idle.
// It looks at intervals of wakeLook. Work in two successive intervals counts once.
func wakeUps(pids []int, d time.Duration) (perSecond float64) {
	var count int
	last, worked := -1, false
	start := time.Now()
	for time.Since(start) < d {
		runs := 0
		for _, pid := range pids {
			runs += timesRun(pid)
		}
		works := last >= 0 && runs != last
		if works && !worked {
			count++
		}
		last, worked = runs, works && !worked
		time.Sleep(wakeLook)
	}
	return float64(count) / time.Since(start).Seconds()
}

// timesRun returns how often the kernel has run a thread of the process so far.
func timesRun(pid int) (runs int) {
	stats := must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)))
	for _, stat := range stats {
		runs += numberIn(stat, 2)
	}
	if len(stats) == 0 {
		must.Fail("process %d has no threads", pid)
	}
	return runs
}
