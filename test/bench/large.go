package bench

import (
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
)

// largest is the longest message that may pass.
const largest = 128 << 20

// A pair is the callers at a system: many that exchange small messages, and a single
// reader of large messages.
type pair struct {
	name  string // begins the names of their groups
	added series // how much the reader adds to the p99 of the small messages
	rate  series // MB/s that the reader gets
}

// large measures how much the large messages of a client delay the other clients.
func large(b *testbed) []Figure {
	_, relay := b.oneHost(siteConfig{})
	reader := b.start("reader", loadgen.ClientsRole) // a separate process, so that the reader's work does not delay the callers
	pairs := []*pair{{name: "relay"}, {name: "direct"}}
	for i, way := range []*system{relay, b.direct()} {
		way.callers(b.clients, pairs[i].name, b.many(20))
		way.callers(reader, pairs[i].name+"-large", 1)
	}
	b.rounds(func(int) {
		for _, p := range pairs {
			b.measurePair(p, reader)
		}
	})
	r, d := pairs[0], pairs[1]
	return []Figure{
		newFigure("p99 of 20 clients that exchange 512 B, added by one that reads 128 MiB frames", "ms", r.added).beside(directName, r.added, d.added).orient(atMost(10)).means("Somebody opens a huge session, and others type on."),
		newFigure("the one that reads 128 MiB frames", "MB/s", r.rate).beside(directName, r.rate, d.rate).orient(atLeast(400)).means("A huge session opens in a second where the network lets it."),
	}
}

// measurePair measures the callers without the reader, and beside it.
func (b *testbed) measurePair(p *pair, reader *loadgen.Process) {
	alone := b.exchange(p.name)
	answer := b.unlessTiny(largest, 1<<20)
	big := loadgen.CallArgs{Group: p.name + "-large", Answer: answer, For: b.long(exchangeTime)}
	var during loadgen.Delays
	var one loadgen.CallReply
	must.Both(func() { during = b.exchange(p.name) }, func() { one = calls(reader, big) })
	p.added = append(p.added, ms(during.P99-alone.P99))
	p.rate = append(p.rate, float64(one.Delays.Count)*float64(answer)/one.Took.Seconds()/1e6)
}
