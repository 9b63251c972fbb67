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
	"ahprelay/routing"
)

// A relay that stops asks for its clients behind ahp-connect to be kept. Each keeps its
// connection to the host, under a ticket that ahp-connect has chosen:
//
//  1. The relay's move record follows all messages of the client so far. Once they are
//     written to the host, the host-agent answers moved, behind all messages of the host
//     so far. From then on it keeps the host's messages.
//  2. The relay closes the client, which answers with its own close frame. The client
//     thus has everything up to the answer, and the relay has everything of the client.
//  3. The relay passes the client's last messages on, and ends the line with
//     [ahp.CloseShuttingDown]. Any other end shows that messages may be missing: the
//     connection to the host then ends as well.
//  4. The client connects to a different relay, or to the restarted one, whose open
//     record has the ticket. The new line gets the kept messages, and everything after.
//
// A ticket is valid once, and only for the same person, device and permissions. The keys of a
// sealed connection prove more than a relay's word: its stream goes on with its next record.
// A dishonest relay gains nothing with the ticket, because it has no keys.
// While too much is kept, the host-agent does not read from the host. A revocation of the
// client, which the host-agent learns from a relay, ends what is kept.

// Bounds of kept connections.
const (
	keptTime   = resume.DefaultTime   // longest absence
	keptMost   = resume.DefaultWindow // bytes of a connection's messages before its host is not read
	keptPerson = 32 << 20             // the same for a person
	keptTotal  = 64 << 20             // the same for all
	keptCost   = 64                   // of a message, beside its bytes

	leaveLineTime = 10 * time.Second // for the end of the previous line, once the client has arrived
	hurryTime     = 3 * time.Second  // for a client that has also connected anew

	revokedEvery = time.Second // how soon a revocation ends kept connections
	revokedMost  = 128         // of them in a request
)

// moves are the connections without a line.
type moves struct {
	pool  *resume.Pool
	added chan struct{} // wakes endRevoked; holds one

	mu       sync.Mutex // guards byTicket; a clientLine's mu may be held
	byTicket map[string]*move
}

func newMoves() *moves {
	return &moves{pool: resume.NewPool(keptPerson, keptTotal), added: make(chan struct{}, 1), byTicket: map[string]*move{}}
}

// add adds a move, unless its ticket is in use.
func (s *moves) add(m *move) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTicket[m.ticket] != nil {
		return false
	}
	s.byTicket[m.ticket] = m
	select {
	case s.added <- struct{}{}:
	default:
	}
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

// endRevoked ends the connections whose clients are revoked, until ctx ends. It asks a relay
// in the name of the host-agent's instance.
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
				if err != nil { // no relay can revoke anything either
					break
				}
				for _, i := range answer.Removed {
					if i >= 0 && i < len(some) {
						some[i].expire(ahp.CloseTokenEnded, "its token is revoked")
					}
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(revokedEvery):
			}
		}
	}
}

// A move is a connection to the host without a line to its client.
type move struct {
	c      *hostConn
	ticket string
	holder auth.Holder
	left   chan struct{} // closed when the previous line has ended in order
	over   chan struct{} // closed when the move is over: the client has arrived, or the connection has ended
	timer  *time.Timer

	mu    sync.Mutex // guards the fields below
	kept  []keptMessage
	bytes int
	ended bool // nothing is kept any more
}

// A keptMessage waits for the client.
type keptMessage struct {
	message, channel []byte
	binary           bool
}

// keep keeps a message of the host.
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

// full reports whether the host is not read for now.
func (m *move) full() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes > keptMost || m.c.agent.moves.pool.Full(m.c.open.Subject)
}

// isOver reports whether nothing is kept any more.
func (m *move) isOver() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended
}

// end ends the move, and returns what was kept.
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

// hurry bounds the rest of the move: the client has connected anew, and probably does
// not arrive.
func (m *move) hurry() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.timer.Reset(hurryTime)
	}
}

// expire ends the connection to the host, unless the client has arrived.
func (m *move) expire(code ahp.CloseCode, reason string) {
	if m.c.conn.endMoveOf(m) {
		m.c.log.Info("client has not arrived at another relay; its connection ends", "reason", reason)
		m.c.writer.leave(code, reason)
		m.c.cancel()
	}
}

// endAll ends all moves, because the host-agent stops.
func (s *moves) endAll() {
	for _, m := range s.all() {
		if !m.c.conn.endMoveOf(m) {
			continue
		}
		select {
		case <-m.left:
			m.c.leave(ahp.CloseHostOffline, stoppedReason)
		default: // the previous line ends like all others
		}
	}
}

// endMoveOf ends a move for good. It returns false if the client has arrived.
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

// endMove ends the move in progress, if any, for good.
func (l *clientLine) endMove() {
	if m := l.moving.Load(); m != nil {
		l.endMoveOf(m)
	}
}

// Move implements [routing.Mover].
func (c *hostConn) Move(m routing.Move) { c.writer.request(delivery{move: &m}) }

// move keeps the connection for a client that moves. It is called once everything before
// is written to the host.
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
	life := min(keptTime, time.Until(as.Until)) // open.Expires is the time of the first token, which the client may have renewed
	m := &move{c: c, ticket: as.Ticket, holder: as.Holder, left: make(chan struct{}), over: make(chan struct{})}
	if l.seal != nil { // holds back records
		l.seal.mu.Lock()
		defer l.seal.mu.Unlock()
	}
	l.mu.Lock()
	m.timer = time.AfterFunc(life, func() { m.expire(ahp.CloseResync, "the client did not arrive") }) // which waits for mu
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

// leaves records the end of the present line. It returns true if the client continues on
// a different line. Routing calls it under its lock.
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

// An arrival is the line of a client that has moved here. It implements
// [routing.HostConn], [routing.Mover] and [routing.Tagger].
type arrival struct {
	conn *routing.AgentConn
	gone chan struct{} // closed when the client leaves before it has arrived

	mu  sync.Mutex // guards the fields below; Routing's lock may be held
	c   *hostConn  // nil before the client has arrived
	bye *clientClose
}

// connect accepts a client that has moved to this relay, and returns at once.
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

// run waits for the end of the client's previous line, and continues the connection. It
// returns false if that is impossible.
func (in *arrival) run(a *Agent, open routing.Open) bool {
	m := a.moves.find(open.Ticket)
	if m == nil || !m.c.isFor(open) {
		return false
	}
	timer := time.NewTimer(leaveLineTime)
	defer timer.Stop()
	select {
	case <-m.left:
		return m.c.arrive(m, in, open)
	case <-in.gone: // the ticket stays valid
	case <-timer.C:
	case <-m.over:
	case <-a.life.Done():
	}
	return false
}

// isFor reports whether a client may continue the connection. A sealed connection needs no
// further check: without its keys, a client can read nothing.
func (c *hostConn) isFor(open routing.Open) bool {
	if c.conn.seal != nil {
		return open.Sealed
	}
	return open.Subject == c.open.Subject && open.DeviceID == c.open.DeviceID && open.Authority() == c.open.Authority() &&
		open.Strict == c.open.Strict && !open.Sealed
}

// arrive continues the connection on a new line.
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
	l.mu.Lock()
	moves := !l.gone && l.moving.Load() == m
	if moves {
		l.now.Store(in.conn)
		l.moving.Store(nil)
	}
	l.mu.Unlock()
	if !moves {
		return false
	}
	in.enter(c)
	_ = in.conn.Opened() // these fail if the client has left
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
	c.log.Info("client continues on another relay", "relay", in.conn.Relay(), "now", open.ID, "kept", len(kept))
	c.report.continues(open.ID, c.gates.View.ClientID())
	return true
}

// enter passes everything on to the connection from now on.
func (in *arrival) enter(c *hostConn) {
	in.mu.Lock()
	in.c = c
	bye := in.bye
	in.mu.Unlock()
	if bye != nil {
		c.Closed(bye.code, bye.reason)
	}
}

// arrived returns the connection, or nil before the client has arrived.
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

// Flush implements [routing.HostConn].
func (in *arrival) Flush() {
	if c := in.arrived(); c != nil {
		c.Flush()
	}
}

// Tag implements [routing.Tagger].
func (in *arrival) Tag(sum [32]byte, own uint64) (tag [routing.TagSize]byte) {
	if c := in.arrived(); c != nil && c.conn.seal != nil {
		return c.conn.seal.tag(in.conn, sum, own)
	}
	return tag
}

// Move implements [routing.Mover].
func (in *arrival) Move(m routing.Move) {
	if c := in.arrived(); c != nil {
		c.Move(m)
	}
}

// Closed implements [routing.HostConn].
func (in *arrival) Closed(code ahp.CloseCode, reason string) {
	in.mu.Lock()
	c := in.c
	if c == nil && in.bye == nil {
		in.bye = &clientClose{code, reason}
		close(in.gone)
	}
	in.mu.Unlock()
	if c != nil {
		c.Closed(code, reason)
	}
}
