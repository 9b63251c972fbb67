package bench

import (
	"fmt"
	"syscall"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
)

// stormClients is the number of clients that reconnect at the same time.
const stormClients = 1000

// murmur is the pace at which the host streams during the crash, so that clients miss
// actions.
var murmur = loadgen.Pace{Burst: 1, Every: 50 * time.Millisecond}

// storm kills the relay and starts it again. It measures the time until all clients are
// connected to the new process and have received the actions that they missed.
func storm(b *testbed) []Figure {
	s, relay := b.oneHost(siteConfig{})
	crowds := make([]*crowd, 2)
	for i, way := range []*system{relay, b.direct()} {
		crowds[i] = b.join(way, []string{"relay", "direct"}[i], b.many(stormClients), 0, actionSize)
	}
	var relayed, direct series
	b.rounds(func(int) {
		err := must.Catch(func() {
			relayed = append(relayed, crowds[0].comeBack(func() {
				must.Do(s.relay.End(syscall.SIGKILL))
				must.Do(s.relay.Start())
			}))
		})
		if err != nil {
			must.Fail("%w\n%s\n%s", err, s.relay.Log(), s.agents[0].Log())
		}
		direct = append(direct, crowds[1].comeBack(func() {}))
	})
	return []Figure{
		newFigure(fmt.Sprintf("%d clients reconnect at once after the relay was killed: all whole, from its start on", stormClients), "s", relayed).
			beside("straight on the host, which stayed", relayed, direct).orient(atMost(5)).means("An update of the relay is a pause of a second."),
	}
}

// comeBack calls after, which ends the connections, while the host streams. All readers
// reconnect. It returns the time in seconds until the last reader has received
// everything.
func (c *crowd) comeBack(after func()) float64 {
	var took time.Duration
	must.Both(func() {
		time.Sleep(c.bed.long(300 * time.Millisecond))
		after()
		must.Do(c.bed.clients.Call("Clients.Reconnect", loadgen.ReconnectArgs{Group: c.groups[0], URL: c.url, Within: readyTime}, &took))
	}, func() { c.stream(murmur, c.bed.long(2*time.Second)) })
	c.whole()
	return took.Seconds()
}
