package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
	"ahprelay/test/procs"
)

// Options control a run.
type Options struct {
	Programs string // directory with the programs from procs.Build
	Dir      string // directory for logs and state; each part has its own directory in it
	Rounds   int    // default 5
	Progress io.Writer
	Former   *Record // durations of parts in a former run; nil: unknown

	RelayFlags, AgentFlags []string // further flags

	// HostCommand is a command that starts an AHP host with a scripted agent, at PORT on
	// this machine. The figures for a real host need it. "": none.
	HostCommand string

	// Tiny makes parts do very little work with few clients, for tests. The figures then
	// mean nothing.
	Tiny bool
}

// A testbed is the environment of a part. Its close stops all processes.
type testbed struct {
	ctx     context.Context
	o       Options
	part    string
	dir     string
	bench   procs.Bench
	host    *loadgen.Process
	hostURL string
	clients *loadgen.Process
	slots   int      // number of counters in use
	prefix  string   // first part of the names of processes
	ends    []func() // functions that close calls, the last first
}

func newTestbed(ctx context.Context, o Options, part string) *testbed {
	b := &testbed{ctx: ctx, o: o, part: part, dir: filepath.Join(o.Dir, part)}
	b.bench = procs.Bench{Programs: o.Programs, Dir: b.dir}
	b.ends = append(b.ends, func() { b.bench.Kill() })
	return b
}

// startLoad starts the host and the clients.
func (b *testbed) startLoad() {
	b.host = b.start(b.prefix+"host", loadgen.HostRole)
	must.Do(b.host.Call("Host.URL", loadgen.None{}, &b.hostURL))
	b.clients = b.start(b.prefix+"clients", loadgen.ClientsRole)
}

// kernelSlack is added to the work of figures for which all programs have the kernel's
// timer slack.
var kernelSlack = fmt.Sprintf(", timer slack %v", procs.KernelSlack)

// bothSlacks runs a part twice: with the timer slack of this process, and with the
// kernel's in all programs, peers included. work is added to the work of the figures.
// A tiny run omits the first: the second does the same with one step more.
func (b *testbed) bothSlacks(run func(b *testbed, work string) []Figure) (figures []Figure) {
	if !b.o.Tiny {
		figures = run(b, "")
	}
	b.bench.Slack, b.prefix = procs.KernelSlack, "kernel-slack-"
	b.startLoad()
	return append(figures, run(b, kernelSlack)...)
}

// start starts a load generator, which close stops.
func (b *testbed) start(name, role string) *loadgen.Process {
	p := must.Get(loadgen.Start(b.dir, name, role, b.bench.Slack))
	b.ends = append(b.ends, p.Close)
	return p
}

// callers connects n callers to a system, from a load generator.
func (s *system) callers(from *loadgen.Process, group string, n int) {
	must.Do(from.Call("Clients.Dial", loadgen.DialArgs{Group: group, URL: s.url, Tokens: s.tokens, Callers: n, Seal: s.seal}, &loadgen.None{}))
}

func (b *testbed) close() {
	for i := range b.ends {
		b.ends[len(b.ends)-1-i]()
	}
}

// say prints progress.
func (b *testbed) say(format string, args ...any) {
	fmt.Fprintf(b.o.Progress, "  %s: %s\n", b.part, fmt.Sprintf(format, args...))
}

// rounds calls run once for each round, and prints progress.
func (b *testbed) rounds(run func(round int)) {
	for i := range b.o.Rounds {
		must.Do(b.ctx.Err())
		must.Within(fmt.Sprint("round ", i+1), func() { run(i) })
		b.say("round %d of %d", i+1, b.o.Rounds)
	}
}

// many returns n, or in a tiny run a small number.
func (b *testbed) many(n int) int { return b.unlessTiny(n, min(n, 3)) }

// sizes returns sizes, or in a tiny run the first three: many makes all of them tiny.
func (b *testbed) sizes(all ...int) []int { return all[:b.unlessTiny(len(all), 3)] }

// unlessTiny returns n, or in a tiny run another number.
func (b *testbed) unlessTiny(n, tiny int) int {
	if b.o.Tiny {
		return tiny
	}
	return n
}

// long returns d, or in a tiny run a short time.
func (b *testbed) long(d time.Duration) time.Duration {
	if b.o.Tiny {
		return min(d, 60*time.Millisecond)
	}
	return d
}

// A system is a way from the host to clients, with the process that is measured.
type system struct {
	name       string
	kind       string   // kind of server, which readers must know
	url        string   // URL for clients
	tokens     []string // tokens of clients, used in turn
	seal       *loadgen.Seal
	nats, feed string // address to which the host sends; "", "": to its clients
	stop       func() // stops the system, if close does not
	pid        int    // process whose processor time is measured
}

// A crowd is the readers of some channels through a system, the same number for each
// channel.
type crowd struct {
	*system
	bed      *testbed
	groups   []string
	channels []string
	readers  int // number of readers of each channel that count
	size     int
	slot     int
	mayLose  bool // a loss is a figure and no error
}

// join connects readers of a channel to a system. The first quiet readers do not count.
func (b *testbed) join(s *system, name string, readers, quiet, size int) *crowd {
	c := b.newCrowd(s, readers-quiet, size)
	took := c.add(s, name, readers, quiet)
	if readers >= 1000 {
		b.say("%d clients of %s have connected in %.1f s", readers, s.name, took.Seconds())
	}
	return c
}

// warm connects as many readers to each system, and lets the host stream to them for a
// time. The name of a crowd's channel is name with the system's number.
func (b *testbed) warm(systems []*system, name string, readers, quiet, size int, pace loadgen.Pace, d time.Duration) (crowds []*crowd) {
	for i, way := range systems {
		c := b.join(way, fmt.Sprintf("%s-%d", name, i), readers, quiet, size)
		c.hear(pace, b.long(d), false)
		crowds = append(crowds, c)
	}
	return crowds
}

// newCrowd returns a crowd that has no channels yet.
func (b *testbed) newCrowd(s *system, readers, size int) *crowd {
	if b.slots == loadgen.Slots {
		must.Fail("no counter is left")
	}
	b.slots++
	return &crowd{system: s, bed: b, readers: readers, size: size, slot: b.slots - 1}
}

// add connects readers of another channel to a system.
func (c *crowd) add(s *system, name string, readers, quiet int) (took time.Duration) {
	return c.addTo("ahp-chat:/"+name, s, name, readers, quiet)
}

// addTo is add for a channel with this name.
func (c *crowd) addTo(channel string, s *system, name string, readers, quiet int) (took time.Duration) {
	err := c.bed.clients.Call("Clients.Connect", loadgen.ConnectArgs{
		Group: name, Kind: s.kind, URL: s.url, Tokens: s.tokens, Channel: channel, Size: c.size, Readers: readers, Slot: c.slot, Seal: s.seal, Quiet: quiet,
	}, &took)
	if err != nil {
		must.Fail("%s: %w", s.name, err)
	}
	c.groups, c.channels = append(c.groups, name), append(c.channels, channel)
	return took
}

// leave disconnects all readers.
func (c *crowd) leave() {
	for _, group := range c.groups {
		must.Do(c.bed.clients.Call("Clients.Disconnect", group, &loadgen.None{}))
	}
}

// A sample is the result of a round.
type sample struct {
	loadgen.StreamReply
	CPU    time.Duration   // processor time of the system
	Others []time.Duration // processor time of further processes
	Delays loadgen.Delays
}

// perCPU returns the number of deliveries in a second of the system's processor time.
func (s sample) perCPU() float64 { return float64(s.Delivered) / s.CPU.Seconds() }

// hear makes the host stream to a crowd, and fails unless every frame arrives.
// others are further processes whose processor time is measured.
func (c *crowd) hear(pace loadgen.Pace, d time.Duration, timed bool, others ...int) (s sample) {
	c.time(timed)
	pids := append([]int{c.pid}, others...)
	before := usedBy(pids)
	if err := must.Catch(func() { s.StreamReply = c.stream(pace, d) }); err != nil {
		must.Do(errors.Join(err, must.Catch(c.whole)))
	}
	after := usedBy(pids)
	s.CPU = after[0] - before[0]
	for i := range others {
		s.Others = append(s.Others, after[i+1]-before[i+1])
	}
	s.Delays = c.state().Delays
	return s
}

// stream makes the host stream to a crowd.
func (c *crowd) stream(pace loadgen.Pace, d time.Duration) (reply loadgen.StreamReply) {
	args := loadgen.StreamArgs{
		Channels: c.channels, Size: c.size, For: d, Pace: pace, NATS: c.nats, Feed: c.feed, Slot: c.slot, Readers: c.readers, MayLose: c.mayLose,
	}
	if err := c.bed.host.Call("Host.Stream", args, &reply); err != nil {
		must.Fail("%s: %w", c.system.name, err)
	}
	return reply
}

// time makes the readers of the first channel record delays, or stop recording.
func (c *crowd) time(on bool) {
	must.Do(c.bed.clients.Call("Clients.Time", loadgen.Switch{Group: c.groups[0], On: on}, &loadgen.None{}))
}

// usedBy returns the processor time that each process has used so far.
func usedBy(pids []int) (all []time.Duration) {
	for _, pid := range pids {
		all = append(all, must.Get(loadgen.CPU(pid)))
	}
	return all
}

// state returns the state of the first channel's readers. It fails if a connection of
// any channel has ended.
func (c *crowd) state() (state loadgen.State) {
	for i := range c.groups {
		group := c.groups[len(c.groups)-1-i]
		state = loadgen.State{}
		must.Do(c.bed.clients.Call("Clients.State", group, &state))
		if len(state.Ended) > 0 {
			must.Fail("%s: %d client connections have ended early, for example %s", c.system.name, len(state.Ended), state.Ended[0])
		}
	}
	return state
}

// whole fails if a connection has ended.
func (c *crowd) whole() { c.state() }
