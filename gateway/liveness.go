package gateway

import (
	"math/rand/v2"
	"time"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
)

// One goroutine pings all clients, each every Config.Ping. Any received byte is a sign
// of life. Three unanswered pings in a row end the connection: it is half open, or the
// client hangs. A line may be dead for 14 s, and TCP then waits as long again before
// it retries. Stock clients tolerate that, and so does the relay.
//
// A slow client is not dead. A ping waits behind all data for the client: first in the
// outbox, which has its own time limit (Config.Stall), then in the buffers of kernels
// and proxies, which may hold minutes of data for a slow line. So a client is not
// judged until slowTime after its line was last full. While the relay waits for the
// host, and so does not read from the client, it neither pings nor judges the client:
// some clients cannot answer while their own writes block, and give the connection up.

// maxMissed is the number of unanswered pings in a row that end a connection.
const maxMissed = 3

// probeTime is the time for a client to answer on its old connection after it has
// opened a new one.
const probeTime = 3 * time.Second

// slowTime is the longest delivery time of a ping after a blocked write: enough for 8
// MiB at 70 KB/s.
const slowTime = 2 * time.Minute

// sweepShare divides the time between pings, to spread the clients over it.
const sweepShare = 15

// liveness holds the sweeper's view of a client. Only the sweeper uses it.
type liveness struct {
	due    time.Time // time of the next ping
	reads  uint32    // wire.Conn.reads at the last check
	mark   uint64    // outbox mark of the last ping; 0: none
	missed int       // unanswered pings
}

// sweep pings clients, and checks host-agents, until the server ends.
func (s *Server) sweep() {
	tick := time.NewTicker(max(s.cfg.Ping/sweepShare, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-s.life.Done():
			return
		case now := <-tick.C:
			for _, c := range s.hosts.all() {
				c.load.noteMoved(now, c.toHost())
				c.load.noteLoad(c.toHost())
				if c.alive.check(c, now) {
					c.giveUp("pings", "pings unanswered")
				}
			}
			s.agents.EndSilent(now)
		}
	}
}

// check pings a client when a ping is due, and reports whether the client is dead. A
// client in the middle of a large message is not pinged: its pong could not arrive
// before the message's end, and some clients give the connection up when a pong has to
// wait (coder/websocket after 5 s).
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
		return false // the last ping has not reached it yet
	default:
		v.missed++
	}
	if v.missed == maxMissed {
		return true
	}
	v.mark = c.out.ping()
	return false
}

// absent reports whether the client's connection may resume, and the client is
// unreachable.
func (c *client) absent() bool {
	r := wire.ResumableOf(c.sock.Conn.Conn)
	return r != nil && r.Away()
}

// probe checks the old connection of a client that has opened a new one. Without a sign
// of life within probeTime, the old connection is given up.
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

// giveUp ends the connection of a vanished client.
func (c *client) giveUp(cause, reason string) {
	end := c.out.abort(closing{code: wire.CloseLost, reason: reason, full: true, lost: true})
	c.log().Info("client given up", "reason", reason)
	c.metrics.givenUp.WithLabelValues(cause).Inc()
	c.sock.Kill()
	c.disconnect(end)
}

// leave closes a client because the relay stops. The close frame follows the host's
// messages up to its receipt of all that the client has sent by now. The client's
// reader continues until the client has closed too. A client that has just moved here waits
// for its host first, so that it can move on.
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
