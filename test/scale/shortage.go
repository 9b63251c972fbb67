package scale

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"ahprelay/test/load"
	"ahprelay/test/must"
)

// A Shortage measures a relay with a single processor at which four times as many new
// host-agents arrive as it can admit. Each arrival requests credentials, opens a
// WebSocket, logs in at NATS and takes a lease. The same relay with a few arrivals at a
// time shows the peak, in the same round.
type Shortage struct {
	Programs string // directory of the programs
	Dir      string
	Rounds   int
	For      time.Duration // how long arrivals are counted
	Most     int           // host-agents at a time
}

// shortage runs a Shortage.
func shortage(ctx context.Context, c *Cluster, _ *Plan) []Row {
	run := Shortage{Programs: build(ctx, c.dir), Dir: c.dir, Rounds: 3, For: 5 * time.Second, Most: 12000}
	return must.Get(run.Run(ctx))
}

// overload is how many times as many host-agents arrive as the relay can admit.
const overload = 4

// fewArrivals is how many host-agents arrive at a time at the peak.
const fewArrivals = 64

// goodputLeast limits the rate at overload, beside the peak.
const goodputLeast = 0.8

// An arrival is the result of host-agents that arrive.
type arrival struct {
	offered, came int           // host-agents that came, and those that were online at the end of the count
	rate          float64       // host-agents that came online in a second
	each          time.Duration // processor time of the relay, for each of these
	all           time.Duration // until all were online
}

// Run measures all rows.
func (s *Shortage) Run(ctx context.Context) (rows []Row, err error) {
	err = must.Catch(func() {
		var peaks, overs []arrival
		for i := range s.Rounds {
			peak := s.arrive(ctx, fmt.Sprintf("peak-%d", i), 0)
			peaks, overs = append(peaks, peak), append(overs, s.arrive(ctx, fmt.Sprintf("overload-%d", i), overload*peak.rate))
		}
		rows = shortageRows(peaks, overs)
	})
	return rows, err
}

// arrive starts a relay, and host-agents that arrive at a rate in a second. With 0,
// fewArrivals arrive at a time.
func (s *Shortage) arrive(ctx context.Context, name string, rate float64) (a arrival) {
	r := RealRun{Programs: s.Programs, Dir: filepath.Join(s.Dir, name), Hosts: s.Most, Relays: 1, Env: []string{"GOMAXPROCS=1"}}
	defer r.end()
	r.prepare(ctx)
	how := Agents{AtOnce: fewArrivals}
	if rate > 0 {
		r.Hosts = min(s.Most, max(1, int(rate*s.For.Seconds())))
		how = Agents{Every: time.Duration(float64(time.Second) / rate)}
	}
	r.startAgents(ctx, how)
	if err := must.Catch(func() { a = r.count(ctx, s.For) }); err != nil {
		must.Do(errors.Join(err, r.bench.Verify()))
	}
	a.offered = r.Hosts
	if rate > 0 {
		began := time.Now()
		r.awaitAll(ctx, r.relays)
		a.all = s.For + time.Since(began)
	}
	must.Do(r.bench.Verify())
	return a
}

// count counts the host-agents that come online in a time, from the first one on. It ends
// early when all are online.
func (r *RealRun) count(ctx context.Context, long time.Duration) (a arrival) {
	relay := r.relays[0]
	var began time.Time
	var first int
	var used time.Duration
	for {
		a.came = must.Get(relay.metrics.Held(ctx))
		switch {
		case a.came == 0:
		case began.IsZero():
			began, first = time.Now(), a.came
			used = processors(ctx, r.relays)
		case time.Since(began) >= long || a.came >= r.Hosts:
			took := time.Since(began)
			now := processors(ctx, r.relays)
			a.rate = float64(a.came-first) / took.Seconds()
			a.each = (now - used) / time.Duration(max(1, a.came-first))
			return a
		}
		load.Pause(ctx, countEvery)
		must.Do(context.Cause(ctx))
	}
}

// countEvery is the pause between two looks at the number of host-agents.
const countEvery = 200 * time.Millisecond

func shortageRows(peaks, overs []arrival) []Row {
	var ratios, costs []float64
	var rates, peakRates []float64
	var each, peakEach, waits []time.Duration
	offered := 0
	for i, o := range overs {
		p := peaks[i]
		offered = max(offered, o.offered)
		rates, peakRates, ratios = append(rates, o.rate), append(peakRates, p.rate), append(ratios, o.rate/p.rate)
		each, peakEach, costs = append(each, o.each), append(peakEach, p.each), append(costs, float64(o.each)/float64(p.each))
		waits = append(waits, o.all)
	}
	ratio, cost := median(ratios), median(costs)
	name := fmt.Sprintf("%d times as many new host-agents as a relay with one processor can admit, up to %d (no hosts or compression; relay and host-agents share the machine)", overload, offered)
	return []Row{
		{
			Name:   name + ": online in a second, beside the peak in the same round",
			Got:    fmt.Sprintf("%.0f (%.0f–%.0f), peak %.0f (%.0f–%.0f): × %.2f (%.2f–%.2f)", median(rates), slices.Min(rates), slices.Max(rates), median(peakRates), slices.Min(peakRates), slices.Max(peakRates), ratio, slices.Min(ratios), slices.Max(ratios)),
			Wanted: fmt.Sprintf("≥ × %.1f", goodputLeast), Good: ratio >= goodputLeast,
		},
		{
			Name:   name + ": the relay, for each that came online, beside the peak",
			Got:    fmt.Sprintf("%v of processor, %v at the peak: × %.2f (%.2f–%.2f)", median(each).Round(10*time.Microsecond), median(peakEach).Round(10*time.Microsecond), cost, slices.Min(costs), slices.Max(costs)),
			Wanted: fmt.Sprintf("≤ × %.2f", 1/goodputLeast), Good: cost <= 1/goodputLeast,
		},
		{
			Name: name + ": all came online, from the first on", Got: fmt.Sprintf("%v (%v–%v)", median(waits).Round(100*time.Millisecond), slices.Min(waits).Round(100*time.Millisecond), slices.Max(waits).Round(100*time.Millisecond)),
			Wanted: "all do", Good: true,
		},
	}
}

// median returns the middle of some values.
func median[T float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
