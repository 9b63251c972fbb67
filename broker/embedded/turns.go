package embedded

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"ahprelay/internal/clock"
	"ahprelay/internal/fair"
)

// The NATS server handles each connection in a goroutine of its own, without pause.
// Eight host-agents publishing as fast as possible would take all processors, and a
// message of a different tenant would then wait 10 ms or more at each step. Host-agents
// therefore take turns: their messages occupy at most half of the processors, with one
// connection for each host. Turns alternate between tenants, and within a tenant between
// its hosts. A turn is one read of up to broker.PumpBuffer bytes. It ends when the
// server has processed the bytes, or after longestTurn, because then the server is
// blocked and not busy. A host-agent without competitors does not wait for the end of
// its own turn. While fewer host-agents write than may work at a time, no turns are
// needed.
//
// With turns alone, one tenant could still use half of the processors, even with
// messages nobody subscribes to. While a different tenant is active, a host-agent
// therefore pauses after each turn until its tenant has paid for the work (fair.Shares).
// TCP then slows the sender down. A tenant pays for the work of the NATS server and of
// the relay which reads the messages.

// longestTurn is the longest duration of a turn, and the most time that is charged for a
// write or read. The server needs less for
// broker.PumpBuffer bytes, even if these are many small messages, which cost most.
const longestTurn = time.Millisecond

// hostShare is the share of all processors available for messages of host-agents while
// tenants compete.
const hostShare = 1.0 / 8

// Up to littleWrite bytes, the server's work is not measured exactly.
const littleWrite = 512

// maxTurns bounds the waiting connections of a host.
const maxTurns = 1 << 16

// turns schedules the turns of all host-agents.
type turns struct {
	fair   *fair.Turns
	shares *fair.Shares // what each tenant has used and paid
	atOnce int32
	asked  atomic.Int32 // number of writers that have a turn or wait for it
	guests atomic.Int32 // number of writers that write without a turn, see enter
}

func newTurns() *turns {
	atOnce := max(1, runtime.GOMAXPROCS(0)/2)
	return &turns{
		fair: fair.New(maxTurns, atOnce, atOnce, 1), atOnce: int32(atOnce),
		shares: fair.NewShares(hostShare * float64(runtime.GOMAXPROCS(0))),
	}
}

// enter lets a writer make one write without a turn, and returns true; the writer then
// calls leave. It returns false while any writer has a turn or waits for one, or while
// atOnce writers write without a turn. A turn requested later does not interrupt the
// write.
func (t *turns) enter() bool {
	if t.asked.Load() > 0 {
		return false
	}
	if t.guests.Add(1) > t.atOnce {
		t.guests.Add(-1)
		return false
	}
	return true
}

func (t *turns) leave() { t.guests.Add(-1) }

// A party is the owner of turns, as a path with three levels: the group of connections, the tenant,
// and the host, address or connection.
type party [3]any

func partyOf(tenant, host string) *party { return &party{"all", tenant, host} }

// writer returns a writer for the bytes of a party. It stops waiting when ctx ends.
func (t *turns) writer(ctx context.Context, whose *party, to io.Writer) *turnWriter {
	w := &turnWriter{ctx: ctx, turns: t, to: to}
	w.whose.Store(whose)
	return w
}

// A turnWriter writes to a NATS server in turns. It writes into a [net.Pipe], so a write
// returns when the server has read all bytes.
type turnWriter struct {
	ctx   context.Context
	turns *turns
	whose atomic.Pointer[party]
	to    io.Writer
}

// Write implements [io.Writer]. It returns when the bytes are written and the tenant has
// paid.
func (w *turnWriter) Write(p []byte) (n int, err error) {
	tenant, known := w.whose.Load()[1].(string)
	n, took, err := w.inTurn(p, known && len(p) > littleWrite && w.turns.shares.Contended(tenant))
	if known && err == nil {
		w.rest(w.turns.shares.Spend(tenant, min(took, longestTurn)))
	}
	return n, err
}

// inTurn writes in a turn, and returns the time of the server's work. If measured is
// false, that time may be too short.
func (w *turnWriter) inTurn(p []byte, measured bool) (n int, took time.Duration, err error) {
	if w.turns.enter() {
		defer w.turns.leave()
		began := time.Now()
		n, err = w.write(p, measured)
		return n, time.Since(began), err
	}
	w.turns.asked.Add(1)
	defer w.turns.asked.Add(-1)
	done, err := w.turns.fair.Take(w.ctx, w.whose.Load()[:]...)
	if err != nil {
		return 0, 0, err
	}
	defer done()
	defer time.AfterFunc(longestTurn, done).Stop()
	began := time.Now()
	n, err = w.write(p, measured || w.turns.fair.Contended())
	return n, time.Since(began), err
}

// write writes p. If wait is set, it returns only when the server has processed p, except
// for the last byte: the server reads that byte after it has processed the others.
func (w *turnWriter) write(p []byte, wait bool) (n int, err error) {
	if len(p) == 0 || !wait {
		return w.to.Write(p)
	}
	last := len(p) - 1
	if n, err = w.to.Write(p[:last]); err != nil {
		return n, err
	}
	more, err := w.to.Write(p[last:])
	return n + more, err
}

// rest waits for d, or until the connection ends.
func (w *turnWriter) rest(d time.Duration) {
	if d == 0 {
		return
	}
	clock.Sleep(w.ctx, d)
}

// A turnConn is a connection to the NATS server whose writes take turns with other
// connections.
type turnConn struct {
	net.Conn
	in     *turnWriter
	cancel context.CancelFunc // ends the wait for a turn
}

func (c turnConn) Close() error {
	c.cancel()
	return c.Conn.Close()
}

func (c turnConn) Write(p []byte) (int, error) { return c.in.Write(p) }

// HostConn is InProcessConn for a host-agent which has logged in. Its writes take turns
// with those of other host-agents, until ctx ends. A Write takes one turn, so it should
// have at most broker.PumpBuffer bytes.
func (s *Server) HostConn(ctx context.Context, tenant, host string) (net.Conn, error) {
	conn, err := s.InProcessConn()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return turnConn{conn, s.turns.writer(ctx, partyOf(tenant, host), conn), cancel}, nil
}

// RelayConn is InProcessConn for the relay itself. The tenant is charged for the relay's
// work on its messages.
func (s *Server) RelayConn(tenant string) (net.Conn, error) {
	conn, err := s.InProcessConn()
	if err != nil || tenant == "" {
		return conn, err
	}
	return &heardConn{Conn: conn, tenant: tenant, shares: s.turns.shares}, nil
}

// A heardConn charges a tenant for the time between two reads.
type heardConn struct {
	net.Conn
	tenant string
	shares *fair.Shares

	read time.Time // when the last Read returned; owned by Read
}

func (c *heardConn) Read(p []byte) (int, error) {
	if !c.read.IsZero() {
		c.shares.Charge(c.tenant, min(time.Since(c.read), longestTurn))
	}
	n, err := c.Conn.Read(p)
	c.read = time.Now()
	return n, err
}
