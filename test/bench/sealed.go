package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/internal/connect"
	"ahprelay/internal/sealed"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
	"ahprelay/test/stack"
)

// sealedFlags returns the flags that make the host-agent seal its host.
func (s *site) sealedFlags() []string {
	if !s.cfg.sealed {
		return nil
	}
	dir := must.Get(os.MkdirTemp("", "ahp")) // short, because a socket's path has a limit
	s.bed.ends = append(s.bed.ends, func() { _ = os.RemoveAll(dir) })
	s.control.Path = filepath.Join(dir, "control.sock")
	return []string{"--sealed", "--control", s.control.Path, "--state-dir", filepath.Join(s.dataDir(), "agent")}
}

// pairTime limits the time for a pairing.
const pairTime = 2 * time.Minute

// code orders a pairing code for a device at the host.
func (s *site) code(ctx context.Context) (made hostagent.PairingCode) {
	await(ctx, func() (err error) { // the host may be online before the socket exists
		made, err = s.control.OrderDevices(ctx, hostagent.DeviceOrder{Do: "pair", Subject: "ada", Level: auth.AccessAdmin})
		return err
	})
	return made
}

// confirm confirms at the host the device that waits for it.
func (s *site) confirm(ctx context.Context) {
	await(ctx, func() error {
		list, err := s.control.Devices(ctx)
		if err == nil && len(list.Waiting) != 1 {
			err = fmt.Errorf("%d devices wait for a confirmation; want one", len(list.Waiting))
		}
		if err != nil {
			return err
		}
		_, err = s.control.OrderDevices(ctx, hostagent.DeviceOrder{Do: "confirm", Device: list.Waiting[0].Fingerprint})
		return err
	})
}

// pair pairs the load generators, as one device, with the sealed host.
func (s *site) pair() *loadgen.Seal {
	ctx, cancel := context.WithTimeout(s.bed.ctx, pairTime)
	defer cancel()
	home := &connect.Home{Dir: filepath.Join(s.dataDir(), "connect")}
	file := filepath.Join(home.Dir, "token")
	must.Do(os.MkdirAll(home.Dir, 0o700))
	must.Do(os.WriteFile(file, []byte(s.tokens(0)[0]), 0o600))
	code := must.Get(sealed.ParseCode(s.code(ctx).Code))
	relays := connect.NewRelays(connect.NewRelay(s.url(), connect.FileTokens(file))).Seal(home)
	p, err := relays.All()[0].Pair(ctx, home, connect.PairConfig{Host: hostName(0), Code: code, Name: "load", Pending: func(*connect.Pairing) {
		if err := must.Catch(func() { s.confirm(ctx) }); err != nil {
			s.bed.say("%v", err)
			cancel()
		}
	}})
	must.Do(err)
	return &loadgen.Seal{Host: hostName(0), Key: p.Key[:], Device: must.Get(p.Device.Private())}
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
func (b *testbed) sealedWays(name string, natsTCP bool, upstreams ...string) (p *pairOfWays) {
	p = &pairOfWays{}
	for i := range p.sites {
		p.sites[i], p.ways[i] = b.oneHost(siteConfig{
			name: name + "-" + sealedNames[i], natsTCP: natsTCP, sealed: i == 1, upstreams: upstreams,
			between: b.metered(&p.meters[i]),
		})
	}
	return p
}

func (p *pairOfWays) end() {
	for _, s := range p.sites {
		s.end()
	}
}

// sealedCost measures a sealed host and an unsealed host in turns.
func sealedCost(b *testbed) []Figure {
	return slices.Concat(sealedUplink(b), sealedFanout(b), sealedAudience(b), sealedLatency(b), sealedConsole(b))
}

// sealedUplink measures what the part uplink measures, at a sealed host.
func sealedUplink(b *testbed) (figures []Figure) {
	ways := []struct {
		name    string
		natsTCP bool
		meaning string
	}{
		{"NATS over TCP", true, "A sealed message leaves the host's machine once, with 16 bytes for each viewer."},
		{"through the relay's port", false, "What is sealed cannot be compressed on the way."},
	}
	for _, way := range ways[b.unlessTiny(0, 1):] { // the ways differ only in a flag
		p := b.sealedWays(fmt.Sprint("uplink-", way.natsTCP), way.natsTCP)
		crowds := b.warm(p.ways[:], fmt.Sprint("uplink-", way.natsTCP), b.many(uplinkClients), 0, uplinkSize, spoken, 100*time.Millisecond)
		var sent [2]series
		b.rounds(func(int) {
			for i, c := range crowds {
				sent[i] = append(sent[i], c.uplinkMB(p.meters[i]))
			}
		})
		p.end()
		work := fmt.Sprintf("%d clients × %d actions of 1 KB, %s", uplinkClients, uplinkActions, way.name)
		figures = append(figures, newFigure(work, "MB", sent[1]).beside(unsealedName, sent[1], sent[0]).want(ratioAtMost(2)).means(way.meaning))
	}
	return figures
}

// sealedFanout measures what the part fanout measures, at a sealed host.
func sealedFanout(b *testbed) []Figure {
	p := b.sealedWays("fanout", false)
	defer p.end()
	const n = 100
	crowds := b.warm(p.ways[:], "fanout", b.many(n), 0, actionSize, saturated(n), 100*time.Millisecond)
	var relay, agent [2]series
	b.rounds(func(int) {
		for range 2 {
			for i, c := range crowds {
				got := c.hear(saturated(n), b.long(roundTime), false, p.sites[i].agents[0].Pid())
				relay[i] = append(relay[i], got.perCPU()/1e6)
				agent[i] = append(agent[i], float64(got.Delivered)/got.Others[0].Seconds()/1e6)
			}
		}
	})
	work := fmt.Sprintf("%d clients, saturated", n)
	return []Figure{
		newFigure(work, deliveries, relay[1]).beside(unsealedName, relay[1], relay[0]).want(ratioAtLeast(0.8)).means("A relay carries nearly as many viewers of a sealed host."),
		newFigure(work+", of the host-agent", deliveries, agent[1]).beside(unsealedName, agent[1], agent[0]),
	}
}

// pairedTurns is how often each way is measured for a latency.
const pairedTurns = 10

// sealedLatency measures how much time sealing adds to a request and its response.
func sealedLatency(b *testbed) []Figure {
	p := b.sealedWays("latency", false)
	defer p.end()
	for i, way := range p.ways {
		way.callers(b.clients, sealedNames[i], 1)
		b.ask(sealedNames[i], 200*time.Millisecond) // warms up
	}
	var p50 [2]series
	turns := b.unlessTiny(max(pairedTurns, b.o.Rounds), 1)
	b.inTurns(turns, func(i int) { p50[i] = append(p50[i], ms(b.ask(sealedNames[i], 400*time.Millisecond).P50)) })
	return []Figure{
		newFigure("request and answer of 512 B, added p50", "ms", p50[1].less(p50[0])).want(atMost(0.15)).means("A keystroke takes this much longer at a sealed host."),
		newFigure("request and answer of 512 B, p50", "ms", p50[1]).beside(unsealedName, p50[1], p50[0]),
	}
}
