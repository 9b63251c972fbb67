package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/routing"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
)

// feed measures what it costs to publish a single viewer's notifications on NATS while
// a reader listens there. It compares this with a relay without readers.
func feed(b *testbed) []Figure {
	sites, ways := make([]*site, 2), make([]*system, 2)
	for i, cfg := range []siteConfig{{name: "fed", natsListen: true}, {name: "plain"}} {
		sites[i], ways[i] = b.oneHost(cfg)
	}
	heard := sites[0].read()
	var figures []Figure
	for _, work := range []struct {
		name string
		pace loadgen.Pace
	}{{"2000 actions/s in bursts of 20", streaming}, {"saturated", saturated(1)}} {
		var got fedSample
		must.Within(work.name, func() { got = b.feedAt(work.pace, sites, ways, heard) })
		title := "one viewer and a reader at NATS, " + work.name + ": "
		const unit, peer = "µs a message", "without a reader"
		figures = append(figures,
			newFigure(title+"relay and host-agent", unit, got.both[0]).beside(peer, got.both[0], got.both[1]).want(ratioAtMost(1.2)).
				means("An operator's tools can listen to everything, for a little more."),
			newFigure(title+"relay", unit, got.relays[0]).beside(peer, got.relays[0], got.relays[1]),
			newFigure(title+"heard by the reader", "% of the messages", got.heard))
	}
	return figures
}

// A fedSample has the processor times for each message, with a reader and without.
// heard is the part of the messages that the reader has received.
type fedSample struct {
	both, relays [2]series
	heard        series
}

// feedAt measures the programs of each site with one viewer, in turns.
func (b *testbed) feedAt(pace loadgen.Pace, sites []*site, ways []*system, heard *atomic.Int64) (got fedSample) {
	crowds := make([]*crowd, len(sites))
	for i, way := range ways {
		crowds[i] = b.join(way, fmt.Sprintf("%s-%d", sites[i].cfg.name, b.slots), 1, 0, actionSize)
		for warm := false; !warm; warm = i > 0 || heard.Load() > 0 {
			crowds[i].hear(pace, b.long(400*time.Millisecond), false)
		}
	}
	b.rounds(func(int) {
		for i, c := range crowds {
			began := heard.Load()
			sample := c.hear(pace, b.long(time.Second), false, sites[i].agents[0].Pid())
			n := float64(sample.Delivered)
			got.both[i] = append(got.both[i], micros(sample.CPU+sample.Others[0])/n)
			got.relays[i] = append(got.relays[i], micros(sample.CPU)/n)
			if i == 0 {
				got.heard = append(got.heard, 100*float64(heard.Load()-began)/n)
			}
		}
	})
	for _, c := range crowds {
		c.leave()
	}
	return got
}

func micros(d time.Duration) float64 { return d.Seconds() * 1e6 }

// read makes a NATS client receive all messages for the site's first host, until the
// part ends. It returns a counter of these messages.
func (s *site) read() *atomic.Int64 {
	creds := must.Get(s.keys.Authority().ChannelReader(s.tenant(0), hostName(0), auth.MaxReaderTTL))
	heard := new(atomic.Int64)
	ctx, cancel := context.WithCancel(s.bed.ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		err := broker.Tail(ctx, "nats://"+s.at(natsPort), creds, s.tenant(0), hostName(0), "", func(data []byte) {
			_ = routing.ReadFeed(data, func(routing.Piece) { heard.Add(1) }) // an error means a missing message, which feedAt notices by the count
		}, func(int) {})
		if err != nil && ctx.Err() == nil {
			s.bed.say("the reader has ended: %v", err)
		}
	})
	s.bed.ends = append(s.bed.ends, func() {
		cancel()
		wg.Wait()
	})
	return heard
}
