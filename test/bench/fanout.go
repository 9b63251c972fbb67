package bench

import (
	"fmt"
	"net"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
	"ahprelay/test/testca"
)

// actionSize is the length of an action, in bytes.
const actionSize = 512

// saturated returns the pace at which the host sends as fast as n clients can read.
func saturated(n int) loadgen.Pace {
	const onTheirWay = 128 << 10 // bytes of frames on their way to all clients
	return loadgen.Pace{Burst: 16, Window: max(128, min(512, onTheirWay/n))}
}

// roundTime is how long a system is measured in a round.
const roundTime = 350 * time.Millisecond

// deliveries is the unit of the part fanout.
const deliveries = "M deliveries per CPU-second"

// fanout measures the processor time that the relay needs to send a host's actions to
// many clients.
func fanout(b *testbed) (figures []Figure) {
	s, relay := b.oneHost(siteConfig{})
	nats := b.natsServer()
	writer := b.writer()
	for _, n := range b.sizes(1, 2, 5, 10, 100, 1000) {
		must.Within(fmt.Sprintf("%d clients", n), func() {
			figures = append(figures, b.fanoutTo(s, n, []*system{relay, nats, writer, b.direct()})...)
		})
	}
	return append(figures, b.fanoutTLS()...)
}

// fanoutTLS measures the same as fanout with TLS between relay and clients.
func (b *testbed) fanoutTLS() []Figure {
	_, relay := b.oneHost(siteConfig{name: "tls", tls: true})
	cert, key, err := testca.WriteFilesFor(net.IPv4(127, 0, 0, 1), b.dir)
	must.Do(err)
	nats := b.startNATS("nats-server-tls", cert, key)
	const n = 100
	perCPU := make([]series, 2)
	crowds := b.warm([]*system{relay, nats}, "tls", b.many(n), 0, actionSize, saturated(n), 100*time.Millisecond)
	b.rounds(func(int) {
		for i, c := range crowds {
			got := c.hear(saturated(n), b.long(roundTime), false)
			perCPU[i] = append(perCPU[i], got.perCPU()/1e6)
		}
	})
	return []Figure{newFigure("100 clients, saturated, with TLS", deliveries, perCPU[0]).beside(nats.name+" with TLS", perCPU[0], perCPU[1])}
}

// fanoutTo measures systems with n clients each. The first system is the relay.
func (b *testbed) fanoutTo(s *site, n int, systems []*system) []Figure {
	crowds := b.warm(systems, fmt.Sprint("fanout-", n), b.many(n), 0, actionSize, saturated(n), 100*time.Millisecond)
	perCPU := make([]series, len(systems))
	var agent, wall series
	b.rounds(func(int) {
		for i, c := range crowds {
			got := c.hear(saturated(n), b.long(roundTime), false, s.agents[0].Pid())
			perCPU[i] = append(perCPU[i], got.perCPU()/1e6)
			if i == 0 {
				agent = append(agent, float64(got.Delivered)/got.Others[0].Seconds()/1e6)
				wall = append(wall, float64(got.Delivered)/got.Took.Seconds()/1e6)
			}
		}
	})
	for _, c := range crowds {
		c.leave()
	}
	return fanoutFigures(n, systems, perCPU, agent, wall)
}

const fanoutMeaning = "How many viewers a relay's processor carries: the more deliveries a second of it makes, the fewer machines."

func fanoutFigures(n int, systems []*system, perCPU []series, agent, wall series) (figures []Figure) {
	work := fmt.Sprintf("%d clients, saturated", n)
	for i := 1; i < len(systems); i++ {
		f := newFigure(work, deliveries, perCPU[0]).beside(systems[i].name, perCPU[0], perCPU[i]).means(fanoutMeaning)
		switch {
		case i == 1 && n == 10:
			f = f.want(ratioAtLeast(2.5))
		case i == 1 && n == 100:
			f = f.want(ratioAtLeast(6))
		case i == 1 && n == 1000:
			f = f.want(ratioAtLeast(4))
		case i == 2 && n == 100:
			f = f.want(ratioAtLeast(12))
		}
		figures = append(figures, f)
	}
	return append(figures,
		newFigure(work+", of the host-agent", deliveries, agent).means("What the host's own machine pays for its viewers."),
		newFigure(work+", all processes on one machine", "M deliveries/s", wall))
}
