package loadgen

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Kinds of servers that readers know.
const (
	AHP   = "ahp"   // a host, or a relay before it: initialize, subscribe
	NATS  = "nats"  // nats-server's WebSocket listener: CONNECT, SUB
	Plain = "plain" // everything received is for the reader, once a ping is answered
)

// Clients are many readers and a few callers.
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
	corpus() // makes it
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

// ConnectArgs describe readers to connect.
type ConnectArgs struct {
	Group   string // a new name
	Kind    string
	URL     string
	Tokens  []string // used in turn; none: no token
	Channel string
	Size    int // bytes of an action
	Readers int
	Slot    int   // the counter of received frames; several groups may share it
	Seal    *Seal // of a sealed host; nil: it is not sealed
	Quiet   int   // the first so many are neither counted nor timed: a test may stall them
}

// url returns the address where the readers connect; for a [Writer], it includes the
// channel.
func (a *ConnectArgs) url() string {
	if a.Kind == Plain {
		return a.URL + "?" + url.Values{channelOf: {a.Channel}}.Encode()
	}
	return a.URL
}

// token returns the token of reader i.
func token(tokens []string, i int) string {
	if len(tokens) == 0 {
		return ""
	}
	return tokens[i%len(tokens)]
}

// Connectors are how many readers connect at a time. A host-agent performs 64 sealed
// handshakes at once.
const (
	connectors       = 128
	sealedConnectors = 32
)

// Connect connects readers, and returns when all can receive actions.
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
			return c.loop.add(r, ws)
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
		return nil, fmt.Errorf("there is a group %s", args.Group)
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
	return nil, fmt.Errorf("there is no group %q", name)
}

// Disconnect ends a group.
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

// Time starts or stops recording each frame's delay.
func (c *Clients) Time(args TimeArgs, _ *None) error {
	g, err := c.group(args.Group)
	if err != nil {
		return err
	}
	c.loop.mu.Lock()
	defer c.loop.mu.Unlock()
	g.timed, g.delays = args.On, nil
	return nil
}

// TimeArgs are those of Time.
type TimeArgs struct {
	Group string
	On    bool
}

// A State is a group's present state.
type State struct {
	Frames int64    // since the beginning
	Ended  []string // connections that ended, with the reader and the reason
	Delays Delays
}

// Delays summarizes a list of delays.
type Delays struct {
	Count         int
	P50, P99, Max time.Duration
}

// State returns a group's state. The delays begin with the last call of Time.
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
	state.Delays = summary(delays)
	return err
}

// summary sorts delays.
func summary(delays []time.Duration) Delays {
	if len(delays) == 0 {
		return Delays{}
	}
	slices.Sort(delays)
	at := func(percent int) time.Duration { return delays[min(len(delays)-1, len(delays)*percent/100)] }
	return Delays{Count: len(delays), P50: at(50), P99: at(99), Max: delays[len(delays)-1]}
}

// PauseArgs are those of Pause.
type PauseArgs struct {
	Group  string
	Reader int
	On     bool
}

// Pause makes a reader stop or resume reading.
func (c *Clients) Pause(args PauseArgs, _ *None) error {
	g, err := c.group(args.Group)
	if err != nil {
		return err
	}
	return c.loop.pause(g.readers[args.Reader], args.On)
}

// AwaitArgs are those of Await.
type AwaitArgs struct {
	Group  string
	Action int64
	Within time.Duration
}

// Await returns when all readers, the quiet ones too, have got an action.
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

// ReconnectArgs are those of Reconnect.
type ReconnectArgs struct {
	Group  string
	URL    string
	Within time.Duration
}

// Reconnect makes all readers connect again at once, each until it succeeds, and
// returns when each has received the actions that it missed.
func (c *Clients) Reconnect(args ReconnectArgs, took *time.Duration) error {
	g, err := c.group(args.Group)
	if err != nil {
		return err
	}
	g.leave()
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

// retryTime is the pause before a reader tries again.
const retryTime = 50 * time.Millisecond

func (c *Clients) comeBack(ctx context.Context, r *reader) error {
	for {
		ws, err := r.rejoin(ctx)
		if err == nil {
			return c.loop.add(r, ws)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("reader %d does not come back: %w", r.index, errors.Join(ctx.Err(), err))
		case <-time.After(retryTime):
		}
	}
}
