package scale

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/load"
	"ahprelay/test/must"

	"github.com/nats-io/nkeys"
)

// Sizes are the numbers and durations of a run. The tags describe flags of bench scale.
type Sizes struct {
	Few        int           `default:"1000" help:"Hosts between which costs are compared (${default})."`
	Many       int           `default:"50000" help:"Hosts between which costs are compared (${default})."`
	Restart    int           `default:"20000" help:"Hosts of a cluster that is restarted (${default})."`
	Hosts      int           `default:"100000" help:"Idle hosts (${default})."`
	Relays     int           `default:"10" help:"Relays of idle hosts (${default})."`
	Watch      time.Duration `default:"20s" help:"How long idle and distant hosts are measured (${default})."`
	Tenants    []int         `default:"1000,10000" help:"Tenants, each with a single host (${default})."`
	Far        int           `default:"5000" help:"Hosts of relays that are far from each other (${default})."`
	Delay      time.Duration `default:"35ms" help:"Between those, each way (${default})."`
	Changes    int           `default:"20" help:"Changes of a distant host (${default})."`
	Cut        time.Duration `default:"40s" help:"How long a relay is isolated (${default})."`
	Sessions   int           `default:"100" help:"Remembered sessions of each of the few hosts (${default})."`
	Real       int           `default:"20000" help:"Host-agents with connections of their own (${default})."`
	Apart      int           `default:"3000" help:"Host-agents with connections of their own at a cluster that is cut in two (${default})."`
	RealRelays int           `default:"4" help:"Relays of --real host-agents (${default}). After a crash, each other relay has up to two connections for each of its host-agents."`
}

// A Plan describes a run.
type Plan struct {
	Sizes
	Renew time.Duration // how often a host-agent of a Fleet renews its lease; default 5 s
}

// A Measurement makes rows of the table with a cluster that has not started.
type Measurement struct {
	Name   string
	Relays int // of the cluster; -1: Sizes.Relays
	Run    func(context.Context, *Cluster, *Plan) []Row
}

// Measurements are all measurements, in the order of the table.
var Measurements = []Measurement{
	{"costs", 1, costs}, {"tenants", 1, tenants}, {"restart", 3, restart}, {"idle", -1, idle}, {"remembered", 1, rememberedSessions},
	{"far", 3, far}, {"regions", 3, regions}, {"partition", 3, partition}, {"clients", 3, partitionClients}, {"moves", 3, partitionMoves},
	{"real", 0, realAgents}, {"shortage", 0, shortage},
}

// Measure runs the measurement in a new directory.
func (m Measurement) Measure(ctx context.Context, p *Plan, dir string, log *slog.Logger) (rows []Row, err error) {
	relays := m.Relays
	if relays < 0 {
		relays = p.Relays
	}
	c, err := NewCluster(dir, relays, log)
	if err != nil {
		return nil, err
	}
	err = must.Catch(func() { rows = m.Run(ctx, c, p) })
	return rows, err
}

// A Row is a line in the table of measurements.
type Row struct {
	Name   string
	Got    string
	Wanted string
	Good   bool
}

// within returns a row with a time that must not be above a limit. digits is the unit to
// which the time is rounded.
func within(name string, took, most, digits time.Duration) Row {
	return Row{Name: name, Got: took.Round(digits).String(), Wanted: "≤ " + most.String(), Good: took <= most}
}

// none returns a row with a number that must be 0.
func none(name string, n int) Row {
	return Row{Name: name, Got: strconv.Itoa(n), Wanted: "0", Good: n == 0}
}

// FleetTenants is the number of tenants in a fleet.
const FleetTenants = 10

// costRuns is how often costs are measured. The lowest result counts, because other
// work on the machine has disturbed it least.
const costRuns = 5

// costs measures the time for issuing a credential, granting a lease and changing
// presence, at relays with few and with many hosts.
func costs(ctx context.Context, c *Cluster, s *Plan) []Row {
	c.Start(ctx)
	defer c.Stop()
	r := c.Relays[0]
	var before map[string]time.Duration
	var rows []Row
	for known, n := range []int{s.Few, s.Many} {
		for i := known * s.Few; i < n; i++ {
			must.Do(r.Registry.Enrol("costs", fmt.Sprintf("host-%d", i)))
		}
		took := map[string]time.Duration{}
		for again := range costRuns {
			for what, t := range r.costs(ctx, n, again) {
				if least := took[what]; least == 0 || t < least {
					took[what] = t
				}
			}
		}
		if before == nil {
			before = took
			continue
		}
		for _, what := range slices.Sorted(maps.Keys(took)) {
			ratio := float64(took[what]) / float64(before[what])
			rows = append(rows, Row{
				Name: fmt.Sprintf("cost of %s at %d and at %d hosts", what, s.Few, s.Many),
				Got:  fmt.Sprintf("%v, %v: × %.2f", before[what].Round(time.Microsecond), took[what].Round(time.Microsecond), ratio), Wanted: "≤ × 1.2", Good: ratio < 1.2,
			})
		}
	}
	return rows
}

// costs measures the time for each step. Each run uses new instances of host-agents.
func (r *Relay) costs(ctx context.Context, hosts, run int) map[string]time.Duration {
	rounds := min(500, hosts)
	conn := r.connect("costs")
	defer conn.Close()
	pair := must.Get(nkeys.CreateUser())
	nkey := must.Get(pair.PublicKey())
	all, askers := map[string][]time.Duration{}, map[string]*asker{}
	name := func(i int) string { return fmt.Sprintf("host-%d", i*hosts/rounds) }
	for i := range rounds {
		if host := name(i); askers[host] == nil {
			askers[host] = askFor(conn, "costs", host)
		}
	}
	must.Do(conn.Flush()) // the relay knows all subscriptions before a step is timed
	for i := range rounds {
		host := name(i)
		e := auth.Enrolment{ID: "t", Tenant: "costs", Host: host, IssuedAt: time.Now()}
		timed(all, "a credential", func() error { return r.Registry.Admit(ctx, e, nkey, time.Now().Add(time.Hour)) })
		instance := fmt.Sprintf("agent-%d-%d-%d", hosts, run, i)
		for seq, step := range []struct{ what, op, state string }{
			{"a lease", "hold", "online"}, {"a renewal", "hold", "online"}, {"a change of presence", "hold", "offline"}, {"the end of a lease", "release", "offline"},
		} {
			body := fmt.Sprintf(`{"op":%q,"instance":%q,"seq":%d,"presence":{"state":%q,"wire":[%d,%d]}}`, step.op, instance, seq+1, step.state, link.WireMin, link.WireMax)
			timed(all, step.what, func() error {
				_, err := askers[host].ask(ctx, "lease", []byte(body), time.Second)
				return err
			})
		}
	}
	took := map[string]time.Duration{}
	for what, list := range all {
		took[what] = middle(list)
	}
	return took
}

// middle returns the mean of a list without its fastest and its slowest tenth. The
// times of operations with a write and without a write form two groups, and a median
// could jump between them.
func middle(list []time.Duration) (mean time.Duration) {
	slices.Sort(list)
	list = list[len(list)/10 : len(list)-len(list)/10]
	for _, t := range list {
		mean += t / time.Duration(len(list))
	}
	return mean
}

func timed(all map[string][]time.Duration, what string, do func() error) {
	start := time.Now()
	must.Do(do())
	all[what] = append(all[what], time.Since(start))
}

// restart stops and starts all relays of a cluster, and measures until its many hosts
// are online again.
func restart(ctx context.Context, c *Cluster, s *Plan) []Row {
	c.Start(ctx)
	defer c.Stop()
	row := func(name string, start time.Time, holds func() bool, wanted time.Duration) Row {
		defer s.fleet(ctx, c, s.Restart)()
		must.Do(await(ctx, holds))
		return within(name, time.Since(start), wanted, 10*time.Millisecond)
	}
	online := func() bool {
		return !slices.ContainsFunc(c.Relays, func(r *Relay) bool { return r.Online(FleetTenants) < s.Restart })
	}
	first := row(fmt.Sprintf("%d new hosts online, as three relays see it", s.Restart), time.Now(), online, time.Minute)
	c.Stop()
	start := time.Now()
	c.Start(ctx)
	kept := func() bool {
		n := 0
		for _, r := range c.Relays {
			n += r.Registry.Stats().Kept
		}
		return n >= s.Restart && online()
	}
	second := row(fmt.Sprintf("whole cluster restarted with %d hosts: all online", s.Restart), start, kept, 30*time.Second)
	return []Row{first, second}
}

// idle measures relays with many idle hosts, and again while a further relay joins. It
// sends no pings on the hosts' connections; make bench ARGS=hosts includes them.
func idle(ctx context.Context, c *Cluster, s *Plan) []Row {
	c.Start(ctx)
	defer c.Stop()
	c.Attend(s.Hosts)
	defer s.fleet(ctx, c, s.Hosts)()
	online := func() bool {
		return !slices.ContainsFunc(c.Relays, func(r *Relay) bool { return r.Online(FleetTenants) < s.Hosts })
	}
	must.Within("hosts come online", func() { must.Do(await(ctx, online)) })
	load.Pause(ctx, 2*s.Watch) // until files are written and memory is released
	writes, cpu, began := c.writes(), processorTime(), time.Now()
	load.Pause(ctx, s.Watch)
	cores := float64(processorTime()-cpu) / float64(time.Since(began))
	writes = c.writes() - writes
	rows := []Row{{
		Name: fmt.Sprintf("%d idle hosts at %d relays: processors, of all relays and their NATS servers", s.Hosts, s.Relays),
		Got:  fmt.Sprintf("%.2f (%d writes in %v)", cores, writes, s.Watch), Wanted: "≤ 1", Good: cores <= 1,
	}}
	began = time.Now()
	help(ctx, c.dir, "Join", Joiner{c.dir, c.routes, len(c.Relays), s.Hosts})()
	return append(rows, within(fmt.Sprintf("another relay joins, and knows all %d hosts", s.Hosts), time.Since(began), 2*time.Second, 10*time.Millisecond))
}

func (c *Cluster) writes() (n uint64) {
	for _, r := range c.Relays {
		n += r.Registry.Stats().Writes
	}
	return n
}

// processorTime returns the processor time that this process has used.
func processorTime() time.Duration { return must.Get(loadgen.CPU(os.Getpid())) }
