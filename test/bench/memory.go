package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// resident returns how many bytes of memory a process occupies.
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

// idleTime is how long clients are idle before their memory is measured.
const idleTime = 700 * time.Millisecond

// memory measures how much memory an idle client takes in relay and host-agent. Each
// round starts new processes. While the clients of one system are idle, those of the
// next system connect.
func memory(b *testbed) ([]Figure, error) {
	n := b.many(5000)
	var relay, agent, nats, writer series
	err := b.rounds(func(round int) error {
		var others [2]*idlers
		for i, start := range []func() (*system, error){b.natsServer, b.writer} {
			way, err := start()
			if err != nil {
				return err
			}
			if others[i], err = b.idle(way, n, way.pid); err != nil {
				return err
			}
		}
		s, way, err := b.oneHost(siteConfig{name: fmt.Sprintf("site-%d", round)})
		if err != nil {
			return err
		}
		way.stop = s.end
		own, err := b.idle(way, n, s.relay.Pid(), s.agents[0].Pid())
		if err != nil {
			return err
		}
		each, err := perClient(own, others[0], others[1])
		if err != nil {
			return err
		}
		relay, agent, nats, writer = append(relay, each[0]), append(agent, each[1]), append(nats, each[2]), append(writer, each[3])
		return leave(own, others[0], others[1])
	})
	if err != nil {
		return nil, err
	}
	const work = "5000 idle clients of one host, each at the "
	return []Figure{
		newFigure(work+"relay", "KiB", relay).beside(natsName, relay, nats).want(ratioAtMost(0.5)).orient(atMost(16)).means("Tabs that are left open cost a relay next to nothing."),
		newFigure(work+"relay", "KiB", relay).beside("coder/websocket, one handler each", relay, writer).want(ratioAtMost(0.5)),
		newFigure(work+"host-agent", "KiB", agent).beside(natsName, agent, nats).want(ratioAtMost(0.5)).orient(atMost(16)).means("And the host's own machine little."),
	}, nil
}

// An idlers is the idle clients of a system.
type idlers struct {
	*crowd
	looked chan error // receives the result of the measurement; each is then set
	each   []float64  // KiB that each process takes for a client
}

// idle connects n clients to a system that has none. After idleTime, it measures how
// much the processes have grown.
func (b *testbed) idle(way *system, n int, pids ...int) (*idlers, error) {
	before, err := residents(pids)
	if err != nil {
		return nil, err
	}
	c, err := b.join(way, way.kind, n, 0, actionSize)
	if err != nil {
		return nil, err
	}
	i := &idlers{crowd: c, looked: make(chan error, 1)}
	time.AfterFunc(b.long(idleTime), func() {
		after, err := residents(pids)
		for k := range after {
			i.each = append(i.each, (after[k]-before[k])/float64(n)/1024)
		}
		i.looked <- err
	})
	return i, nil
}

// residents returns how many bytes of memory each process occupies.
func residents(pids []int) (all []float64, err error) {
	for _, pid := range pids {
		size, err := resident(pid)
		if err != nil {
			return nil, err
		}
		all = append(all, size)
	}
	return all, nil
}

// perClient waits for the measurements, and returns how many KiB a client takes in each
// process. It fails if a client's connection has ended.
func perClient(all ...*idlers) (each []float64, err error) {
	for _, i := range all {
		if err := <-i.looked; err != nil {
			return nil, err
		}
		each = append(each, i.each...)
	}
	for _, i := range all {
		if err := i.whole(); err != nil {
			return nil, err
		}
	}
	return each, nil
}

// leave stops the systems before their clients, so that no system spends time on the
// clients' disconnects.
func leave(all ...*idlers) error {
	for _, i := range all {
		i.stop()
	}
	for _, i := range all {
		if err := i.crowd.leave(); err != nil {
			return err
		}
	}
	return nil
}
