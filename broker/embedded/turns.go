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

// What comes from host-agents is work for the server, a goroutine for each
// connection that is never tired: eight of them that publish as fast as they can
// leave the processors to nobody else, and a message of another tenant's waits at
// each step of its way until all of them have had their ten milliseconds. So
// host-agents take turns: half of the processors have work of theirs at a time, one
// connection of each host, and it is the tenants' turn one after the other, and of
// each the hosts'. A turn is what one read brings, up to broker.PumpBuffer, and lasts until
// the server is done with it, or for longestTurn: then it does not work, but waits
// for somebody. While nobody else waits, a host-agent needs not wait for its own end.
// And while there is room for all who write, none takes a turn.
//
// Turns alone leave a tenant half of the processors, for messages that may be wanted by no
// subscription. While another tenant is active, a host-agent therefore rests after a turn
// until its tenant has paid for it (fair.Shares), and TCP holds its messages back. A tenant
// pays for the work on its messages at the NATS server, and at the relay that reads them there.

// longestTurn is how long a turn may take. What small messages there can be in
// broker.PumpBuffer take less.
const longestTurn = time.Millisecond

// hostShare is the part of all processors that the messages of host-agents may take when
// their tenants contend.
const hostShare = 1.0 / 8

// littleWrite is how much the server is not waited for to measure its work, in bytes.
const littleWrite = 512

// maxTurns is how many connections of one host may wait.
const maxTurns = 1 << 16

// turns are the turns of host-agents.
type turns struct {
	fair   *fair.Turns
	shares *fair.Shares // of tenants
	atOnce int32
	asked  atomic.Int32 // how many have a turn, or wait for one
	guests atomic.Int32 // how many write without, because nobody did
}

func newTurns() *turns {
	atOnce := max(1, runtime.GOMAXPROCS(0)/2)
	return &turns{
		fair: fair.New(maxTurns, atOnce, atOnce, 1), atOnce: int32(atOnce),
		shares: fair.NewShares(hostShare * float64(runtime.GOMAXPROCS(0))),
	}
}

// enter reports whether one may write without a turn, until it has called leave: while
// nobody has asked for one, and there is room. When somebody does ask, those who are in
// are done with what one read has brought, and have turns from then on.
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

// A party is who has turns: the last of a path from all connections to one host's.
type party [3]any

// partyOf returns the party of a tenant's host.
func partyOf(tenant, host string) *party { return &party{"all", tenant, host} }

// writer returns where to write what comes from a party, until ctx ends.
func (t *turns) writer(ctx context.Context, whose *party, to io.Writer) *turnWriter {
	w := &turnWriter{ctx: ctx, turns: t, to: to}
	w.whose.Store(whose)
	return w
}

// A turnWriter writes in turn to a NATS server, through a [net.Pipe]: a write
// ends when the other side has read all of it.
type turnWriter struct {
	ctx   context.Context
	turns *turns
	whose atomic.Pointer[party]
	to    io.Writer
}

// Write implements [io.Writer]. It returns when the tenant need not rest.
func (w *turnWriter) Write(p []byte) (n int, err error) {
	tenant, known := w.whose.Load()[1].(string)
	n, took, err := w.inTurn(p, known && len(p) > littleWrite && w.turns.shares.Contended(tenant))
	if known && err == nil {
		w.rest(w.turns.shares.Spend(tenant, min(took, longestTurn)))
	}
	return n, err
}

// inTurn writes, and returns how long that took when it was its turn. A time that
// is not measured may lack some of the server's work.
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

// write writes, and if it is to wait, returns when the server has worked on all but the last
// byte.
func (w *turnWriter) write(p []byte, wait bool) (n int, err error) {
	if len(p) == 0 || !wait {
		return w.to.Write(p)
	}
	last := len(p) - 1
	if n, err = w.to.Write(p[:last]); err != nil {
		return n, err
	}
	// The server reads the last byte when it is done with what came before.
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

// A turnConn is a connection to the server whose writes take turns.
type turnConn struct {
	net.Conn
	in     *turnWriter
	cancel context.CancelFunc // ends a wait of in
}

// Close implements [net.Conn].
func (c turnConn) Close() error {
	c.cancel()
	return c.Conn.Close()
}

// Write implements [net.Conn].
func (c turnConn) Write(p []byte) (int, error) { return c.in.Write(p) }

// HostConn is InProcessConn for what comes from a host-agent of which it is known
// whose it is: what is written takes turns with that of others, until ctx ends. It is
// written in pieces of at most 32 KiB.
func (s *Server) HostConn(ctx context.Context, tenant, host string) (net.Conn, error) {
	conn, err := s.InProcessConn()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return turnConn{conn, s.turns.writer(ctx, partyOf(tenant, host), conn), cancel}, nil
}

// RelayConn is InProcessConn for the relay itself. The work on messages of a tenant, which
// the relay reads there, counts as work of the tenant's host-agents.
func (s *Server) RelayConn(tenant string) (net.Conn, error) {
	conn, err := s.InProcessConn()
	if err != nil || tenant == "" {
		return conn, err
	}
	return &heardConn{Conn: conn, tenant: tenant, shares: s.turns.shares}, nil
}

// A heardConn charges a tenant for the work between one read and the next.
type heardConn struct {
	net.Conn
	tenant string
	shares *fair.Shares

	read time.Time // when the last Read returned; owned by Read
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
