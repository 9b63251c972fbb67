package faults

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"ahprelay/test/faultproxy"
	"ahprelay/test/load"
	"ahprelay/test/procs"
)

// A Row is a fault at a place, with its promise: a row of the table in docs/faults.md.
type Row struct {
	Place string
	Fault string

	external bool                                     // NATS runs in a separate process
	others   int                                      // further relays in the cluster
	balanced bool                                     // clients connect to all relays: see balancer
	memory   int                                      // memory limit of the relay's cgroup in bytes; 0: no cgroup
	flags    []string                                 // further flags for the relay
	hold     time.Duration                            // how long the fault lasts
	inject   func(context.Context, *procs.Site) error // begins the fault
	heal     func(context.Context, *procs.Site) error // ends the fault
	during   func(context.Context, *procs.Site) error // if not nil, runs between inject and heal
	promise  promise
	needs    func() error // returns why this machine cannot run the row, or nil

	alone func(context.Context, *procs.Site, *Result) error // if not nil, runs the whole row, without a crowd, proxies or the host's record
}

// Skip returns why this machine cannot run the row, or nil.
func (r Row) Skip() error {
	if r.needs == nil {
		return nil
	}
	return r.needs()
}

// Name returns the row's place and fault, which identify it.
func (r Row) Name() string { return r.Place + ": " + r.Fault }

// A promise limits the effect of a fault on clients.
type promise struct {
	codes []int         // codes with which clients' connections may be closed
	must  bool          // at least one connection must be closed
	told  time.Duration // longest time from the fault's beginning until the last client is closed; 0: no limit
	pause time.Duration // longest time in which a client receives nothing; 0: no limit
	later time.Duration // added to the time until clients are whole
}

// whole limits the time from a fault's end until each client has received everything,
// on an idle machine. A client waits 2 s before it connects again.
const whole = 10 * time.Second

// Codes of close frames.
const (
	codeShutdown = 1001
	codeResync   = 1012
	codeSlow     = 1013
	codeOffline  = 4100
)

var (
	unseen  = promise{}
	cut     = promise{codes: []int{load.EndCut}, must: true}
	offline = promise{codes: []int{codeOffline}, must: true}

	// cutOff is offline for connections that end one by one. The host may still be online
	// for the last connection after the first has ended.
	cutOff = promise{codes: []int{codeOffline, codeResync}, must: true}
)

// within returns the promise with a limit for the time until clients are closed.
func (p promise) within(d time.Duration) promise {
	p.told = d
	return p
}

// silentAtMost returns the promise with a limit for the time in which a client receives
// nothing.
func (p promise) silentAtMost(d time.Duration) promise {
	p.pause = d
	return p
}

// Rows returns all rows of the table.
func Rows() []Row {
	var rows []Row
	for _, l := range links {
		rows = append(rows, l.rows()...)
	}
	for _, p := range processes {
		rows = append(rows, p.rows()...)
	}
	return slices.Concat(rows, rollingRows(), stalledRows())
}

// A link is a place in the network where faults are injected.
type link struct {
	place    string
	external bool
	proxy    func(*procs.Site) *faultproxy.Proxy

	short, most, long promise // for cuts and freezes of 3 s, of just less than the resume window, and of more
	frozen            [3]promise
	forgotten         promise // the present connections freeze and never recover
	forgottenFor      time.Duration
	slow              promise
	reset, flap       promise
	lost              promise // all packets are lost, for just less than the resume window
}

// retry limits how long TCP waits before it sends again, after all packets were lost
// for the time [shorter]. TCP doubles its waits, so the last wait may be as long as the
// loss.
const retry = shorter + time.Second

func (p promise) laterBy(d time.Duration) promise {
	p.later = d
	return p
}

// The resume window is 15 s: shorter is below it, and longer is above.
const (
	shorter = 14 * time.Second
	longer  = 22 * time.Second
)

// resumeEnds limits the time until clients are closed after a network is gone: the
// resume window, a heartbeat, and the detection.
const resumeEnds = 19 * time.Second

func (l link) rows() []Row {
	type proxy = faultproxy.Proxy
	do := func(f func(*proxy)) func(context.Context, *procs.Site) error {
		return func(_ context.Context, s *procs.Site) error {
			f(l.proxy(s))
			return nil
		}
	}
	heal := func(_ context.Context, s *procs.Site) error { return l.proxy(s).Heal() }
	row := func(fault string, hold time.Duration, p promise, f func(*proxy)) Row {
		return Row{Place: l.place, Fault: fault, external: l.external, hold: hold, promise: p, inject: do(f), heal: heal}
	}
	var rows []Row
	for i, d := range []time.Duration{3 * time.Second, shorter, longer} {
		p := [3]promise{l.short, l.most, l.long}[i]
		rows = append(rows,
			row(fmt.Sprintf("cut %v", d), d, p, (*proxy).Cut),
			row(fmt.Sprintf("frozen %v", d), d, l.frozen[i], (*proxy).Freeze))
	}
	drop := func(fault string, hold time.Duration, promised promise, percent int) Row {
		r := row(fault, hold, promised.laterBy(retry), nil)
		r.needs = faultproxy.CanDrop
		r.inject = func(_ context.Context, s *procs.Site) error { return l.proxy(s).Drop(percent) }
		return r
	}
	rows = append(rows,
		drop(fmt.Sprintf("all packets lost, %v", shorter), shorter, l.lost, 100),
		drop("one packet in ten lost, 8s", 8*time.Second, l.slow, 10))
	flap := row("cut 1s every 3s, 4 times", 0, l.flap, func(*proxy) {})
	flap.during = func(ctx context.Context, s *procs.Site) error { return flapping(ctx, l.proxy(s)) }
	return append(rows,
		row(fmt.Sprintf("connections forgotten, %v", l.forgottenFor), l.forgottenFor, l.forgotten, (*proxy).FreezeOpen),
		row("delay 200ms ± 100ms, 8s", 8*time.Second, l.slow, func(p *proxy) {
			p.Shape(faultproxy.Shape{Delay: 200 * time.Millisecond, Jitter: 100 * time.Millisecond})
		}),
		row("64 KiB/s, 8s", 8*time.Second, l.slow, func(p *proxy) { p.Shape(faultproxy.Shape{Rate: 64 << 10}) }),
		row("reset in the middle of a frame", 3*time.Second, l.reset, func(p *proxy) { p.ResetAfter(7777) }),
		flap)
}

func flapping(ctx context.Context, p *faultproxy.Proxy) error {
	for range 4 {
		p.Cut()
		load.Pause(ctx, time.Second)
		if err := p.Heal(); err != nil {
			return err
		}
		load.Pause(ctx, 2*time.Second)
	}
	return nil
}

var links = []link{
	{
		place: "client–relay", proxy: func(s *procs.Site) *faultproxy.Proxy { return s.ClientRelay },
		short: cut, most: cut, long: cut,
		frozen:    [3]promise{unseen, unseen, {codes: []int{codeSlow, load.EndCut}}},
		forgotten: promise{codes: []int{load.EndSilent}, must: true}, forgottenFor: load.SilenceLimit + 3*time.Second,
		reset: cut, flap: cut, lost: unseen,
	},
	natsLink("relay–NATS", true, func(s *procs.Site) *faultproxy.Proxy { return s.RelayNATS }),
	natsLink("host-agent–NATS, through the relay's port", false, func(s *procs.Site) *faultproxy.Proxy { return s.AgentNATS }),
	natsLink("host-agent–NATS over TCP", true, func(s *procs.Site) *faultproxy.Proxy { return s.AgentNATS }),
	{
		place: "host-agent–host", proxy: func(s *procs.Site) *faultproxy.Proxy { return s.AgentHost },
		short: cutOff.within(hostDies), most: cutOff.within(hostDies), long: cutOff.within(hostDies),
		frozen:    [3]promise{unseen, unseen, unseen},
		forgotten: promise{codes: []int{load.EndSilent}, must: true}, forgottenFor: load.SilenceLimit + 3*time.Second,
		reset: promise{codes: []int{codeResync}, must: true}, flap: cutOff, lost: promise{codes: []int{codeOffline}},
	},
}

// natsLink returns a link between a process and NATS. There, a fault that is shorter
// than the resume window must look like a pause to clients.
func natsLink(place string, external bool, proxy func(*procs.Site) *faultproxy.Proxy) link {
	long := offline.within(resumeEnds)
	return link{
		place: place, external: external, proxy: proxy,
		short: unseen, most: unseen, long: long,
		frozen:    [3]promise{unseen, unseen, long},
		forgotten: unseen.silentAtMost(10 * time.Second), forgottenFor: 12 * time.Second,
		reset: unseen, flap: unseen, lost: unseen,
	}
}

// These limit the time until clients are closed after a host or a host-agent has died.
const (
	hostDies  = time.Second
	agentDies = 2 * time.Second
)

// silent is the promise for a host that hangs: clients receive nothing until they give
// up, as they would without a relay.
var silent = promise{codes: []int{load.EndSilent}, must: true}

// A process is a program of the site that can die or hang.
type process struct {
	name     string
	external bool
	others   int
	process  func(*procs.Site) *procs.Process
	start    func(*procs.Site, context.Context) error

	killed, ended       promise // SIGKILL, SIGTERM
	shortHung, longHung promise // SIGSTOP for 5 s and 30 s
	mostHung            promise // SIGSTOP for just less than the resume window
}

// downTime is the time after which a killed process starts again.
const downTime = 2 * time.Second

func (p process) rows() []Row {
	do := func(f func(*procs.Process) error) func(context.Context, *procs.Site) error {
		return func(_ context.Context, s *procs.Site) error { return f(p.process(s)) }
	}
	signal := func(sig syscall.Signal) func(context.Context, *procs.Site) error {
		return do(func(proc *procs.Process) error { return proc.Signal(sig) })
	}
	end := func(sig syscall.Signal) func(context.Context, *procs.Site) error {
		return do(func(proc *procs.Process) error { return proc.End(sig) })
	}
	start := func(ctx context.Context, s *procs.Site) error { return p.start(s, ctx) }
	row := func(fault string, hold time.Duration, promised promise, inject, heal func(context.Context, *procs.Site) error) Row {
		return Row{Place: p.name, Fault: fault, external: p.external, others: p.others, hold: hold, promise: promised, inject: inject, heal: heal}
	}
	return []Row{
		row("kill -9", downTime, p.killed, end(syscall.SIGKILL), start),
		row("SIGTERM", downTime, p.ended, end(syscall.SIGTERM), start),
		row("stopped 5s", 5*time.Second, p.shortHung, signal(syscall.SIGSTOP), signal(syscall.SIGCONT)),
		row(fmt.Sprintf("stopped %v", shorter), shorter, p.mostHung, signal(syscall.SIGSTOP), signal(syscall.SIGCONT)),
		row("stopped 30s", 30*time.Second, p.longHung, signal(syscall.SIGSTOP), signal(syscall.SIGCONT)),
	}
}

var processes = []process{
	{
		name: "another relay of three", others: 2, process: func(s *procs.Site) *procs.Process { return s.Others[0] },
		start: func(s *procs.Site, ctx context.Context) error { return s.StartOther(ctx, 0) },
	},
	{
		name: "relay", process: func(s *procs.Site) *procs.Process { return s.Relay }, start: (*procs.Site).StartRelay,
		killed: cut, ended: promise{codes: []int{codeShutdown}, must: true},
		longHung: promise{codes: []int{load.EndSilent, codeOffline, codeResync}},
	},
	{
		name: "relay, with NATS outside", external: true, process: func(s *procs.Site) *procs.Process { return s.Relay }, start: (*procs.Site).StartRelay,
		killed: cut, ended: promise{codes: []int{codeShutdown}, must: true},
		longHung: promise{codes: []int{load.EndSilent, codeOffline, codeResync}},
	},
	{
		name: "host-agent", process: func(s *procs.Site) *procs.Process { return s.Agent }, start: (*procs.Site).StartAgent,
		killed: offline.within(agentDies), ended: offline.within(agentDies), longHung: offline.within(resumeEnds),
	},
	{
		name: "host", process: func(s *procs.Site) *procs.Process { return s.Host }, start: (*procs.Site).StartHost,
		killed: offline.within(hostDies), ended: offline.within(hostDies), longHung: silent,
	},
	{
		name: "nats-server", external: true, process: func(s *procs.Site) *procs.Process { return s.NATS }, start: (*procs.Site).StartNATS,
		longHung: offline.within(resumeEnds),
	},
}
