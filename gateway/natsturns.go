package gateway

import (
	"context"
	"io"
	"runtime"
	"time"

	"ahprelay/auth"
	"ahprelay/fair"
)

// What comes from host-agents is work for the NATS server in this process, a
// goroutine for each connection that is never tired: eight of them that publish
// as fast as they can leave the processors to nobody else, and a message of
// another tenant's waits at each step of its way until all of them have had their
// ten milliseconds. So host-agents take turns: half of the processors have work of
// theirs at a time, one connection of each host, and it is the tenants' turn one
// after the other, and of each the hosts'. A turn is what one read brings, up to
// natsBuffer, and lasts until the NATS server is done with it, or for longestTurn:
// then it does not work, but waits for somebody. While nobody else waits, a
// host-agent needs not wait for its own end.

// longestTurn is how long a turn may take. What small messages there can be in
// natsBuffer take less.
const longestTurn = time.Millisecond

// natsTurns are the turns of host-agents.
type natsTurns struct{ turns *fair.Turns }

func newNATSTurns() natsTurns {
	atOnce := max(1, runtime.GOMAXPROCS(0)/2)
	return natsTurns{fair.New(maxAgentConns, atOnce, atOnce, 1)}
}

// writer returns where to write what comes from a host-agent, until ctx ends.
func (t natsTurns) writer(ctx context.Context, host auth.Enrolment, server io.Writer) io.Writer {
	return &turnWriter{ctx, t.turns, [...]any{"all", host.Tenant, host.Host}, server}
}

// A turnWriter writes in turn to a NATS server, through a [net.Pipe]: a write
// ends when the other side has read all of it.
type turnWriter struct {
	ctx   context.Context
	turns *fair.Turns
	path  [3]any
	to    io.Writer
}

// Write implements [io.Writer].
func (w *turnWriter) Write(p []byte) (n int, err error) {
	done, err := w.turns.Take(w.ctx, w.path[:]...)
	if err != nil {
		return 0, err
	}
	defer done()
	defer time.AfterFunc(longestTurn, done).Stop()
	if len(p) == 0 || !w.turns.Contended() {
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
