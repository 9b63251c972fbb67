package embedded

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"ahprelay/internal/fair"
)

// The NATS server works on host-agents' messages in one goroutine for each connection,
// without pause. Eight host-agents that publish as fast as possible take all
// processors, and a message of another tenant then waits 10 ms or more at each step.
// Host-agents therefore take turns: at most half of the processors work for them at a
// time, on one connection of each host. Tenants take turns, and hosts within a tenant.
// A turn is one read of up to broker.PumpBuffer. It lasts until the server has
// processed the bytes, or for longestTurn: after that the server is blocked, not busy.
// Without competitors, a host-agent does not wait for the end of its own turn. With
// room for all writers, no turns are needed.
//
// Turns alone would leave half of the processors to one tenant, even for messages
// without subscribers. While another tenant is active, a host-agent therefore rests
// after a turn until its tenant has paid for the work (fair.Shares), and TCP holds its
// messages back. A tenant pays for the work at the NATS server and at the relay that
// reads the messages.

// longestTurn bounds a turn. The smallest messages that fill broker.PumpBuffer take
// less.
const longestTurn = time.Millisecond

// hostShare is the part of all processors for host-agents' messages while tenants
// compete.
const hostShare = 1.0 / 8

// littleWrite is the size in bytes up to which the server's work is not measured.
const littleWrite = 512

// maxTurns bounds a host's waiting connections.
const maxTurns = 1 << 16

// turns schedules the turns of host-agents.
type turns struct {
	fair   *fair.Turns
	shares *fair.Shares // of tenants
	atOnce int32
	asked  atomic.Int32 // writers that have a turn or wait for one
	guests atomic.Int32 // writers without a turn, because none was requested
}

func newTurns() *turns {
	atOnce := max(1, runtime.GOMAXPROCS(0)/2)
	return &turns{
		fair: fair.New(maxTurns, atOnce, atOnce, 1), atOnce: int32(atOnce),
		shares: fair.NewShares(hostShare * float64(runtime.GOMAXPROCS(0))),
	}
}

// enter reports whether a writer may do one write without a turn; the writer then calls
// leave. It refuses while any writer has or awaits a turn, or while atOnce writers write
// without one. A turn requested later does not interrupt the write.
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

// A party owns turns: the path from all connections to one host's.
type party [3]any

// partyOf returns the party of a tenant's host.
func partyOf(tenant, host string) *party { return &party{"all", tenant, host} }

// writer returns a writer for a party's bytes, until ctx ends.
func (t *turns) writer(ctx context.Context, whose *party, to io.Writer) *turnWriter {
	w := &turnWriter{ctx: ctx, turns: t, to: to}
	w.whose.Store(whose)
	return w
}

// A turnWriter writes in turns to a NATS server, through a [net.Pipe]: a write ends
// when the server has read all bytes.
type turnWriter struct {
	ctx   context.Context
	turns *turns
	whose atomic.Pointer[party]
	to    io.Writer
}

// Write implements [io.Writer]. It returns when the tenant has paid.
func (w *turnWriter) Write(p []byte) (n int, err error) {
	tenant, known := w.whose.Load()[1].(string)
	n, took, err := w.inTurn(p, known && len(p) > littleWrite && w.turns.shares.Contended(tenant))
	if known && err == nil {
		w.rest(w.turns.shares.Spend(tenant, min(took, longestTurn)))
	}
	return n, err
}

// inTurn writes in its turn, and returns the time that this took. A time that is not
// measured may lack some of the server's work.
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

// write writes, and with wait set it returns when the server has processed all but the
// last byte.
func (w *turnWriter) write(p []byte, wait bool) (n int, err error) {
	if len(p) == 0 || !wait {
		return w.to.Write(p)
	}
	last := len(p) - 1
	if n, err = w.to.Write(p[:last]); err != nil {
		return n, err
	}
	// The server reads the last byte after it has processed the others.
	more, err := w.to.Write(p[last:])
	return n + more, err
}

// rest waits, unless the connection ends.
func (w *turnWriter) rest(d time.Duration) {
	if d == 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.ctx.Done():
	}
}

// A turnConn is a connection to the server. Its writes take turns with those of other
// connections.
type turnConn struct {
	net.Conn
	in     *turnWriter
	cancel context.CancelFunc // cancels a wait of in
}

// Close implements [net.Conn].
func (c turnConn) Close() error {
	c.cancel()
	return c.Conn.Close()
}

// Write implements [net.Conn].
func (c turnConn) Write(p []byte) (int, error) { return c.in.Write(p) }

// HostConn is InProcessConn for a known host's host-agent: its writes take turns with
// other host-agents', until ctx ends, in pieces of at most 32 KiB.
func (s *Server) HostConn(ctx context.Context, tenant, host string) (net.Conn, error) {
	conn, err := s.InProcessConn()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return turnConn{conn, s.turns.writer(ctx, partyOf(tenant, host), conn), cancel}, nil
}

// RelayConn is InProcessConn for the relay itself. The relay's work on a tenant's
// messages is charged to the tenant's host-agents.
func (s *Server) RelayConn(tenant string) (net.Conn, error) {
	conn, err := s.InProcessConn()
	if err != nil || tenant == "" {
		return conn, err
	}
	return &heardConn{Conn: conn, tenant: tenant, shares: s.turns.shares}, nil
}

// A heardConn charges a tenant for the work between two reads.
type heardConn struct {
	net.Conn
	tenant string
	shares *fair.Shares

	read time.Time // end of the last Read; owned by Read
}

// Read implements [net.Conn].
func (c *heardConn) Read(p []byte) (int, error) {
	if !c.read.IsZero() {
		c.shares.Charge(c.tenant, min(time.Since(c.read), longestTurn))
	}
	n, err := c.Conn.Read(p)
	c.read = time.Now()
	return n, err
}
