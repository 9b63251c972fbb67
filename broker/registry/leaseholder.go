package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"

	"ahprelay/ahp"
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/internal/signal"
)

// A LeaseHolder's times.
const (
	defaultRenew = DefaultLeaseTTL / 3

	// leaseTimeout bounds the wait for an answer to a request.
	leaseTimeout = 3 * time.Second

	// takenAgain is the delay before a holder that seems to have lost its lease asks a
	// second time, because relays need time to synchronize.
	takenAgain = 1500 * time.Millisecond

	// maxAfter bounds the delay, and maxEvery the renewal interval, that a relay may
	// demand.
	maxAfter = 10 * time.Second
	maxEvery = 5 * time.Minute

	// rivalEvery is the interval of requests while the lease of a different instance
	// may expire.
	rivalEvery = 500 * time.Millisecond
)

// Reasons for a [LeaseHolder] to stop.
var (
	// ErrHostTaken reports that a different host-agent serves the host.
	ErrHostTaken = errors.New("host is served by another host-agent")
	// ErrLeaseRefused reports that relays refuse the request.
	ErrLeaseRefused = errors.New("lease request refused")
)

// A LeaseConfig describes a [LeaseHolder].
type LeaseConfig struct {
	Conn     *broker.Conn  // required; the host-agent's
	Tenant   string        // required
	Host     string        // required
	Instance string        // required; the host-agent's instance name
	Presence Presence      // required; the initial presence
	TakeOver bool          // take the host from the instance that holds it, which then stops
	Renew    time.Duration // default: a third of DefaultLeaseTTL

	// Previous are instances that are known to have ended without releasing the host.
	// Acquire releases the host on their behalf, so it need not wait until their lease
	// expires.
	Previous []string

	// Gone is called after each answer that lists relay instances which crashed within
	// the last minute. Links to these relays can be closed. May be nil.
	Gone func(relays []string)

	// Quiet reports whether no relay has a link to this instance. The holder then
	// renews at the longest interval that relays allow, because it need not learn
	// quickly of crashed relays. It must not block. Default: never quiet.
	Quiet func() bool

	// Trouble receives errors while the holder continues: a request that will be
	// repeated, a different instance that Acquire waits for, and ErrIncompatible with
	// the program to upgrade. May be nil.
	Trouble func(error)
}

// A LeaseHolder acquires and renews a host's lease, and reports the host's presence to
// relays. Call Acquire, then Run, then Release. All other methods are safe for
// concurrent use at any time.
type LeaseHolder struct {
	cfg     LeaseConfig
	subject string
	wake    chan struct{} // signals a call of Update or Recheck; capacity 1

	// Owned by the caller of Acquire, Run and Release.
	seq     uint64
	reason  string        // reason sent by Release; default: the host-agent stopped
	upgrade string        // the last incompatibility reported to Trouble
	keeper  string        // the relay to send requests to; "": any
	after   time.Duration // delay demanded by the last answer; 0: none
	every   time.Duration // renewal interval allowed by the last answer; 0: none

	login <-chan struct{} // closed by the first login after the last request was sent

	fence atomic.Uint64 // number of the latest lease; 0: unknown

	mu        sync.Mutex
	presence  Presence
	confirmed Presence // the presence that a relay has confirmed
}

// NewLeaseHolder returns a holder without a lease.
func NewLeaseHolder(cfg LeaseConfig) (*LeaseHolder, error) {
	if cfg.Conn == nil {
		return nil, errors.New("lease: no Conn given")
	}
	if err := errors.Join(
		ahp.CheckName("Tenant", cfg.Tenant), ahp.CheckName("Host", cfg.Host), ahp.CheckName("Instance", cfg.Instance),
	); err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	presence := withDefaults(cfg.Presence)
	if err := presence.check(); err != nil {
		return nil, fmt.Errorf("lease: Presence: %w", err)
	}
	cfg.Renew = cmp.Or(cfg.Renew, defaultRenew)
	return &LeaseHolder{
		cfg: cfg, subject: leaseSubject(cfg.Tenant, cfg.Host), wake: make(chan struct{}, 1),
		login: cfg.Conn.NextLogin(), presence: presence,
	}, nil
}

// withDefaults adds defaults to a presence and shortens long texts.
func withDefaults(p Presence) Presence {
	if p.Wire == [2]int{} {
		p.Wire = [2]int{link.WireMin, link.WireMax}
	}
	p.Reason = cut(p.Reason, maxReasonLen)
	p.AgentVersion = cut(p.AgentVersion, maxVersionLen)
	p.HostVersion = cut(p.HostVersion, maxVersionLen)
	return p
}

// cut makes s printable and at most limit bytes long.
func cut(s string, limit int) string {
	s = strings.ToValidUTF8(strings.Map(printable, s), "?")
	return strings.ToValidUTF8(s[:min(len(s), limit)], "")
}

func printable(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}

// Acquire returns when this instance holds the host. While no relay answers, it
// repeats the request. If a different instance holds the host, Acquire waits: if that
// instance has crashed, its lease expires; if it is alive, it renews its lease, and
// Acquire fails with ErrHostTaken. Acquire waits for two renewals, because the relay
// may have learnt of the first one late.
func (h *LeaseHolder) Acquire(ctx context.Context) error {
	var rival leaseAnswer
	previous := slices.Clone(h.cfg.Previous)
	h.keeper = h.cfg.Conn.Relay()
	for failures, renewals := 0, 0; ; {
		answer, err := h.ask(ctx, opHold, h.cfg.TakeOver)
		wait := rivalEvery
		switch {
		case err != nil:
			failures++
			wait = h.retryDelay(failures)
			h.trouble(err)
		case answer.Result == leaseHeld:
			return nil
		case answer.Result != leaseTaken:
			return h.refusal(answer)
		case slices.Contains(previous, answer.Holder):
			wait = 0
			if err := h.releasePrevious(ctx, answer.Holder); err != nil {
				wait = rivalEvery
				h.trouble(err)
			}
			previous = slices.DeleteFunc(previous, func(f string) bool { return f == answer.Holder && wait == 0 })
		case rival.Holder == "":
			rival = answer
			h.trouble(fmt.Errorf("%w; waiting to see whether it is alive", h.taken(answer)))
		case answer.Revision > rival.Revision:
			rival = answer
			if renewals++; renewals == 2 {
				return h.taken(answer)
			}
		}
		if _, err := h.pause(ctx, wait); err != nil {
			return fmt.Errorf("lease of %s/%s: %w", h.cfg.Tenant, h.cfg.Host, err)
		}
	}
}

// Run renews the lease until ctx ends, which is no error, until a different instance
// has taken the host (ErrHostTaken), or until a relay refuses (ErrLeaseRefused). It asks twice before it gives up,
// because relays that were separated need a moment to agree. If no relay can be
// reached, Run continues, and requests an expired lease again.
func (h *LeaseHolder) Run(ctx context.Context) error {
	wait := h.renewal()
	var taken time.Time // when an answer first named a different holder; zero: none did
	for failures := 0; ; {
		login, err := h.pause(ctx, wait)
		if err != nil {
			return nil
		}
		if login {
			failures = 0
			h.keeper = h.cfg.Conn.Relay() // prefer the relay of the new connection
		}
		answer, err := h.ask(ctx, opHold, false)
		switch {
		case err == nil && answer.Result == leaseHeld:
			failures, taken = 0, time.Time{}
			wait = h.renewal()
		case err == nil && answer.Result == leaseTaken && taken.IsZero():
			taken, wait = time.Now(), takenAgain
		case err == nil && answer.Result == leaseTaken:
			if wait = time.Until(taken.Add(takenAgain)); wait <= 0 {
				return h.taken(answer)
			}
		case err == nil:
			return h.refusal(answer)
		case ctx.Err() == nil:
			failures++
			wait = h.retryDelay(failures)
			h.trouble(err)
		}
	}
}

// Update changes the reported presence. While Run runs, it is sent at once. Long texts
// are shortened. The state must be Online, Offline or Asleep.
func (h *LeaseHolder) Update(p Presence) {
	h.mu.Lock()
	h.presence = withDefaults(p)
	h.mu.Unlock()
	signal.Send(h.wake)
}

// Settled reports whether a relay has confirmed the current presence.
func (h *LeaseHolder) Settled() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.confirmed == h.presence
}

// Fence returns the number of this instance's latest lease, or 0 if unknown. The
// instance with the higher number is newer.
func (h *LeaseHolder) Fence() uint64 { return h.fence.Load() }

// Recheck makes Run check the lease at once.
func (h *LeaseHolder) Recheck() { signal.Send(h.wake) }

// Release releases the host: it becomes offline at once, and a different instance can
// acquire it. Release repeats its request until ctx ends; then the lease just expires.
// Call it after Run has returned.
func (h *LeaseHolder) Release(ctx context.Context) error {
	var before error
	for failures := 0; ; {
		answer, err := h.ask(ctx, opRelease, false)
		if err == nil && answer.Result == leaseRefused {
			err = h.refusal(answer)
		}
		if err == nil {
			return nil
		}
		if before != nil && ctx.Err() != nil {
			err = before // more useful than the context's error
		}
		before = err
		failures++
		if _, ended := h.pause(ctx, broker.RetryDelay(failures)); ended != nil {
			return fmt.Errorf("release %s/%s: %w", h.cfg.Tenant, h.cfg.Host, err)
		}
	}
}

// crashSeq is the lowest number of a request on behalf of an instance. It is above all
// numbers that the instance itself has used.
const crashSeq = math.MaxUint64 / 2

// ReleaseCrashed releases a host on behalf of a crashed instance. The reason is shown
// to users. cfg.Conn may be any connection with the host's permissions. It repeats the
// request until ctx ends.
func ReleaseCrashed(ctx context.Context, cfg LeaseConfig, reason string) error {
	cfg.Presence = Presence{State: Offline}
	h, err := NewLeaseHolder(cfg)
	if err != nil {
		return err
	}
	h.seq, h.reason = crashSeq, cut(reason, maxReasonLen)
	return h.Release(ctx)
}

// ReasonCrashed is the published reason after a host-agent's crash.
const ReasonCrashed = "host-agent crashed"

func (h *LeaseHolder) releasePrevious(ctx context.Context, instance string) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	cfg := h.cfg
	cfg.Instance = instance
	return ReleaseCrashed(ctx, cfg, ReasonCrashed)
}

// retryDelay returns the delay after the given number of failures, or the delay that a
// relay has demanded if that is longer.
func (h *LeaseHolder) retryDelay(failures int) time.Duration {
	wait := max(broker.RetryDelay(failures), h.after)
	h.after = 0
	return wait
}

// renewal returns the delay until the next renewal, with some randomness.
func (h *LeaseHolder) renewal() time.Duration {
	every := h.cfg.Renew
	if h.cfg.Quiet != nil && h.cfg.Quiet() {
		every = max(every, h.every)
	}
	return every - rand.N(every/10+1)
}

// pause waits for d, for Update or Recheck, or for a NATS login after the last request,
// which it reports. The error reports that ctx has ended.
func (h *LeaseHolder) pause(ctx context.Context, d time.Duration) (login bool, err error) {
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-h.login:
		return true, nil
	case <-h.wake:
	case <-time.After(d):
	}
	return false, nil
}

// ask sends one request. It fails if there is no answer, or if the relay could not
// decide.
func (h *LeaseHolder) ask(ctx context.Context, op leaseOp, takeOver bool) (leaseAnswer, error) {
	h.seq++
	h.mu.Lock()
	req := leaseRequest{
		Op: op, Instance: h.cfg.Instance, Seq: h.seq, TakeOver: takeOver, Reason: h.reason, Presence: h.presence,
	}
	h.mu.Unlock()
	body, err := json.Marshal(req)
	if err != nil {
		return leaseAnswer{}, err
	}
	asking, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	reply, err := h.send(asking, body)
	if err != nil {
		if ctx.Err() == nil {
			h.keeper = "" // ask any relay
		}
		return leaseAnswer{}, err
	}
	var answer leaseAnswer
	if err := json.Unmarshal(reply, &answer); err != nil {
		return leaseAnswer{}, fmt.Errorf("answer to a lease request: %w", err)
	}
	if len(answer.Gone) > 0 && h.cfg.Gone != nil {
		h.cfg.Gone(answer.Gone)
	}
	h.noteUpgrade(answer.Upgrade)
	h.keeper, h.every = "", 0
	if answer.Result == leaseHeld {
		h.mu.Lock()
		h.confirmed = req.Presence
		h.mu.Unlock()
		h.fence.Store(answer.Fence)
		h.every = min(time.Duration(answer.Every)*time.Millisecond, maxEvery)
		if ahp.CheckName("relay", answer.Relay) == nil {
			h.keeper = answer.Relay
		}
		if home := h.cfg.Conn.Relay(); home != "" && h.every == 0 { // a different relay had to answer
			h.keeper = home
		}
	}
	if answer.Result == leaseRetry {
		h.after = min(max(time.Duration(answer.After)*time.Millisecond, 0), maxAfter)
		return leaseAnswer{}, fmt.Errorf("relay: %s", answer.Error)
	}
	return answer, nil
}

// send sends a request, and returns the answer. After a login it sends the request
// again, to the relay of the new connection: request or answer may be lost with the former
// connection.
func (h *LeaseHolder) send(ctx context.Context, body []byte) ([]byte, error) {
	for {
		h.login = h.cfg.Conn.NextLogin()
		reply, err := h.sendOnce(ctx, body)
		if broken := (*net.OpError)(nil); errors.As(err, &broken) { // the request has met the end of the connection
			select {
			case <-h.login:
			case <-ctx.Done():
			}
		}
		select {
		case <-h.login:
			if err == nil || ctx.Err() != nil {
				return reply, err
			}
			h.keeper = h.cfg.Conn.Relay()
		default:
			return reply, err
		}
	}
}

// sendOnce sends a request to the keeper, or to any relay. It waits for the answer until
// the next login.
func (h *LeaseHolder) sendOnce(ctx context.Context, body []byte) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-h.login:
			cancel()
		case <-ctx.Done():
		}
	})
	defer watching.Wait()
	defer cancel()
	if h.keeper != "" {
		reply, err := h.cfg.Conn.Request(ctx, leaseSubjectOf(h.cfg.Tenant, h.cfg.Host, h.keeper), body)
		if !errors.Is(err, nats.ErrNoResponders) {
			return reply, err
		}
		// That relay has ended, or does not serve the tenant yet.
	}
	return h.cfg.Conn.Request(ctx, h.subject, body)
}

// noteUpgrade reports an incompatibility once, although each answer contains it.
func (h *LeaseHolder) noteUpgrade(text string) {
	if text == "" || text == h.upgrade {
		return
	}
	h.upgrade = text
	h.trouble(fmt.Errorf("%w%s", link.ErrIncompatible, strings.TrimPrefix(text, link.ErrIncompatible.Error())))
}

func (h *LeaseHolder) trouble(err error) {
	away := errors.Is(err, nats.ErrReconnectBufExceeded) // the broker.Conn itself reports that it is disconnected
	if h.cfg.Trouble != nil && !away {
		h.cfg.Trouble(err)
	}
}

func (h *LeaseHolder) taken(a leaseAnswer) error {
	return fmt.Errorf("%w: %s/%s has been held by instance %s since %s",
		ErrHostTaken, h.cfg.Tenant, h.cfg.Host, a.Holder, a.Since.Format(time.RFC3339))
}

func (h *LeaseHolder) refusal(a leaseAnswer) error {
	return fmt.Errorf("%w: %s %s", ErrLeaseRefused, a.Result, a.Error)
}
