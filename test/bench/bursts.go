package bench

import (
	"time"

	"ahprelay/test/bench/loadgen"
)

// streaming is the pace at which models stream: 2000 actions a second, in bursts of 20.
var streaming = loadgen.Pace{Burst: 20, Every: 10 * time.Millisecond}

// ms converts a duration to milliseconds.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// bursts measures how late actions reach clients that could receive more.
func bursts(b *testbed) []Figure { return b.bothSlacks((*testbed).bursts) }

func (b *testbed) bursts(slack string) []Figure {
	s, relay := b.oneHost(siteConfig{name: b.prefix + "site"})
	defer s.end()
	nats := b.startNATS(b.prefix+"nats-server", "", "")
	defer nats.stop()
	systems := []*system{relay, b.direct(), nats}
	delays := make([][2]series, len(systems))
	crowds := b.warm(systems, "bursts", b.many(100), 0, actionSize, streaming, 200*time.Millisecond)
	b.rounds(func(int) {
		for i, c := range crowds {
			note(&delays[i], c.hear(streaming, b.long(1500*time.Millisecond), true).Delays)
		}
	})
	const work = "2000 actions/s in bursts of 20 to 100 clients, "
	var figures []Figure
	for k, f := range []struct {
		name    string
		limit   float64
		meaning string
	}{
		{"p50", 1.2, "Text streams onto 100 screens as the model writes it."},
		{"p99", 8, "Nobody sees it stutter."},
	} {
		for i := 1; i < len(systems); i++ {
			figure := newFigure(work+f.name+slack, "ms", delays[0][k]).beside(systems[i].name, delays[0][k], delays[i][k]).orient(atMost(f.limit)).means(f.meaning)
			if systems[i] == nats {
				figure = figure.want(ratioAtMost(1))
			}
			figures = append(figures, figure)
		}
	}
	return figures
}
