package routing_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"ahprelay/broker/link"
	"ahprelay/routing"
	"ahprelay/test/membus"
)

// A modelWorld is a host behind a host-agent, and relays with clients, over an in-memory network
// and on fake time. The test's goroutine performs the steps.
type modelWorld struct {
	bounds bounds
	mesh   *membus.Mesh
	life   context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup

	host   *modelHost
	relays []*relayProcess

	agentMu sync.Mutex
	agent   *agentProcess
	changed chan struct{} // closed when a new agent has started

	mu       sync.Mutex                        // guards the fields below
	names    int                               // number of processes and connections so far
	clients  []*client                         // including ended clients
	answers  int                               // number of bodies sent again because a relay missed them
	seen     func(subject string, data []byte) // receives what host-agents publish; may be nil
	linkEnds []linkEnd
	excused  map[string]int // for each process: how often each of its links may end
	broken   error          // the first broken promise
	reported map[string]int // by connection id: number of host messages reported
}

// bounds are the configured bounds in bytes; zero means the default.
type bounds struct {
	Feeds                                bool // relays announce the feature feed
	Sealed                               bool // the host is sealed: it shares nothing but the messages of crowds
	Credit, Queue, Window, Pinned, Total int  // bounds at the host-agent
	RelayCredit, Bodies, Pending, Chunks int  // bounds at the relay
	Link                                 int  // window of the links
}

// A linkEnd is the end of a relay's link.
type linkEnd struct {
	of           *routing.RelayEnd
	relay, agent string
	err          error
}

func newModelWorld(b bounds, seed uint64) *modelWorld {
	life, stop := context.WithCancel(context.Background())
	w := &modelWorld{
		bounds: b, life: life, stop: stop, excused: map[string]int{}, reported: map[string]int{}, changed: make(chan struct{}),
	}
	dice := rand.New(rand.NewPCG(seed, 1))
	pace := map[string]time.Duration{} // guarded by the mesh's lock, as is dice
	delay := func(from, to string) time.Duration {
		way := from + " " + to
		if pace[way] == 0 {
			paces := []time.Duration{5 * time.Microsecond, 5 * time.Microsecond, time.Millisecond, 40 * time.Millisecond}
			pace[way] = paces[dice.IntN(len(paces))]
		}
		return pace[way] + time.Duration(dice.Int64N(int64(pace[way])))
	}
	w.mesh = membus.NewMesh(dice, delay, w.tap)
	w.host = &modelHost{world: w, conns: map[string]*modelConn{}, seqs: map[int]int{}, known: map[string]*routing.Notification{}, dice: rand.New(rand.NewPCG(seed, 2))}
	return w
}

func (w *modelWorld) tap(from, subject string, data []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.HasPrefix(from, "agent") {
		if strings.HasSuffix(subject, ".up") {
			n, err := routing.CountAnswers(data)
			w.answers += n
			if w.broken == nil {
				w.broken = err
			}
		}
		if w.seen != nil {
			w.seen(subject, data)
		}
	}
}

// fail records a violation, unless there was one before.
func (w *modelWorld) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken == nil {
		w.broken = fmt.Errorf(format, args...)
	}
}

// report handles a Report about a connection. It checks that the counts in all reports add up to
// the total in this one.
func (w *modelWorld) report(r routing.Report) {
	w.mu.Lock()
	for _, c := range r.Counts {
		w.reported[r.Conn] += int(c.N)
	}
	n := w.reported[r.Conn]
	w.mu.Unlock()
	if want := fmt.Sprintf(`{"sent":%d}`, n); string(r.State) != want {
		w.fail("%s: reported %s, and counts of %d", r.Conn, r.State, n)
	}
}

// excuse permits each link of a process to end once more. The caller is about to stop the process,
// or to cut it off for longer than the resume window.
func (w *modelWorld) excuse(process string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.excused[process]++
}

func (w *modelWorld) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken
}

func (w *modelWorld) name(kind string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names++
	return fmt.Sprint(kind, w.names)
}

// end stops the world and waits for its goroutines.
func (w *modelWorld) end() {
	w.stop()
	w.wg.Wait()
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func (w *modelWorld) linkConfig() link.Config { return link.Config{Window: w.bounds.Link} }

// An agentProcess is one run of a host-agent.
type agentProcess struct {
	name  string
	bus   *membus.Conn
	agent *routing.AgentEnd
	links *link.AgentLinks
	stop  context.CancelFunc
	done  chan struct{}

	crowds []*modelCrowd // of a sealed host
}

// startAgent starts a new host-agent, which replaces the current one.
func (w *modelWorld) startAgent() {
	name := w.name("agent")
	ctx, stop := context.WithCancel(w.life)
	a := &agentProcess{name: name, bus: w.mesh.Connect(name), stop: stop, done: make(chan struct{})}
	a.agent = routing.NewAgentEnd(routing.AgentEndConfig{
		Instance: name, Connect: w.host.connect(name),
		Credit: w.bounds.Credit, QueueLimit: w.bounds.Queue, Window: w.bounds.Window, Pinned: w.bounds.Pinned, MaxQueued: w.bounds.Total, Stall: stall, Sealed: w.bounds.Sealed,
	})
	for range 2 {
		a.crowds = append(a.crowds, &modelCrowd{out: a.agent.NewCrowd(), members: map[*modelConn]bool{}})
	}
	a.links = link.NewAgentLinks(a.bus, link.AgentLinksConfig{
		Tenant: "t", Host: "h", Agent: name, Hello: a.agent.Hello(), Link: w.linkConfig(), Log: quiet,
	}, a.agent)
	w.wg.Go(func() {
		defer close(a.done)
		_ = a.links.Run(ctx)
	})
	w.agentMu.Lock()
	defer w.agentMu.Unlock()
	w.agent = a
	close(w.changed)
	w.changed = make(chan struct{})
}

// serving returns the current host-agent, and a channel which startAgent closes when it has started
// the next.
func (w *modelWorld) serving() (*agentProcess, <-chan struct{}) {
	w.agentMu.Lock()
	defer w.agentMu.Unlock()
	return w.agent, w.changed
}

// A relayProcess is one run of a relay.
type relayProcess struct {
	world *modelWorld
	name  string
	bus   *membus.Conn
	stop  context.CancelFunc
	done  chan struct{}

	mu    sync.Mutex
	link  *link.RelayLink
	relay *routing.RelayEnd // nil while there is no link
	agent string
}

func (w *modelWorld) startRelay() *relayProcess {
	name := w.name("relay")
	ctx, stop := context.WithCancel(w.life)
	p := &relayProcess{world: w, name: name, bus: w.mesh.Connect(name), stop: stop, done: make(chan struct{})}
	w.wg.Go(func() {
		defer close(p.done)
		for ctx.Err() == nil {
			p.keepLink(ctx)
			select {
			case <-time.After(500 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	return p
}

// keepLink opens a link to the current host-agent, and returns when the link has ended. It ends the
// link itself when a new host-agent serves.
func (p *relayProcess) keepLink(ctx context.Context) {
	w := p.world
	agent, changed := w.serving()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.wg.Go(func() {
		select {
		case <-changed:
			cancel(errReplaced)
		case <-ctx.Done():
		}
	})
	relay := routing.NewRelayEnd(routing.RelayEndConfig{
		Agent: agent.name, Encode: encode,
		Credit: w.bounds.RelayCredit, BodyLimit: w.bounds.Bodies, PendingLimit: w.bounds.Pending, ChunkLimit: w.bounds.Chunks,
		Report: w.report, Feed: func(string, routing.Piece) {},
	})
	hello := relay.Hello()
	if w.bounds.Feeds {
		hello.Features = []string{link.FeatureFeed}
	}
	link := link.NewRelayLink(p.bus, link.RelayLinkConfig{
		Tenant: "t", Host: "h", Agent: agent.name, Relay: p.name, Hello: hello, Link: w.linkConfig(), Log: quiet,
	}, func(answer link.Hello, lines link.RelayLines) link.RelayTraffic {
		relay.Start(answer, lines)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.relay = relay
		return relay
	})
	p.mu.Lock()
	p.link, p.agent = link, agent.name
	p.mu.Unlock()
	err := link.Run(ctx)
	p.mu.Lock()
	linked := p.relay != nil
	p.relay = nil
	p.mu.Unlock()
	if !linked {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.linkEnds = append(w.linkEnds, linkEnd{relay, p.name, agent.name, err})
}

var errReplaced = errors.New("another host-agent serves the host now")

func (p *relayProcess) current() *routing.RelayEnd {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.relay
}

// resumed tells the relay's link that the relay's connection to the network is back.
func (p *relayProcess) resumed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link != nil {
		p.link.Resumed()
	}
}
