package bench

import (
	"fmt"
	"time"

	"ahprelay/auth"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
	"ahprelay/test/stack"
)

// told is the pace at which a host streams to an audience: 200 actions a second, like a
// model. spokenSlowly is a chat's pace between such streams.
var (
	told         = loadgen.Pace{Burst: 4, Every: 20 * time.Millisecond}
	spokenSlowly = loadgen.Pace{Burst: 1, Every: 20 * time.Millisecond}
)

const audienceViewers = 1000

// audienceLimits are relay flags with which a whole audience can connect at once.
var audienceLimits = []string{
	"--limit-host", "connections=0", "--limit-host", "opens=0", "--limit-tenant", "opens=0", "--limit-tenant", "connections=0",
	"--limit-subject", "connections=0", "--limit-subject", "opens=0", "--limit-token", "opens=0",
}

// An audienceWay is a way from a host to viewers, with its measurements.
type audienceWay struct {
	name  string
	crowd *crowd
	pays  []int // processes on the host's machine whose processor time counts

	cpu, sent series // for each action: µs of these processes, and bytes that leave the host's machine
	host      series // µs of the host's process alone
}

// audience measures what viewers cost the host's machine, if they have joined by a link
// at the level look.
func audience(b *testbed) []Figure {
	var meter *stack.Meter
	s, relay := b.oneHost(siteConfig{relayFlags: audienceLimits, between: b.metered(&meter)})
	relay.tokens = s.audienceTokens()
	sides := []int{b.host.Pid(), s.agents[0].Pid()}
	many := b.many(audienceViewers)
	one := &audienceWay{name: "one viewer", pays: sides}
	one.crowd = b.join(relay, "alone", 1, 0, actionSize)
	all := &audienceWay{name: "all", pays: sides}
	joins := b.audienceJoins(all, relay, many)
	straight := &audienceWay{name: directName, pays: sides[:1]}
	straight.crowd = b.join(b.direct(), "straight", many, 0, actionSize)
	ways := []*audienceWay{one, all, straight}
	if tunnel := b.sshTunnel(nil); tunnel != nil {
		way := &audienceWay{name: sshName, pays: append(sides[:1:1], tunnel.pid)}
		way.crowd = b.join(tunnel, "ssh", many, 0, actionSize)
		ways = append(ways, way)
	}
	b.measureAudience(ways, meter)
	figures := append(audienceFigures(many, ways), joins)
	figures = append(figures, b.audienceDelays(relay, all.crowd, straight.crowd, many)...)
	if b.o.HostCommand == "" {
		return figures
	}
	return append(figures, b.realAudience()...)
}

// audienceTokens returns tokens for viewers with the same audience.
func (s *site) audienceTokens() []string {
	return s.issue(auth.Client{Tenant: s.tenant(0), Subject: "viewer", Access: auth.AccessRead, Audience: "room"})
}

// audienceJoins connects many viewers as fast as possible. The figure is the number of
// subscribe requests that reach the host.
func (b *testbed) audienceJoins(w *audienceWay, relay *system, many int) Figure {
	var before, after int64
	must.Do(b.host.Call("Host.Asked", "subscribe", &before))
	began := time.Now()
	w.crowd = b.join(relay, "all", many, 0, actionSize)
	took := time.Since(began)
	must.Do(b.host.Call("Host.Asked", "subscribe", &after))
	each := float64(after-before) / (took.Seconds()/0.05 + 2) // the relay sends the first subscribe at once, and may delay the last
	return newFigure(fmt.Sprintf("%d viewers join in %.1f s: the host is asked", many, took.Seconds()), "subscribes for each 50 ms", series{each}).
		want(atMost(1)).means("A link that goes round a room costs the host nothing.")
}

// measureAudience lets the host stream on each way, in turns.
func (b *testbed) measureAudience(ways []*audienceWay, meter *stack.Meter) {
	for _, w := range ways {
		w.crowd.hear(told, b.long(200*time.Millisecond), false)
	}
	b.rounds(func(int) {
		for _, w := range ways {
			before := meter.Bytes()
			got := w.crowd.hear(told, b.long(1500*time.Millisecond), false, w.pays...)
			n, total := float64(got.Actions), 0.0
			for _, used := range got.Others {
				total += micros(used) / n
			}
			w.cpu, w.host, w.sent = append(w.cpu, total), append(w.host, micros(got.Others[0])/n), append(w.sent, float64(meter.Bytes()-before)/n)
		}
	})
}

func audienceFigures(many int, ways []*audienceWay) (figures []Figure) {
	one, all := ways[0], ways[1]
	who := fmt.Sprintf("%d viewers at 200 actions/s: ", many)
	figures = append(figures,
		newFigure(who+"of the host", "µs an action", all.host).beside(one.name, all.host, one.host).want(ratioAtMost(1.2)).
			means("The host pays for one viewer, however many watch."),
		newFigure(who+"of host and host-agent", "µs an action", all.cpu).beside(one.name, all.cpu, one.cpu).want(ratioAtMost(1.2)),
		newFigure(who+"leave the host's machine", "bytes an action", all.sent).beside(one.name, all.sent, one.sent).want(ratioAtMost(1.2)).
			means("And its line carries one copy."))
	for _, other := range ways[2:] {
		figures = append(figures, newFigure(who+"of the host's machine", "µs an action", all.cpu).beside(other.name, all.cpu, other.cpu))
	}
	return figures
}

// audienceDelays measures how late actions reach many viewers, and how late they reach
// five times as many.
func (b *testbed) audienceDelays(relay *system, watched, straight *crowd, many int) (figures []Figure) {
	for _, n := range []int{many, b.many(5 * many)} {
		if n != many {
			watched = b.join(relay, "five-times", n, 0, actionSize)
			straight = b.join(straight.system, "straight-five", n, 0, actionSize)
		}
		var delays [2][2]series
		b.rounds(func(int) {
			for i, c := range []*crowd{watched, straight} {
				note(&delays[i], c.hear(spokenSlowly, b.long(2*time.Second), true).Delays)
			}
		})
		work := fmt.Sprintf("%d viewers at 50 actions/s, ", n)
		f := newFigure(work+"p99", "ms", delays[0][1]).beside(straight.system.name, delays[0][1], delays[1][1])
		if n == many {
			f = f.want(ratioAtMost(1)).orient(atMost(20)).means("A room sees what the agent writes as it writes it.")
		}
		figures = append(figures, newFigure(work+"p50", "ms", delays[0][0]).beside(straight.system.name, delays[0][0], delays[1][0]), f)
	}
	return figures
}
