package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/routing"
)

// A phase is where a client's connection stands.
type phase int

const (
	phaseNew     phase = iota // the host is away, and the client has not said what it wants
	phaseWaiting              // the host is there: the connection to it is being made
	phaseHeld                 // the host is away: a client that wants to resume waits for it
	phaseOpening              // the host-agent is connecting to the host
	phaseOpen                 // messages pass
	phaseClosed
)

// String returns the phase as the admin pages show it.
func (p phase) String() string {
	return [...]string{"new", "waiting", "held", "opening", "open", "closed"}[p]
}

// A client is one connection of a client to a host.
type client struct {
	// Set by newClient, then read-only.
	id      string
	who     auth.Client
	host    hostKey
	remote  string
	since   time.Time
	sock    *socket
	out     *outbox
	hosts   *hosts
	cfg     *Config
	metrics *metrics
	spawn   func(func()) bool // starts a goroutine that the server waits for
	log     *slog.Logger

	gate                                   *routing.ReadGate // nil: the token allows everything
	accepted                               atomic.Bool       // the host has taken the connection
	ready                                  atomic.Bool       // and has answered initialize or reconnect
	framesIn, framesOut, bytesIn, bytesOut atomic.Int64

	counted bool // in the totals of metrics, whose mutex guards it

	ctx    context.Context // ends with the connection
	cancel context.CancelFunc

	mu      sync.Mutex // guards all that follows; taken before the routing package's locks
	phase   phase
	conn    *routing.RelayConn // from phaseOpening on
	pending [][]byte           // messages that wait for phaseOpen
	bytes   int                // of pending
	resumes bool               // the first message was a reconnect
	hold    *time.Timer        // ends phaseHeld
}

// Buffers for reading messages. Those that have grown large are not kept.
const (
	firstBuffer = 4 << 10
	keepBuffer  = 64 << 10
)

var readBuffers = sync.Pool{New: func() any { b := make([]byte, 0, firstBuffer); return &b }}

// serve carries a client's connection until it ends.
func (c *client) serve() {
	defer c.cancel()
	expiry := time.AfterFunc(time.Until(c.who.Expires), func() {
		c.out.close(ahp.CloseTokenEnded, ahp.CloseTokenEnded.Reason())
	})
	defer expiry.Stop()
	c.hosts.join(c)
	defer c.hosts.leave(c)
	err := c.readLoop()
	code, reason := c.readFailed(err)
	c.leavePhases(code, reason)
}

// readLoop reads messages until the connection ends.
func (c *client) readLoop() error {
	for {
		r, err := c.sock.next()
		if err != nil {
			return err
		}
		if err := c.read(r); err != nil {
			return err
		}
	}
}

// read reads one message and passes it on.
func (c *client) read(r io.Reader) error {
	buf := readBuffers.Get().(*[]byte)
	defer readBuffers.Put(buf)
	message, err := readAll(r, (*buf)[:0], c.limit())
	if cap(message) <= keepBuffer {
		*buf = message[:0]
	}
	if err != nil {
		return err
	}
	c.framesIn.Add(1)
	c.bytesIn.Add(int64(len(message)))
	return c.fromClient(message)
}

// limit is how long the next message may be, in bytes.
func (c *client) limit() int {
	if c.ready.Load() {
		return c.cfg.MaxFrame
	}
	return c.cfg.MaxFirstFrame
}

// fromClient takes one message, which it does not keep.
func (c *client) fromClient(message []byte) error {
	env, err := ahp.Peek(message)
	if err != nil {
		return err
	}
	if c.gate != nil {
		verdict, instead := c.gate.FromClient(&env)
		switch {
		case verdict == routing.Answer && instead != nil:
			c.answer(instead)
			return nil
		case verdict == routing.Answer:
			return nil
		case verdict == routing.Replace:
			message = instead
		}
	}
	return c.pass(&env, message)
}

// pass sends a message to the host, or keeps it until there is one.
func (c *client) pass(env *ahp.Envelope, message []byte) error {
	c.mu.Lock()
	if c.phase == phaseOpen {
		conn := c.conn
		c.mu.Unlock()
		err := conn.Send(c.ctx, message)
		if errors.Is(err, routing.ErrConnClosed) {
			return nil // Closed has been told why
		}
		return err
	}
	defer c.mu.Unlock()
	return c.beforeOpen(env, message)
}

// beforeOpen takes a message while there is no connection to the host.
func (c *client) beforeOpen(env *ahp.Envelope, message []byte) error {
	away := c.phase == phaseNew || c.phase == phaseHeld
	switch {
	case c.phase == phaseClosed:
		return nil
	case away && env.Kind == ahp.Request && string(env.Method) == "ping":
		c.answer(ahp.AppendResult(nil, env.ID, nil))
		return nil
	case c.bytes+len(message) > c.cfg.MaxFirstFrame:
		return fmt.Errorf("%w: more than %d bytes before the host took any", errTooBig, c.cfg.MaxFirstFrame)
	}
	if len(c.pending) == 0 {
		c.resumes = env.Kind == ahp.Request && string(env.Method) == "reconnect"
	}
	c.pending = append(c.pending, append([]byte(nil), message...))
	c.bytes += len(message)
	if c.phase == phaseNew {
		c.hostAwayLocked("")
	}
	return nil
}

// answer sends the client a message of the relay's own.
func (c *client) answer(message []byte) {
	c.out.push(routing.Frame{Data: encodePiece(message, true, true, false)})
}

// hostAwayLocked decides what becomes of a client whose host is away: one that
// wants to resume is held, because stock clients give up after some failed
// attempts; any other that has asked for something is told and closed.
func (c *client) hostAwayLocked(detail string) {
	switch {
	case len(c.pending) == 0:
		c.phase = phaseNew
	case c.resumes:
		if c.phase != phaseHeld {
			c.log.Info("client held until the host is back")
		}
		c.phase = phaseHeld
		if c.hold == nil {
			c.hold = time.AfterFunc(c.cfg.HoldTime, func() {
				c.out.close(ahp.CloseHostOffline, closeReason(ahp.CloseHostOffline, "held for "+c.cfg.HoldTime.String()))
			})
		}
	default:
		c.refuseLocked(closeReason(ahp.CloseHostOffline, detail))
	}
}

// refuseLocked answers the requests that wait, and closes.
func (c *client) refuseLocked(reason string) {
	for _, message := range c.pending {
		if env, err := ahp.Peek(message); err == nil && env.Kind == ahp.Request {
			c.answer(ahp.AppendError(nil, env.ID, ahp.CodeHostOffline, reason, nil))
		}
	}
	c.pending = nil
	c.phase = phaseClosed
	c.out.close(ahp.CloseHostOffline, reason)
}

// reconsider moves a client that has no connection to its host on: relay is
// the link to the host if there is one.
func (c *client) reconsider(relay *routing.Relay, host broker.Host) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.phase >= phaseOpening:
	case host.State != broker.Online:
		c.hostAwayLocked(host.Reason)
	case relay != nil:
		c.openLocked(relay)
	case c.phase == phaseNew:
		c.phase = phaseWaiting
	}
}

// openLocked has the host-agent connect to the host.
func (c *client) openLocked(relay *routing.Relay) {
	conn, err := relay.Open(routing.Open{
		ID: c.id, Subject: c.who.Subject, Token: c.who.ID, Access: string(c.who.Access),
		Expires: &c.who.Expires, Remote: c.remote,
	}, clientEvents{c})
	switch {
	case errors.Is(err, routing.ErrTooManyConns):
		c.phase = phaseClosed
		c.out.close(ahp.CloseOverloaded, closeReason(ahp.CloseOverloaded, err.Error()))
	case err == nil:
		c.conn = conn
		c.phase = phaseOpening
	}
	// Otherwise the link has ended, and hosts calls again.
}

// opened sends what waited, now that the host takes messages.
func (c *client) opened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != phaseOpening {
		return
	}
	for _, message := range c.pending {
		// It fits: what may wait is far less than what Send takes at once.
		if err := c.conn.Send(c.ctx, message); err != nil {
			return
		}
	}
	c.pending, c.bytes = nil, 0
	c.phase = phaseOpen
	if c.hold != nil {
		c.hold.Stop()
	}
}

// rejected takes the host-agent's word that it cannot connect to the host, or
// the end of the link before it could.
func (c *client) rejected(code ahp.CloseCode, detail string) {
	c.mu.Lock()
	if c.phase != phaseOpening {
		c.mu.Unlock()
		return
	}
	c.conn = nil
	if code != ahp.CloseHostOffline && code != ahp.CloseResync {
		c.phase = phaseClosed
		c.out.close(code, closeReason(code, detail))
		c.mu.Unlock()
		return
	}
	c.phase = phaseWaiting
	if code == ahp.CloseHostOffline {
		c.hostAwayLocked(detail)
	}
	c.mu.Unlock()
	c.hosts.retry(c)
}

// readFailed closes the connection as the reader's error says, and returns
// what to tell the host-agent.
func (c *client) readFailed(err error) (ahp.CloseCode, string) {
	var bad *ahp.FrameError
	code, reason := closeStatus(err)
	switch {
	case errors.As(err, &bad):
		code, reason = ahp.CloseBadMessage, closeReason(ahp.CloseBadMessage, bad.Error())
	case errors.Is(err, errBinary):
		code, reason = ahp.CloseBadMessage, closeReason(ahp.CloseBadMessage, err.Error())
	case errors.Is(err, errTooBig):
		code, reason = ahp.CloseMessageTooBig, err.Error()
	default:
		c.sock.kill()
	}
	c.out.close(code, reason)
	return code, reason
}

// leavePhases ends the connection to the host.
func (c *client) leavePhases(code ahp.CloseCode, reason string) {
	c.mu.Lock()
	conn := c.conn
	c.phase = phaseClosed
	c.pending = nil
	if c.hold != nil {
		c.hold.Stop()
	}
	c.mu.Unlock()
	if conn != nil {
		conn.Close(code, reason)
	}
	c.metrics.count(c, code)
	c.log.Info("client gone", "code", code, "reason", reason, "frames_in", c.framesIn.Load(), "frames_out", c.framesOut.Load())
}

// ended is called by the outbox at its end: the last thing that the client is
// sent is why.
func (c *client) ended(end closing) {
	if end.failed != nil {
		c.sock.kill()
		return
	}
	c.sock.close(end.code, end.reason)
}

// written gives credit back to the host-agent.
func (c *client) written(credit int) {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		conn.Written(credit)
	}
}

// clientEvents is what the routing package sees of a client. Its methods run
// under that package's locks, and so only touch the outbox, or start a
// goroutine.
type clientEvents struct{ *client }

// Opened implements [routing.ClientConn].
func (c clientEvents) Opened() {
	c.accepted.Store(true)
	c.spawn(c.opened)
}

// Ready implements [routing.ClientConn].
func (c clientEvents) Ready() { c.ready.Store(true) }

// Deliver implements [routing.ClientConn].
func (c clientEvents) Deliver(frames []routing.Frame) {
	n := 0
	for _, f := range frames {
		n += len(f.Data)
		if c.gate != nil {
			if message, whole := framePayload(f.Data); whole {
				c.gate.ToClient(message)
			}
		}
	}
	c.framesOut.Add(int64(len(frames)))
	c.bytesOut.Add(int64(n))
	c.out.push(frames...)
}

// Closed implements [routing.ClientConn].
func (c clientEvents) Closed(code ahp.CloseCode, detail string) {
	if c.accepted.Load() {
		c.out.close(code, closeReason(code, detail))
		return
	}
	c.spawn(func() { c.rejected(code, detail) })
}

// closeReason is the text of a close frame.
func closeReason(code ahp.CloseCode, detail string) string {
	reason := code.Reason()
	switch {
	case detail == "":
		return reason
	case reason == "":
		return detail
	}
	return reason + ": " + detail
}
