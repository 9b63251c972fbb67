package bench

import (
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
)

// latency measures how much time relay, NATS and host-agent add to a request and its
// response.
func latency(b *testbed) []Figure { return b.bothSlacks((*testbed).latency) }

func (b *testbed) latency(slack string) []Figure {
	ports := b.site(siteConfig{name: b.prefix + "through-relay-port"})
	defer ports.end()
	tcp := b.site(siteConfig{name: b.prefix + "nats-tcp", natsTCP: true})
	defer tcp.end()
	systems := []*system{b.direct(), nil, nil}
	for i, s := range []*site{ports, tcp} {
		systems[i+1] = s.system(0)
	}
	names := []string{"direct", "ports", "tcp"}
	for i, way := range systems {
		way.callers(b.clients, names[i], 1)
		b.ask(names[i], 100*time.Millisecond) // warms up
	}
	delays := make([][2]series, len(systems))
	b.rounds(func(int) {
		for range 4 { // in turns, so that a disturbance of the machine affects all systems
			for i, name := range names {
				note(&delays[i], b.ask(name, 400*time.Millisecond))
			}
		}
	})
	return latencyFigures(delays, slack)
}

func latencyFigures(delays [][2]series, slack string) []Figure {
	added := func(i int, work string, limit float64) []Figure {
		what := func(percentile string) string { return work + ", added " + percentile + slack }
		direct := delays[0]
		m, t := delays[i][0].less(direct[0]), delays[i][1].less(direct[1])
		return []Figure{
			newFigure(what("p50"), "ms", m).beside(directName, m, direct[0]).want(ratioAtMost(limit)).orient(atMost(requestMost)).means("A keystroke takes this much longer than at the host itself, beside the network's own time."),
			newFigure(what("p99"), "ms", t).beside(directName, t, direct[1]).orient(atMost(1)).means("And hardly ever more than this."),
		}
	}
	return append(added(1, "request and answer of 512 B", 7), added(2, "the same with NATS over TCP", 6)...)
}

// requestMost is how much longer a request may take than straight at the host, in ms.
const requestMost = 0.15

// ask lets a group of callers send requests one after another, and returns their
// delays.
func (b *testbed) ask(group string, d time.Duration) loadgen.Delays {
	return calls(b.clients, loadgen.CallArgs{Group: group, Answer: 512, For: b.long(d)}).Delays
}

// calls lets a group of callers at a load generator send requests of 512 B.
func calls(from *loadgen.Process, args loadgen.CallArgs) (reply loadgen.CallReply) {
	args.Request = 512
	must.Do(from.Call("Clients.Call", args, &reply))
	return reply
}
