package routing

import (
	"time"

	"ahprelay/ahp"
)

// relieve closes connections until all queues together are within MaxQueued. Each time,
// it closes the connection that has made no progress for longest; among equals, the one
// with the longest queue. Backpressure (hold.go) begins far earlier.
func (a *AgentEnd) relieve() {
	for a.total() > a.cfg.MaxQueued {
		c, _ := a.worst(time.Now())
		if c == nil {
			return // the remaining bytes are bodies needed by packets, which have a bound of their own
		}
		c.overload()
	}
}

// overload closes a connection because memory is short, and drops its queue.
func (c *AgentConn) overload() {
	c.link.mux.drop(&c.stream, c.link.agent.bodies.release)
	c.forgetFragments()
	const reason = "queues for all clients of this host exceed their bound"
	c.end(ahp.CloseOverloaded, reason)
	c.closeHost(ahp.CloseOverloaded, reason)
}

// worst returns the connection to close first among those with queued bytes, and how
// long it has made no progress.
func (a *AgentEnd) worst(now time.Time) (worst *AgentConn, standing time.Duration) {
	most := 0
	for _, l := range a.links {
		for _, c := range l.conns {
			n, still := c.stream.queued+len(c.partial)+c.whole, c.stalledFor(now)
			if n > 0 && (worst == nil || still > standing || still == standing && n > most) {
				worst, standing, most = c, still, n
			}
		}
	}
	return worst, standing
}

// stalledFor returns how long the client, or the host, has taken none of the bytes
// queued for it. The longer time counts.
func (c *AgentConn) stalledFor(now time.Time) time.Duration {
	still := c.stream.stalledFor(now)
	if c.whole+len(c.partial) > 0 {
		still = max(still, now.Sub(c.fed))
	}
	return still
}

// forgetFragments drops an incomplete message for the host. It also stops counting
// complete messages, which the host may still take.
func (c *AgentConn) forgetFragments() {
	c.link.agent.held -= len(c.partial)
	c.link.agent.endPartial(c)
	c.wrote()
}
