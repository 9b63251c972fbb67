package connect

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/clock"
)

// Times of a pipe.
const (
	// greetingHold bounds how long a new client waits until the relay is reached, and
	// resumeHold how long a reconnecting client waits. By default, relays let clients wait
	// equally long for an unreachable host.
	greetingHold = 20 * time.Second
	resumeHold   = 10 * time.Minute

	dialAgain = 200 * time.Millisecond // pause after the first failed attempt, doubled each time
	dialMost  = 5 * time.Second        // longest pause

	pingPatience = 2 * time.Second  // a ping unanswered for this long may be answered here
	renewEvery   = 10 * time.Second // longest pause between two checks for a new token

	// maxPings bounds the remembered pings. Clients send one at a time.
	maxPings = 64

	// maxEarly and maxEarlyBytes bound a client's messages that wait until the connection to
	// the relay is open. A single message may be larger. Beyond them, nothing more is read.
	maxEarly      = 64
	maxEarlyBytes = 1 << 20
)

// A pipe connects a local client to a host.
type pipe struct {
	local Messages
	relay *Relay
	host  string
	level auth.Access
	log   *slog.Logger

	opened chan struct{} // closed when up is set
	up     *upstream     // read-only once opened is closed
	direct chan struct{} // closed when no early message waits any more
	mark   string        // prefix for the ids of this pipe's own requests
	buf    bytes.Buffer  // for messages from the host

	mu         sync.Mutex // guards the fields below
	resumes    bool       // the client's first message was reconnect
	first      bool       // the client's first message has arrived
	early      []early
	earlyBytes int
	pings      []*ping
	renewed    string // id of this pipe's pending renewal request; "": none
}

// An early message waits until the relay is reached.
type early struct {
	message []byte
	ping    *ping // nil: the message is no ping
}

// A ping is a client's unanswered ping.
type ping struct {
	id       []byte
	answered bool // by this pipe, so the host's answer is dropped
	timer    *time.Timer
}

// ServeLocal connects a local client to a host until either ends, or ctx ends. It returns the
// reason.
func ServeLocal(ctx context.Context, local Messages, relay *Relay, host string, level auth.Access, log *slog.Logger) *Closed {
	p := &pipe{local: local, relay: relay, host: host, level: level, log: log, opened: make(chan struct{}), direct: make(chan struct{}), mark: "ahp-connect-" + rand.Text()}
	end := p.run(ctx)
	log.Info("client gone", "code", end.Code, "reason", end.Reason)
	return end
}

// run copies messages, and returns why the connection has ended.
func (p *pipe) run(parent context.Context) *Closed {
	ctx, cancel := context.WithCancelCause(parent)
	var wg sync.WaitGroup
	wg.Go(func() { cancel(p.fromLocal(ctx)) })
	wg.Go(func() {
		if err := p.open(ctx); err != nil {
			cancel(err)
			return
		}
		wg.Go(func() { p.renewTokens(ctx) })
		wg.Go(func() {
			if err := p.sendEarly(ctx); err != nil {
				cancel(err)
			}
		})
		cancel(p.fromHost())
	})
	<-ctx.Done()
	end := p.endOf(context.Cause(ctx), parent)
	var closing sync.WaitGroup
	closing.Go(func() { p.local.Close(end.Code, end.Reason) })
	select {
	case <-p.opened:
		p.up.close(end.Code, end.Reason)
		p.up.end()
	default:
	}
	closing.Wait()
	wg.Wait()
	select { // open may have succeeded in the meantime
	case <-p.opened:
		p.up.end()
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.pings {
		one.timer.Stop()
		one.answered = true // answerLate, if it has begun, does nothing
	}
	return end
}

func (p *pipe) endOf(err error, parent context.Context) *Closed {
	var closed *Closed
	var refusal *Refusal
	var bad *ahp.FrameError
	switch {
	case parent.Err() != nil:
		if errors.As(context.Cause(parent), &closed) {
			return closed
		}
		return &Closed{ahp.CloseShuttingDown, "ahp-connect stops"}
	case errors.As(err, &closed):
		if closed.Code == closeLost {
			return &Closed{ahp.CloseResync, "resync: the connection to the relay was lost"}
		}
		return p.relay.advise(closed)
	case errors.As(err, &refusal):
		return &Closed{refusal.Code, refusal.Reason}
	case errors.As(err, &bad), errors.Is(err, errBinary):
		return &Closed{ahp.CloseBadMessage, ahp.CloseBadMessage.Reason() + ": " + err.Error()}
	case errors.Is(err, errBadText):
		return &Closed{ahp.CloseResync, "resync: the relay sent a message that is not UTF-8"}
	case errors.Is(err, errLocalGone):
		return &Closed{closeLost, "client lost"}
	}
	p.log.Debug("connection lost", "error", err)
	return &Closed{ahp.CloseResync, "resync: the connection to the relay was lost"}
}

// open connects to the host. While the relay is unreachable, it retries, for as long as the
// client's first message permits (greetingHold, resumeHold).
func (p *pipe) open(ctx context.Context) error {
	began := time.Now()
	for pause := dialAgain; ; pause = min(2*pause, dialMost) {
		up, err := p.relay.Dial(ctx, p.host, p.level)
		if err == nil {
			p.up = up
			close(p.opened)
			return nil
		}
		if _, ok := errors.AsType[*Refusal](err); ok {
			return err
		}
		p.log.Debug("relay not reached", "error", err)
		hold := greetingHold
		p.mu.Lock()
		if p.resumes {
			hold = resumeHold
		}
		p.mu.Unlock()
		if time.Since(began)+pause > hold {
			return &Refusal{ahp.CloseHostOffline, ahp.CloseHostOffline.Reason() + ": " + err.Error()}
		}
		if !clock.Sleep(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

var errLocalGone = errors.New("the local client is gone")

// fromLocal forwards the client's messages. It also reads while the relay is not reached yet.
// Then it can answer pings, and notice if the client leaves: messages of a client which has
// left must not reach the host later, where an old reconnect would replace the client's next
// connection.
func (p *pipe) fromLocal(ctx context.Context) error {
	for {
		message, err := p.local.Read()
		if err != nil {
			if p.isOpen() { // messages sent before still go to the host
				_ = p.awaitDirect(ctx)
			}
			if closed := (*Closed)(nil); errors.As(err, &closed) || errors.Is(err, errBinary) {
				return err
			}
			return errLocalGone
		}
		var one *ping
		if !p.first || bytes.Contains(message, pingWord) {
			var answered bool
			if one, answered, err = p.note(message); err != nil {
				return err
			}
			if answered {
				continue
			}
		}
		waits, full := p.keep(message, one)
		switch {
		case full:
			err = p.awaitDirect(ctx)
		case !waits:
			err = p.send(ctx, message)
		}
		if err != nil {
			return err
		}
	}
}

// awaitDirect waits until no early message waits any more.
func (p *pipe) awaitDirect(ctx context.Context) error {
	select {
	case <-p.direct:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// keep appends a message to the early messages. If the message can be sent directly, waits is
// false.
func (p *pipe) keep(message []byte, one *ping) (waits, full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isClosed(p.direct) {
		return false, false
	}
	p.early = append(p.early, early{bytes.Clone(message), one})
	p.earlyBytes += len(message)
	return true, len(p.early) >= maxEarly || p.earlyBytes >= maxEarlyBytes
}

// sendEarly sends the early messages when the relay is reached.
func (p *pipe) sendEarly(ctx context.Context) error {
	for {
		p.mu.Lock()
		list := p.early
		p.early, p.earlyBytes = nil, 0
		if len(list) == 0 {
			close(p.direct)
		}
		p.mu.Unlock()
		if len(list) == 0 {
			return nil
		}
		for _, one := range list {
			if err := p.send(ctx, one.message); err != nil {
				return err
			}
		}
	}
}

func (p *pipe) send(ctx context.Context, message []byte) error {
	err := p.up.send(message)
	if err != nil {
		select { // the reader has failed too, and knows the relay's reason
		case <-ctx.Done():
		case <-time.After(closeTime):
		}
	}
	return err
}

var pingWord = []byte(`"ping"`)

// note handles a client's first message, and pings. If the relay has become unreachable, it
// answers a ping itself and returns true. Before the relay was first reached, a ping waits
// like other messages, for at most pingPatience.
func (p *pipe) note(message []byte) (one *ping, answered bool, err error) {
	env, err := ahp.Peek(message)
	if err != nil {
		return nil, false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	isPing := env.Kind == ahp.Request && string(env.Method) == "ping"
	switch {
	case !isPing:
		p.resumes = p.resumes || !p.first && string(env.Method) == "reconnect"
		p.first = true
		return nil, false, nil
	case p.isOpen() && p.up.away():
		return nil, true, p.local.Write(ahp.AppendResult(nil, env.ID, nil))
	case len(p.pings) >= maxPings:
		return nil, false, nil
	}
	one = &ping{id: bytes.Clone(env.ID)}
	one.timer = time.AfterFunc(pingPatience, func() { p.answerLate(one) })
	p.pings = append(p.pings, one)
	return one, false, nil
}

// isOpen reports whether the relay was reached.
func (p *pipe) isOpen() bool { return isClosed(p.opened) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// answerLate answers a ping sent just before the relay became unreachable, or before it was
// reached. In the second case the host never gets the ping.
func (p *pipe) answerLate(one *ping) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.answered || one.id == nil {
		return
	}
	if p.isOpen() && !p.up.away() {
		one.timer.Reset(pingPatience)
		return
	}
	one.answered = true
	before := len(p.early)
	p.early = slices.DeleteFunc(p.early, func(e early) bool { return e.ping == one })
	if len(p.early) < before { // the ping was still waiting, so the host will not answer it
		p.pings = slices.DeleteFunc(p.pings, func(other *ping) bool { return other == one })
	}
	_ = p.local.Write(ahp.AppendResult(nil, one.id, nil)) // a failure also fails the next read
}

// errBadText reports a message from a relay which is not UTF-8.
var errBadText = errors.New("message is not UTF-8")

func (p *pipe) fromHost() error {
	for {
		message, ofRelay, err := p.up.receive(&p.buf)
		switch {
		case err != nil:
			return p.up.why(err)
		case !utf8.Valid(message):
			return errBadText
		case p.isOurs(message, ofRelay), ofRelay:
			continue
		}
		if err := p.local.Write(message); err != nil {
			return errLocalGone
		}
	}
}

// isOurs reports whether a message answers this pipe's own request, or a ping already
// answered here. The relay of a sealed host answers no pings.
func (p *pipe) isOurs(message []byte, ofRelay bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.renewed == "" && len(p.pings) == 0 {
		return false
	}
	env, err := ahp.Peek(message)
	if err != nil || env.Kind != ahp.Response {
		return false
	}
	if id, ok := ahp.Text(env.ID); ok && p.renewed != "" && id == p.renewed {
		p.renewed = ""
		if env.Error != nil {
			p.log.Warn("token not renewed", "error", ahp.TextOf(env.Error, "message"))
		}
		return true
	}
	if ofRelay {
		return false
	}
	for i, one := range p.pings {
		if ahp.SameID(one.id, env.ID) {
			one.timer.Stop()
			p.pings = slices.Delete(p.pings, i, i+1)
			drop := one.answered
			one.id = nil
			return drop
		}
	}
	return false
}

// renewTokens gives the relay each new token for the connection, until ctx ends. It looks for a new token
// at least every renewEvery, because a timer for the time of the renewal would stand still while the machine
// sleeps.
func (p *pipe) renewTokens(ctx context.Context) {
	token, wait := p.up.currentToken(), time.Duration(0)
	for {
		if !clock.Sleep(ctx, wait) {
			return
		}
		next, renew, err := p.relay.Token(ctx, p.host, p.level)
		if wait = renewEvery; err != nil {
			continue
		}
		if wait = min(max(time.Until(renew), time.Second), renewEvery); next == token {
			continue
		}
		id := p.mark + rand.Text()
		request, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": "relay/refreshToken", "params": map[string]string{"channel": "ahp-root://", "token": next}})
		if err != nil {
			continue // cannot fail
		}
		p.mu.Lock()
		p.renewed = id
		p.mu.Unlock()
		if p.up.tell(ctx, request) == nil { // else the relay is stopping, or ctx has ended
			token = next
		}
	}
}
