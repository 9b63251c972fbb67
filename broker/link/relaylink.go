package link

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdh"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/auth"
)

// RelayTraffic is the traffic at the relay's end of a link.
type RelayTraffic interface {
	Traffic

	// Body handles a message from a watched channel's subject. It may keep and change
	// payload. It reports whether the message was undamaged. The link's reader calls
	// it.
	Body(payload []byte) (intact bool)
}

// RelayLines are a [RelayTraffic]'s calls to its link.
type RelayLines interface {
	Lines

	// Watch subscribes to the bodies of a channel, which is given as a NATS token.
	// Records that Next returns later are sent after the subscription.
	Watch(token string) error

	// Unwatch ends that subscription.
	Unwatch(token string)
}

// A RelayLinkConfig configures a RelayLink.
type RelayLinkConfig struct {
	Tenant, Host string
	Agent, Relay string // instance names of the host-agent and of this relay

	Hello Hello         // the relay's hello; the link fills in Epoch, Wire, Fence and the proof
	Fence func() uint64 // number of the host's newest lease that the relay knows; default: unknown
	Prove Proof         // required unless only relays can reach the bus
	Link  Config        // times and bounds
	Retry time.Duration // interval at which an unanswered hello is repeated; default 250 ms
	Log   *slog.Logger
}

// A RelayLink is a relay's end of the link to one host-agent instance.
type RelayLink struct {
	bus    Bus
	cfg    RelayLinkConfig
	accept func(answer Hello, lines RelayLines) RelayTraffic
	inbox  *Inbox        // link packets and bodies, in order
	done   chan struct{} // closed when Run returns
	share  *ecdh.PrivateKey
	tags   *linkSeal // for the answered challenge; owned by Run, like damage
	damage damage

	mu      sync.Mutex
	bound   *boundLink        // nil until the host-agent has answered
	watched map[string]func() // from token to the subscription's cancel; nil when closed
}

// epochs counts the offers of this process, so that each has a higher epoch than the
// last.
var epochs atomic.Uint64

// NewRelayLink returns a link; Run runs it. accept is called once, after the
// host-agent's welcome, and returns the traffic.
func NewRelayLink(bus Bus, cfg RelayLinkConfig, accept func(answer Hello, lines RelayLines) RelayTraffic) *RelayLink {
	cfg.Retry = cmp.Or(cfg.Retry, 250*time.Millisecond)
	cfg.Link = cfg.Link.withDefaults()
	if cfg.Fence == nil {
		cfg.Fence = func() uint64 { return 0 }
	}
	cfg.Hello.Epoch = epochs.Add(1)
	cfg.Hello.Wire = [2]int{WireMin, WireMax}
	share := newShare()
	cfg.Hello.Share = share.PublicKey().Bytes()
	return &RelayLink{
		bus: bus, cfg: cfg, accept: accept, share: share,
		inbox: NewInbox(inboxSize), done: make(chan struct{}), damage: newDamage(cfg.Log),
		watched: map[string]func(){},
	}
}

// Run opens the link and keeps it until ctx ends, the peer is silent for too long, or
// the peer ends the link. It returns the reason, after all subscriptions and
// goroutines of the link have ended.
func (l *RelayLink) Run(ctx context.Context) error {
	defer close(l.done)
	defer l.unwatchAll()
	cancel, err := l.bus.Subscribe(l.subject("up"), l.inbox.In)
	if err != nil {
		return fmt.Errorf("link to %s/%s: %w", l.cfg.Tenant, l.cfg.Host, err)
	}
	defer cancel()
	open, end := context.WithCancel(ctx)
	var queueing sync.WaitGroup
	queueing.Go(func() { l.inbox.Run(open) })
	defer queueing.Wait()
	defer end()
	answer, err := l.handshake(ctx)
	if err != nil {
		return fmt.Errorf("link to %s/%s: %w", l.cfg.Tenant, l.cfg.Host, err)
	}
	bound := &boundLink{
		bus: l.bus, subject: l.subject("down"),
		link: New(l.cfg.Link, byte(answer.Wire[0]), l.cfg.Hello.Epoch, time.Now()),
	}
	bound.link.tags = l.tags
	bound.writer = newWriter(func() (more bool, again time.Time, err error) {
		l.bus.Together(bound.subject, func() { more, again, err = bound.flush() })
		return more, again, err
	})
	l.mu.Lock()
	l.bound = bound
	l.mu.Unlock()
	traffic := l.accept(answer, relayLines{bound, l})
	bound.traffic = traffic
	err = l.carry(ctx, bound, traffic)
	traffic.Ended(err)
	return fmt.Errorf("link to %s/%s: %w", l.cfg.Tenant, l.cfg.Host, err)
}

func (l *RelayLink) carry(ctx context.Context, bound *boundLink, traffic RelayTraffic) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { cancel(bound.writer.run(ctx)) })
	wg.Go(func() { cancel(l.readLoop(ctx, bound, traffic)) })
	wg.Wait()
	err := context.Cause(ctx)
	if !errors.Is(err, ErrBye) {
		l.bye(bound)
	}
	return err
}

func (l *RelayLink) readLoop(ctx context.Context, bound *boundLink, traffic RelayTraffic) error {
	up := l.subject("up")
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.inbox.Ready:
		}
		msg := l.inbox.Next()
		var err error
		switch {
		case msg == nil:
		case msg.Subject != up:
			if !traffic.Body(msg.Data) {
				err = errDamaged
			}
		case isHello(msg.Data): // an answer to a repeated hello
		default:
			err = bound.receive(msg.Data)
		}
		if errors.Is(err, errDamaged) {
			l.damage.note(msg.Subject)
		} else if err != nil {
			return err
		}
	}
}

// handshake sends hellos until the host-agent answers, for at most the resume window.
func (l *RelayLink) handshake(ctx context.Context) (Hello, error) {
	retry := time.Tick(l.cfg.Retry)
	limit := time.NewTimer(l.cfg.Link.Resume)
	defer limit.Stop()
	l.offer()
	for {
		select {
		case <-ctx.Done():
			return Hello{}, context.Cause(ctx)
		case <-limit.C:
			return Hello{}, ErrSilent
		case <-retry:
			l.offer()
		case <-l.inbox.Ready:
			msg := l.inbox.Next()
			if msg == nil {
				continue
			}
			answer, done, err := l.answer(msg.Data)
			if done {
				return answer, err
			}
			if len(answer.Share) > 0 {
				if err := l.prove(answer.Share); err != nil {
					l.cfg.Log.Warn("challenge not answered", "error", err)
					continue
				}
				l.offer()
			}
		}
	}
}

func (l *RelayLink) offer() {
	l.cfg.Hello.Fence = l.cfg.Fence()
	_ = l.bus.Publish(l.subject("down"), appendHello(helloHello, l.cfg.Hello))
}

// answer handles a message that arrives before the link is open. It reports done if the
// message ends the handshake.
func (l *RelayLink) answer(packet []byte) (answer Hello, done bool, err error) {
	kind, answer, err := readHello(packet)
	if err != nil || answer.Epoch != l.cfg.Hello.Epoch {
		return Hello{}, false, nil
	}
	switch kind {
	case helloChallenge:
		return answer, false, nil
	case helloWelcome:
		if l.cfg.Prove != nil && l.tags == nil {
			return answer, true, fmt.Errorf("%w: the host-agent sends no challenge", ErrRefused)
		}
		v := answer.Wire[0]
		if v < WireMin || v > WireMax {
			return answer, true, fmt.Errorf("%w: host-agent chose %d", ErrIncompatible, v)
		}
		if newest := l.cfg.Fence(); answer.Fence != 0 && answer.Fence < newest {
			return answer, true, fmt.Errorf("%w: lease %d, newest lease %d", ErrOutdated, answer.Fence, newest)
		}
		return answer, true, answer.check()
	case helloRefuse:
		if answer.Untrusted {
			return answer, true, &UntrustedError{strings.ToValidUTF8(answer.Reason[:min(len(answer.Reason), maxReason)], "?")}
		}
		cause := ErrRefused
		reason, wire := strings.CutPrefix(answer.Reason, ErrIncompatible.Error()+": ")
		if wire {
			cause = ErrIncompatible
		}
		return answer, true, fmt.Errorf("%w: %s", cause, reason[:min(len(reason), maxReason)])
	}
	return Hello{}, false, nil
}

// prove adds the proof for a challenge to all further hellos.
func (l *RelayLink) prove(agentShare []byte) error {
	h := &l.cfg.Hello
	if bytes.Equal(h.Peer, agentShare) {
		return nil
	}
	if l.cfg.Prove == nil {
		return errors.New("this relay has no key to prove its identity with")
	}
	id := auth.LinkID{
		Tenant: l.cfg.Tenant, Host: l.cfg.Host, Agent: l.cfg.Agent, Relay: l.cfg.Relay, Epoch: h.Epoch,
		RelayShare: h.Share, AgentShare: agentShare,
	}
	tags, err := newLinkSeal(l.share, agentShare, id, "down", "up")
	if err != nil {
		return err
	}
	key, proof, err := l.cfg.Prove(id)
	if err != nil {
		return err
	}
	l.tags, h.Peer, h.Key, h.Proof = tags, agentShare, key, proof
	return nil
}

// An UntrustedError reports that a host-agent accepts no links from this relay.
type UntrustedError struct {
	Reason string // why the host-agent refuses the relay
}

// Error implements error.
func (e *UntrustedError) Error() string { return "host-agent refuses this relay: " + e.Reason }

// Resumed makes the link check for lost packets, because the NATS connection was
// interrupted.
func (l *RelayLink) Resumed() {
	l.mu.Lock()
	bound := l.bound
	l.mu.Unlock()
	if bound != nil {
		bound.probe()
	}
}

// Settle returns when the host-agent has released all sent packets, when the link
// ends, or when ctx ends.
func (l *RelayLink) Settle(ctx context.Context) {
	l.mu.Lock()
	bound := l.bound
	l.mu.Unlock()
	if bound == nil {
		return // no packet was sent
	}
	settled := make(chan struct{})
	bound.mu.Lock()
	bound.settled = append(bound.settled, settled)
	bound.mu.Unlock()
	bound.Wake()
	select {
	case <-settled:
	case <-l.done:
	case <-ctx.Done():
	}
}

// End delivers the sent packets, and ends the link. It returns when the host-agent has confirmed both,
// when the link ends for a different reason, or when ctx ends. Run may then still run.
func (l *RelayLink) End(ctx context.Context) {
	l.Settle(ctx)
	l.mu.Lock()
	bound := l.bound
	l.mu.Unlock()
	if bound == nil {
		return // Run has not opened the link yet
	}
	again := time.Tick(l.cfg.Retry)
	for {
		l.bye(bound)
		bound.probe() // a host-agent that has received the bye answers with its own, because it knows no such link
		select {
		case <-l.done:
			return
		case <-ctx.Done():
			return
		case <-again:
		}
	}
}

func (l *RelayLink) bye(bound *boundLink) {
	_ = l.bus.Publish(bound.subject, Bye(bound.link.version, bound.link.epoch, "relay closed the link"))
}

func (l *RelayLink) subject(direction string) string {
	return linkSubject(l.cfg.Tenant, l.cfg.Host, l.cfg.Agent, l.cfg.Relay, direction)
}

func (l *RelayLink) watch(token string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watched == nil || l.watched[token] != nil {
		return nil
	}
	cancel, err := l.bus.Subscribe(ChannelSubject(l.cfg.Tenant, l.cfg.Host, token), l.inbox.In)
	if err != nil {
		return err
	}
	l.watched[token] = cancel
	return nil
}

func (l *RelayLink) unwatch(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cancel := l.watched[token]; cancel != nil {
		cancel()
		delete(l.watched, token)
	}
}

func (l *RelayLink) unwatchAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, cancel := range l.watched {
		cancel()
	}
	l.watched = nil
}

// relayLines adds Watch and Unwatch to a boundLink.
type relayLines struct {
	*boundLink
	relay *RelayLink
}

func (r relayLines) Watch(token string) error { return r.relay.watch(token) }
func (r relayLines) Unwatch(token string)     { r.relay.unwatch(token) }
