package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"ahprelay/test/must"
)

// resident returns how many bytes of memory a process occupies.
func resident(pid int) float64 {
	return float64(numberIn(fmt.Sprintf("/proc/%d/statm", pid), 1) * os.Getpagesize())
}

// numberIn returns the number in a field of a file of the kernel.
func numberIn(file string, field int) int {
	text := must.Get(os.ReadFile(file))
	fields := strings.Fields(string(text))
	if len(fields) <= field {
		must.Fail("%s is %q", file, text)
	}
	return must.Get(strconv.Atoi(fields[field]))
}

// idleTime is how long clients are idle before their memory is measured.
const idleTime = 700 * time.Millisecond

// memory measures how much memory an idle client takes in relay and host-agent. Each
// round starts new processes. While the clients of one system are idle, those of the
// next system connect.
func memory(b *testbed) []Figure {
	n := b.many(5000)
	var relay, agent, nats, writer series
	b.rounds(func(round int) {
		var others [2]*idlers
		for i, start := range []func() *system{b.natsServer, b.writer} {
			way := start()
			others[i] = b.idle(way, n, way.pid)
		}
		s, way := b.oneHost(siteConfig{name: fmt.Sprintf("site-%d", round)})
		way.stop = s.end
		own := b.idle(way, n, s.relay.Pid(), s.agents[0].Pid())
		each := perClient(own, others[0], others[1])
		relay, agent, nats, writer = append(relay, each[0]), append(agent, each[1]), append(nats, each[2]), append(writer, each[3])
		leave(own, others[0], others[1])
	})
	const work = "5000 idle clients of one host, each at the "
	return []Figure{
		newFigure(work+"relay", "KiB", relay).beside(natsName, relay, nats).want(ratioAtMost(0.5)).orient(atMost(16)).means("Tabs that are left open cost a relay next to nothing."),
		newFigure(work+"relay", "KiB", relay).beside("coder/websocket, one handler each", relay, writer).want(ratioAtMost(0.5)),
		newFigure(work+"host-agent", "KiB", agent).beside(natsName, agent, nats).want(ratioAtMost(0.5)).orient(atMost(16)).means("And the host's own machine little."),
	}
}

// An idlers is the idle clients of a system.
type idlers struct {
	*crowd
	looked chan error // receives the result of the measurement; each is then set
	each   []float64  // KiB that each process takes for a client
}

// idle connects n clients to a system that has none. After idleTime, it measures how
// much the processes have grown.
func (b *testbed) idle(way *system, n int, pids ...int) *idlers {
	before := residents(pids)
	c := b.join(way, way.kind, n, 0, actionSize)
	i := &idlers{crowd: c, looked: make(chan error, 1)}
	time.AfterFunc(b.long(idleTime), func() {
		i.looked <- must.Catch(func() {
			for k, after := range residents(pids) {
				i.each = append(i.each, (after-before[k])/float64(n)/1024)
			}
		})
	})
	return i
}

// residents returns how many bytes of memory each process occupies.
func residents(pids []int) (all []float64) {
	for _, pid := range pids {
		all = append(all, resident(pid))
	}
	return all
}

// perClient waits for the measurements, and returns how many KiB a client takes in each
// process. It fails if a client's connection has ended.
func perClient(all ...*idlers) (each []float64) {
	for _, i := range all {
		must.Do(<-i.looked)
		each = append(each, i.each...)
	}
	for _, i := range all {
		i.whole()
	}
	return each
}

// leave stops the systems before their clients, so that no system spends time on the
// clients' disconnects.
func leave(all ...*idlers) {
	for _, i := range all {
		i.stop()
	}
	for _, i := range all {
		i.crowd.leave()
	}
}
