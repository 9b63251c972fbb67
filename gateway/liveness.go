package gateway

import (
	"math/rand/v2"
	"runtime"
	"time"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
	"ahprelay/internal/clock"
)

// A single goroutine pings each client every Config.Ping. Any byte from the client proves
// that the connection is alive. After three unanswered pings in a row, the connection is
// closed. The limit is high because after an outage of 14 s, TCP may wait another 14 s
// before it sends again. Stock clients tolerate such an outage too.
//
// A slow client is not closed. Pings wait behind all queued data: in the outbox, which
// has its own time limit (Config.Stall), and then in buffers of kernels and proxies,
// which can hold minutes of data for a slow connection. So missing pongs do not count
// until slowTime after a write last blocked. Missing pongs also do not count while the
// relay waits for the host and does not read from the client: some clients cannot answer
// pings while their own writes block.

// maxMissed is the number of unanswered pings in a row after which a connection is
// closed.
const maxMissed = 3

// probeTime is how long a client's old connection has to answer a ping after the client
// has opened a new connection.
const probeTime = 3 * time.Second

// slowTime is the longest delivery time for a ping after a blocked write: enough for 8
// MiB at 70 KB/s.
const slowTime = 2 * time.Minute

// sweepShare divides the ping interval into rounds, so that clients are not all pinged
// together.
const sweepShare = 15

// sweepAtOnce is the number of clients after which a sweep lets other goroutines run.
const sweepAtOnce = 64

// liveness is a client's state for the sweep goroutine, which alone uses it.
type liveness struct {
	due    time.Time // time of the next ping
	reads  uint32    // wire.Conn.Reads at the last check
	mark   uint64    // position in the outbox of the last ping; 0: none
	missed int       // unanswered pings
}

// sweep pings clients, and checks host-agents, until the server ends.
func (s *Server) sweep() {
	for clock.Sleep(s.life, max(s.cfg.Ping/sweepShare, time.Millisecond)) {
		now := time.Now()
		for i, c := range s.hosts.all() {
			if i%sweepAtOnce == 0 {
				runtime.Gosched()
			}
			c.load.noteMoved(now, c.toHost())
			c.load.noteLoad(c.toHost())
			if c.alive.check(c, now) {
				c.giveUp("pings", "pings unanswered")
			}
		}
		s.agents.EndSilent(now)
	}
}

// check pings a client when a ping is due, and reports whether the client is dead. A
// client whose large message is arriving is not pinged, because its pong can only follow
// that message. Some clients close the connection if their pong is delayed
// (coder/websocket after 5 s).
func (v *liveness) check(c *client, now time.Time) (dead bool) {
	if v.due.IsZero() { // the first ping comes in the second half of the interval
		v.due = c.since.Add(c.cfg.Ping/2 + rand.N(c.cfg.Ping/2+1))
	}
	if now.Before(v.due) {
		return false
	}
	v.due = now.Add(c.cfg.Ping)
	if c.load.stuck.Load() || c.absent() {
		v.mark, v.missed = 0, 0
		return false
	}
	heard := c.sock.Conn.Reads.Load()
	if held, _, _ := c.budget.uploads.state(&c.load.upload, now); held > 0 && heard != v.reads {
		v.reads, v.mark, v.missed = heard, 0, 0
		return false
	}
	switch {
	case heard != v.reads, v.mark == 0, c.sock.Conn.WaitedSince(now.Add(-slowTime)):
		v.reads, v.missed = heard, 0
	case !c.out.past(v.mark):
		return false // the kernel has not accepted the last ping yet
	default:
		v.missed++
	}
	if v.missed == maxMissed {
		return true
	}
	v.mark = c.out.ping()
	return false
}

// absent reports whether the client has lost its network connection but may still resume
// the stream.
func (c *client) absent() bool {
	r := wire.ResumableOf(c.sock.Conn.Conn)
	return r != nil && r.Away()
}

// probe pings the old connection of a client that has opened a new one. It closes the old
// connection if probeTime passes without an answer and without delivered data. After a
// blocked write, the client has slowTime.
func (c *client) probe() {
	if c.probing.Swap(true) {
		return
	}
	defer c.probing.Store(false)
	if c.load.stuck.Load() {
		return
	}
	conn := c.sock.Conn
	heard := conn.Reads.Load()
	written := conn.Written.Load()
	mark := c.out.ping()
	for {
		wait(c.ctx, time.After(probeTime))
		if c.ctx.Err() != nil || conn.Reads.Load() != heard || c.load.stuck.Load() {
			return
		}
		before := written
		written = conn.Written.Load()
		past := c.out.past(mark)
		onItsWay := past && conn.WaitedSince(time.Now().Add(-slowTime))
		if !onItsWay && (past || written == before) {
			c.giveUp("replaced", "reconnected, and no answer on this connection")
			return
		}
	}
}

// giveUp closes a connection whose client no longer responds.
func (c *client) giveUp(cause, reason string) {
	end := c.out.abort(closing{code: wire.CloseLost, reason: reason, lost: true})
	c.log().Info("unresponsive client closed", "reason", reason)
	c.metrics.givenUp.WithLabelValues(cause).Inc()
	c.sock.Kill()
	c.disconnect(end)
}

// leave closes a client because the relay stops. The host first gets all messages that the
// client has sent by now, and the client gets all messages that the host sends until then;
// the close frame follows. The reader continues until the client has closed too. A client
// that has just moved to this relay must connect to its host before it can move on.
func (c *client) leave() {
	c.mu.Lock()
	open := c.phase == phaseOpen
	c.leaving = c.phase == phaseOpening || c.phase < phaseOpening && c.hasMoved()
	later := c.leaving
	if open {
		partLocked(c)
	}
	c.mu.Unlock()
	if !open && !later {
		c.out.close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason())
	}
}
