package routing_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// The model is a host, a host-agent, relays and clients, over an in-memory network with faults. A
// plan is a sequence of steps, for example a message or a cut. The host and each client record what
// they send and receive; modelcheck_test.go compares these records.

// resume is the links' resume window: a cut which ends within it stays invisible to clients.
const resume = link.DefaultResume

type stepKind int

const (
	stepEvent     stepKind = iota // an event on a channel
	stepBurst                     // several events at once
	stepMix                       // several events, on each channel in turn
	stepAsk                       // a client sends a request
	stepRead                      // a client asks for content; other clients get equal content
	stepAskAll                    // the host sends a request to all clients
	stepSub                       // a client subscribes
	stepUnsub                     //
	stepDial                      // a client connects
	stepLeave                     // a client disconnects
	stepFlush                     // a client flushes its messages
	stepCrowd                     // a connection enters a crowd
	stepTell                      // the host sends messages to a crowd
	stepReconnect                 // a client connects at another relay, then closes its connection
	stepHostClose                 // the host closes a connection
	stepPause                     //
	stepLag                       // a client, or the host's reader of its messages, becomes slow
	stepLoss                      // the network begins to lose messages
	stepRepeat                    // the network begins to deliver some messages twice
	stepDamage                    // the network begins to change bits in messages
	stepCut                       // a relay or the host-agent is cut off from the network for a while
	stepFreeze                    // messages from and to a process wait, and it notices no cut
	stepMute                      // messages from and to a process vanish, and it notices no cut
	stepHostRestart
	stepRelayRestart
	stepAgentRestart
	stepKinds
)

var stepNames = [stepKinds]string{
	"event", "burst", "mix", "ask", "read", "askAll", "sub", "unsub", "dial", "leave", "flush", "crowd", "tell", "reconnect", "hostClose", "pause",
	"lag", "loss", "repeat", "damage", "cut", "freeze", "mute", "hostRestart", "relayRestart", "agentRestart",
}

type step struct {
	kind stepKind
	who  int // index of a client, relay or channel, modulo their number
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

// often is the relative frequency of each kind of step.
var often = [stepKinds]int{
	stepEvent: 10, stepBurst: 8, stepMix: 6, stepAsk: 6, stepRead: 4, stepAskAll: 3, stepSub: 6, stepUnsub: 2, stepDial: 5, stepLeave: 3, stepFlush: 3, stepCrowd: 8, stepTell: 12,
	stepReconnect: 2, stepHostClose: 3, stepPause: 8, stepLag: 4, stepLoss: 5, stepRepeat: 3, stepDamage: 3, stepCut: 3, stepFreeze: 2,
	stepMute: 3, stepHostRestart: 1, stepRelayRestart: 1, stepAgentRestart: 2,
}

// maxSteps is the number of steps that makePlan draws. drawPlan keeps about half of them.
const maxSteps = 80

// drawPlan returns a random plan. Package rapid prefers small numbers, so drawPlan draws single
// bits for the seed. It draws another bit for each step, which keeps the step or omits it: after a
// failure, rapid can so search for the shortest plan that still fails.
func drawPlan(t *rapid.T) plan {
	bits := func(name string, n int) []bool {
		return rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, name)
	}
	var seed uint64
	for _, bit := range bits("seed", 64) {
		seed <<= 1
		if bit {
			seed++
		}
	}
	p := makePlan(seed)
	all := p.steps
	p.steps = nil
	for i, use := range bits("steps", maxSteps) {
		if use {
			p.steps = append(p.steps, all[i])
		}
	}
	return p
}

func makePlan(seed uint64) plan {
	dice := rand.New(rand.NewPCG(seed, 0))
	bound := func(small ...int) int {
		if i := dice.IntN(len(small) + 2); i < len(small) {
			return small[i]
		}
		return 0
	}
	p := plan{
		seed: seed, relays: 1 + dice.IntN(3), clients: 1 + dice.IntN(6),
		bounds: bounds{
			Credit: bound(1000, 16<<10), RelayCredit: bound(1000, 16<<10),
			Queue: bound(8<<10, 256<<10), Window: bound(1<<10, 16<<10), Pinned: bound(1<<10, 64<<10), Total: bound(64<<10, enough, 2*enough),
			Bodies: bound(1<<10, 16<<10), Pending: bound(4<<10, 64<<10), Link: bound(1, 16<<10), Chunks: bound(5000, 64<<10),
		},
	}
	if p.bounds.Total >= enough { // bodies in packets count, but no connection can be closed for them
		p.bounds.Pinned = min(orDefault(p.bounds.Pinned, 64<<10), 64<<10)
	}
	if dice.IntN(3) == 0 {
		p.bounds = bounds{}
	}
	p.bounds.Sealed = seed%3 == 0
	p.bounds.Feeds = seed%2 == 0 && !p.bounds.Sealed
	kinds := drawKinds(dice, p.bounds.Sealed)
	for range maxSteps {
		p.steps = append(p.steps, step{kinds[dice.IntN(len(kinds))], dice.IntN(12), sizes[dice.IntN(len(sizes))], dice.IntN(12)})
	}
	return p
}

// drawKinds returns the kinds of steps from which a plan is drawn, each repeated as in often. A
// quarter of the plans have no faults; half of them have some kinds of faults. Only a sealed host
// has crowds.
func drawKinds(dice *rand.Rand, sealed bool) (kinds []stepKind) {
	calm := dice.IntN(4)
	for k, n := range often {
		kind := stepKind(k)
		if (kind == stepCrowd || kind == stepTell) && !sealed {
			continue
		}
		if kind >= stepLag && (calm == 0 || calm <= 2 && dice.IntN(2) == 0) {
			continue
		}
		for range n {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// sizes are the message sizes in bytes from which a plan is drawn: mostly small ones. The largest
// are sent in fragments whatever the credit is.
var sizes = func() (list []int) {
	for _, s := range []struct{ size, times int }{{0, 60}, {60, 60}, {300, 90}, {3000, 50}, {9000, 30}, {70_000, 4}, {300_000, 1}, {5 << 18, 1}} {
		for range s.times {
			list = append(list, s.size)
		}
	}
	return list
}()

// A run is the execution of a plan.
type run struct {
	*modelWorld
	faultUntil time.Time // when the latest cut ends
	disturbed  bool      // the plan has had a fault or a slow reader
}

func (p plan) run() error {
	r := &run{modelWorld: newModelWorld(p.bounds, p.seed)}
	defer r.end()
	r.startAgent()
	for range p.relays {
		r.relays = append(r.relays, r.startRelay())
	}
	time.Sleep(3 * time.Second) // by then, each relay has a link even over a slow network
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

// step performs one step.
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
	case stepTell:
		a, _ := r.serving()
		r.host.tell(a.crowds[s.who%2], fmt.Sprint(s.n), min(s.size, 9000), 1+s.n%5)
	case stepDial:
		if len(r.everybody()) < maxClients/2 {
			r.join(r.dial(p, s.n%2), s.n)
		}
	case stepPause:
		time.Sleep(time.Duration(s.n*s.n) * []time.Duration{time.Microsecond, time.Millisecond, 30 * time.Millisecond}[s.who%3])
	case stepLoss:
		if time.Now().Before(r.faultUntil.Add(2 * time.Second)) {
			return // a cut may last for nearly the whole resume window; a loss beside it would end the link
		}
		r.mesh.Lose([]int{0, 2, 5, 20}[s.n%4])
		r.disturbed = true
	case stepRepeat:
		r.mesh.Repeat([]int{0, 2, 10}[s.n%3])
		r.disturbed = true
	case stepDamage:
		if time.Now().Before(r.faultUntil.Add(2 * time.Second)) {
			return
		}
		r.mesh.Damage([]int{0, 2, 5, 20}[s.n%4])
		r.disturbed = true
	case stepHostRestart:
		r.host.restart()
	case stepRelayRestart:
		r.restartRelay(s.who%len(r.relays), s.n%2 == 0)
	case stepAgentRestart:
		r.restartAgent(s.n % 3)
	case stepCut, stepFreeze, stepMute:
		r.fault(s)
	default:
		if c != nil {
			r.clientStep(c, s)
		}
	}
}

// largest returns the largest message size for the plan. A message of that size needs at most 50
// rounds of credit.
func (r *run) largest() int {
	return min(50, max(1, orDefault(r.bounds.Total, 4*enough)/40_000)) * min(orDefault(r.bounds.Credit, 1<<20), orDefault(r.bounds.RelayCredit, 1<<20))
}

// clientStep performs a step that concerns the client c.
func (r *run) clientStep(c *client, s step) {
	switch s.kind {
	case stepAsk:
		c.send(frame("ask", s.n, s.size))
	case stepCrowd:
		r.enterCrowd(c, s.n%2, min(s.size, 300))
	case stepRead:
		c.send(frame("read", s.n%3, s.size))
	case stepSub:
		c.send(frame("sub", s.n%3, s.size))
	case stepUnsub:
		c.send(frame("unsub", s.n%3, 0))
	case stepLeave:
		c.leave()
	case stepFlush:
		c.flush()
	case stepReconnect:
		if len(r.everybody()) < maxClients/2 {
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

// enterCrowd makes a client's connection enter a crowd of the current host-agent.
func (r *run) enterCrowd(c *client, n, size int) {
	a, _ := r.serving()
	if h := r.host.conn(c.id); h != nil && h.agent == a.name {
		r.host.mu.Lock()
		defer r.host.mu.Unlock()
		r.host.emit(h, emission{enter: a.crowds[n], to: size})
	}
}

// client returns a connected client, or nil.
func (r *run) client(who int) *client {
	var list []*client
	for _, c := range r.everybody() {
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

// fault cuts the host-agent or a relay off for a while. It does nothing within 4 s after the
// previous cut, because two short cuts in a row could act like a long cut.
func (r *run) fault(s step) {
	now := time.Now()
	if now.Before(r.faultUntil.Add(4 * time.Second)) {
		return
	}
	r.disturbed = true
	durations := []time.Duration{
		50 * time.Millisecond, time.Second, 4 * time.Second, 14 * time.Second, resume - 100*time.Millisecond, resume - 100*time.Millisecond,
		17 * time.Second, 18 * time.Second, 18500 * time.Millisecond, 19 * time.Second, 19500 * time.Millisecond, 22 * time.Second,
	}
	lasts := durations[s.n%len(durations)]
	agent, _ := r.serving()
	bus, resumed, name := agent.bus, agent.links.Resumed, agent.name
	if s.who%4 != 0 {
		p := r.relays[s.who%len(r.relays)]
		bus, resumed, name = p.bus, p.resumed, p.name
	}
	r.faultUntil = now.Add(lasts)
	r.mesh.Lose(0)
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
	for _, c := range r.everybody() {
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

// restartAgent replaces the host-agent by a new one. The old one crashes (how is 0), stops in good
// order (1), or is cut off and returns 3 s later (2).
func (r *run) restartAgent(how int) {
	a, _ := r.serving()
	r.excuse(a.name)
	switch how {
	case 0:
		a.bus.Kill()
		r.host.kill(a.name)
	case 1:
		r.host.endCrowds(a.crowds)
		a.agent.CloseAll(ahp.CloseHostOffline, agentStops)
		ctx, cancel := context.WithTimeout(r.life, 2*time.Second)
		a.links.Settle(ctx)
		cancel()
	case 2:
		a.bus.Freeze()
		r.startAgent()
		time.AfterFunc(3*time.Second, func() {
			a.bus.Restore()
			time.AfterFunc(3*time.Second, a.stop)
		})
		return
	}
	a.stop()
	<-a.done
	a.bus.Kill()
	r.startAgent()
}

// agentStops is the close reason which clients get when the host-agent stops in good order.
const agentStops = "host-agent stops"

// TestRandomPlansKeepTheContract runs random plans and checks the results; modelcheck_test.go lists
// the checks.
func TestRandomPlansKeepTheContract(t *testing.T) {
	checkModel(t, 100)
}

// TestModelSoak runs new random plans for the duration in the environment variable SOAK (make
// soak).
func TestModelSoak(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("SOAK"))
	if err != nil {
		t.Skip("on request: make soak")
	}
	for end := time.Now().Add(long); time.Now().Before(end) && !t.Failed(); {
		checkModel(t, 200)
	}
}

// checkModel runs the given number of plans on each of two goroutines. The flag -rapid.checks
// overrides the number.
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
				rapid.Check(t, func(rt *rapid.T) {
					for range i { // both goroutines have the same seed; this draw changes the plans
						rapid.Byte().Draw(rt, "nothing")
					}
					checkPlan(t, rt)
				})
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
			rt.Fatalf("the model's run: %v\nthe plan: %v", err, p)
		}
	}
}

// modelFailed is set once a plan has failed. From then on, rapid searches for a shorter failing
// plan, and checkPlan runs each plan up to 20 times: scheduling is random, so a failure need not
// repeat.
var modelFailed atomic.Bool
