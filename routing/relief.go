package routing

import (
	"time"

	"ahprelay/ahp"
)

// relieve closes connections until all queues together are within their bound:
// those first that have stood still for longest, and of others those that have
// most. Sources are held back long before (hold.go): this is for what is said
// all the same.
func (a *AgentEnd) relieve() {
	for a.total() > a.cfg.MaxQueued {
		c, _ := a.worst(time.Now())
		if c == nil {
			return // it is bodies that packets hold, which have their own bound
		}
		c.overload()
	}
}

// overload closes a connection on whose account too much waits, and drops that.
func (c *AgentConn) overload() {
	c.link.mux.drop(&c.stream, c.link.agent.bodies.release)
	c.forgetFragments()
	const reason = "too much is queued for all clients of this host"
	c.end(ahp.CloseOverloaded, reason)
	c.tellHost(ahp.CloseOverloaded, reason)
}

// worst returns the connection that is to be closed first, of those on whose
// account something waits, and for how long it has stood still.
func (a *AgentEnd) worst(now time.Time) (worst *AgentConn, standing time.Duration) {
	most := 0
	for _, l := range a.links {
		for _, c := range l.conns {
			n, still := c.weight(), c.standing(now)
			if n > 0 && (worst == nil || still > standing || still == standing && n > most) {
				worst, standing, most = c, still, n
			}
		}
	}
	return worst, standing
}

// standing is for how long neither the client has taken anything of what waits
// for it, nor the host.
func (c *AgentConn) standing(now time.Time) time.Duration {
	still := c.stream.standing(now)
	if c.whole+len(c.partial) > 0 {
		still = max(still, now.Sub(c.fed))
	}
	return still
}

// weight is how many bytes wait on account of a connection.
func (c *AgentConn) weight() int { return c.stream.queued + len(c.partial) + c.whole }

// forgetFragments drops what has come of a message, and counts those no more
// that were delivered whole: the host is given a moment for them.
func (c *AgentConn) forgetFragments() {
	c.link.agent.held -= len(c.partial)
	c.endPartial()
	c.wrote()
}
