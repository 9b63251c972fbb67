package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"ahprelay/ahp"
	"ahprelay/broker"
	"ahprelay/broker/link"
)

// Times of a LeaseHolder.
const (
	defaultRenew = 5 * time.Second

	// leaseTimeout bounds the wait for one answer.
	leaseTimeout = 3 * time.Second

	// takenAgain is how long a holder waits that was told that it is none any
	// more, until it asks again: time for relays to hear each other.
	takenAgain = 1500 * time.Millisecond

	// maxAfter bounds how long a relay can have a holder wait, and maxEvery how long it
	// can have one not ask.
	maxAfter = 10 * time.Second
	maxEvery = 5 * time.Minute

	// rivalEvery is how often a holder is looked at that may be dead.
	rivalEvery = 500 * time.Millisecond
)

// Reasons of a [LeaseHolder] to give up.
var (
	// ErrHostTaken reports that another host-agent serves the host.
	ErrHostTaken = errors.New("host is served by another host-agent")
	// ErrLeaseRefused reports that relays do not understand the request.
	ErrLeaseRefused = errors.New("lease request refused")
)

// LeaseConfig says which host a [LeaseHolder] is to hold.
type LeaseConfig struct {
	Conn     *broker.Conn  // required; the host-agent's
	Tenant   string        // required
	Host     string        // required
	Instance string        // required; the name of this run of the host-agent
	Presence Presence      // required; what to say at first
	TakeOver bool          // take the host from another instance, which then gives up
	Renew    time.Duration // default 5 s, a third of DefaultLeaseTTL

	// Former are instances that are known to have ended without releasing the
	// host: Acquire does that in their name, in place of waiting for their lease.
	Former []string

	// Gone is told which relay instances have crashed within the last minute,
	// after each answer that says so. Their links are no use any more. May be
	// nil.
	Gone func(relays []string)

	// Quiet reports that nobody waits for what answers say: no relay has a link to
	// this instance, so none that has crashed needs to be told of. Then it asks as seldom
	// as relays let it. It must not block. Default: it is never quiet.
	Quiet func() bool

	// Trouble is told why a request failed that will be repeated, which rival
	// the holder waits for, and, with ErrIncompatible, whom to upgrade. May be
	// nil.
	Trouble func(error)
}

// A LeaseHolder makes a host-agent instance the one that serves a host, and
// tells relays how the host is. First call Acquire, then Run, and Release in
// the end; Update, Fence and Recheck may be called at any time, by any goroutine.
type LeaseHolder struct {
	cfg     LeaseConfig
	subject string
	wake    chan struct{} // for Update; holds one

	// Owned by the caller of Acquire, Run and Release.
	seq     uint64
	reason  string        // of Release; default: the host-agent stopped
	upgrade string        // last told
	keeper  string        // relay that is asked; "": any
	after   time.Duration // a relay has said to wait that long; 0: none has
	every   time.Duration // the relay that was asked last hears this instance anyway: ask again after that; 0: it does not

	fence atomic.Uint64 // of the lease, as it was last told; 0: it was not

	mu       sync.Mutex
	presence Presence
}

// NewLeaseHolder returns a holder that holds nothing yet.
func NewLeaseHolder(cfg LeaseConfig) (*LeaseHolder, error) {
	if cfg.Conn == nil {
		return nil, errors.New("lease: no Conn given")
	}
	if err := errors.Join(
		ahp.CheckName("Tenant", cfg.Tenant), ahp.CheckName("Host", cfg.Host), ahp.CheckName("Instance", cfg.Instance),
	); err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	presence := fit(cfg.Presence)
	if err := presence.check(); err != nil {
		return nil, fmt.Errorf("lease: Presence: %w", err)
	}
	if cfg.Renew == 0 {
		cfg.Renew = defaultRenew
	}
	return &LeaseHolder{
		cfg: cfg, subject: leaseSubject(cfg.Tenant, cfg.Host), wake: make(chan struct{}, 1),
		presence: presence,
	}, nil
}

// fit completes a presence and cuts what is too long.
func fit(p Presence) Presence {
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
	for len(s) > limit {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

func printable(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}

// Acquire returns when this instance holds the host. While no relay answers it
// goes on asking. If another instance holds the host, it waits to see whether
// that one is alive: a crashed one's lease ends by itself, and a live one's is
// renewed, which is ErrHostTaken, with who and since when. One renewal may have
// been made before, and this relay have heard of it late: it takes two.
func (h *LeaseHolder) Acquire(ctx context.Context) error {
	var rival leaseAnswer
	former := slices.Clone(h.cfg.Former)
	h.keeper = h.cfg.Conn.Relay()
	for failures, renewals := 0, 0; ; {
		answer, err := h.ask(ctx, opHold, h.cfg.TakeOver)
		wait := rivalEvery
		switch {
		case err != nil:
			failures++
			wait = h.again(failures)
			h.trouble(err)
		case answer.Result == leaseHeld:
			return nil
		case answer.Result != leaseTaken:
			return h.refusal(answer)
		case slices.Contains(former, answer.Holder):
			wait = 0
			if err := h.releaseFormer(ctx, answer.Holder); err != nil {
				wait = rivalEvery
				h.trouble(err)
			}
			former = slices.DeleteFunc(former, func(f string) bool { return f == answer.Holder && wait == 0 })
		case rival.Holder == "":
			rival = answer
			h.trouble(fmt.Errorf("%w; waiting to see whether that one is alive", h.taken(answer)))
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

// Run keeps the host until ctx ends, which is no error, or until another
// instance has taken it, which is ErrHostTaken. It asks twice then: relays that
// have not seen each other for a while may need a moment to agree on who has
// it. Failures to reach a relay are no reason to give up: the lease may be lost
// meanwhile, and is asked for again as soon as one answers.
func (h *LeaseHolder) Run(ctx context.Context) error {
	wait := h.renewal()
	var taken time.Time // when this was first said; zero: it was not
	for failures := 0; ; {
		login, err := h.pause(ctx, wait)
		if err != nil {
			return nil
		}
		if login {
			failures = 0
			h.keeper = h.cfg.Conn.Relay() // the nearest one from now on
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
			wait = h.again(failures)
			h.trouble(err)
		}
	}
}

// Update changes what relays are told, at once if Run runs. Texts that are too
// long are cut; the state must be Online or Offline.
func (h *LeaseHolder) Update(p Presence) {
	h.mu.Lock()
	h.presence = fit(p)
	h.mu.Unlock()
	wakeUp(h.wake)
}

// Fence returns the number of the lease that this instance was last told it has, 0 if
// relays did not say. Of two instances the one with the higher number is the newer.
func (h *LeaseHolder) Fence() uint64 { return h.fence.Load() }

// Recheck has Run ask at once whether this instance still has the host. It may be
// called by any goroutine.
func (h *LeaseHolder) Recheck() { wakeUp(h.wake) }

// Release gives the host up, so that it is listed as offline at once and
// another instance can hold it. It tries until ctx ends; the lease ends by
// itself otherwise. Run must have returned.
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
			err = before // says more than that the time is over
		}
		before = err
		failures++
		if _, ended := h.pause(ctx, broker.RetryDelay(failures)); ended != nil {
			return fmt.Errorf("release %s/%s: %w", h.cfg.Tenant, h.cfg.Host, err)
		}
	}
}

// crashSeq is the number of a request in the name of an instance that can make
// none itself any more: it counts as later than all that the instance made.
const crashSeq = math.MaxUint64 / 2

// ReleaseCrashed is for whoever knows that an instance has ended without
// releasing its host: it does that in the instance's name, and says why. Conn is
// any connection with the rights of that host. It tries until ctx ends.
func ReleaseCrashed(ctx context.Context, cfg LeaseConfig, reason string) error {
	cfg.Presence = Presence{State: Offline}
	h, err := NewLeaseHolder(cfg)
	if err != nil {
		return err
	}
	h.seq, h.reason = crashSeq, cut(reason, maxReasonLen)
	return h.Release(ctx)
}

// ReasonCrashed is what clients hear of a host whose host-agent has crashed.
const ReasonCrashed = "host-agent crashed"

// releaseFormer releases the host in the name of an instance that has ended.
func (h *LeaseHolder) releaseFormer(ctx context.Context, instance string) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	cfg := h.cfg
	cfg.Instance = instance
	return ReleaseCrashed(ctx, cfg, ReasonCrashed)
}

// again returns how long to wait after so many failures: as long as a relay has said,
// if it has.
func (h *LeaseHolder) again(failures int) time.Duration {
	wait := max(broker.RetryDelay(failures), h.after)
	h.after = 0
	return wait
}

// renewal returns when to renew, not in step with others.
func (h *LeaseHolder) renewal() time.Duration {
	every := h.cfg.Renew
	if h.cfg.Quiet != nil && h.cfg.Quiet() {
		every = max(every, h.every)
	}
	return every - rand.N(every/10+1)
}

// pause waits, until Update or the next login at the longest; login says that
// it was the latter. The error says that ctx ended.
func (h *LeaseHolder) pause(ctx context.Context, d time.Duration) (login bool, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-h.cfg.Conn.NextLogin():
		return true, nil
	case <-h.wake:
	case <-timer.C:
	}
	return false, nil
}

// ask sends one request. An error means that there was no answer, or that the
// relay could not tell.
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
	subject := h.subject
	if h.keeper != "" {
		subject = leaseSubjectOf(h.cfg.Tenant, h.cfg.Host, h.keeper)
	}
	reply, err := h.cfg.Conn.Request(asking, subject, body)
	if errors.Is(err, nats.ErrNoResponders) && h.keeper != "" { // it has gone, or does not serve the tenant yet
		reply, err = h.cfg.Conn.Request(asking, h.subject, body)
	}
	if err != nil {
		if ctx.Err() == nil {
			h.keeper = "" // any other may know
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
		h.fence.Store(answer.Fence)
		h.every = min(time.Duration(answer.Every)*time.Millisecond, maxEvery)
		if ahp.CheckName("relay", answer.Relay) == nil {
			h.keeper = answer.Relay
		}
		if home := h.cfg.Conn.Relay(); home != "" && h.every == 0 { // another had to help out
			h.keeper = home
		}
	}
	if answer.Result == leaseRetry {
		h.after = min(max(time.Duration(answer.After)*time.Millisecond, 0), maxAfter)
		return leaseAnswer{}, fmt.Errorf("relay: %s", answer.Error)
	}
	return answer, nil
}

// noteUpgrade tells once that relays list the host as incompatible: each answer
// says so.
func (h *LeaseHolder) noteUpgrade(text string) {
	if text == "" || text == h.upgrade {
		return
	}
	h.upgrade = text
	h.trouble(fmt.Errorf("%w%s", link.ErrIncompatible, strings.TrimPrefix(text, link.ErrIncompatible.Error())))
}

func (h *LeaseHolder) trouble(err error) {
	away := errors.Is(err, nats.ErrReconnectBufExceeded) // there is no connection: the broker.Conn's own events tell
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
