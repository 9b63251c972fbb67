package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/procs"
)

// Options say how parts are run.
type Options struct {
	Programs string // directory of the programs that procs builds
	Dir      string // for logs and state, one directory for each part
	Rounds   int    // default 5
	Progress io.Writer

	RelayFlags, AgentFlags []string // more of them

	// HostCommand is a program that is an AHP host with a scripted agent, at PORT of this
	// machine: some figures are of it too. "": none.
	HostCommand string

	// Tiny is for tests: little work, of few clients. Figures mean nothing.
	Tiny bool
}

// A lab is what one part has to work with. Its processes end with it.
type lab struct {
	ctx     context.Context
	o       Options
	part    string
	dir     string
	bench   procs.Bench
	host    *loadgen.Process
	hostURL string
	clients *loadgen.Process
	slots   int      // in use
	ends    []func() // what close does, the last first
}

func newLab(ctx context.Context, o Options, part string) (*lab, error) {
	l := &lab{ctx: ctx, o: o, part: part, dir: filepath.Join(o.Dir, part)}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return nil, err
	}
	l.bench = procs.Bench{Programs: o.Programs, Dir: l.dir}
	l.ends = append(l.ends, func() { l.bench.Kill() })
	var err error
	if l.host, err = l.start("host", loadgen.HostRole); err == nil {
		err = l.host.Call("Host.URL", loadgen.None{}, &l.hostURL)
	}
	if err == nil {
		l.clients, err = l.start("clients", loadgen.ClientsRole)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// start starts a load generator.
func (l *lab) start(name, role string) (*loadgen.Process, error) {
	p, err := loadgen.Start(l.dir, name, role)
	if err == nil {
		l.ends = append(l.ends, p.Close)
	}
	return p, err
}

func (l *lab) close() {
	for i := range l.ends {
		l.ends[len(l.ends)-1-i]()
	}
}

// say shows progress.
func (l *lab) say(format string, args ...any) {
	fmt.Fprintf(l.o.Progress, "  %s: %s\n", l.part, fmt.Sprintf(format, args...))
}

// rounds runs something once to warm up, where a round is not known to be
// first, and then as often as figures need.
func (l *lab) rounds(run func(round int) error) error {
	for i := range l.o.Rounds {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		if err := run(i); err != nil {
			return fmt.Errorf("round %d: %w", i+1, err)
		}
		l.say("round %d of %d", i+1, l.o.Rounds)
	}
	return nil
}

// many is a number of clients or hosts.
func (l *lab) many(n int) int {
	if l.o.Tiny {
		return min(n, 3)
	}
	return n
}

// long is a time for which something is done.
func (l *lab) long(d time.Duration) time.Duration {
	if l.o.Tiny {
		return min(d, 60*time.Millisecond)
	}
	return d
}

// A system is one way from a host to clients.
type system struct {
	name       string
	kind       string   // of server, for readers
	url        string   // for clients
	tokens     []string // of clients, in turn
	nats, feed string   // where the host speaks to; "", "": to its clients
	stop       func()   // ends it, where nothing else does
	pid        int      // whose processor time counts
}

// A crowd are readers, as many on each of some channels, through a system.
type crowd struct {
	*system
	lab      *lab
	groups   []string
	channels []string
	readers  int // of each channel, that count
	size     int
	slot     int
	mayLose  bool // what is lost is a figure, and no error
}

// join connects readers of one channel to a system, of which the first may be
// quiet.
func (l *lab) join(s *system, name string, readers, quiet, size int) (*crowd, error) {
	c, err := l.newCrowd(s, readers-quiet, size)
	if err != nil {
		return nil, err
	}
	took, err := c.add(s, name, readers, quiet)
	if readers >= 1000 && err == nil {
		l.say("%d clients of %s have connected in %.1f s", readers, s.name, took.Seconds())
	}
	return c, err
}

// newCrowd returns a crowd without channels.
func (l *lab) newCrowd(s *system, readers, size int) (*crowd, error) {
	if l.slots == loadgen.Slots {
		return nil, errors.New("no counter is left")
	}
	l.slots++
	return &crowd{system: s, lab: l, readers: readers, size: size, slot: l.slots - 1}, nil
}

// add connects the readers of one more channel.
func (c *crowd) add(s *system, name string, readers, quiet int) (took time.Duration, err error) {
	channel := "ahp-chat:/" + name
	err = c.lab.clients.Call("Clients.Connect", loadgen.ConnectArgs{
		Group: name, Kind: s.kind, URL: s.url, Tokens: s.tokens, Channel: channel, Size: c.size, Readers: readers, Slot: c.slot, Quiet: quiet,
	}, &took)
	if err != nil {
		return took, fmt.Errorf("%s: %w", s.name, err)
	}
	c.groups, c.channels = append(c.groups, name), append(c.channels, channel)
	return took, nil
}

// leave disconnects the readers.
func (c *crowd) leave() error {
	for _, group := range c.groups {
		if err := c.lab.clients.Call("Clients.Disconnect", group, &loadgen.None{}); err != nil {
			return err
		}
	}
	return nil
}

// A sample is what one round came to.
type sample struct {
	loadgen.StreamReply
	CPU    time.Duration // of the system
	Load   time.Duration // of host and clients
	Delays loadgen.Delays
}

// perCPU returns deliveries for each second of the system's processor time.
func (s sample) perCPU() float64 { return float64(s.Delivered) / s.CPU.Seconds() }

// hear has the host speak to a crowd, and looks whether all came.
func (c *crowd) hear(pace loadgen.Pace, d time.Duration, timed bool) (s sample, err error) {
	if err := c.time(timed); err != nil {
		return s, err
	}
	before, err := c.used()
	if err != nil {
		return s, err
	}
	if s.StreamReply, err = c.stream(pace, d); err != nil {
		return s, errors.Join(err, c.whole())
	}
	after, err := c.used()
	if err != nil {
		return s, err
	}
	s.CPU, s.Load = after.system-before.system, after.load-before.load
	state, err := c.state()
	s.Delays = state.Delays
	return s, err
}

// stream has the host speak to a crowd.
func (c *crowd) stream(pace loadgen.Pace, d time.Duration) (reply loadgen.StreamReply, err error) {
	args := loadgen.StreamArgs{
		Channels: c.channels, Size: c.size, For: d, Pace: pace, NATS: c.nats, Feed: c.feed, Slot: c.slot, Readers: c.readers, MayLose: c.mayLose,
	}
	if err := c.lab.host.Call("Host.Stream", args, &reply); err != nil {
		return reply, fmt.Errorf("%s: %w", c.system.name, err)
	}
	return reply, nil
}

// time has the readers of the first channel take down delays, or not.
func (c *crowd) time(on bool) error {
	return c.lab.clients.Call("Clients.Time", loadgen.TimeArgs{Group: c.groups[0], On: on}, &loadgen.None{})
}

// usage is processor time.
type usage struct{ system, load time.Duration }

func (c *crowd) used() (u usage, err error) {
	if u.system, err = loadgen.CPU(c.pid); err != nil {
		return u, fmt.Errorf("%s: %w", c.system.name, err)
	}
	for _, p := range []*loadgen.Process{c.lab.host, c.lab.clients} {
		used, err := loadgen.CPU(p.Pid())
		if err != nil {
			return u, err
		}
		u.load += used
	}
	return u, nil
}

// state returns what became of the readers of the first channel. A connection
// of any that has ended is an error.
func (c *crowd) state() (state loadgen.State, err error) {
	for i := range c.groups {
		group := c.groups[len(c.groups)-1-i]
		state = loadgen.State{}
		if err := c.lab.clients.Call("Clients.State", group, &state); err != nil {
			return state, err
		}
		if len(state.Ended) > 0 {
			return state, fmt.Errorf("%s: %d connections have ended, such as %s", c.system.name, len(state.Ended), state.Ended[0])
		}
	}
	return state, nil
}

// whole returns an error if connections have ended.
func (c *crowd) whole() error {
	_, err := c.state()
	return err
}
