package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/internal/connect"
	"ahprelay/internal/sealed"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/stack"
)

// sealedFlags returns the flags that make the host-agent seal its host.
func (s *site) sealedFlags() ([]string, error) {
	if !s.cfg.sealed {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "ahp") // short, because a socket's path has a limit
	if err != nil {
		return nil, err
	}
	s.bed.ends = append(s.bed.ends, func() { _ = os.RemoveAll(dir) })
	s.control.Path = filepath.Join(dir, "control.sock")
	return []string{"--sealed", "--control", s.control.Path, "--state-dir", filepath.Join(s.dataDir(), "agent")}, nil
}

// pairTime limits the time for a pairing.
const pairTime = 2 * time.Minute

// code orders a pairing code for a device at the host.
func (s *site) code(ctx context.Context) (made hostagent.PairingCode, err error) {
	err = await(ctx, func() error { // the host may be online before the socket exists
		made, err = s.control.OrderDevices(ctx, hostagent.DeviceOrder{Do: "pair", Subject: "ada", Level: auth.AccessAdmin})
		return err
	})
	return made, err
}

// confirm confirms at the host the device that waits for it.
func (s *site) confirm(ctx context.Context) error {
	return await(ctx, func() error {
		list, err := s.control.Devices(ctx)
		if err != nil {
			return err
		}
		if len(list.Waiting) != 1 {
			return fmt.Errorf("%d devices wait for a confirmation; want one", len(list.Waiting))
		}
		_, err = s.control.OrderDevices(ctx, hostagent.DeviceOrder{Do: "confirm", Device: list.Waiting[0].Fingerprint})
		return err
	})
}

// pair pairs the load generators, as one device, with the sealed host.
func (s *site) pair() (*loadgen.Seal, error) {
	ctx, cancel := context.WithTimeout(s.bed.ctx, pairTime)
	defer cancel()
	tokens, err := s.tokens(0)
	if err != nil {
		return nil, err
	}
	home := &connect.Home{Dir: filepath.Join(s.dataDir(), "connect")}
	file := filepath.Join(home.Dir, "token")
	if err := os.MkdirAll(home.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, []byte(tokens[0]), 0o600); err != nil {
		return nil, err
	}
	shown, err := s.code(ctx)
	if err != nil {
		return nil, err
	}
	code, err := sealed.ParseCode(shown.Code)
	if err != nil {
		return nil, err
	}
	relays := connect.NewRelays(connect.NewRelay(s.url(), connect.FileTokens(file))).Seal(home)
	p, err := relays.All()[0].Pair(ctx, home, connect.PairConfig{Host: hostName(0), Code: code, Name: "load", Pending: func(*connect.Pairing) {
		if err := s.confirm(ctx); err != nil {
			s.bed.say("%v", err)
			cancel()
		}
	}})
	if err != nil {
		return nil, err
	}
	device, err := p.Device.Private()
	return &loadgen.Seal{Host: hostName(0), Key: p.Key[:], Device: device}, err
}

// A pairOfWays has two equal sites: the host of the first is not sealed, and the host
// of the second is.
type pairOfWays struct {
	sites  [2]*site
	ways   [2]*system
	meters [2]*stack.Meter
}

// sealedNames are the names of the two ways.
var sealedNames = [2]string{"plain", "sealed"}

// unsealedName is the name for the unsealed way in a comparison.
const unsealedName = "not sealed"

// sealedWays starts both sites.
func (b *testbed) sealedWays(name string, natsTCP bool, upstreams ...string) (p *pairOfWays, err error) {
	p = &pairOfWays{}
	for i := range p.sites {
		p.sites[i], err = b.site(siteConfig{
			name: name + "-" + sealedNames[i], natsTCP: natsTCP, sealed: i == 1, upstreams: upstreams,
			between: b.metered(&p.meters[i]),
		})
		if err != nil {
			return nil, err
		}
		if p.ways[i], err = p.sites[i].system(0); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *pairOfWays) end() {
	for _, s := range p.sites {
		s.end()
	}
}

// sealedCost measures a sealed host and an unsealed host in turns.
func sealedCost(b *testbed) (figures []Figure, err error) {
	for _, part := range []func(*testbed) ([]Figure, error){sealedUplink, sealedFanout, sealedAudience, sealedLatency, sealedConsole} {
		more, err := part(b)
		figures = append(figures, more...)
		if err != nil {
			return figures, err
		}
	}
	return figures, nil
}

// sealedUplink measures what the part uplink measures, at a sealed host.
func sealedUplink(b *testbed) (figures []Figure, err error) {
	for _, way := range []struct {
		name    string
		natsTCP bool
		meaning string
	}{
		{"NATS over TCP", true, "A sealed message leaves the host's machine once, with 16 bytes for each viewer."},
		{"through the relay's port", false, "What is sealed cannot be compressed on the way."},
	} {
		p, err := b.sealedWays(fmt.Sprint("uplink-", way.natsTCP), way.natsTCP)
		if err != nil {
			return nil, err
		}
		crowds, err := b.sealedCrowds(p, "uplink-"+fmt.Sprint(way.natsTCP), b.many(uplinkClients), uplinkSize, spoken)
		if err != nil {
			return nil, err
		}
		var sent [2]series
		err = b.rounds(func(int) error {
			for i, c := range crowds {
				before := p.meters[i].Bytes()
				got, err := c.hear(spoken, b.long(uplinkActions*spoken.Every), false)
				if err != nil {
					return err
				}
				sent[i] = append(sent[i], float64(p.meters[i].Bytes()-before)/float64(got.Actions)*uplinkActions/1e6)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		p.end()
		work := fmt.Sprintf("%d clients × %d actions of 1 KB, %s", uplinkClients, uplinkActions, way.name)
		figures = append(figures, newFigure(work, "MB", sent[1]).beside(unsealedName, sent[1], sent[0]).want(ratioAtMost(2)).means(way.meaning))
	}
	return figures, nil
}

// sealedCrowds connects readers to both ways, and streams once, so that the host-agents
// know the readers.
func (b *testbed) sealedCrowds(p *pairOfWays, name string, readers, size int, pace loadgen.Pace) (crowds [2]*crowd, err error) {
	for i, way := range p.ways {
		if crowds[i], err = b.join(way, name+"-"+sealedNames[i], readers, 0, size); err != nil {
			return crowds, err
		}
		if _, err := crowds[i].hear(pace, b.long(100*time.Millisecond), false); err != nil {
			return crowds, err
		}
	}
	return crowds, nil
}

// sealedFanout measures what the part fanout measures, at a sealed host.
func sealedFanout(b *testbed) ([]Figure, error) {
	p, err := b.sealedWays("fanout", false)
	if err != nil {
		return nil, err
	}
	defer p.end()
	const n = 100
	crowds, err := b.sealedCrowds(p, "fanout", b.many(n), actionSize, saturated(n))
	if err != nil {
		return nil, err
	}
	var relay, agent [2]series
	err = b.rounds(func(int) error {
		for range 2 {
			for i, c := range crowds {
				got, err := c.hear(saturated(n), b.long(roundTime), false, p.sites[i].agents[0].Pid())
				if err != nil {
					return err
				}
				relay[i] = append(relay[i], got.perCPU()/1e6)
				agent[i] = append(agent[i], float64(got.Delivered)/got.Others[0].Seconds()/1e6)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	work := fmt.Sprintf("%d clients, saturated", n)
	return []Figure{
		newFigure(work, deliveries, relay[1]).beside(unsealedName, relay[1], relay[0]).want(ratioAtLeast(0.8)).means("A relay carries nearly as many viewers of a sealed host."),
		newFigure(work+", of the host-agent", deliveries, agent[1]).beside(unsealedName, agent[1], agent[0]),
	}, nil
}

// pairedTurns is how often each way is measured for a latency.
const pairedTurns = 10

// sealedLatency measures how much time sealing adds to a request and its response.
func sealedLatency(b *testbed) ([]Figure, error) {
	p, err := b.sealedWays("latency", false)
	if err != nil {
		return nil, err
	}
	defer p.end()
	for i, way := range p.ways {
		if err := way.callers(b.clients, sealedNames[i], 1); err != nil {
			return nil, err
		}
		if _, err := b.ask(sealedNames[i], 200*time.Millisecond); err != nil { // warms up
			return nil, err
		}
	}
	var p50 [2]series
	turns := max(pairedTurns, b.o.Rounds)
	if b.o.Tiny {
		turns = 1
	}
	for turn := range turns {
		for j := range sealedNames { // in every other turn, each way is measured first
			i := (turn + j) % 2
			delays, err := b.ask(sealedNames[i], 400*time.Millisecond)
			if err != nil {
				return nil, err
			}
			p50[i] = append(p50[i], ms(delays.P50))
		}
	}
	return []Figure{
		newFigure("request and answer of 512 B, added p50", "ms", p50[1].less(p50[0])).want(atMost(0.15)).means("A keystroke takes this much longer at a sealed host."),
		newFigure("request and answer of 512 B, p50", "ms", p50[1]).beside(unsealedName, p50[1], p50[0]),
	}, nil
}
