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
	Programs string // directory that procs.Build has filled
	Dir      string // for logs and state, one directory for each part
	Rounds   int    // default 5
	Progress io.Writer

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
	kind       string // of server, for readers
	url, token string // for clients
	nats, feed string // where the host speaks to; "", "": to its clients
	stop       func() // ends it, where nothing else does
	pid        int    // whose processor time counts
}

// A crowd are readers of one channel through a system.
type crowd struct {
	*system
	lab     *lab
	name    string
	channel string
	readers int // that count
	size    int
	slot    int
}

// join connects readers to a system, of which the first may be quiet.
func (l *lab) join(s *system, name string, readers, quiet, size int) (*crowd, error) {
	if l.slots == loadgen.Slots {
		return nil, errors.New("no counter is left")
	}
	c := &crowd{system: s, lab: l, name: name, channel: "ahp-chat:/" + name, readers: readers - quiet, size: size, slot: l.slots}
	l.slots++
	var took time.Duration
	err := l.clients.Call("Clients.Connect", loadgen.ConnectArgs{
		Group: name, Kind: s.kind, URL: s.url, Token: s.token, Channel: c.channel, Size: size, Readers: readers, Slot: c.slot, Quiet: quiet,
	}, &took)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	if readers >= 1000 {
		l.say("%d clients of %s have connected in %.1f s", readers, s.name, took.Seconds())
	}
	return c, nil
}

// leave disconnects the readers.
func (c *crowd) leave() error {
	c.lab.slots--
	return c.lab.clients.Call("Clients.Disconnect", c.name, &loadgen.None{})
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
	args := loadgen.StreamArgs{
		Channels: []string{c.channel}, Size: c.size, For: d, Pace: pace, NATS: c.nats, Feed: c.feed, Slot: c.slot, Readers: c.readers,
	}
	if err := c.lab.host.Call("Host.Stream", args, &s.StreamReply); err != nil {
		return s, errors.Join(fmt.Errorf("%s: %w", c.system.name, err), c.whole())
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

func (c *crowd) time(on bool) error {
	return c.lab.clients.Call("Clients.Time", loadgen.TimeArgs{Group: c.name, On: on}, &loadgen.None{})
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

// state returns what became of a crowd. A connection that has ended is an
// error.
func (c *crowd) state() (state loadgen.State, err error) {
	if err := c.lab.clients.Call("Clients.State", c.name, &state); err != nil {
		return state, err
	}
	if len(state.Ended) > 0 {
		return state, fmt.Errorf("%s: %d connections have ended, such as %s", c.system.name, len(state.Ended), state.Ended[0])
	}
	return state, nil
}

// whole returns an error if connections have ended.
func (c *crowd) whole() error {
	_, err := c.state()
	return err
}
