package bench

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"ahprelay/test/bench/loadgen"
)

// stormClients is the number of clients that reconnect at the same time.
const stormClients = 1000

// murmur is the pace at which the host streams during the crash, so that clients miss
// actions.
var murmur = loadgen.Pace{Burst: 1, Every: 50 * time.Millisecond}

// storm kills the relay and starts it again. It measures the time until all clients are
// connected to the new process and have received the actions that they missed.
func storm(b *testbed) ([]Figure, error) {
	s, relay, err := b.oneHost(siteConfig{})
	if err != nil {
		return nil, err
	}
	crowds := make([]*crowd, 2)
	for i, way := range []*system{relay, b.direct()} {
		if crowds[i], err = b.join(way, []string{"relay", "direct"}[i], b.many(stormClients), 0, actionSize); err != nil {
			return nil, err
		}
	}
	var relayed, direct series
	err = b.rounds(func(int) error {
		took, err := crowds[0].comeBack(func() error {
			if err := s.relay.End(syscall.SIGKILL); err != nil {
				return err
			}
			return s.relay.Start()
		})
		if err != nil {
			return fmt.Errorf("%w\n%s\n%s", err, s.relay.Log(), s.agents[0].Log())
		}
		relayed = append(relayed, took.Seconds())
		if took, err = crowds[1].comeBack(func() error { return nil }); err != nil {
			return err
		}
		direct = append(direct, took.Seconds())
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []Figure{
		newFigure(fmt.Sprintf("%d clients reconnect at once after the relay was killed: all whole, from its start on", stormClients), "s", relayed).
			beside("straight on the host, which stayed", relayed, direct).orient(atMost(5)).means("An update of the relay is a pause of a second."),
	}, nil
}

// comeBack calls after, which ends the connections, while the host streams. All readers
// reconnect. It returns the time until the last reader has received everything.
func (c *crowd) comeBack(after func() error) (took time.Duration, err error) {
	var wg sync.WaitGroup
	var lost error
	wg.Go(func() { _, lost = c.stream(murmur, c.bed.long(2*time.Second)) })
	time.Sleep(c.bed.long(300 * time.Millisecond))
	if err = after(); err == nil {
		args := loadgen.ReconnectArgs{Group: c.groups[0], URL: c.url, Within: readyTime}
		err = c.bed.clients.Call("Clients.Reconnect", args, &took)
	}
	wg.Wait()
	return took, errors.Join(err, lost, c.whole())
}
