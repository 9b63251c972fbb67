package bench

import (
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
)

// half is half the pace of streaming, so that 100 clients do not use both processors
// fully.
var half = loadgen.Pace{Burst: 20, Every: 20 * time.Millisecond}

// stallTime is how long each system is measured in a round.
const stallTime = 650 * time.Millisecond

// stalled measures how a reader that reads nothing affects the other readers.
func stalled(b *testbed) []Figure {
	_, relay := b.oneHost(siteConfig{})
	systems := []*system{relay, b.natsServer()}
	var undisturbed, disturbed [2]series
	crowds := b.warm(systems, "stalled", max(2, b.many(100)), 1, actionSize, half, 200*time.Millisecond)
	b.rounds(func(int) {
		for i := range 2 * len(crowds) { // twice, because there are few bursts in stallTime
			i %= len(crowds)
			c := crowds[i]
			got := c.hear(half, b.long(stallTime), true)
			undisturbed[i] = append(undisturbed[i], ms(got.Delays.P99))
			got = c.hearDisturbed(b.long(stallTime))
			disturbed[i] = append(disturbed[i], ms(got.Delays.P99))
		}
	})
	const work, before = "1000 actions/s in bursts of 20 to 100 readers: p99 of 99 while one takes nothing", "before it stopped"
	return []Figure{
		newFigure(work, "ms", disturbed[0]).beside(before, disturbed[0], undisturbed[0]).want(ratioAtMost(1.2)).means("A phone in a tunnel holds nobody up."),
		newFigure(work+", nats-server WebSocket", "ms", disturbed[1]).beside(before, disturbed[1], undisturbed[1]),
	}
}

// hearDisturbed is hear while the quiet reader reads nothing, after its connection is
// full. In the end, the quiet reader receives everything that it has missed.
func (c *crowd) hearDisturbed(d time.Duration) (s sample) {
	c.pause(true)
	c.hear(half, d/2, false)
	s = c.hear(half, d, true)
	c.pause(false)
	c.await()
	return s
}

// pause makes the quiet readers of the first channel stop reading, or read again.
func (c *crowd) pause(on bool) {
	must.Do(c.bed.clients.Call("Clients.Pause", loadgen.Switch{Group: c.groups[0], On: on}, &loadgen.None{}))
}

// await waits until all readers, the quiet reader included, have received everything.
func (c *crowd) await() {
	for i := range c.channels {
		must.Get(c.catchUp(i, readyTime))
	}
	c.whole()
}
