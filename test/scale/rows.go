package scale

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/link"

	"github.com/nats-io/nkeys"
)

// Sizes are the numbers and durations of a run.
type Sizes struct {
	Few, Many int           // numbers of hosts: the costs with Few are compared with those with Many
	Restart   int           // number of hosts at a cluster of three that restarts
	Hosts     int           // number of idle hosts
	Relays    int           // number of relays for the idle hosts
	Watch     time.Duration // how long idle and distant hosts are measured
	Tenants   []int         // numbers of tenants, each with a single host
	Far       int           // number of hosts at three relays that are far from each other
	Delay     time.Duration // delay between these relays, in each direction
	Changes   int           // number of changes of a distant host
	Cut       time.Duration // how long a relay is isolated
	Sessions  int           // remembered sessions of each host, of which there are Few

	Real       int // number of host-agents with their own connections
	RealRelays int // number of relays for these
	Apart      int // number of host-agents with their own connections at a cluster that is cut in two
}

// Full are the sizes with which make scale runs by default.
var Full = Sizes{Few: 1000, Many: 50000, Restart: 20000, Hosts: 100000, Relays: 10, Watch: 20 * time.Second, Tenants: []int{1000, 10000}, Far: 5000, Delay: 35 * time.Millisecond, Changes: 20, Cut: 40 * time.Second, Sessions: 100, Real: 20000, RealRelays: 4, Apart: 3000}

// A Row is a line in the table of measurements.
type Row struct {
	Name   string
	Got    string
	Wanted string
	Good   bool
}

// FleetTenants is the number of tenants in a fleet.
const FleetTenants = 10

// costRuns is how often costs are measured. The lowest result counts, because other
// work on the machine has disturbed it least.
const costRuns = 5

// Costs measures the time for issuing a credential, granting a lease and changing
// presence, at relays with few and with many hosts.
func Costs(ctx context.Context, c *Cluster, s Sizes) ([]Row, error) {
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	defer c.Stop()
	r := c.Relays[0]
	var before map[string]time.Duration
	var rows []Row
	for known, n := range []int{s.Few, s.Many} {
		for i := known * s.Few; i < n; i++ {
			if err := r.Registry.Enrol("costs", fmt.Sprintf("host-%d", i)); err != nil {
				return nil, err
			}
		}
		took := map[string]time.Duration{}
		for again := range costRuns {
			now, err := r.costs(ctx, n, again)
			if err != nil {
				return nil, err
			}
			for what, t := range now {
				if least := took[what]; least == 0 || t < least {
					took[what] = t
				}
			}
		}
		if before == nil {
			before = took
			continue
		}
		for _, what := range slices.Sorted(keysOf(took)) {
			ratio := float64(took[what]) / float64(before[what])
			rows = append(rows, Row{
				Name: fmt.Sprintf("cost of %s at %d and at %d hosts", what, s.Few, s.Many),
				Got:  fmt.Sprintf("%v, %v: × %.2f", before[what].Round(time.Microsecond), took[what].Round(time.Microsecond), ratio), Wanted: "≤ × 1.2", Good: ratio < 1.2,
			})
		}
	}
	return rows, nil
}

// costs measures the time for each step. Each run uses new instances of host-agents.
func (r *Relay) costs(ctx context.Context, hosts, run int) (map[string]time.Duration, error) {
	const rounds = 500
	fleet := &Fleet{Keys: r.config.Keys, URLs: []string{"nats://" + r.Server.Addr().String()}}
	asker, err := newAsker(fleet, "costs")
	if err != nil {
		return nil, err
	}
	defer asker.Close()
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	nkey, err := pair.PublicKey()
	if err != nil {
		return nil, err
	}
	all := map[string][]time.Duration{}
	for i := range rounds {
		host := fmt.Sprintf("host-%d", i*hosts/rounds)
		for what, do := range map[string]func() error{
			"a credential": func() error {
				e := auth.Enrolment{ID: "t", Tenant: "costs", Host: host, IssuedAt: time.Now()}
				return r.Registry.Admit(ctx, e, nkey, time.Now().Add(time.Hour))
			},
		} {
			if err := timed(all, what, do); err != nil {
				return nil, err
			}
		}
		instance := fmt.Sprintf("agent-%d-%d-%d", hosts, run, i)
		for seq, step := range []struct{ what, op, state string }{
			{"a lease", "hold", "online"}, {"a renewal", "hold", "online"}, {"a change of presence", "hold", "offline"}, {"the end of a lease", "release", "offline"},
		} {
			body := fmt.Sprintf(`{"op":%q,"instance":%q,"seq":%d,"presence":{"state":%q,"wire":[%d,%d]}}`, step.op, instance, seq+1, step.state, link.WireMin, link.WireMax)
			if err := timed(all, step.what, func() error { return asker.ask(ctx, host, body) }); err != nil {
				return nil, err
			}
		}
	}
	took := map[string]time.Duration{}
	for what, list := range all {
		took[what] = middle(list)
	}
	return took, nil
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

func timed(all map[string][]time.Duration, what string, do func() error) error {
	start := time.Now()
	err := do()
	all[what] = append(all[what], time.Since(start))
	return err
}

// Restart stops and starts all relays of a cluster, and measures until its many hosts
// are online again.
func Restart(ctx context.Context, c *Cluster, s Sizes, fleet func(context.Context, *Cluster, int) (stop func(), err error)) ([]Row, error) {
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	defer c.Stop()
	row := func(name string, start time.Time, err error, wanted time.Duration) (Row, error) {
		took := time.Since(start)
		return Row{Name: name, Got: took.Round(10 * time.Millisecond).String(), Wanted: "≤ " + wanted.String(), Good: took <= wanted}, err
	}
	online := func() bool {
		return !slices.ContainsFunc(c.Relays, func(r *Relay) bool { return r.Online(FleetTenants) < s.Restart })
	}
	start := time.Now()
	stop, err := fleet(ctx, c, s.Restart)
	if err != nil {
		return nil, err
	}
	first, err := row(fmt.Sprintf("%d new hosts online, as three relays see it", s.Restart), start, await(ctx, online), time.Minute)
	stop()
	if err != nil {
		return nil, err
	}
	c.Stop()
	start = time.Now()
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	if stop, err = fleet(ctx, c, s.Restart); err != nil {
		return nil, err
	}
	defer stop()
	kept := func() bool {
		n := 0
		for _, r := range c.Relays {
			n += r.Registry.Stats().Kept
		}
		return n >= s.Restart && online()
	}
	second, err := row(fmt.Sprintf("whole cluster restarted with %d hosts: all online", s.Restart), start, await(ctx, kept), 30*time.Second)
	return []Row{first, second}, err
}

// Idle measures relays with many idle hosts, and again while a further relay joins. It
// sends no pings on the hosts' connections; make bench ARGS=hosts includes them.
func Idle(ctx context.Context, c *Cluster, s Sizes, fleet func(context.Context, *Cluster, int) (stop func(), err error), join func(context.Context, *Cluster, int) error) ([]Row, error) {
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	defer c.Stop()
	c.Attend(s.Hosts)
	stop, err := fleet(ctx, c, s.Hosts)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := await(ctx, func() bool {
		return !slices.ContainsFunc(c.Relays, func(r *Relay) bool { return r.Online(FleetTenants) < s.Hosts })
	}); err != nil {
		return nil, fmt.Errorf("hosts come online: %w", err)
	}
	wait(ctx, 2*s.Watch) // until files are written and memory is released
	writes, cpu, began := c.writes(), processorTime(), time.Now()
	wait(ctx, s.Watch)
	cores := float64(processorTime()-cpu) / float64(time.Since(began))
	writes = c.writes() - writes
	rows := []Row{{
		Name: fmt.Sprintf("%d idle hosts at %d relays: processors, of all relays and their NATS servers", s.Hosts, s.Relays),
		Got:  fmt.Sprintf("%.2f (%d writes in %v)", cores, writes, s.Watch), Wanted: "≤ 1", Good: cores <= 1,
	}}
	began = time.Now()
	err = join(ctx, c, s.Hosts)
	took := time.Since(began)
	return append(rows, Row{
		Name: fmt.Sprintf("another relay joins, and knows all %d hosts", s.Hosts), Got: took.Round(10 * time.Millisecond).String(), Wanted: "≤ 2s", Good: took <= 2*time.Second,
	}), err
}

func (c *Cluster) writes() (n uint64) {
	for _, r := range c.Relays {
		n += r.Registry.Stats().Writes
	}
	return n
}

// processorTime returns the processor time that this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
