package bench

import (
	"fmt"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
	"ahprelay/test/stack"
)

// These are the clients, the actions and an action's bytes in the part uplink.
const (
	uplinkClients = 50
	uplinkActions = 500
	uplinkSize    = 1 << 10
)

// spoken is a steady pace that is slow enough for every queue to stay empty.
var spoken = loadgen.Pace{Burst: 1, Every: 2 * time.Millisecond}

// An uplinkWay is a way from the host to clients, with a meter for what leaves the
// host's machine.
type uplinkWay struct {
	name  string
	crowd *crowd
	meter *stack.Meter
	sent  series // MB that the meter has counted, for each round
}

// uplink measures how much the host's machine sends for 50 clients.
func uplink(b *testbed) []Figure {
	ways := b.uplinkWays()
	for _, w := range ways {
		w.crowd.hear(spoken, b.long(100*time.Millisecond), false) // host-agents learn the subscriptions
	}
	b.rounds(func(int) {
		for _, w := range ways {
			w.sent = append(w.sent, w.crowd.uplinkMB(w.meter))
		}
	})
	work := fmt.Sprintf("%d clients × %d actions of 1 KB, ", uplinkClients, uplinkActions)
	var figures []Figure
	for _, w := range ways {
		f := newFigure(work+w.name, "MB", w.sent)
		if last := ways[len(ways)-1]; w == last && w.crowd.system.name == sshName {
			break
		} else if last.crowd.system.name == sshName {
			f = f.beside(sshName, w.sent, last.sent).want(ratioAtMost(0.025))
		}
		figures = append(figures, f.orient(atMost(0.65)).means("A home connection carries 50 viewers like one."))
	}
	return figures
}

// uplinkMB lets the host stream, and returns how many MB the meter has counted. They are
// converted from the number of actions in this round to uplinkActions.
func (c *crowd) uplinkMB(meter *stack.Meter) float64 {
	before := meter.Bytes()
	got := c.hear(spoken, c.bed.long(uplinkActions*spoken.Every), false)
	return float64(meter.Bytes()-before) / float64(got.Actions) * uplinkActions / 1e6
}

// uplinkWays returns the ways through the relay, and after them the ways for
// comparison.
func (b *testbed) uplinkWays() (ways []*uplinkWay) {
	for i, cfg := range []siteConfig{
		{name: "NATS over TCP", natsTCP: true},
		{name: "through the relay's port"},
	} {
		w := &uplinkWay{name: cfg.name}
		cfg.name = fmt.Sprintf("site-%d", i)
		cfg.between = b.metered(&w.meter)
		_, way := b.oneHost(cfg)
		ways = append(ways, w)
		w.crowd = b.join(way, cfg.name, b.many(uplinkClients), 0, uplinkSize)
	}
	return b.uplinkOverSSH(ways)
}

// uplinkOverSSH adds the way through an SSH tunnel, if SSH is installed.
func (b *testbed) uplinkOverSSH(ways []*uplinkWay) []*uplinkWay {
	w := &uplinkWay{name: sshName}
	way := b.sshTunnel(b.metered(&w.meter))
	if way == nil {
		return ways
	}
	w.crowd = b.join(way, "ssh", b.many(uplinkClients), 0, uplinkSize)
	return append(ways, w)
}

// metered returns a function for siteConfig.between, which puts a meter there. The
// testbed's end closes it.
func (b *testbed) metered(m **stack.Meter) func(target string) string {
	return func(target string) string {
		*m = must.Get(stack.NewMeter(target))
		b.ends = append(b.ends, (*m).Close)
		return (*m).Addr()
	}
}
