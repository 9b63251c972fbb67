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
)

// Times of a pipe.
const (
	// greetingHold bounds the wait for the relay by a client that begins a session,
	// resumeHold by a client that resumes. A relay holds clients of absent hosts as
	// long.
	greetingHold = 20 * time.Second
	resumeHold   = 10 * time.Minute

	dialAgain = 200 * time.Millisecond // pause after a failed attempt, doubled each time
	dialMost  = 5 * time.Second        // its bound

	pingPatience = 2 * time.Second  // a ping unanswered for this long may be answered here
	renewAgain   = 10 * time.Second // pause before another attempt to renew a token

	// maxPings bounds the remembered pings. Clients send one at a time.
	maxPings = 64

	// maxEarly and maxEarlyBytes bound a client's messages that wait until the connection to
	// the relay is open. A single message may be larger. Beyond them, nothing more is read.
	maxEarly      = 64
	maxEarlyBytes = 1 << 20
)

// A pipe joins a local client to a host.
type pipe struct {
	local Messages
	relay *Relay
	host  string
	level auth.Access
	log   *slog.Logger

	opened chan struct{} // closed once up is set
	up     *upstream     // read-only once opened is closed
	direct chan struct{} // closed when no message is early any more
	mark   string        // begins the ids of requests of our own
	buf    bytes.Buffer  // of messages from the host

	mu         sync.Mutex // guards the fields below
	resumes    bool       // the first message was reconnect
	first      bool       // the first message has come
	early      []early
	earlyBytes int
	pings      []*ping
	renewed    string // id of our unanswered request; "": none
}

// An early message waits until the connection to the relay is open.
type early struct {
	message []byte
	ping    *ping // nil: it is none
}

// A ping is a client's unanswered ping.
type ping struct {
	id       []byte
	answered bool // by us: the host's answer is dropped
	timer    *time.Timer
}

// ServeLocal joins a local client to a host of the relay until either ends, or ctx. It
// returns the reason for the end.
func ServeLocal(ctx context.Context, local Messages, relay *Relay, host string, level auth.Access, log *slog.Logger) *Closed {
	p := &pipe{local: local, relay: relay, host: host, level: level, log: log, opened: make(chan struct{}), direct: make(chan struct{}), mark: "ahp-connect-" + rand.Text()}
	end := p.run(ctx)
	log.Info("client gone", "code", end.Code, "reason", end.Reason)
	return end
}

// run carries messages, and returns the reason for the end.
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
	select { // open may have succeeded meanwhile
	case <-p.opened:
		p.up.end()
	default:
	}
	for _, one := range p.pings {
		one.timer.Stop()
	}
	return end
}

// endOf returns the close code for an error.
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

// open connects to the host. While the relay is unreachable, it tries again, for as long
// as the client's first message allows.
func (p *pipe) open(ctx context.Context) error {
	began := time.Now()
	for pause := dialAgain; ; pause = min(2*pause, dialMost) {
		up, err := p.relay.Dial(ctx, p.host, p.level)
		if err == nil {
			p.up = up
			close(p.opened)
			return nil
		}
		var refusal *Refusal
		if errors.As(err, &refusal) {
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
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// errLocalGone reports a local client that vanished.
var errLocalGone = errors.New("the local client is gone")

// fromLocal passes the client's messages on. It reads on while the connection to the relay is
// not open: a client that has gone must not reach the host afterwards, where its reconnect
// would take the place of its next connection's, and pings are answered.
func (p *pipe) fromLocal(ctx context.Context) error {
	for {
		message, err := p.local.Read()
		if err != nil {
			if p.isOpen() { // what came before goes to the host
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

// awaitDirect waits until no message is early any more.
func (p *pipe) awaitDirect(ctx context.Context) error {
	select {
	case <-p.direct:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// keep adds a message to the early ones, unless none waits any more.
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

// sendEarly sends the early messages, once the connection to the relay is open.
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

// send sends a message to the host.
func (p *pipe) send(ctx context.Context, message []byte) error {
	err := p.up.send(message)
	if err != nil {
		select { // the reader fails as well, and knows the relay's reason
		case <-ctx.Done():
		case <-time.After(closeTime):
		}
	}
	return err
}

var pingWord = []byte(`"ping"`)

// note reads a client's first message, or a ping. It answers a ping itself while the
// relay has become unreachable, and returns true then. Before the connection to the relay is
// open, a ping waits like all other messages, for at most pingPatience.
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

// isOpen reports whether the connection to the relay has been opened.
func (p *pipe) isOpen() bool { return isClosed(p.opened) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// answerLate answers a ping that was sent just before the relay became unreachable, or before
// the relay was reached. The host does not get the latter.
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
	if len(p.early) < before { // no answer of the host will come
		p.pings = slices.DeleteFunc(p.pings, func(other *ping) bool { return other == one })
	}
	_ = p.local.Write(ahp.AppendResult(nil, one.id, nil)) // a failure also fails the next read
}

// errBadText reports a relay's message that is not UTF-8.
var errBadText = errors.New("message is not UTF-8")

// fromHost passes the host's messages on.
func (p *pipe) fromHost() error {
	for {
		message, ofRelay, err := p.up.receive(&p.buf)
		switch {
		case err != nil:
			return p.up.why(err)
		case !utf8.Valid(message):
			return errBadText
		case p.isOurs(message), ofRelay:
			continue
		}
		if err := p.local.Write(message); err != nil {
			return errLocalGone
		}
	}
}

// isOurs reports whether a message answers a request of ours, or a ping that was
// answered here.
func (p *pipe) isOurs(message []byte) bool {
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
	for i, one := range p.pings {
		if ahp.SameID(one.id, env.ID) {
			one.timer.Stop()
			p.pings = append(p.pings[:i], p.pings[i+1:]...)
			drop := one.answered
			one.id = nil
			return drop
		}
	}
	return false
}

// renewTokens renews the connection's token before it expires, until ctx ends.
func (p *pipe) renewTokens(ctx context.Context) {
	token, renew := p.up.lease()
	for wait := time.Until(renew); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		next, renew, err := p.relay.Token(ctx, p.host, p.level)
		if wait = max(time.Until(renew), renewAgain); err != nil || next == token {
			wait = renewAgain
			continue
		}
		id := p.mark + rand.Text()
		request, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": "relay/refreshToken", "params": map[string]string{"channel": "ahp-root://", "token": next}})
		if err != nil {
			continue // no field can fail
		}
		p.mu.Lock()
		p.renewed = id
		p.mu.Unlock()
		if p.up.tell(ctx, request) != nil { // the relay stops, or ctx has ended
			wait = renewAgain
			continue
		}
		token = next
	}
}
