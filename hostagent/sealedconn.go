package hostagent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/idle"
	"ahprelay/internal/sealed"
	"ahprelay/internal/signal"
	"ahprelay/routing"
	"ahprelay/routing/audience"
)

// Sealing configures a sealed host. Show and Confirm may be nil, because "host-agent devices"
// also shows codes and confirms devices.
type Sealing struct {
	// Console is the address at which links in QR codes begin: a console that the relay
	// does not serve. If it is empty, the links are for ahp-connect only.
	Console string

	// Show displays the first device's code.
	Show func(PairingCode)

	// Confirm asks a person at the host whether to admit a device, until ctx ends.
	Confirm func(ctx context.Context, device PairingRequest) (bool, error)
}

// Bounds of handshakes.
const (
	handshakeTime = 10 * time.Second
	maxHandshakes = 64 // most handshakes at the same time, without pairings that wait for a person
	maxEarly      = 64 // most messages that are kept for a client before it is admitted
)

// Close reasons before the first record. The relay can read them.
const (
	sealedReason = `this host is sealed: pair this device with "ahp-connect pair"`
	unsealable   = "no valid sealed handshake"

	crowdedReason = "too many sealed handshakes"
)

// handshakes has the handshakes in progress, oldest first. While there is no room, a new one takes the place of the
// oldest of the relay's subject that has most of them, so that no subjects keep out others with handshakes
// that they do not complete.
type handshakes struct {
	mu  sync.Mutex // guards the field below
	all []*sealedConn
}

// begin adds a handshake, and reports whether there is room for it.
func (h *handshakes) begin(c *sealedConn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.all) >= maxHandshakes {
		of := map[string]int{}
		for _, o := range h.all {
			of[o.open.Subject]++
		}
		busiest := slices.MaxFunc(h.all, func(a, b *sealedConn) int { return cmp.Compare(of[a.open.Subject], of[b.open.Subject]) })
		if of[busiest.open.Subject] <= of[c.open.Subject]+1 {
			return false
		}
		h.all = slices.DeleteFunc(h.all, func(o *sealedConn) bool { return o == busiest })
		busiest.displaced.Store(true)
		busiest.end()
	}
	h.all = append(h.all, c)
	return true
}

func (h *handshakes) end(c *sealedConn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = slices.DeleteFunc(h.all, func(o *sealedConn) bool { return o == c })
}

// seals holds the state of a sealed host.
type seals struct {
	agent *Agent
	*vault
	handshakes handshakes
	held       atomic.Int64 // bytes of clients' incomplete messages
	shared     sealShares
	replies    outcomes // outcomes of replies from notifications, by their digest
	pooled     sync.Once
	pool       *audience.Pool // see viewers
}

// A sealedConn is a client's connection to a sealed host. It performs the handshake, and
// then passes messages to a hostConn. It implements [routing.HostConn], [routing.Mover] and
// [routing.Tagger].
type sealedConn struct {
	agent *Agent
	conn  *routing.AgentConn
	open  routing.Open // from the relay: only its ID and Remote are trusted
	log   *slog.Logger
	life  context.Context // ends with the handshake, the client or the host-agent
	end   context.CancelFunc

	came chan struct{} // signals that early has grown; capacity 1

	displaced atomic.Bool // a different handshake has taken the place of this one

	seal *sealing // the client's sealed stream; set after the handshake, before other goroutines can see it

	wanted auth.Access // highest level that the client asks for; "": its own level

	mu    sync.Mutex // guards the fields below
	inner *hostConn  // nil before the client is admitted
	early []delivery
	bye   *clientClose
}

// connect accepts a client's connection to a sealed host and returns at once.
func (s *seals) connect(conn *routing.AgentConn, open routing.Open) routing.HostConn {
	a := s.agent
	life, end := context.WithCancel(a.life)
	c := &sealedConn{agent: a, conn: conn, open: open, log: a.cfg.Log.With("conn", open.ID), life: life, end: end, came: make(chan struct{}, 1)}
	a.conns.Go(func() {
		defer end()
		if !s.handshakes.begin(c) {
			conn.Close(ahp.CloseOverloaded, crowdedReason)
			return
		}
		defer s.handshakes.end(c)
		switch {
		case !open.Sealed || open.Canvas != nil:
			conn.Close(ahp.CloseForbidden, sealedReason)
		default:
			idle.Deep(c.run)
		}
	})
	return c
}

func (c *sealedConn) Deliver(message []byte, binary bool, credit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner != nil {
		c.inner.Deliver(message, binary, credit)
		return
	}
	c.earlyLocked(delivery{message: message, binary: binary, credit: credit})
}

// Move implements [routing.Mover]. A client that is not yet admitted cannot move.
func (c *sealedConn) Move(m routing.Move) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner != nil {
		c.inner.Move(m)
		return
	}
	c.earlyLocked(delivery{flush: true})
}

func (c *sealedConn) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner != nil {
		c.inner.Flush()
		return
	}
	c.earlyLocked(delivery{flush: true})
}

// earlyLocked queues a delivery until the client is admitted. Above maxEarly, it ends the
// handshake: a correct client sends few messages before that.
func (c *sealedConn) earlyLocked(d delivery) {
	if len(c.early) >= maxEarly {
		c.end()
		return
	}
	c.early = append(c.early, d)
	signal.Send(c.came)
}

func (c *sealedConn) Closed(code ahp.CloseCode, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner != nil {
		c.inner.Closed(code, reason)
		return
	}
	c.bye = &clientClose{code, reason}
	c.end()
}

// cut ends the connection to the host, or the handshake.
func (c *sealedConn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner != nil {
		c.inner.cancel()
		return
	}
	c.end()
}

// next returns the next message of a client that is not yet admitted.
func (c *sealedConn) next(ctx context.Context) (delivery, error) {
	for {
		c.mu.Lock()
		if len(c.early) > 0 {
			d := c.early[0]
			c.early = c.early[1:]
			c.mu.Unlock()
			if d.flush {
				_ = c.conn.Flushed(false) // fails if the client has left
				continue
			}
			c.conn.Written(d.credit)
			return d, nil
		}
		c.mu.Unlock()
		select {
		case <-c.came:
		case <-ctx.Done():
			return delivery{}, ctx.Err()
		}
	}
}

// run performs the handshake, and admits the client.
func (c *sealedConn) run() {
	if c.conn.Opened() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(c.life, handshakeTime)
	arrival, code, answers, err := c.handshake(ctx)
	cancel()
	if err != nil {
		c.refuse(err)
		return
	}
	s := newSealing(c.agent, newClientLine(c.conn), arrival, answers, c.cut)
	c.seal = s
	if arrival.Purpose == sealed.Pair {
		if err := c.pair(s, arrival, code); err != nil {
			c.turnAway(s, arrival, ahp.CloseForbidden, err)
			return
		}
	}
	authority, err := c.agent.seals.admit(arrival.Identity, arrival.Greeting.Grants, time.Now())
	switch {
	case authority == nil:
		c.turnAway(s, arrival, ahp.CloseTokenEnded, err)
		return
	case err != nil:
		c.log.Error("visit of a device not recorded", "error", err)
	}
	if s.guest, err = c.agent.seals.enter(authority, arrival.Greeting.Viewer); err != nil {
		c.turnAway(s, arrival, ahp.CloseOverloaded, err)
		return
	}
	s.device = authority
	c.wanted = arrival.Greeting.Level
	s.browser = vaultBrowser{Grants: arrival.Greeting.Grants, Wanted: c.wanted, Name: arrival.Greeting.Name}
	s.identity = arrival.Identity
	c.admit(s, authority)
}

// handshake performs the handshake. code is the pairing code that the client has proved,
// and answers the number of messages that the host-agent has sent.
func (c *sealedConn) handshake(ctx context.Context) (arrival *sealed.Arrival, code sealed.Code, answers int, err error) {
	r := sealed.NewResponder(sealed.ResponderConfig{
		Host: c.agent.host, Secret: c.agent.seals.secret, Limit: c.agent.cfg.MaxFrame,
		Code: func() (sealed.Code, bool) {
			var ok bool
			code, ok = c.agent.seals.validCode()
			return code, ok
		},
	})
	for arrival == nil {
		d, err := c.next(ctx)
		if err != nil {
			return nil, code, answers, err
		}
		if !d.binary {
			return nil, code, answers, errUnsealed
		}
		if r.Third() && r.Purpose() == sealed.Pair && !c.agent.seals.try() {
			return nil, code, answers, sealed.ErrNoCode
		}
		var answer []byte
		if answer, arrival, err = r.Read(d.message); err != nil {
			return nil, code, answers, err
		}
		if answer != nil {
			answers++
			if err := c.conn.FromHost(answer, true, nil); err != nil {
				return nil, code, answers, err
			}
		}
	}
	return arrival, code, answers, nil
}

// refuse ends a connection before its first record.
func (c *sealedConn) refuse(err error) {
	closeCode, reason := ahp.CloseBadMessage, unsealable
	switch {
	case c.displaced.Load():
		closeCode, reason = ahp.CloseOverloaded, crowdedReason
	case c.life.Err() != nil: // the client has left, or the host-agent stops
		closeCode, reason = ahp.CloseHostOffline, stoppedReason
	case errors.Is(err, context.DeadlineExceeded): // the network or this machine may have paused, so the client should try again
		closeCode, reason = ahp.CloseResync, "the sealed handshake took too long"
	case errors.Is(err, sealed.ErrNoCode), errors.Is(err, sealed.ErrWrongCode):
		closeCode, reason = ahp.CloseForbidden, "this pairing is not possible: the code is wrong, used or too old"
	}
	c.log.Warn(auditMessage, "event", "refuse", "reason", "sealed handshake", "error", err, "address", c.open.Remote)
	c.conn.Close(closeCode, reason)
}

// turnAway ends a connection after the handshake, with a sealed reason.
func (c *sealedConn) turnAway(s *sealing, arrival *sealed.Arrival, code ahp.CloseCode, err error) {
	c.log.Warn(auditMessage, "event", "refuse", "reason", "device", "device", arrival.Identity.Fingerprint(), "error", err, "address", c.open.Remote)
	s.close(code, err.Error())
	s.stop()
}

// Errors of a pairing.
var (
	errPairRefused = errors.New("the person at the host has refused this device")
	errPairLate    = errors.New("the pairing was not confirmed at the host in time: start again with a new code")
)

// pair waits until a person at the host has confirmed the device. It returns an error if
// the device is not admitted.
func (c *sealedConn) pair(s *sealing, arrival *sealed.Arrival, code sealed.Code) error {
	w, err := c.agent.seals.proved(code, arrival.Identity, arrival.Greeting.Name)
	if err != nil {
		return err
	}
	c.agent.seals.handshakes.end(c)
	admitted := false
	if err = s.send(sealed.Pending, nil); err == nil {
		admitted, err = c.confirm(s, w)
	}
	if err != nil {
		if c.life.Err() != nil {
			c.agent.seals.lost(w)
		}
		return errors.Join(err, c.agent.seals.leave(w, arrival.Identity, false))
	}
	if err := c.agent.seals.leave(w, arrival.Identity, admitted); err != nil {
		return err
	}
	if !admitted {
		return errPairRefused
	}
	c.log.Info(auditMessage, "event", "device paired", "device", w.Fingerprint, "subject", w.Subject, "access", w.Level)
	c.agent.seals.endFormer()
	return nil
}

// confirm waits for a person's decision, while it reads the device's heartbeats.
func (c *sealedConn) confirm(s *sealing, w *waitingDevice) (bool, error) {
	c.log.Info("device unconfirmed", "device", w.Fingerprint, "words", w.Words, "hint", "compare the words, then run host-agent devices --confirm")
	ctx, cancel := context.WithTimeout(c.life, confirmTime)
	defer cancel()
	if ask := c.agent.cfg.Sealed.Confirm; ask != nil {
		c.agent.conns.Go(func() {
			if yes, err := ask(ctx, w.PairingRequest); err == nil {
				_ = c.agent.seals.decide(w.Fingerprint, yes) // a different decision may have come first
			}
		})
	}
	failed := make(chan error, 1)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	reading.Go(func() {
		for {
			d, err := c.next(ctx)
			if err != nil {
				return // ctx has ended
			}
			if message, err := s.open(&d); err != nil || message != nil {
				failed <- errors.New("the device sent a message before it was admitted")
				return
			}
		}
	})
	select {
	case yes := <-w.decided:
		return yes, nil
	case err := <-failed:
		return false, err
	case <-ctx.Done():
		if c.life.Err() != nil {
			return false, c.life.Err()
		}
		return false, errPairLate
	}
}

// admit connects an admitted client to the host.
func (c *sealedConn) admit(s *sealing, a *sealed.Authority) {
	open, policy := c.agent.seals.authority(a, c.wanted)
	open.ID, open.Remote = c.open.ID, c.open.Remote
	s.manages = policy.Access.Includes(auth.AccessAdmin) && !slices.ContainsFunc(a.Limits, func(channels []string) bool { return len(channels) > 0 })
	if err := s.admitted(a); err != nil {
		s.stop()
		return
	}
	inner := serveClient(c.agent, s.line, open, policy)
	defer func() {
		if c.agent.seals.removedOf(a) { // the device was removed during its admission
			c.agent.seals.endRemoved()
		}
		if c.agent.seals.isFormer(s) { // the same for a new pairing
			c.agent.seals.endFormer()
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inner = inner
	for _, d := range c.early {
		inner.writer.queueUp(d)
	}
	c.early = nil
	if c.bye != nil {
		inner.Closed(c.bye.code, c.bye.reason)
	}
}

// showFirstCode makes a code and displays it, if the host has no device yet.
func (s *seals) showFirstCode() {
	if s == nil {
		return
	}
	a := s.agent
	a.cfg.Log.Info("host sealed", "effect", "relays cannot read its messages", "words", s.fingerprint().Words())
	if !s.empty() {
		return
	}
	if a.cfg.Sealed.Show == nil {
		a.cfg.Log.Info("sealed host without a paired device", "hint", `"host-agent devices --pair" shows a code`)
		return
	}
	code, err := s.newCode(DeviceOrder{})
	if err != nil {
		a.cfg.Log.Error("pairing code not made", "error", err)
		return
	}
	a.cfg.Sealed.Show(code)
}
