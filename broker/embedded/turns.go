package embedded

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"ahprelay/fair"
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

// longestTurn is how long a turn may take. What small messages there can be in
// broker.PumpBuffer take less.
const longestTurn = time.Millisecond

// maxTurns is how many connections of one host may wait.
const maxTurns = 1 << 16

// turns are the turns of host-agents.
type turns struct {
	fair   *fair.Turns
	atOnce int32
	asked  atomic.Int32 // how many have a turn, or wait for one
	guests atomic.Int32 // how many write without, because nobody did
}

func newTurns() *turns {
	atOnce := max(1, runtime.GOMAXPROCS(0)/2)
	return &turns{fair: fair.New(maxTurns, atOnce, atOnce, 1), atOnce: int32(atOnce)}
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

// Write implements [io.Writer].
func (w *turnWriter) Write(p []byte) (n int, err error) {
	if w.turns.enter() {
		defer w.turns.leave()
		return w.to.Write(p)
	}
	w.turns.asked.Add(1)
	defer w.turns.asked.Add(-1)
	done, err := w.turns.fair.Take(w.ctx, w.whose.Load()[:]...)
	if err != nil {
		return 0, err
	}
	defer done()
	defer time.AfterFunc(longestTurn, done).Stop()
	if len(p) == 0 || !w.turns.fair.Contended() {
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

// A turnConn is a connection to the server whose writes take turns.
type turnConn struct {
	net.Conn
	in *turnWriter
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
	return turnConn{conn, s.turns.writer(ctx, partyOf(tenant, host), conn)}, nil
}
