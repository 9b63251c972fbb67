package bench

import (
	"time"

	"ahprelay/test/bench/loadgen"
)

// half is half the pace of streaming, so that 100 clients do not use both processors
// fully.
var half = loadgen.Pace{Burst: 20, Every: 20 * time.Millisecond}

// stallTime is how long each system is measured in a round.
const stallTime = 650 * time.Millisecond

// stalled measures how a reader that reads nothing affects the other readers.
func stalled(b *testbed) ([]Figure, error) {
	_, relay, err := b.oneHost(siteConfig{})
	if err != nil {
		return nil, err
	}
	nats, err := b.natsServer()
	if err != nil {
		return nil, err
	}
	systems := []*system{relay, nats}
	crowds := make([]*crowd, len(systems))
	undisturbed, disturbed := make([]series, len(systems)), make([]series, len(systems))
	for i, way := range systems {
		if crowds[i], err = b.join(way, []string{"relay", "nats"}[i], max(2, b.many(100)), 1, actionSize); err != nil {
			return nil, err
		}
		if _, err := crowds[i].hear(half, b.long(200*time.Millisecond), true); err != nil { // warms up
			return nil, err
		}
	}
	err = b.rounds(func(int) error {
		for i := range 2 * len(crowds) { // twice, because there are few bursts in stallTime
			i %= len(crowds)
			c := crowds[i]
			got, err := c.hear(half, b.long(stallTime), true)
			if err != nil {
				return err
			}
			undisturbed[i] = append(undisturbed[i], ms(got.Delays.P99))
			if got, err = c.hearDisturbed(b.long(stallTime)); err != nil {
				return err
			}
			disturbed[i] = append(disturbed[i], ms(got.Delays.P99))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	const work, before = "1000 actions/s in bursts of 20 to 100 readers: p99 of 99 while one takes nothing", "before it stopped"
	return []Figure{
		newFigure(work, "ms", disturbed[0]).beside(before, disturbed[0], undisturbed[0]).want(ratioAtMost(1.2)).means("A phone in a tunnel holds nobody up."),
		newFigure(work+", nats-server WebSocket", "ms", disturbed[1]).beside(before, disturbed[1], undisturbed[1]),
	}, nil
}

// hearDisturbed is hear while the quiet reader reads nothing, after its connection is
// full. In the end, the quiet reader receives everything that it has missed.
func (c *crowd) hearDisturbed(d time.Duration) (s sample, err error) {
	pause := loadgen.PauseArgs{Group: c.groups[0], Reader: 0, On: true}
	if err := c.bed.clients.Call("Clients.Pause", pause, &loadgen.None{}); err != nil {
		return s, err
	}
	if _, err := c.hear(half, d/2, false); err != nil {
		return s, err
	}
	if s, err = c.hear(half, d, true); err != nil {
		return s, err
	}
	pause.On = false
	if err := c.bed.clients.Call("Clients.Pause", pause, &loadgen.None{}); err != nil {
		return s, err
	}
	return s, c.await()
}

// await waits until all readers, the quiet reader included, have received everything.
func (c *crowd) await() error {
	var said int64
	for i, channel := range c.channels {
		if err := c.bed.host.Call("Host.Said", channel, &said); err != nil {
			return err
		}
		args := loadgen.AwaitArgs{Group: c.groups[i], Action: said, Within: readyTime}
		if err := c.bed.clients.Call("Clients.Await", args, new(time.Duration)); err != nil {
			return err
		}
	}
	return c.whole()
}
