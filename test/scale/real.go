package scale

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"ahprelay/auth"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/load"
	"ahprelay/test/must"
	"ahprelay/test/procs"
)

// A RealRun measures relays that run as processes, with host-agents that each have
// their own connections. The rest is missing or simulated: the host-agents have no
// hosts, there are no clients, and all processes run on the same machine.
type RealRun struct {
	Programs string // directory of the programs
	Dir      string // for keys, stores and logs
	Hosts    int
	Relays   int
	Restarts int           // how often the whole cluster restarts
	Settle   time.Duration // until the host-agents rest: each opens its second connection 10 to 20 s after its login
	Env      []string      // further variables in the relays' environment

	bench  procs.Bench
	keys   *auth.Keys
	relays []*realRelay
	viewer string  // client token
	empty  float64 // processors that the relays use without host-agents
	stops  []func()
	rows   []Row
}

// realAgents runs a RealRun. Its host-agents rest for 25 s before a relay is killed.
func realAgents(ctx context.Context, c *Cluster, s *Plan) []Row {
	run := RealRun{Programs: build(ctx, c.dir), Dir: c.dir, Hosts: s.Real, Relays: s.RealRelays, Restarts: 5, Settle: 25 * time.Second}
	return must.Get(run.Run(ctx))
}

// build builds the programs below a directory.
func build(ctx context.Context, dir string) (programs string) {
	programs = filepath.Join(dir, "programs")
	must.Do(os.Mkdir(programs, 0o700))
	must.Do(procs.BuildTo(ctx, programs))
	return programs
}

// perProcess is the number of host-agents in a process. Each has up to three sockets,
// and a process may have 20,000 sockets.
const perProcess = 4000

// notReal stands at the end of each row's name.
const notReal = "no hosts, clients or compression, one machine"

// Run measures all rows.
func (r *RealRun) Run(ctx context.Context) ([]Row, error) {
	defer r.end()
	err := must.Catch(func() {
		for _, step := range []func(context.Context){r.prepare, r.measureEmpty, r.firstStart, r.crashOne, r.restartAll, r.replaceInTurn} {
			step(ctx)
		}
	})
	return r.rows, errors.Join(err, r.bench.Verify())
}

func (r *RealRun) end() {
	for _, stop := range r.stops {
		stop()
	}
	r.bench.Kill()
}

// A realRelay is a relay that runs as a process.
type realRelay struct {
	*procs.Process
	base    string // base URL
	metrics *loadgen.Metrics
}

func (r *RealRun) prepare(ctx context.Context) {
	r.bench = procs.Bench{Programs: r.Programs, Dir: r.Dir, Env: r.Env}
	r.keys = must.Get(auth.LoadKeys(r.dataDir(0)))
	r.viewer = viewerOf(r.keys)
	var routes []string
	for i := range r.Relays {
		routes = append(routes, net.JoinHostPort(must.Get(procs.FreeAddress()), "6222"))
		if i > 0 {
			must.Do(procs.CopyKeys(filepath.Join(r.dataDir(0), "keys"), filepath.Join(r.dataDir(i), "keys")))
		}
	}
	for i, route := range routes {
		address, _, _ := net.SplitHostPort(route)
		public, admin := net.JoinHostPort(address, "8484"), net.JoinHostPort(address, "8485")
		args := []string{"serve", "--data-dir", r.dataDir(i), "--listen", public, "--admin-listen", admin}
		if r.Relays > 1 {
			args = append(args, "--cluster-listen", route, "--cluster-route", strings.Join(routes, ","))
		}
		r.relays = append(r.relays, &realRelay{
			Process: r.bench.Process("", fmt.Sprintf("relay-%d", i), procs.RelayProgram, args...),
			base:    "http://" + public, metrics: &loadgen.Metrics{URL: "http://" + admin + "/metrics"},
		})
	}
	r.startRelays(ctx)
}

func (r *RealRun) dataDir(i int) string { return filepath.Join(r.Dir, fmt.Sprintf("data-%d", i)) }

// startRelays starts all relays, and waits until they are ready.
func (r *RealRun) startRelays(ctx context.Context) {
	var all errgroup.Group
	for _, relay := range r.relays {
		all.Go(func() error { return relay.start(ctx) })
	}
	must.Do(all.Wait())
}

func (r *realRelay) start(ctx context.Context) error {
	r.metrics.Started()
	return r.Launch(ctx, func() error { return procs.Ready(http.DefaultClient, r.base) })
}

// firstStart starts all host-agents at once. The relays do not know their hosts yet.
func (r *RealRun) firstStart(ctx context.Context) {
	used := processors(ctx, r.relays)
	began := time.Now()
	r.startAgents(ctx, Agents{})
	must.Within("first start", func() { r.awaitAll(ctx, r.relays) })
	took := time.Since(began)
	now := processors(ctx, r.relays)
	r.wall(fmt.Sprintf("%d new host-agents in one tenant, all started at once: all online", r.Hosts), took)
	r.each("the same: the relays, for each", (now-used)/time.Duration(r.Hosts), 0)
}

// startAgents starts all host-agents. They arrive in the way that how describes.
func (r *RealRun) startAgents(ctx context.Context, how Agents) {
	processes := (r.Hosts + perProcess - 1) / perProcess
	a := Agents{KeyDir: r.dataDir(0), Every: how.Every * time.Duration(processes), AtOnce: how.AtOnce}
	for _, relay := range r.relays {
		a.URLs = append(a.URLs, relay.base)
	}
	for ; a.First < r.Hosts; a.First += a.Count {
		a.Count = min((r.Hosts+processes-1)/processes, r.Hosts-a.First)
		r.stops = append(r.stops, help(ctx, r.Dir, "Agents", a))
	}
}

// restartAll kills all relays and starts them again, r.Restarts times.
func (r *RealRun) restartAll(ctx context.Context) {
	before := r.listed(ctx)
	var used, longest time.Duration
	fell := 0
	for i := range r.Restarts {
		for _, relay := range r.relays {
			must.Do(relay.End(syscall.SIGKILL))
		}
		began := time.Now()
		r.startRelays(ctx)
		must.Within(fmt.Sprint("restart ", i+1), func() { r.awaitAll(ctx, r.relays) })
		longest = max(longest, time.Since(began))
		used += processors(ctx, r.relays)
		after := r.listed(ctx)
		fell += changed(before, after)
		before = after
	}
	name := fmt.Sprintf("all relays killed and started, %d times in a row, %d host-agents: ", r.Restarts, r.Hosts)
	r.wall(name+"the longest until all are held", longest)
	r.each(name+"the relays with their own start, for each return", used/time.Duration(r.Restarts*r.Hosts), 1200*time.Microsecond)
	r.none(name+"hosts that were listed as offline meanwhile", fell)
}

// replaceInTurn stops each relay in order and starts it again, one relay after another.
func (r *RealRun) replaceInTurn(ctx context.Context) {
	before := r.listed(ctx)
	var longest time.Duration
	for i, relay := range r.relays {
		began := time.Now()
		must.Do(relay.End(syscall.SIGTERM))
		must.Within(fmt.Sprint("without relay ", i), func() { r.awaitAll(ctx, r.without(i)) })
		longest = max(longest, time.Since(began))
		must.Do(relay.start(ctx))
	}
	after := r.listed(ctx)
	r.wall(fmt.Sprintf("rolling replacement with %d host-agents: the longest until the other relays hold all", r.Hosts), longest)
	r.none("the same: hosts that were listed as offline meanwhile", changed(before, after))
}

// restBound limits which part of a processor the relays use for 1,000 host-agents at
// rest.
const restBound = 0.01

// atRest waits for the time Settle, in which the host-agents open their second connections.
// It then measures how much processor time the relays use.
func (r *RealRun) atRest(ctx context.Context) {
	load.Pause(ctx, r.Settle)
	cores := r.busy(ctx)
	if r.Settle == 0 {
		return
	}
	each := (cores - r.empty) * 1000 / float64(r.Hosts)
	r.rows = append(r.rows, Row{
		Name: fmt.Sprintf("%d relays with %d host-agents at rest: processors of all relays for 1,000, beyond the %.1f %% of relays without any (%s)", len(r.relays), r.Hosts, 100*r.empty, notReal),
		Got:  fmt.Sprintf("%.2f %%", 100*each), Wanted: fmt.Sprintf("≤ %.1f %%", 100*restBound), Good: each <= restBound,
	})
}

// measureEmpty measures how much processor time the relays use without host-agents.
func (r *RealRun) measureEmpty(ctx context.Context) {
	load.Pause(ctx, r.Settle/2) // until the relays' start is over
	r.empty = r.busy(ctx)
}

// busy returns how many processors all relays together use.
func (r *RealRun) busy(ctx context.Context) (cores float64) {
	if r.Settle == 0 {
		return 0
	}
	used := processors(ctx, r.relays)
	began := time.Now()
	load.Pause(ctx, r.Settle)
	took := time.Since(began)
	return (processors(ctx, r.relays) - used).Seconds() / took.Seconds()
}

// crashBound limits the time until the hosts of a crashed relay are served again.
const crashBound = time.Second

// crashOne kills the relay with the most hosts, and measures until these are served
// again.
func (r *RealRun) crashOne(ctx context.Context) {
	r.atRest(ctx)
	before := r.listed(ctx)
	victim, most := 0, 0
	for i, relay := range r.relays {
		if n := must.Get(relay.metrics.Held(ctx)); n > most {
			victim, most = i, n
		}
	}
	others := r.without(victim)
	used := processors(ctx, others)
	began := time.Now()
	must.Do(r.relays[victim].End(syscall.SIGKILL))
	// A host-agent logs in at a different relay before that relay keeps its lease.
	must.Within("after the crash", func() { must.Do(loadgen.AwaitKept(ctx, r.Hosts, metricsOf(others)...)) })
	took := time.Since(began)
	now := processors(ctx, others)
	after := r.listedAt(ctx, others[0])
	name := fmt.Sprintf("one relay of %d killed, with %d of %d host-agents: all are served by the others (%s)", len(r.relays), most, r.Hosts, notReal)
	r.rows = append(r.rows, within(name, took, crashBound, 10*time.Millisecond))
	r.each("the same: the other relays, for each host that came to them", (now-used)/time.Duration(max(1, most)), 0)
	r.none("the same: hosts that were listed as offline meanwhile", changed(before, after))
	must.Do(r.relays[victim].start(ctx))
}

// without returns all relays except relay i.
func (r *RealRun) without(i int) (others []*realRelay) {
	return append(append(others, r.relays[:i]...), r.relays[i+1:]...)
}

// processors returns the processor time that relays have used since their start,
// without the time for requests to their metrics.
func processors(ctx context.Context, relays []*realRelay) (sum time.Duration) {
	for _, relay := range relays {
		sum += must.Get(relay.metrics.Apart(ctx, relay.Pid()))
	}
	return sum
}

// awaitAll waits until these relays together hold all hosts through their own ports.
func (r *RealRun) awaitAll(ctx context.Context, relays []*realRelay) {
	must.Do(loadgen.AwaitHeld(ctx, r.Hosts, metricsOf(relays)...))
}

func metricsOf(relays []*realRelay) (all []*loadgen.Metrics) {
	for _, relay := range relays {
		all = append(all, relay.metrics)
	}
	return all
}

// listed waits until each relay lists all hosts as online. It returns since when each
// host is online.
func (r *RealRun) listed(ctx context.Context) (since map[string]time.Time) {
	for _, relay := range r.relays {
		since = r.listedAt(ctx, relay)
	}
	return since
}

func (r *RealRun) listedAt(ctx context.Context, relay *realRelay) (since map[string]time.Time) {
	return onlineAt(ctx, relay.base, r.viewer, r.Hosts, everywhere)
}

// viewerOf returns a token with which the hosts of Agents can be listed.
func viewerOf(keys *auth.Keys) (token string) {
	return must.Get(keys.Tokens().IssueClient(auth.Client{
		Tenant: realTenant, Subject: "viewer", Hosts: []string{auth.AllHosts}, Access: auth.AccessRead, Expires: time.Now().Add(time.Hour),
	}))
}

// onlineAt waits until the relay at a base URL lists n hosts as online for which fits
// returns true. It returns since when each host is online.
func onlineAt(ctx context.Context, base, token string, n int, fits func(*hostsapi.Info) bool) (since map[string]time.Time) {
	var err error
	late := await(ctx, func() bool {
		var list struct{ Hosts []hostsapi.Info }
		if list, err = procs.GetJSON[struct{ Hosts []hostsapi.Info }](ctx, base+"/api/hosts", token); err != nil {
			return false
		}
		since = map[string]time.Time{}
		for i := range list.Hosts {
			if h := &list.Hosts[i]; h.State == "online" && fits(h) {
				since[h.Host] = h.Since
			}
		}
		return len(since) >= n
	})
	if late != nil {
		must.Fail("%w: %s lists %d of %d hosts as online: %w", late, base, len(since), n, err)
	}
	return since
}

// changed returns how many hosts are online since a different time than before, because
// they were offline in between.
func changed(before, after map[string]time.Time) (n int) {
	for host, since := range before {
		if !after[host].Equal(since) {
			n++
		}
	}
	return n
}

// These methods add rows.

// wall adds a row with a time, which depends on the machine and has no limit.
func (r *RealRun) wall(name string, took time.Duration) {
	r.rows = append(r.rows, Row{Name: name + " (" + notReal + ")", Got: took.Round(10 * time.Millisecond).String(), Wanted: "reported: relays and host-agents share the processors", Good: true})
}

// each adds a row with the relays' processor time for each host. most limits it unless
// it is 0.
func (r *RealRun) each(name string, each, most time.Duration) {
	row := Row{Name: name + " (" + notReal + ")", Got: each.Round(10*time.Microsecond).String() + " of processor", Wanted: "reported", Good: true}
	if most > 0 {
		row.Wanted, row.Good = "≤ "+most.String(), each <= most
	}
	r.rows = append(r.rows, row)
}

// none adds a row with a number, which must be 0.
func (r *RealRun) none(name string, n int) {
	r.rows = append(r.rows, none(name+" ("+notReal+")", n))
}
