package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// AgentTraffic creates the host-agent's end of the traffic on each link. It stores the
// bodies that all links share.
type AgentTraffic interface {
	// Accept returns the traffic for a link that a relay instance has opened.
	Accept(relay string, offer Hello, lines Lines) Traffic

	// NextBody returns the next message with bodies of a channel, and that channel's
	// token, or nil. It returns the same message again until Published is called.
	NextBody() (token string, payload []byte)

	// Published reports that the message from NextBody is published. From now on, records
	// may refer to its bodies.
	Published()
}

// An AgentLinksConfig describes the host-agent's end.
type AgentLinksConfig struct {
	Tenant, Host string
	Agent        string // the instance of this host-agent

	Hello Hello  // the host-agent's answer; links fill in Epoch, Wire and Fence, and remove Features that the relay lacks
	Trust Trust  // the relays to accept links from; required unless only relays can reach the bus
	Link  Config // times and bounds
	Lease Lease  // default: a lease without a number

	Linked func() // called when a relay opens a link and none was open; must not block or call the links; may be nil

	Log *slog.Logger
}

// A Lease is the permission of a host-agent instance to serve its host.
type Lease interface {
	Fence() uint64 // the lease's number; 0: unknown
	Recheck()      // asks the relays for a newer lease; does not block
}

type unnumbered struct{}

func (unnumbered) Fence() uint64 { return 0 }
func (unnumbered) Recheck()      {}

// maxLinks bounds the relay instances that a host-agent serves at the same time.
const maxLinks = 256

// bodyRound is how many bytes of bodies are published before each link sends a packet.
// Bodies and packets alternate, so neither delays the other for long on a slow
// network.
const bodyRound = 256 << 10

// AgentLinks contains the host-agent's ends of all its links. One writer sends for all
// of them.
type AgentLinks struct {
	bus     Bus
	cfg     AgentLinksConfig
	traffic AgentTraffic
	in      chan *nats.Msg
	writer  *writer
	trials  map[string]*trial    // by relay instance, at most maxLinks; owned by Run
	refused map[string]time.Time // by relay instance: when its refusal was last logged; owned by Run
	damage  damage               // limits log lines about damaged packets; owned by Run

	mu      sync.Mutex
	links   map[string]*boundLink // by relay instance
	order   []*boundLink          // the same links, for the writer
	settled chan struct{}         // closed by the writer when relays have released all packets; nil: no call of Settle waits
	gone    []string              // relay instances reported by the last RelaysGone
}

// NewAgentLinks returns a host-agent's links. Run serves them.
func NewAgentLinks(bus Bus, cfg AgentLinksConfig, traffic AgentTraffic) *AgentLinks {
	cfg.Link = cfg.Link.withDefaults()
	if cfg.Lease == nil {
		cfg.Lease = unnumbered{}
	}
	a := &AgentLinks{
		bus: bus, cfg: cfg, traffic: traffic,
		in:    make(chan *nats.Msg, inboxSize),
		links: map[string]*boundLink{}, trials: map[string]*trial{}, refused: map[string]time.Time{}, damage: newDamage(cfg.Log),
	}
	a.writer = newWriter(func() (more bool, again time.Time, err error) {
		bus.Together(HostPrefix(cfg.Tenant, cfg.Host), func() { more, again, err = a.flush() })
		return more, again, err
	})
	return a
}

// Run serves links until ctx ends. All links end before it returns.
func (a *AgentLinks) Run(ctx context.Context) error {
	cancel, err := a.bus.Subscribe(linkSubject(a.cfg.Tenant, a.cfg.Host, a.cfg.Agent, "*", "down"), a.in)
	if err != nil {
		return fmt.Errorf("serve links of %s/%s: %w", a.cfg.Tenant, a.cfg.Host, err)
	}
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { _ = a.writer.run(ctx) })
	for {
		select {
		case <-ctx.Done():
			a.endAll()
			return context.Cause(ctx)
		case msg := <-a.in:
			a.receive(msg)
		}
	}
}

// Wake makes the writer check for work.
func (a *AgentLinks) Wake() { a.writer.wake() }

// Linked reports whether any relay has a link.
func (a *AgentLinks) Linked() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.links) > 0
}

// Settle returns when relays have released all sent packets, or when ctx ends.
func (a *AgentLinks) Settle(ctx context.Context) {
	a.mu.Lock()
	if a.settled == nil {
		a.settled = make(chan struct{})
	}
	settled := a.settled
	a.mu.Unlock()
	a.Wake()
	select {
	case <-settled:
	case <-ctx.Done():
	}
}

// Resumed makes the links check for lost packets, because the NATS connection was
// interrupted.
func (a *AgentLinks) Resumed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range a.order {
		b.probe()
	}
}

// Reasons for which a host-agent ends a link.
var (
	errRelayGone    = errors.New("relay is gone") // the relay has crashed
	errAgentStopped = errors.New("host-agent stopped")
)

// RelaysGone ends the links to relay instances that have crashed. A call has no effect
// on an instance that the previous call named too: if such an instance has opened a link
// again, it was cut off, and did not crash.
func (a *AgentLinks) RelaysGone(relays []string) {
	a.mu.Lock()
	var ended []*boundLink
	for _, relay := range relays {
		if b := a.links[relay]; b != nil && !slices.Contains(a.gone, relay) {
			ended = append(ended, b)
		}
	}
	a.gone = relays
	a.mu.Unlock()
	for _, b := range ended {
		a.end(b, errRelayGone)
	}
}

// flush publishes up to bodyRound bytes of bodies, and one packet on each link.
func (a *AgentLinks) flush() (more bool, again time.Time, err error) {
	more, none := a.publishBodies()
	idle := none
	a.mu.Lock()
	links := a.order
	a.mu.Unlock()
	again = time.Now().Add(time.Hour)
	for _, b := range links {
		m, at, err := b.flush()
		if err != nil {
			a.end(b, err)
			continue
		}
		more = more || m
		if at.Before(again) {
			again = at
		}
		idle = idle && b.idle
	}
	if none { // a link without a next time may wait for a body that has arrived meanwhile
		_, body := a.traffic.NextBody()
		more = more || body != nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if idle && a.settled != nil {
		close(a.settled)
		a.settled = nil
	}
	return more, again, nil
}

// publishBodies publishes bodies. It returns whether more may follow at once, and
// whether none is left.
func (a *AgentLinks) publishBodies() (more, none bool) {
	for sent := 0; sent < bodyRound; {
		token, body := a.traffic.NextBody()
		if body == nil {
			return false, true
		}
		err := a.bus.Publish(ChannelSubject(a.cfg.Tenant, a.cfg.Host, token), body)
		if err != nil && !errors.Is(err, nats.ErrMaxPayload) {
			return false, false // published when the connection is back
		}
		// A relay that has not received the body requests it.
		a.traffic.Published()
		sent += len(body)
	}
	return true, false
}

func (a *AgentLinks) receive(msg *nats.Msg) {
	relay, err := relayOf(msg.Subject)
	if err != nil {
		a.cfg.Log.Warn("message on an unexpected subject ignored", "subject", msg.Subject, "error", err)
		return
	}
	a.mu.Lock()
	b := a.links[relay]
	a.mu.Unlock()
	defer a.settle()
	switch {
	case isHello(msg.Data):
		a.hello(relay, b, msg.Data)
	case b != nil:
		switch err := b.receive(msg.Data); {
		case errors.Is(err, errDamaged):
			a.damage.note(msg.Subject)
		case err != nil:
			a.end(b, err)
		}
	default:
		a.refuseStray(relay, msg.Data)
	}
}

// settle makes the writer check whether relays have released all packets, if a call of Settle waits
// for that.
func (a *AgentLinks) settle() {
	a.mu.Lock()
	waited := a.settled != nil
	a.mu.Unlock()
	if waited {
		a.Wake()
	}
}

// refuseStray answers a packet of an unknown link, to make the relay end that link.
func (a *AgentLinks) refuseStray(relay string, packet []byte) {
	r := Fields{B: packet}
	version, kind, epoch := r.Byte(), packetKind(r.Byte()), r.Uvarint()
	if !r.Bad && kind != packetBye {
		a.publish(relay, Bye(version, epoch, "host-agent has no such link"))
	}
}

func (a *AgentLinks) hello(relay string, b *boundLink, packet []byte) {
	kind, offer, err := readHello(packet)
	if err == nil && kind != helloHello {
		err = fmt.Errorf("handshake packet of kind %d; want a hello", kind)
	}
	if err != nil {
		a.cfg.Log.Warn("handshake rejected", "relay", relay, "error", err)
		return
	}
	answer := a.cfg.Hello
	answer.Epoch, answer.Fence = offer.Epoch, a.cfg.Lease.Fence()
	answer.Features = common(offer.Features, a.cfg.Hello.Features)
	version, err := CommonWire(offer.Wire, "relay", offer.Version, "host-agent", a.cfg.Hello.Version)
	if err == nil {
		err = offer.check()
	}
	if err != nil {
		a.cfg.Log.Warn("relay refused", "relay", relay, "error", err)
		answer.Wire, answer.Reason = [2]int{WireMin, WireMax}, err.Error()
		a.publish(relay, appendHello(helloRefuse, answer))
		return
	}
	answer.Wire = [2]int{int(version), int(version)}
	if b != nil && b.link.epoch >= offer.Epoch {
		if b.link.epoch == offer.Epoch { // the welcome was late or lost
			a.publish(relay, appendHello(helloWelcome, answer))
		}
		return
	}
	if answer.Fence != 0 && answer.Fence < offer.Fence { // the relay repeats its hello; until then, this host-agent may learn of a newer lease or stop
		a.cfg.Lease.Recheck()
		return
	}
	tags, proved := a.proved(relay, offer)
	if !proved {
		return
	}
	if b != nil {
		a.end(b, ErrReplaced)
	}
	if err := a.open(relay, version, offer, tags); err != nil {
		a.cfg.Log.Warn("link refused", "relay", relay, "error", err)
		return
	}
	a.publish(relay, appendHello(helloWelcome, answer))
}

func (a *AgentLinks) open(relay string, version byte, offer Hello, tags *linkSeal) error {
	b := &boundLink{
		bus: a.bus, subject: a.subject(relay), writer: a.writer,
		link: New(a.cfg.Link, version, offer.Epoch, time.Now()),
	}
	b.link.tags = tags
	a.mu.Lock()
	full := len(a.links) >= maxLinks
	a.mu.Unlock()
	if full {
		return fmt.Errorf("%d relays are linked already", maxLinks)
	}
	b.traffic = a.traffic.Accept(relay, offer, b)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.links) == 0 && a.cfg.Linked != nil {
		a.cfg.Linked()
	}
	a.links[relay] = b
	a.order = append(a.order[:len(a.order):len(a.order)], b)
	a.Wake() // sends the link's heartbeats
	return nil
}

// end removes a link and reports its end to the traffic, once. It tells the relay the reason,
// unless the relay has ended or replaced the link.
func (a *AgentLinks) end(b *boundLink, reason error) {
	a.mu.Lock()
	known := false
	for relay, l := range a.links {
		if l == b {
			delete(a.links, relay)
			known = true
		}
	}
	a.order = slices.DeleteFunc(slices.Clone(a.order), func(l *boundLink) bool { return l == b })
	a.mu.Unlock()
	if known {
		if !errors.Is(reason, ErrBye) && !errors.Is(reason, ErrReplaced) {
			_ = a.bus.Publish(b.subject, Bye(b.link.version, b.link.epoch, reason.Error())) // if it is lost, refuseStray repeats it
		}
		a.cfg.Log.Info("link ended", "epoch", b.link.epoch, "reason", reason)
		b.traffic.Ended(reason)
	}
}

func (a *AgentLinks) endAll() {
	a.mu.Lock()
	links := a.order
	a.mu.Unlock()
	for _, b := range links {
		a.end(b, errAgentStopped)
	}
}

func (a *AgentLinks) subject(relay string) string {
	return linkSubject(a.cfg.Tenant, a.cfg.Host, a.cfg.Agent, relay, "up")
}

func (a *AgentLinks) publish(relay string, packet []byte) {
	_ = a.bus.Publish(a.subject(relay), packet) // if it is lost, the relay repeats its hello
}
