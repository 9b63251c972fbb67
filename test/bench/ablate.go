package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
	"ahprelay/test/procs"
)

// A quantity is something that is measured. Lower values are better.
type quantity struct{ work, unit string }

// These quantities may change with a mechanism. They are measured with 100 clients
// unless they name another number.
var (
	relayFull   = quantity{"saturated: of the relay", "µs a delivery"}
	agentFull   = quantity{"saturated: of the host-agent", "µs a delivery"}
	relayBursts = quantity{"bursts of 20: of the relay", "µs a delivery"}
	agentBursts = quantity{"bursts of 20: of the host-agent", "µs a delivery"}
	burstDelay  = quantity{"bursts of 20: p50", "ms"}
	askDelay    = quantity{"request and answer of 512 B: p50", "ms"}
	askCost     = quantity{"request and answer of 512 B: of relay and host-agent", "µs"}
	relayIdle   = quantity{"idle client: of the relay", "KiB"}
	agentIdle   = quantity{"idle client: of the host-agent", "KiB"}
	tlsIdleCost = quantity{"idle client with TLS: of the relay", "KiB"}
	stallDelay  = quantity{"request and answer of 512 B beside 2,000 stalled readers of another tenant: p99", "ms"}
	returnCost  = quantity{"a host-agent of 500 comes back to a restarted relay: of the relay, with its start", "ms"}
)

// An ablation is a mechanism in package ablation, with the quantities that it may
// improve or worsen.
type ablation struct {
	name string
	what []quantity
}

var ablations = []ablation{
	{"small-stacks", []quantity{relayIdle, agentIdle, tlsIdleCost, askDelay, askCost}},
	{"late-buffers", []quantity{agentIdle, agentFull}},
	{"give-back", []quantity{relayIdle, agentIdle}},
	{"busy-garbage", []quantity{relayFull, agentFull, relayBursts, agentBursts, burstDelay, returnCost}},
	{"rows", []quantity{relayFull, relayBursts}},
	{"frame-cache", []quantity{agentFull, agentBursts}},
	{timerSlack, []quantity{relayFull, agentFull, relayBursts, agentBursts, burstDelay, askDelay, askCost}},
	{"write-turns", []quantity{stallDelay, relayFull, relayBursts, burstDelay}},
	{"delays", []quantity{relayFull, agentFull, askCost}},
}

// timerSlack is no mechanism of the programs: the system sets it (TimerSlackNSec in the
// systemd units), and here the benchmark sets it. Without it, relay and host-agent have
// the kernel's default.
const timerSlack = "timer-slack"

// withoutVariable is an environment variable. The programs that linkAblated builds
// leave out the mechanism that it names.
const withoutVariable = "AHP_BENCH_WITHOUT"

// A variant is a site with programs that run with a mechanism or without it.
type variant struct {
	*site
	crowd *crowd
	is    map[quantity]series
}

// ablate measures what each mechanism improves. The same programs run with the
// mechanism and without it, in turns.
func ablate(b *testbed) (figures []Figure) {
	b.linkAblated()
	all := ablations
	if b.o.Tiny { // the programs in a tiny run have all mechanisms
		all = []ablation{everyQuantity()}
	}
	for _, a := range all {
		must.Within(a.name, func() { figures = append(figures, b.ablate(a)...) })
		b.say("%s", a.name)
	}
	return figures
}

// everyQuantity returns an ablation with each quantity of all ablations, once.
func everyQuantity() ablation {
	a := ablation{name: "everything"}
	for _, each := range ablations {
		for _, q := range each.what {
			if !slices.Contains(a.what, q) {
				a.what = append(a.what, q)
			}
		}
	}
	return a
}

// linkAblated builds programs that can leave out mechanisms, and makes the testbed use
// them.
func (b *testbed) linkAblated() {
	if b.o.Tiny {
		return
	}
	dir := filepath.Join(b.dir, "programs")
	must.Do(os.Mkdir(dir, 0o700))
	must.Do(procs.BuildWith(b.ctx, dir, "-X ahprelay/internal/ablation.variable="+withoutVariable))
	for _, program := range []string{procs.RelayProgram, procs.AgentProgram} {
		text := must.Get(os.ReadFile(filepath.Join(dir, program)))
		if !bytes.Contains(text, []byte(withoutVariable)) { // the linker reports no error for an unknown variable
			must.Fail("%s does not read %s", program, withoutVariable)
		}
	}
	b.bench.Programs = dir
}

// ablate measures a single mechanism. It returns a figure for each quantity.
func (b *testbed) ablate(a ablation) []Figure {
	var pair [2]*variant // site with the mechanism, and site without it
	for i := range pair {
		pair[i] = &variant{is: map[quantity]series{}}
	}
	if slices.ContainsFunc(a.what, func(q quantity) bool {
		return q != relayIdle && q != agentIdle && q != tlsIdleCost && q != returnCost && q != stallDelay
	}) {
		b.ablateBusy(a, pair)
	}
	if slices.Contains(a.what, returnCost) {
		b.ablateReturns(a, pair)
	}
	if slices.Contains(a.what, stallDelay) {
		b.ablateStalled(a, pair)
	}
	for _, q := range []struct {
		tls bool
		of  []quantity
	}{{false, []quantity{relayIdle, agentIdle}}, {true, []quantity{tlsIdleCost}}} {
		if !slices.ContainsFunc(a.what, func(w quantity) bool { return slices.Contains(q.of, w) }) {
			continue
		}
		b.ablateIdle(a, pair, q.tls, q.of)
	}
	var figures []Figure
	for _, q := range a.what {
		with, without := pair[0].is[q], pair[1].is[q]
		figures = append(figures, newFigure(a.name+", "+q.work, q.unit, with).beside("without it", with, without))
	}
	return figures
}

// variant starts a site for variant i of an ablation: with the mechanism, or without
// it.
func (b *testbed) variant(a ablation, i int, cfg siteConfig) (*site, *system) {
	defer b.as(a, i)()
	cfg.name = fmt.Sprintf("%s-%s-%d", cfg.name, a.name, i)
	return b.oneHost(cfg)
}

// as makes new processes belong to variant i of an ablation, until end.
func (b *testbed) as(a ablation, i int) (end func()) {
	env := b.bench.Env
	switch {
	case i == 0:
	case a.name == timerSlack:
		b.bench.Slack = procs.KernelSlack
	default:
		b.bench.Env = append(slices.Clip(env), withoutVariable+"="+a.name)
	}
	return func() { b.bench.Env, b.bench.Slack = env, 0 }
}

// ablateReturns measures a pair of variants while many host-agents come back.
func (b *testbed) ablateReturns(a ablation, pair [2]*variant) {
	n := b.many(returningHosts)
	var sites [2]*meteredSite
	for i := range sites {
		end := b.as(a, i)
		sites[i] = b.siteWithMetrics(siteConfig{name: fmt.Sprintf("returns-%s-%d", a.name, i), hosts: n, together: true})
		end()
		defer sites[i].end()
	}
	b.inTurns(b.o.Rounds, func(i int) {
		used, _ := sites[i].restart(n)
		pair[i].note(returnCost, ms(used)/float64(n))
	})
}

// ablateStalled measures the requests of a tenant while another tenant's clients read nothing.
func (b *testbed) ablateStalled(a ablation, pair [2]*variant) {
	other, busyURL := b.noisy("stalled-" + a.name)
	var stalls [2]*noise
	var names [2]string
	for i := range pair {
		names[i] = fmt.Sprintf("stalled-%s-%d", a.name, i)
		end := b.as(a, i)
		s := b.site(siteConfig{name: names[i], hosts: 2, tenants: []string{"quiet", "busy"}, upstreams: []string{b.hostURL, busyURL}, relayFlags: audienceLimits})
		end()
		defer s.end()
		other.onlyIdle(s.agents[1].Pid())
		s.system(0).callers(b.clients, names[i], b.many(4))
		stalls[i] = other.stallers(s.system(1), names[i])
	}
	b.inTurns(b.o.Rounds, func(i int) {
		stalls[i].beside(func() loadgen.Delays { return b.exchange(names[i]) })
	})
	for i, v := range pair {
		v.is[stallDelay] = stalls[i].during[1]
	}
}

// ablateBusy measures a pair of variants while the host streams and while clients send
// requests.
func (b *testbed) ablateBusy(a ablation, pair [2]*variant) {
	wants := func(all ...quantity) bool {
		return slices.ContainsFunc(a.what, func(q quantity) bool { return slices.Contains(all, q) })
	}
	for i, v := range pair {
		s, way := b.variant(a, i, siteConfig{name: "busy"})
		defer s.end()
		v.site = s
		name := fmt.Sprintf("%s-%d", a.name, i)
		v.crowd = b.join(way, name, b.many(100), 0, actionSize)
		way.callers(b.clients, name, 1)
	}
	b.inTurns(2*b.o.Rounds, func(i int) {
		v := pair[i]
		if wants(relayFull, agentFull) {
			v.hear(saturated(100), roundTime, relayFull, agentFull, quantity{})
		}
		if wants(relayBursts, agentBursts, burstDelay) {
			v.hear(streaming, time.Second, relayBursts, agentBursts, burstDelay)
		}
		if wants(askDelay, askCost) {
			v.ask()
		}
	})
	for _, v := range pair {
		v.crowd.leave()
	}
}

// inTurns measures both of a pair, 0 and 1, the given number of times. In every other
// turn, each is measured first.
func (b *testbed) inTurns(times int, run func(i int)) {
	for round := range times {
		for i := range 2 {
			must.Do(b.ctx.Err())
			run((round + i) % 2)
		}
	}
}

// hear lets the host stream to the variant's clients, and records the cost and the
// delays.
func (v *variant) hear(pace loadgen.Pace, d time.Duration, ofRelay, ofAgent, delay quantity) {
	got := v.crowd.hear(pace, v.bed.long(d), true, v.agents[0].Pid())
	n := float64(got.Delivered)
	v.note(ofRelay, micros(got.CPU)/n)
	v.note(ofAgent, micros(got.Others[0])/n)
	v.note(delay, ms(got.Delays.P50))
}

func (v *variant) note(q quantity, value float64) { v.is[q] = append(v.is[q], value) }

// ask lets clients send requests, and records the cost and the delays.
func (v *variant) ask() {
	pids := []int{v.relay.Pid(), v.agents[0].Pid()}
	before := usedBy(pids)
	delays := v.bed.ask(v.crowd.groups[0], 400*time.Millisecond)
	after := usedBy(pids)
	v.note(askDelay, ms(delays.P50))
	v.note(askCost, micros(after[0]-before[0]+after[1]-before[1])/float64(delays.Count))
}

// ablateIdle measures the memory for idle clients. Each time, new processes run.
func (b *testbed) ablateIdle(a ablation, pair [2]*variant, tls bool, what []quantity) {
	n := b.many(2000)
	times := 0
	b.inTurns(min(b.o.Rounds, 3), func(i int) {
		times++
		s, way := b.variant(a, i, siteConfig{name: fmt.Sprintf("idle-%v-%d", tls, times), tls: tls})
		way.stop = s.end
		own := b.idle(way, n, s.relay.Pid(), s.agents[0].Pid())
		each := perClient(own)
		for k, q := range what {
			pair[i].note(q, each[k])
		}
		leave(own)
	})
}
