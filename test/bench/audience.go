package bench

import (
	"errors"
	"fmt"
	"time"

	"ahprelay/auth"
	"ahprelay/test/bench/loadgen"
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
func audience(b *testbed) ([]Figure, error) {
	var meter *stack.Meter
	s, relay, err := b.oneHost(siteConfig{
		relayFlags: audienceLimits,
		between:    b.metered(&meter),
	})
	if err != nil {
		return nil, err
	}
	if relay.tokens, err = s.audienceTokens(0); err != nil {
		return nil, err
	}
	sides := []int{b.host.Pid(), s.agents[0].Pid()}
	many := b.many(audienceViewers)
	one := &audienceWay{name: "one viewer", pays: sides}
	if one.crowd, err = b.join(relay, "alone", 1, 0, actionSize); err != nil {
		return nil, err
	}
	all := &audienceWay{name: "all", pays: sides}
	joins, err := b.audienceJoins(all, relay, many)
	if err != nil {
		return nil, err
	}
	straight := &audienceWay{name: directName, pays: sides[:1]}
	if straight.crowd, err = b.join(b.direct(), "straight", many, 0, actionSize); err != nil {
		return nil, err
	}
	ways := []*audienceWay{one, all, straight}
	if tunnel, err := b.sshTunnel(nil); errors.Is(err, errNoSSH) {
		b.say("%v; %s is left out", err, sshName)
	} else if err != nil {
		return nil, err
	} else {
		way := &audienceWay{name: sshName, pays: append(sides[:1:1], tunnel.pid)}
		if way.crowd, err = b.join(tunnel, "ssh", many, 0, actionSize); err != nil {
			return nil, err
		}
		ways = append(ways, way)
	}
	if err := b.measureAudience(ways, meter); err != nil {
		return nil, err
	}
	figures := append(audienceFigures(many, ways), joins)
	delays, err := b.audienceDelays(relay, all.crowd, straight.crowd, many)
	figures = append(figures, delays...)
	if err != nil || b.o.HostCommand == "" {
		return figures, err
	}
	real, err := b.realAudience()
	return append(figures, real...), err
}

// audienceTokens returns tokens for viewers with the same audience.
func (s *site) audienceTokens(i int) (tokens []string, err error) {
	for n := range subjects {
		token, err := s.keys.Tokens().IssueClient(auth.Client{
			Tenant: s.tenant(i), Subject: fmt.Sprintf("viewer-%d", n), Hosts: []string{auth.AllHosts}, Access: auth.AccessRead, Audience: "room",
			Expires: time.Now().Add(time.Hour),
		})
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, token)
	}
	return tokens, nil
}

// audienceJoins connects many viewers as fast as possible. The figure is the number of
// subscribe requests that reach the host.
func (b *testbed) audienceJoins(w *audienceWay, relay *system, many int) (f Figure, err error) {
	var before, after int64
	if err := b.host.Call("Host.Asked", "subscribe", &before); err != nil {
		return f, err
	}
	began := time.Now()
	if w.crowd, err = b.join(relay, "all", many, 0, actionSize); err != nil {
		return f, err
	}
	took := time.Since(began)
	if err := b.host.Call("Host.Asked", "subscribe", &after); err != nil {
		return f, err
	}
	each := float64(after-before) / (took.Seconds()/0.05 + 2) // the relay sends the first subscribe at once, and may delay the last
	return newFigure(fmt.Sprintf("%d viewers join in %.1f s: the host is asked", many, took.Seconds()), "subscribes for each 50 ms", series{each}).
		want(atMost(1)).means("A link that goes round a room costs the host nothing."), nil
}

// measureAudience lets the host stream on each way, in turns.
func (b *testbed) measureAudience(ways []*audienceWay, meter *stack.Meter) error {
	for _, w := range ways {
		if _, err := w.crowd.hear(told, b.long(200*time.Millisecond), false); err != nil {
			return err
		}
	}
	return b.rounds(func(int) error {
		for _, w := range ways {
			before := meter.Bytes()
			got, err := w.crowd.hear(told, b.long(1500*time.Millisecond), false, w.pays...)
			if err != nil {
				return err
			}
			n, total := float64(got.Actions), 0.0
			for _, used := range got.Others {
				total += micros(used) / n
			}
			w.cpu, w.host, w.sent = append(w.cpu, total), append(w.host, micros(got.Others[0])/n), append(w.sent, float64(meter.Bytes()-before)/n)
		}
		return nil
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
func (b *testbed) audienceDelays(relay *system, watched, straight *crowd, many int) (figures []Figure, err error) {
	for _, n := range []int{many, b.many(5 * many)} {
		if n != many {
			if watched, err = b.join(relay, "five-times", n, 0, actionSize); err != nil {
				return nil, err
			}
			if straight, err = b.join(straight.system, "straight-five", n, 0, actionSize); err != nil {
				return nil, err
			}
		}
		p50, p99 := make([]series, 2), make([]series, 2)
		err := b.rounds(func(int) error {
			for i, c := range []*crowd{watched, straight} {
				got, err := c.hear(spokenSlowly, b.long(2*time.Second), true)
				if err != nil {
					return err
				}
				p50[i], p99[i] = append(p50[i], ms(got.Delays.P50)), append(p99[i], ms(got.Delays.P99))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		work := fmt.Sprintf("%d viewers at 50 actions/s, ", n)
		f := newFigure(work+"p99", "ms", p99[0]).beside(straight.system.name, p99[0], p99[1])
		if n == many {
			f = f.want(ratioAtMost(1)).orient(atMost(20)).means("A room sees what the agent writes as it writes it.")
		}
		figures = append(figures, newFigure(work+"p50", "ms", p50[0]).beside(straight.system.name, p50[0], p50[1]), f)
	}
	return figures, nil
}
