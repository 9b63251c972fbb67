package hostagent

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/remember"
	"ahprelay/broker/resume"
	"ahprelay/hostagent/remembering"
	"ahprelay/internal/clock"
	"ahprelay/internal/signal"
	"ahprelay/routing"
)

// A relay that stops asks the host-agent to keep the connections of its clients behind
// ahp-connect. The host-agent keeps each connection to the host under a ticket that
// ahp-connect has chosen. A line is the client's way through one relay:
//
// 1. The relay sends a move record behind all messages of the client so far. Once these
//    messages are written to the host, the host-agent answers "moved" behind all messages
//    of the host so far. From then on, it keeps the host's messages.
// 2. The relay closes the client's connection, and the client answers with its own close
//    frame. The client now has all messages up to the answer, and the relay has all
//    messages of the client.
// 3. The relay passes the client's last messages on, and ends the line with
//    [ahp.CloseShuttingDown]. After any other end, messages may be missing, so the
//    connection to the host ends as well.
// 4. The client connects to a different relay, or to the restarted one, whose open record
//    has the ticket. The new line gets the kept messages first.
//
// A ticket is valid once, and only for the same person, device and permissions. For a
// sealed connection, its keys prove the client's identity, and a dishonest relay gains
// nothing with the ticket. While too many bytes are kept, the host-agent does not read from
// the host. If a relay reports that the client was revoked, the connection to the host
// ends.

// Bounds of kept connections.
const (
	keptTime   = resume.DefaultTime   // longest absence of a client
	keptMost   = resume.DefaultWindow // kept bytes of one connection above which the host is not read on it
	keptPerson = 32 << 20             // the same bound for all connections of a person together
	keptTotal  = 64 << 20             // the same bound for all connections together
	keptCost   = 64                   // bytes counted for each message in addition to its length

	leaveLineLooks = 10              // seconds to wait for the previous line's end after the client has arrived; a standstill counts as one
	hurryTime      = 3 * time.Second // remaining time once the client has also opened a new connection

	revokedEvery = time.Second // interval in which a relay is asked which clients are revoked
	revokedMost  = 128         // most connections in a request to a relay
)

// moves holds the connections to the host that have no line at the moment.
type moves struct {
	pool  *resume.Pool
	added chan struct{} // wakes endRevoked after a new move; capacity 1

	mu       sync.Mutex // guards byTicket; may be locked while a clientLine's mu is held
	byTicket map[string]*move
}

func newMoves() *moves {
	return &moves{pool: resume.NewPool(keptPerson, keptTotal), added: make(chan struct{}, 1), byTicket: map[string]*move{}}
}

func (s *moves) add(m *move) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTicket[m.ticket] != nil {
		return false
	}
	s.byTicket[m.ticket] = m
	signal.Send(s.added)
	return true
}

func (s *moves) find(ticket string) *move {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byTicket[ticket]
}

func (s *moves) remove(m *move) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTicket[m.ticket] == m {
		delete(s.byTicket, m.ticket)
	}
}

func (s *moves) all() []*move {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.byTicket))
}

// endRevoked ends the kept connections of revoked clients, until ctx ends. It asks a relay
// which clients are revoked.
func (s *moves) endRevoked(ctx context.Context, instance string, relay remembering.Ask) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.added:
		}
		for kept := s.all(); len(kept) > 0; kept = s.all() {
			for some := range slices.Chunk(kept, revokedMost) {
				request := &remember.Request{Op: remember.Check}
				for _, m := range some {
					request.Holders = append(request.Holders, m.holder)
				}
				answer, err := relay.Do(ctx, instance, request)
				if err != nil { // asked again after revokedEvery
					break
				}
				for _, i := range answer.Removed {
					if i >= 0 && i < len(some) {
						some[i].expire(ahp.CloseTokenEnded, "its token is revoked")
					}
				}
			}
			if !clock.Sleep(ctx, revokedEvery) {
				return
			}
		}
	}
}

// A move is a connection to the host that waits for its client to arrive on another line.
type move struct {
	c      *hostConn
	ticket string
	holder auth.Holder
	left   chan struct{} // closed when the previous line has ended with CloseShuttingDown
	over   chan struct{} // closed when the move is over: the client has arrived, or the connection has ended
	timer  *time.Timer

	mu    sync.Mutex // guards the fields below
	kept  []keptMessage
	bytes int
	ended bool // no more messages are kept
}

// A keptMessage is a host message that waits for the client.
type keptMessage struct {
	message, channel []byte
	binary           bool
}

func (m *move) keep(message []byte, binary bool, channel []byte) error {
	if len(message) <= routing.MaxLent {
		message = bytes.Clone(message)
	}
	n := len(message) + len(channel) + keptCost
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return routing.ErrConnClosed
	}
	m.kept = append(m.kept, keptMessage{message, bytes.Clone(channel), binary})
	m.bytes += n
	m.c.agent.moves.pool.Add(m.c.open.Subject, n)
	return nil
}

// full reports whether the kept messages exceed a bound. The host is then not read.
func (m *move) full() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes > keptMost || m.c.agent.moves.pool.Full(m.c.open.Subject)
}

// isOver reports whether the move has ended: no more messages are kept.
func (m *move) isOver() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended
}

// end ends the move, and returns the kept messages.
func (m *move) end() []keptMessage {
	m.c.agent.moves.remove(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return nil
	}
	kept := m.kept
	m.c.agent.moves.pool.Add(m.c.open.Subject, -m.bytes)
	m.kept, m.bytes, m.ended = nil, 0, true
	m.timer.Stop()
	close(m.over)
	return kept
}

// hurry shortens the rest of the move to hurryTime: the client has opened a new connection,
// and will probably not continue this one.
func (m *move) hurry() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.timer.Reset(hurryTime)
	}
}

// expire ends the connection to the host if the client has not arrived.
func (m *move) expire(code ahp.CloseCode, reason string) {
	if m.c.conn.endMoveOf(m) {
		m.c.log.Info("connection kept for a moving client closed", "reason", reason)
		m.c.writer.leave(code, reason)
		m.c.cancel()
	}
}

// endAll ends all moves when the host-agent stops.
func (s *moves) endAll() {
	for _, m := range s.all() {
		if !m.c.conn.endMoveOf(m) {
			continue
		}
		select {
		case <-m.left:
			m.c.leave(ahp.CloseHostOffline, stoppedReason)
		default: // the line has not ended: dismiss closes it like a line without a move
		}
	}
}

// endMoveOf ends a move without an arrival. It returns false if the client has already
// arrived.
func (l *clientLine) endMoveOf(m *move) bool {
	l.mu.Lock()
	current := l.moving.Load() == m
	l.gone = l.gone || current
	l.mu.Unlock()
	if current {
		m.end()
	}
	return current
}

// endMove ends the line's move, if there is one, without an arrival.
func (l *clientLine) endMove() {
	if m := l.moving.Load(); m != nil {
		l.endMoveOf(m)
	}
}

func (c *hostConn) Move(m routing.Move) { c.writer.request(delivery{move: &m}) }

// move starts to keep the host's messages for a client that changes relays. It is called
// when all earlier messages of the client are written to the host.
func (c *hostConn) move(as *routing.Move) {
	if !c.beginMove(as) {
		_ = c.conn.Flushed() // fails if the client has left
	}
}

func (c *hostConn) beginMove(as *routing.Move) bool {
	c.order.Lock()
	defer c.order.Unlock()
	l := c.conn
	l.sending.Lock()
	defer l.sending.Unlock()
	life := min(keptTime, time.Until(as.Until)) // not open.Expires, because the client may have renewed its token
	m := &move{c: c, ticket: as.Ticket, holder: as.Holder, left: make(chan struct{}), over: make(chan struct{})}
	if l.seal != nil { // its mutex stops new records
		l.seal.mu.Lock()
		defer l.seal.mu.Unlock()
		l.seal.leaveCrowd()
	}
	l.mu.Lock()
	m.timer = time.AfterFunc(life, func() { m.expire(ahp.CloseResync, "the client did not arrive") }) // expire waits for l.mu
	moves := life > 0 && !l.gone && l.moving.Load() == nil && c.agent.moves.add(m)
	if moves {
		l.moving.Store(m)
	}
	l.mu.Unlock()
	if moves {
		_ = l.now.Load().Flushed(true) // fails if the client has left
		return true
	}
	m.timer.Stop()
	return false
}

// leaves records that the present line has ended. It returns true if the client may
// continue on another line. Routing calls leaves under routing's lock.
func (l *clientLine) leaves(code ahp.CloseCode) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.moving.Load()
	if m == nil || l.gone || code != ahp.CloseShuttingDown {
		l.gone = true
		return false
	}
	close(m.left)
	return true
}

// An arrival is the new line of a client that has changed relays. It implements
// [routing.HostConn], [routing.Mover] and [routing.Tagger].
type arrival struct {
	conn *routing.AgentConn
	gone chan struct{} // closed if the client leaves before its connection continues

	mu   sync.Mutex // guards the fields below; may be locked while routing's lock is held
	c    *hostConn  // nil before the client has arrived
	left bool       // the client has left before it has arrived
}

// connect accepts the new line of a client that changes relays, and returns at once.
func (s *moves) connect(a *Agent, conn *routing.AgentConn, open routing.Open) routing.HostConn {
	in := &arrival{conn: conn, gone: make(chan struct{})}
	a.conns.Go(func() {
		if bar, blocked := a.blocked.has(open); blocked && !open.Sealed {
			conn.Close(ahp.CloseForbidden, bar)
		} else if !in.run(a, open) {
			conn.Close(ahp.CloseResync, "the host-agent does not keep this connection")
		}
	})
	return in
}

// run waits until the client's previous line has ended, and then continues the connection
// on this line. It returns false if the connection cannot be continued.
func (in *arrival) run(a *Agent, open routing.Open) bool {
	m := a.moves.find(open.Ticket)
	if m == nil || !m.c.isFor(open) {
		return false
	}
	look := time.Tick(time.Second)
	for range leaveLineLooks {
		select {
		case <-m.left:
			return m.c.arrive(m, in, open)
		case <-in.gone: // the ticket stays valid for another attempt
			return false
		case <-m.over:
			return false
		case <-a.life.Done():
			return false
		case <-look:
		}
	}
	return false
}

// isFor reports whether this client may continue the connection. On a sealed connection no
// check is needed: without the keys, a client can read nothing.
func (c *hostConn) isFor(open routing.Open) bool {
	if c.conn.seal != nil {
		return open.Sealed
	}
	return open.Subject == c.open.Subject && open.DeviceID == c.open.DeviceID && open.Authority() == c.open.Authority() &&
		open.Strict == c.open.Strict && !open.Sealed
}

// arrive continues the connection on the new line.
func (c *hostConn) arrive(m *move, in *arrival, open routing.Open) bool {
	c.order.Lock()
	defer c.order.Unlock()
	l := c.conn
	l.sending.Lock()
	defer l.sending.Unlock()
	if l.seal != nil {
		l.seal.mu.Lock()
		defer l.seal.mu.Unlock()
	}
	if !in.enter(m) {
		return false
	}
	_ = in.conn.Opened() // this and the calls below fail if the client has left
	if l.ready {
		_ = in.conn.Ready()
	}
	kept := m.end()
	if l.seal != nil {
		l.seal.arrives(in.conn, len(kept))
	}
	for _, k := range kept {
		_, _ = in.conn.Take(k.message, k.binary, k.channel)
	}
	in.conn.Send()
	c.log.Info("client moved to another relay", "relay", in.conn.Relay(), "new_conn", open.ID, "kept", len(kept))
	c.report.continues(open.ID, c.gates.View.ClientID())
	return true
}

// enter makes this line the connection's line, and passes everything on to the connection
// from now on. It returns false if the move is over, or if the client has left this line:
// the ticket then stays valid for another attempt.
func (in *arrival) enter(m *move) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	l := m.c.conn
	l.mu.Lock()
	defer l.mu.Unlock()
	if in.left || l.gone || l.moving.Load() != m {
		return false
	}
	l.now.Store(in.conn)
	l.moving.Store(nil)
	in.c = m.c
	return true
}

// arrived returns the connection, or nil until the client has arrived.
func (in *arrival) arrived() *hostConn {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.c
}

// Deliver implements [routing.HostConn]. Relays send nothing before the client has
// arrived.
func (in *arrival) Deliver(message []byte, binary bool, credit int) {
	if c := in.arrived(); c != nil {
		c.Deliver(message, binary, credit)
		return
	}
	in.Closed(ahp.CloseBadMessage, "a message before the client has arrived")
}

func (in *arrival) Flush() {
	if c := in.arrived(); c != nil {
		c.Flush()
	}
}

func (in *arrival) Tag(sum [32]byte, own uint64) (tag [routing.TagSize]byte) {
	if c := in.arrived(); c != nil && c.conn.seal != nil {
		return c.conn.seal.tag(in.conn, sum, own)
	}
	return tag
}

func (in *arrival) Move(m routing.Move) {
	if c := in.arrived(); c != nil {
		c.Move(m)
	}
}

func (in *arrival) Closed(code ahp.CloseCode, reason string) {
	in.mu.Lock()
	c := in.c
	if c == nil && !in.left {
		in.left = true
		close(in.gone)
	}
	in.mu.Unlock()
	if c != nil {
		c.Closed(code, reason)
	}
}
