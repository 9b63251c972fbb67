package link_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/broker/link"
)

// A bus is an in-memory NATS server. A tap can change or lose messages, and publishing can take
// time.
type bus struct {
	mu   sync.Mutex
	subs []*busSub
	tap  tap
	took map[string]time.Duration // how long publishing takes, by the subject's last token
}

// A tap gets each published message, and returns the message to deliver, or nil to lose it. A bus
// without a tap delivers all.
type tap func(subject string, data []byte) ([]byte, error)

type busSub struct {
	pattern string
	into    chan *nats.Msg
}

func (b *bus) Publish(subject string, data []byte) error {
	b.mu.Lock()
	tap, took := b.tap, b.took[subject[strings.LastIndexByte(subject, '.')+1:]]
	b.mu.Unlock()
	time.Sleep(took)
	if tap != nil {
		var err error
		if data, err = tap(subject, data); data == nil || err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		if s.pattern != subject && !wildcard(s.pattern, subject) {
			continue
		}
		select {
		case s.into <- &nats.Msg{Subject: subject, Data: bytes.Clone(data)}:
		default:
		}
	}
	return nil
}

func wildcard(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i := range p {
		if len(p) != len(s) || p[i] != "*" && p[i] != s[i] {
			return false
		}
	}
	return true
}

// Together implements [link.Bus].
func (b *bus) Together(_ string, publish func()) { publish() }

func (b *bus) Subscribe(subject string, into chan *nats.Msg) (func(), error) {
	s := &busSub{subject, into}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs = append(b.subs, s)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for i := range b.subs {
			if b.subs[i] == s {
				b.subs = append(b.subs[:i:i], b.subs[i+1:]...)
				return
			}
		}
	}, nil
}

// intercept sets the tap; nil removes it.
func (b *bus) intercept(f tap) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tap = f
}

// Taps for a missing network: publishing fails, or messages are lost.
func refuseAll(string, []byte) ([]byte, error) { return nil, errors.New("no connection") }
func loseAll(string, []byte) ([]byte, error)   { return nil, nil }

// A cargo is the traffic at one end of a link. It sends the payloads in its queue, and records what
// it receives.
type cargo struct {
	lines link.Lines

	mu      sync.Mutex
	queue   [][]byte
	urgent  [][]byte // payloads to send even if the window is full
	endless int      // size of an endless series of payloads; 0: none
	hold    bool     // received packets are not done until the test calls Done
	got     []string
	gotAt   []time.Time
	bodies  int
	ended   []error
	late    int    // number of calls of Handle after Ended
	asked   func() // the next call of Next calls it

	busy chan struct{} // Body waits for it; nil: it does not wait
}

func (c *cargo) Next(_ uint64, size int, _ time.Time) ([]byte, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked != nil {
		c.asked()
		c.asked = nil
	}
	var next []byte
	switch {
	case len(c.urgent) > 0:
		next, c.urgent = c.urgent[0], c.urgent[1:]
	case size == 0:
		return nil, time.Time{}
	case len(c.queue) > 0:
		next, c.queue = c.queue[0], c.queue[1:]
	case c.endless > 0:
		next = make([]byte, c.endless)
	default:
		return nil, time.Time{}
	}
	return append(make([]byte, link.HeaderRoom), next...), time.Time{}
}

func (c *cargo) Handle(_ uint64, payload []byte) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ended) > 0 {
		c.late++
	}
	if string(payload) == "bad" {
		return false, errors.New("bad payload")
	}
	c.got = append(c.got, string(payload))
	c.gotAt = append(c.gotAt, time.Now())
	return !c.hold, nil
}

func (c *cargo) Released(uint64) bool { return false }

func (c *cargo) Body([]byte) bool {
	if c.busy != nil {
		<-c.busy
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodies++
	return true
}

func (c *cargo) Ended(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = append(c.ended, reason)
}

func (c *cargo) send(payloads ...string) {
	c.queueUp(payloads...)
	c.lines.Wake()
}

func (c *cargo) queueUp(payloads ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range payloads {
		c.queue = append(c.queue, []byte(p))
	}
}

func (c *cargo) wantGot(t *testing.T, want ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := strings.Join(c.got, " "); got != strings.Join(want, " ") {
		t.Errorf("got %q; want %q", got, strings.Join(want, " "))
	}
}

// wantEnded fails unless Ended was called exactly once, with the error want, and Handle not after
// it.
func (c *cargo) wantEnded(t *testing.T, want error) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ended) != 1 || !errors.Is(c.ended[0], want) || c.late > 0 {
		t.Errorf("the link's end was reported as %v, and %d calls came after it; want %v once, and no call after it", c.ended, c.late, want)
	}
}

// An ends is a host-agent's end of links, and the relays' ends that tests add.
type ends struct {
	t    *testing.T
	net  *bus
	cfg  link.Config
	life context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	agent *link.AgentLinks
	prove link.Proof // with which new relays prove their keys; nil: none
	lease numbered

	linked atomic.Int64  // number of calls of Linked
	fence  atomic.Uint64 // the newest lease number that relays know

	mu       sync.Mutex
	accepted []*cargo // traffic of the links at the host-agent, in order of their hellos
	bodies   int      // number of bodies to publish; -1: endless
	left     int      // number of bodies published so far
}

var testHello = link.Hello{Version: "test", Credit: 1, MaxFrame: 1}

// newEnds starts a host-agent's end, which trusts each relay. The test must call close.
func newEnds(t *testing.T, cfg link.Config) *ends {
	return newEndsThat(t, cfg, nil, slog.New(slog.DiscardHandler))
}

// newEndsThat starts a host-agent's end with a Trust, which decides about relays' keys, and a log.
func newEndsThat(t *testing.T, cfg link.Config, trust link.Trust, log *slog.Logger) *ends {
	e := &ends{t: t, net: &bus{took: map[string]time.Duration{}}, cfg: cfg}
	e.life, e.stop = context.WithCancel(context.Background())
	e.agent = link.NewAgentLinks(e.net, link.AgentLinksConfig{
		Tenant: "t", Host: "h", Agent: "agent1", Hello: testHello, Trust: trust, Link: cfg, Log: log, Lease: &e.lease,
		Linked: func() { e.linked.Add(1) },
	}, e)
	e.wg.Go(func() { _ = e.agent.Run(e.life) })
	synctest.Wait() // wait until it has subscribed
	return e
}

// A numbered is a lease with a number that tests set.
type numbered struct {
	fence   atomic.Uint64
	recheck atomic.Int64 // number of calls of Recheck
}

// Fence implements [link.Lease].
func (n *numbered) Fence() uint64 { return n.fence.Load() }

// Recheck implements [link.Lease].
func (n *numbered) Recheck() { n.recheck.Add(1) }

func (e *ends) close() {
	e.stop()
	e.wg.Wait()
}

// Accept implements [link.AgentTraffic].
func (e *ends) Accept(relay string, _ link.Hello, lines link.Lines) link.Traffic {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.accepted = append(e.accepted, &cargo{lines: lines})
	return e.accepted[len(e.accepted)-1]
}

// NextBody implements [link.AgentTraffic].
func (e *ends) NextBody() (string, []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bodies == 0 {
		return "", nil
	}
	return "body", make([]byte, 10<<10)
}

// Published implements [link.AgentTraffic].
func (e *ends) Published() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.left++
	if e.bodies > 0 {
		e.bodies--
	}
}

// A relayEnd is a relay's end of a link, with its traffic.
type relayEnd struct {
	*cargo
	link   *link.RelayLink
	agent  *cargo // traffic of the same link at the host-agent
	cancel context.CancelFunc
	result chan error
	joined chan link.Hello
}

// start starts a relay's end, without waiting for the link.
func (e *ends) start(name string, hello link.Hello) *relayEnd {
	return e.startWith(name, hello, func(*cargo) {})
}

// startWith is start. As soon as the link has lines, it calls first with the relay's traffic.
func (e *ends) startWith(name string, hello link.Hello, first func(*cargo)) *relayEnd {
	ctx, cancel := context.WithCancel(e.life)
	r := &relayEnd{cargo: &cargo{}, cancel: cancel, result: make(chan error, 1), joined: make(chan link.Hello, 1)}
	r.link = link.NewRelayLink(e.net, link.RelayLinkConfig{
		Tenant: "t", Host: "h", Agent: "agent1", Relay: name, Hello: hello, Fence: e.fence.Load, Prove: e.prove, Link: e.cfg, Log: slog.New(slog.DiscardHandler),
	}, func(answer link.Hello, lines link.RelayLines) link.RelayTraffic {
		r.lines = lines
		first(r.cargo)
		r.joined <- answer
		return r.cargo
	})
	e.wg.Go(func() { r.result <- r.link.Run(ctx) })
	return r
}

// join starts a relay's end, and returns it when the link is open.
func (e *ends) join(name string) *relayEnd {
	e.t.Helper()
	r := e.start(name, testHello)
	select {
	case <-r.joined:
	case err := <-r.result:
		e.t.Fatalf("%s ended before it joined: %v", name, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r.agent = e.accepted[len(e.accepted)-1]
	return r
}

// numbers returns the numbers from from to to as texts.
func numbers(from, to int) (list []string) {
	for i := from; i <= to; i++ {
		list = append(list, fmt.Sprint(i))
	}
	return list
}
