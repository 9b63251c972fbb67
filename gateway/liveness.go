package gateway

import (
	"math/rand/v2"
	"time"

	"ahprelay/ahp"
)

// Liveness. A client is pinged every Config.Ping, by one goroutine for all;
// whatever is received from it is a sign of life. Three pings in a row without
// one, and the client is given up: its connection is half open, or it hangs. A
// line may be dead for 14 s, and TCP waits for as long again before it tries:
// stock clients bear that, and so does the relay.
//
// A client that is slow is not dead. A ping waits behind all that the client is
// to be sent: in the outbox, which has a time limit of its own (Config.Stall),
// and then in buffers of kernels and proxies, which may hold what a slow line
// takes minutes for. So a client is not judged for slowTime after its line was
// seen to be full. And while the relay waits for the host and so does not read
// the client, it neither judges nor pings it: some cannot answer while they
// wait to be read, and give the connection up.

// maxMissed is how many pings in a row a client may leave unanswered.
const maxMissed = 3

// probeTime is how long a client may take to answer when it has come again over
// another connection.
const probeTime = 3 * time.Second

// slowTime is how long after a write that had to wait a ping may still be on its
// way: long enough for 8 MiB at 70 KB/s.
const slowTime = 2 * time.Minute

// sweepShare is into how many parts the time between pings is cut, to spread
// the clients over them.
const sweepShare = 15

// liveness is what the sweeper knows of a client. It alone uses it.
type liveness struct {
	due    time.Time // of the next ping
	reads  uint32    // lockedConn.reads at the last
	mark   uint64    // of the last ping in the outbox; 0: none
	missed int       // pings without an answer
}

// sweep pings clients, and listens to host-agents, until the server ends.
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
				if c.alive.look(c, now) {
					c.giveUp("pings", "answers no pings")
				}
			}
			s.agents.EndSilent(now)
		}
	}
}

// look pings a client that is due, and reports whether it is dead. One that is in the
// middle of a large message, and goes on, is not pinged: its answer could not come before
// the end of that, and some clients give their connection up when it waits (coder/websocket
// after 5 s).
func (v *liveness) look(c *client, now time.Time) (dead bool) {
	if v.due.IsZero() { // the first ping comes in the second half of the time
		v.due = c.since.Add(c.cfg.Ping/2 + rand.N(c.cfg.Ping/2+1))
	}
	if now.Before(v.due) {
		return false
	}
	v.due = now.Add(c.cfg.Ping)
	if c.load.stuck.Load() {
		v.mark, v.missed = 0, 0
		return false
	}
	heard := c.sock.conn.reads.Load()
	if held, _ := c.budget.uploads.state(&c.load.upload, now); held > 0 && heard != v.reads {
		v.reads, v.mark, v.missed = heard, 0, 0
		return false
	}
	switch {
	case heard != v.reads, v.mark == 0, c.sock.conn.waitedSince(now.Add(-slowTime)):
		v.reads, v.missed = heard, 0
	case !c.out.past(v.mark):
		return false // it has not got the last one yet
	default:
		v.missed++
	}
	if v.missed == maxMissed {
		return true
	}
	v.mark = c.out.ping()
	return false
}

// probe looks whether a client is still there that has come again over another
// connection, and gives this one up if it shows no sign of life in probeTime.
func (c *client) probe() {
	if c.probing.Swap(true) {
		return
	}
	defer c.probing.Store(false)
	if c.load.stuck.Load() {
		return
	}
	conn := c.sock.conn
	heard := conn.reads.Load()
	written := conn.written.Load()
	mark := c.out.ping()
	for {
		wait(c.ctx, time.After(probeTime))
		if c.ctx.Err() != nil || conn.reads.Load() != heard || c.load.stuck.Load() {
			return
		}
		before := written
		written = conn.written.Load()
		past := c.out.past(mark)
		onItsWay := past && conn.waitedSince(time.Now().Add(-slowTime))
		if !onItsWay && (past || written == before) {
			c.giveUp("replaced", "came again, and does not answer here")
			return
		}
	}
}

// giveUp ends a connection at whose other end there is nobody.
func (c *client) giveUp(cause, reason string) {
	end := c.out.abort(closing{code: closeLost, reason: reason, full: true, lost: true})
	c.log().Info("client given up", "reason", reason)
	c.metrics.givenUp.WithLabelValues(cause).Inc()
	c.sock.kill()
	c.disconnect(end)
}

// leave closes a client because the relay stops: behind what the host has said
// when it has got all that the client has sent by now. The client's reader goes
// on until the client has closed too.
func (c *client) leave() {
	c.mu.Lock()
	conn := c.conn
	open, opening := c.phase == phaseOpen, c.phase == phaseOpening
	c.leaving = opening
	c.mu.Unlock()
	switch {
	case open:
		conn.Flush() // Flushed follows
	case !opening:
		c.out.close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason())
	}
}
