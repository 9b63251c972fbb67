package routing_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ahprelay/ahp"
)

// The model: a host that decides what each connection is sent, a host-agent,
// relays and clients, over a mesh with faults. A plan says what happens. What
// the host sent on each connection, and each client sent, is the oracle, see
// modelcheck_test.go.

// resume is the resume window of the links, and cuts shorter than that are
// invisible to clients.
const resume = 15 * time.Second

type stepKind int

const (
	stepEvent     stepKind = iota // something happens on a channel
	stepBurst                     // some of that at once
	stepMix                       // on all channels in turn
	stepAsk                       // a client asks something
	stepAskAll                    // the host asks all clients
	stepSub                       // a client subscribes
	stepUnsub                     //
	stepDial                      // a client comes
	stepLeave                     // a client goes
	stepFlush                     // a client asks whether the host has what it sent
	stepReconnect                 // goes, and comes back at another relay before that is known
	stepHostClose                 // the host closes a connection
	stepPause                     //
	stepLag                       // a client, or the host for it, gets slow
	stepLoss                      // messages get lost
	stepRepeat                    // messages come twice
	stepCut                       // a process is cut off
	stepFreeze                    // the same, and nobody knows until it is over
	stepMute                      // the same, and nobody ever knows
	stepHostRestart
	stepRelayRestart
	stepAgentRestart
	stepKinds
)

var stepNames = [stepKinds]string{
	"event", "burst", "mix", "ask", "askAll", "sub", "unsub", "dial", "leave", "flush", "reconnect", "hostClose", "pause",
	"lag", "loss", "repeat", "cut", "freeze", "mute", "hostRestart", "relayRestart", "agentRestart",
}

type step struct {
	kind stepKind
	who  int // a client, relay or channel, modulo how many there are
	size int
	n    int
}

type plan struct {
	seed    uint64
	relays  int
	clients int
	bounds  bounds
	steps   []step
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %d relays, %d clients, %+v\n", p.seed, p.relays, p.clients, p.bounds)
	for _, s := range p.steps {
		fmt.Fprintf(&b, " %s(%d, %d, %d)", stepNames[s.kind], s.who, s.size, s.n)
	}
	return b.String()
}

// often is how often each kind of step is drawn.
var often = [stepKinds]int{
	stepEvent: 12, stepBurst: 8, stepMix: 6, stepAsk: 6, stepAskAll: 3, stepSub: 6, stepUnsub: 2, stepDial: 4, stepLeave: 2, stepFlush: 3,
	stepReconnect: 2, stepHostClose: 2, stepPause: 10, stepLag: 4, stepLoss: 5, stepRepeat: 3, stepCut: 3, stepFreeze: 2,
	stepMute: 2, stepHostRestart: 1, stepRelayRestart: 1, stepAgentRestart: 1,
}

func drawPlan(t *rapid.T) plan {
	var kinds []stepKind
	// A plan leaves some kinds out, so that all is well but for a few things.
	calm := rapid.IntRange(0, 3).Draw(t, "calm")
	for k, n := range often {
		kind := stepKind(k)
		disturbs := kind >= stepLag
		if disturbs && (calm == 0 || calm == 1 && rapid.Bool().Draw(t, "without "+stepNames[k])) {
			continue
		}
		for range n {
			kinds = append(kinds, kind)
		}
	}
	bound := func(name string, small ...int) int {
		return rapid.SampledFrom(append([]int{0}, small...)).Draw(t, name)
	}
	p := plan{
		seed:    rapid.Uint64().Draw(t, "seed"),
		relays:  rapid.IntRange(1, 3).Draw(t, "relays"),
		clients: rapid.IntRange(1, 6).Draw(t, "clients"),
		bounds: bounds{
			Credit: bound("Credit", 1000, 16<<10), RelayCredit: bound("RelayCredit", 1000, 16<<10),
			Queue: bound("Queue", 8<<10, 256<<10), Window: bound("Window", 1<<10, 16<<10), Pinned: bound("Pinned", 1<<10, 64<<10),
			Bodies: bound("Bodies", 1<<10, 16<<10), Owed: bound("Owed", 4<<10, 64<<10), Link: bound("Link", 1, 16<<10), Total: bound("Total", 64<<10, 1<<20),
		},
	}
	draw := rapid.Custom(func(t *rapid.T) step {
		return step{
			kind: rapid.SampledFrom(kinds).Draw(t, "kind"),
			who:  rapid.IntRange(0, 11).Draw(t, "who"),
			size: rapid.SampledFrom(sizes).Draw(t, "size"),
			n:    rapid.IntRange(0, 11).Draw(t, "n"),
		}
	})
	p.steps = rapid.SliceOfN(draw, 1, 60).Draw(t, "steps")
	return p
}

// sizes of messages, in bytes: most are small, few need fragments with every
// credit.
var sizes = func() (list []int) {
	for size, times := range map[int]int{0: 40, 60: 40, 300: 60, 3000: 30, 9000: 20, 70_000: 4, 600_000: 1, 3 << 20: 1} {
		for range times {
			list = append(list, size)
		}
	}
	return list
}()

// A run is a plan on its way.
type run struct {
	*modelWorld
	faultUntil time.Time // when the last cut ends
	disturbed  bool      // something was cut, lost or slow
}

func (p plan) run() error {
	r := &run{modelWorld: newModelWorld(p.bounds, p.seed)}
	defer r.end()
	r.startAgent()
	for range p.relays {
		r.relays = append(r.relays, r.startRelay())
	}
	time.Sleep(3 * time.Second) // relays are linked, however slow the mesh
	for i := range p.clients {
		if c := r.dial(r.relays[i%p.relays], i/2%2); c != nil {
			for channel := range 2 {
				c.send(frame("sub", (i+channel)%3, 300))
			}
		}
	}
	for i, s := range p.steps {
		r.step(s)
		if err := r.onTheWay(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	if err := r.rest(); err != nil {
		return err
	}
	return r.crossOnce()
}

// step does one step.
func (r *run) step(s step) {
	s.size = min(s.size, r.largest())
	c := r.client(s.who)
	p := r.relays[s.who%len(r.relays)]
	switch s.kind {
	case stepEvent:
		r.host.event(s.who%3, s.size, "")
	case stepBurst:
		for range 3 * s.n {
			r.host.event(s.who%3, min(s.size, 9000), "")
		}
	case stepMix:
		for n := range 3 * s.n {
			r.host.event(n%3, min(s.size, 9000), "")
		}
	case stepAskAll:
		r.host.askClients(s.n, s.size)
	case stepDial:
		if len(r.clients) < 12 {
			r.join(r.dial(p, s.n%2), s.n)
		}
	case stepPause:
		time.Sleep(time.Duration(s.n*s.n) * []time.Duration{time.Microsecond, time.Millisecond, 30 * time.Millisecond}[s.who%3])
	case stepLoss:
		r.mesh.Lose([]int{0, 2, 5, 20}[s.n%4])
		r.disturbed = true
	case stepRepeat:
		r.mesh.Repeat([]int{0, 2, 10}[s.n%3])
		r.disturbed = true
	case stepHostRestart:
		r.host.restart()
	case stepRelayRestart:
		r.restartRelay(s.who%len(r.relays), s.n%2 == 0)
	case stepAgentRestart:
		r.restartAgent(s.n%2 == 0)
	case stepCut, stepFreeze, stepMute:
		r.fault(s)
	default:
		if c != nil {
			r.clientStep(c, s)
		}
	}
}

// largest is the size of messages for which the credit is enough, in not too
// many turns.
func (r *run) largest() int {
	return 50 * min(orDefault(r.bounds.Credit, 1<<20), orDefault(r.bounds.RelayCredit, 1<<20))
}

// clientStep does what one client does, or suffers.
func (r *run) clientStep(c *client, s step) {
	switch s.kind {
	case stepAsk:
		c.send(frame("ask", s.n, s.size))
	case stepSub:
		c.send(frame("sub", s.n%3, s.size))
	case stepUnsub:
		c.send(frame("unsub", s.n%3, 0))
	case stepLeave:
		c.leave()
	case stepFlush:
		c.flush()
	case stepReconnect:
		if len(r.clients) < 12 {
			r.join(r.dial(r.relays[s.n%len(r.relays)], s.n%2), s.n)
			c.leave()
		}
	case stepHostClose:
		if h := r.host.conn(c.id); h != nil && h.alive() {
			r.host.closeConn(h, ahp.CloseResync, "the host closed this connection")
		}
	case stepLag:
		r.disturbed = true
		lag, stalled := []time.Duration{0, 300 * time.Microsecond, 5 * time.Millisecond, 0}[s.n%4], s.n%4 == 3
		if h := r.host.conn(c.id); h != nil && s.size%7 == 0 {
			h.pace.set(lag, stalled)
			return
		}
		c.pace.set(lag, stalled)
	}
}

// client returns one of the clients that are still there, or nil.
func (r *run) client(who int) *client {
	var list []*client
	for _, c := range r.clients {
		if !c.ended() {
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[who%len(list)]
}

func (r *run) join(c *client, channel int) {
	if c != nil {
		c.send(frame("sub", channel%3, 300))
	}
}

// fault cuts a process off for a while: one at a time, and with a pause, so
// that two short cuts do not make a long one.
func (r *run) fault(s step) {
	now := time.Now()
	if now.Before(r.faultUntil.Add(4 * time.Second)) {
		return
	}
	r.disturbed = true
	durations := []time.Duration{50 * time.Millisecond, time.Second, 4 * time.Second, 14 * time.Second, resume - 100*time.Millisecond, 22 * time.Second}
	lasts := durations[s.n%len(durations)]
	agent, _ := r.serving()
	bus, resumed, name := agent.bus, agent.links.Resumed, agent.name
	if s.who%4 != 0 {
		p := r.relays[s.who%len(r.relays)]
		bus, resumed, name = p.bus, p.resumed, p.name
	}
	r.faultUntil = now.Add(lasts)
	if lasts > resume {
		r.excuse(name)
	}
	switch s.kind {
	case stepCut:
		bus.Cut()
	case stepFreeze:
		bus.Freeze()
		resumed = func() {}
	case stepMute:
		bus.Mute()
		resumed = func() {}
	}
	time.AfterFunc(lasts, func() {
		bus.Restore()
		resumed()
	})
}

func (r *run) restartRelay(i int, crash bool) {
	p := r.relays[i]
	r.excuse(p.name)
	for _, c := range r.clients {
		if c.relay == p {
			c.kill()
		}
	}
	if crash {
		p.bus.Kill()
	}
	p.stop()
	<-p.done
	p.bus.Kill()
	r.relays[i] = r.startRelay()
}

func (r *run) restartAgent(crash bool) {
	a, _ := r.serving()
	r.excuse(a.name)
	if crash {
		a.bus.Kill()
		r.host.kill(a.name)
	} else {
		a.agent.CloseAll(ahp.CloseHostOffline, agentStops)
		ctx, cancel := context.WithTimeout(r.life, 2*time.Second)
		a.links.Settle(ctx)
		cancel()
	}
	a.stop()
	<-a.done
	a.bus.Kill()
	r.startAgent()
}

// agentStops is what clients are told when the host-agent stops in good order.
const agentStops = "host-agent stops"

// TestModel is the contract: see modelcheck_test.go.
func TestModel(t *testing.T) {
	checks := 1000
	if testing.Short() {
		checks = 100
	}
	checkModel(t, checks)
}

// TestModelSoak goes on for as long as SOAK says, see make soak.
func TestModelSoak(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("SOAK"))
	if err != nil {
		t.Skip("on request: make soak")
	}
	for end := time.Now().Add(long); time.Now().Before(end) && !t.Failed(); {
		checkModel(t, 200)
	}
}

// checkModel checks so many plans on each of two goroutines, unless the
// command line says how many.
func checkModel(t *testing.T, checks int) {
	number := flag.Lookup("rapid.checks")
	if before := number.Value.String(); before == number.DefValue {
		if err := flag.Set("rapid.checks", fmt.Sprint(checks)); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = flag.Set("rapid.checks", before) }()
	}
	t.Run("plans", func(t *testing.T) {
		for i := range 2 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				rapid.Check(t, func(rt *rapid.T) { checkPlan(t, rt) })
			})
		}
	})
}

func checkPlan(t *testing.T, rt *rapid.T) {
	p := drawPlan(rt)
	tries := 1
	if modelFailed.Load() {
		tries = 20
	}
	for range tries {
		var err error
		inBubble(t, func(*testing.T) { err = p.run() })
		if err != nil {
			modelFailed.Store(true)
			rt.Fatalf("%v\n%v", err, p)
		}
	}
}

// modelFailed says that a plan has failed, and shorter ones are looked for that
// do too: as goroutines take turns by chance, not all do each time.
var modelFailed atomic.Bool
