package routing

import "ahprelay/ahp"

// relieve closes connections until all queues together are within their bound:
// those first that have most. A client that takes too little for long is closed
// for itself (QueueLimit); this is for very many that take too little at once.
func (a *Agent) relieve() {
	for a.held+a.bodies.kept > a.cfg.MaxQueued {
		c := a.heaviest()
		if c == nil {
			return // it is bodies that packets hold, which have their own bound
		}
		c.link.mux.drop(&c.stream, a.bodies.release)
		c.forgetFragments()
		const reason = "too much is queued for all clients of this host"
		c.end(ahp.CloseOverloaded, reason)
		c.tellHost(ahp.CloseOverloaded, reason)
	}
}

// heaviest returns the connection that has most queued, nil if none has
// anything.
func (a *Agent) heaviest() (heaviest *AgentConn) {
	most := 0
	for _, l := range a.links {
		for _, c := range l.conns {
			if n := c.weight(); n > most {
				heaviest, most = c, n
			}
		}
	}
	return heaviest
}

// weight is how many bytes wait on account of a connection.
func (c *AgentConn) weight() int { return c.stream.queued + len(c.partial) + c.whole }

// forgetFragments drops what has come of a message, and counts those no more
// that were delivered whole: the host is given a moment for them.
func (c *AgentConn) forgetFragments() {
	c.link.agent.held -= len(c.partial) + c.whole
	c.partial, c.whole = nil, 0
}
