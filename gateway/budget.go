package gateway

import (
	"sync/atomic"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// A budget counts the bytes that wait in the relay, for all clients and from
// all clients. Its nil pointer counts nothing.
type budget struct {
	limit int64
	over  chan struct{} // holds one: used is above the limit

	used atomic.Int64
}

func newBudget(limit int) *budget {
	return &budget{limit: int64(limit), over: make(chan struct{}, 1)}
}

// add counts n bytes more, or less.
func (b *budget) add(n int) {
	if b == nil || n == 0 {
		return
	}
	if b.used.Add(int64(n)) > b.limit && n > 0 {
		select {
		case b.over <- struct{}{}:
		default:
		}
	}
}

// take counts frames that were put into a queue. Memory of which several queues
// hold parts counts once.
func (b *budget) take(frames []routing.Frame) {
	n := 0
	for i := range frames {
		n += frameCost
		switch shared := frames[i].Shared; {
		case shared == nil:
			n += len(frames[i].Data)
		case shared.Holders.Add(1) == 1:
			n += shared.Size
		}
	}
	b.add(n)
}

// give takes back what take counted.
func (b *budget) give(frames []routing.Frame) {
	n := 0
	for i := range frames {
		n += frameCost
		switch shared := frames[i].Shared; {
		case shared == nil:
			n += len(frames[i].Data)
		case shared.Holders.Add(-1) == 0:
			n += shared.Size
		}
	}
	b.add(-n)
}

// exceeded reports whether more waits than may.
func (b *budget) exceeded() bool { return b.used.Load() > b.limit }

// relieve closes clients whenever too much waits for all together, until the
// server ends: those first that have most. One that takes too little for long
// is closed for itself; this is for very many that take too little at once.
func (s *Server) relieve() {
	for {
		select {
		case <-s.life.Done():
			return
		case <-s.budget.over:
		}
		for s.budget.exceeded() {
			c := heaviest(s.hosts.all())
			if c == nil {
				break
			}
			c.overload()
		}
	}
}

// heaviest returns the client that has most waiting, nil if none has anything.
func heaviest(clients []*client) (heaviest *client) {
	most := 0
	for _, c := range clients {
		if n := c.weight(); n > most {
			heaviest, most = c, n
		}
	}
	return heaviest
}

// weight is how many bytes wait on account of a client, 0 if it is being
// closed for that.
func (c *client) weight() int {
	if c.cut.Load() {
		return 0
	}
	c.mu.Lock()
	conn, n := c.conn, c.bytes
	c.mu.Unlock()
	if conn != nil {
		n += conn.Queued()
	}
	return n + c.out.queued() + int(c.reading.Load())
}

// overload closes a client on whose account too much waits, and drops that.
func (c *client) overload() {
	c.cut.Store(true)
	const reason = "too much waits for all clients of this relay"
	end := c.out.abort(closing{code: ahp.CloseOverloaded, reason: closeReason(ahp.CloseOverloaded, reason), full: true})
	c.log().Warn("client closed: too much waits for all together")
	c.abort(end)
	c.doneReading()
}

// abort is disconnect, and drops what has not left for the host.
func (c *client) abort(end closing) {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		conn.Abort(end.code, end.reason)
	}
	c.disconnect(end)
}

// readMore counts n bytes more of a message that is being read.
func (c *client) readMore(n int) error {
	c.reading.Add(int64(n))
	c.budget.add(n)
	if c.cut.Load() {
		return errCut
	}
	return nil
}

// doneReading counts the message no more that was being read.
func (c *client) doneReading() { c.budget.add(-int(c.reading.Swap(0))) }
