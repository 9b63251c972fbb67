package bench

import (
	"fmt"
	"time"

	"ahprelay/test/bench/loadgen"
)

// hostsIdle is the pause before host-agents are measured, and the length of the
// measurement. The messages sent on connecting are compressed in frames that end 10 s
// after the last message, and the memory for reading them is returned at the relay's
// second garbage collection.
const hostsIdle = 30 * time.Second

// hosts measures the memory that each further connected host-agent takes at a relay,
// and the processor time of a thousand idle ones: their connections are pinged and
// their leases renewed.
func hosts(b *testbed) ([]Figure, error) {
	few, more := b.many(50), b.many(1000)
	var memory, cost series
	err := b.rounds(func(round int) error {
		s, err := b.site(siteConfig{name: fmt.Sprintf("hosts-%d", round), hosts: few, together: true})
		if err != nil {
			return err
		}
		defer s.end()
		wait(b, hostsIdle)
		before, err := resident(s.relay.Pid())
		if err != nil {
			return err
		}
		s.cfg.hosts += more
		if err := s.comeTogether(few); err != nil {
			return err
		}
		wait(b, hostsIdle)
		used, err := loadgen.CPU(s.relay.Pid())
		if err != nil {
			return err
		}
		began := time.Now()
		wait(b, hostsIdle)
		now, err := loadgen.CPU(s.relay.Pid())
		if err != nil {
			return err
		}
		after, err := resident(s.relay.Pid())
		memory = append(memory, (after-before)/float64(more)/1024)
		cost = append(cost, 100*float64(now-used)/float64(time.Since(began)))
		return err
	})
	if err != nil {
		return nil, err
	}
	return []Figure{
		newFigure("one more connected host-agent, at the relay", "KiB", memory).want(atMost(120)).means("A relay has room for as many hosts as there are."),
		newFigure("1000 host-agents on whose hosts nothing happens, at the relay", "% of a core", cost).orient(atMost(2)).means("They cost it nothing while nothing happens."),
	}, nil
}

// wait lets a while pass.
func wait(b *testbed, d time.Duration) {
	select {
	case <-b.ctx.Done():
	case <-time.After(b.long(d)):
	}
}
