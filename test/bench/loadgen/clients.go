package loadgen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"ahprelay/test/procs"
)

// Readers can connect to these kinds of servers.
const (
	AHP   = "ahp"   // an AHP host, or a relay: readers send initialize and subscribe
	NATS  = "nats"  // the WebSocket listener of nats-server: readers send CONNECT and SUB
	Plain = "plain" // a Writer: readers send a ping, and receive everything after its answer
)

// Clients has many readers and a few callers.
type Clients struct {
	counters *Counters
	loop     *loop

	mu      sync.Mutex // guards the fields below
	groups  map[string]*group
	callers map[string][]*caller
}

func newClients(counters *Counters) (*Clients, error) {
	l, err := newLoop()
	if err != nil {
		return nil, err
	}
	corpus() // computes the corpus before it is needed
	return &Clients{counters: counters, loop: l, groups: map[string]*group{}, callers: map[string][]*caller{}}, nil
}

func (c *Clients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.groups {
		g.close()
	}
	c.loop.close()
	for _, list := range c.callers {
		for _, caller := range list {
			_ = caller.Close()
		}
	}
}

// ConnectArgs describes readers to connect.
type ConnectArgs struct {
	Group   string // name of the new group
	Kind    string
	URL     string
	Tokens  []string // used in turn; none: readers have no token
	Channel string
	Size    int // length of an action in bytes
	Readers int
	Slot    int   // counter for received frames; groups may share it
	Seal    *Seal // for a sealed host; nil: the host is not sealed
	Quiet   int   // number of readers, the first, that do not count, so that a test may stall them
}

// url returns the URL for the readers. For a [Writer], it contains the channel.
func (a *ConnectArgs) url() string {
	if a.Kind == Plain {
		return a.URL + "?" + url.Values{channelOf: {a.Channel}}.Encode()
	}
	return a.URL
}

// TokenOf returns the token of reader i, or "". Readers use the tokens in turn.
func TokenOf(tokens []string, i int) string {
	if len(tokens) == 0 {
		return ""
	}
	return tokens[i%len(tokens)]
}

// connectors is how many readers connect at the same time, and sealedConnectors how
// many with a sealed host. A host-agent performs 64 sealed handshakes at once.
const (
	connectors       = 128
	sealedConnectors = 32
)

// quietBuffer is the size of a quiet reader's receive buffer in bytes. It is small, so that the
// sender notices soon that the reader has stopped.
const quietBuffer = 4096

// Connect connects readers, and returns when all can receive actions. took is the time
// that this took.
func (c *Clients) Connect(args ConnectArgs, took *time.Duration) error {
	g, err := c.newGroup(args)
	if err != nil {
		return err
	}
	began := time.Now()
	var all errgroup.Group
	all.SetLimit(connectors)
	if args.Seal != nil {
		all.SetLimit(sealedConnectors)
	}
	for _, r := range g.readers {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), dialTime)
			defer cancel()
			ws, err := g.join(ctx, r.index)
			if err != nil {
				return fmt.Errorf("reader %d: %w", r.index, err)
			}
			if tcp, ok := ws.Conn.(*net.TCPConn); ok && r.quiet {
				err = tcp.SetReadBuffer(quietBuffer)
			}
			return errors.Join(err, c.loop.add(r, ws))
		})
	}
	err = all.Wait()
	*took = time.Since(began)
	return err
}

func (c *Clients) newGroup(args ConnectArgs) (*group, error) {
	g := &group{args: args, loop: c.loop, counter: &c.counters.slots[args.Slot]}
	if args.Size > 0 {
		var err error
		if g.format, err = NewFormat(args.Channel, args.Size); err != nil {
			return nil, err
		}
	}
	for i := range args.Readers {
		g.readers = append(g.readers, &reader{group: g, index: i, fd: -1, quiet: i < args.Quiet})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.groups[args.Group] != nil {
		return nil, fmt.Errorf("a group %s of readers exists already", args.Group)
	}
	c.groups[args.Group] = g
	return g, nil
}

func (c *Clients) group(name string) (*group, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.groups[name]; g != nil {
		return g, nil
	}
	return nil, fmt.Errorf("no group %q of readers exists", name)
}

// Disconnect closes the connections of a group's readers.
func (c *Clients) Disconnect(name string, _ *None) error {
	g, err := c.group(name)
	if err != nil {
		return err
	}
	g.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.groups, name)
	return nil
}

// A Switch switches something on or off for a group.
type Switch struct {
	Group string
	On    bool
}

// Time makes a group's readers record the delay of each frame, or stop recording.
func (c *Clients) Time(args Switch, _ *None) error {
	g, err := c.group(args.Group)
	if err != nil {
		return err
	}
	c.loop.mu.Lock()
	defer c.loop.mu.Unlock()
	g.timed, g.delays = args.On, nil
	return nil
}

// A State describes a group of readers.
type State struct {
	Frames int64    // frames that all readers have received so far
	Ended  []string // ended connections, each with the reader and the reason
	Delays Delays
}

// Delays summarizes the delays of many frames or requests.
type Delays struct {
	Count         int
	P50, P99, Max time.Duration
}

// State returns a group's state. Its delays begin with the last call of Time.
func (c *Clients) State(name string, state *State) error {
	g, err := c.group(name)
	if err != nil {
		return err
	}
	c.loop.mu.Lock()
	*state = State{Frames: g.frames, Ended: slices.Clone(g.ended)}
	delays := slices.Clone(g.delays)
	err = c.loop.failed
	c.loop.mu.Unlock()
	state.Delays = Summary(delays)
	return err
}

// Summary sorts and summarizes delays.
func Summary(delays []time.Duration) Delays {
	if len(delays) == 0 {
		return Delays{}
	}
	slices.Sort(delays)
	at := func(percent int) time.Duration { return delays[min(len(delays)-1, len(delays)*percent/100)] }
	return Delays{Count: len(delays), P50: at(50), P99: at(99), Max: delays[len(delays)-1]}
}

// Pause makes a group's quiet readers stop reading, or read again.
func (c *Clients) Pause(args Switch, _ *None) error {
	g, err := c.group(args.Group)
	if err != nil {
		return err
	}
	for _, r := range g.readers {
		if r.quiet {
			err = errors.Join(err, c.loop.pause(r, args.On))
		}
	}
	return err
}

// AwaitArgs are the arguments of Await.
type AwaitArgs struct {
	Group  string
	Action int64
	Within time.Duration
}

// Await waits until all readers of a group, the quiet readers too, have received an
// action.
func (c *Clients) Await(args AwaitArgs, took *time.Duration) error {
	g, err := c.group(args.Group)
	if err != nil {
		return err
	}
	began := time.Now()
	for {
		behind := g.behind(args.Action)
		*took = time.Since(began)
		if len(behind) == 0 {
			return nil
		}
		if *took > args.Within {
			return fmt.Errorf("%d readers have not got action %d after %v, such as %d", len(behind), args.Action, args.Within, behind[0])
		}
		sleep(time.Millisecond)
	}
}

// ReconnectArgs are the arguments of Reconnect.
type ReconnectArgs struct {
	Group  string
	URL    string
	Within time.Duration
}

// Reconnect makes all readers of a group connect again at once. Each tries until it
// succeeds. Reconnect returns when each has received the actions that it missed.
func (c *Clients) Reconnect(args ReconnectArgs, took *time.Duration) error {
	g, err := c.group(args.Group)
	if err != nil {
		return err
	}
	g.close()
	g.args.URL = args.URL
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), args.Within)
	defer cancel()
	var all errgroup.Group
	for _, r := range g.readers {
		all.Go(func() error { return c.comeBack(ctx, r) })
	}
	err = all.Wait()
	*took = time.Since(began)
	return err
}

// retryTime is the pause after which a reader tries again.
const retryTime = 50 * time.Millisecond

func (c *Clients) comeBack(ctx context.Context, r *reader) error {
	var ws *wsConn
	err := procs.Until(ctx, retryTime, func() (err error) {
		ws, err = r.rejoin(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("reader %d does not reconnect: %w", r.index, err)
	}
	return c.loop.add(r, ws)
}
