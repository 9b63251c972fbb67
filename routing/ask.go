package routing

import (
	"errors"
	"math"
)

// A relay can ask the host something on a client's connection, with that
// client's rights: the request goes among the client's messages, and the
// answer comes among the host's, but aside.

// maxAsks bounds the requests of the relay's own that wait on a connection.
const maxAsks = 32

// ErrTooManyAsks reports a request for which a connection has no room.
var ErrTooManyAsks = errors.New("too many requests of the relay's own")

// Ask sends a request of the relay's own to the host: a whole message, whose
// id is no client's. Answer is called once, with the response, or nil if the
// connection ends before, under locks: it must not block.
func (c *RelayConn) Ask(request []byte, answer func(response []byte)) error {
	r := c.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case c.client == nil:
		return ErrConnClosed
	case len(c.asks) >= maxAsks:
		return ErrTooManyAsks
	}
	c.lastAsk++
	record := appendBytes(appendRecord(nil, recordAsk, c.stream.conn, c.lastAsk), request)
	if err := r.mux.push(&c.stream, item{raw: record}, r.cfg.QueueLimit); err != nil {
		return err
	}
	if c.asks == nil {
		c.asks = map[uint64]func([]byte){}
	}
	c.asks[c.lastAsk] = answer
	r.lines.Wake()
	return nil
}

// takeAside takes a piece of a response to the relay, and reports whether it
// was one.
func (c *RelayConn) takeAside(data []byte, last bool) bool {
	if c.aside == 0 {
		return false
	}
	if c.asideBytes += len(data); c.asideBytes <= c.relay.cfg.MaxFrame {
		c.asideData = append(c.asideData, data...)
	}
	if !last {
		return true
	}
	response := c.asideData
	if c.asideBytes > c.relay.cfg.MaxFrame {
		response = nil
	}
	answer := c.asks[c.aside]
	delete(c.asks, c.aside)
	c.aside, c.asideBytes, c.asideData = 0, 0, nil
	if answer != nil {
		answer(response)
	}
	return true
}

// endAsks says that no more answers come.
func (c *RelayConn) endAsks() {
	for _, answer := range c.asks {
		answer(nil)
	}
	c.asks, c.aside, c.asideData = nil, 0, nil
}

// asked passes a request of the relay's own to the host.
func (l *agentLink) asked(number, ask uint64, request []byte) {
	if c := l.conns[number]; c != nil && !c.told {
		c.host.Ask(ask, request)
	}
}

// Answer takes the response to an Ask. It holds content from from to to, as for
// FromHostWith.
func (c *AgentConn) Answer(ask uint64, response []byte, from, to int) error {
	response = kept(response)
	sums := chunkSums(response[from:to])
	return c.link.with(func() error {
		if c.stream.ended {
			return ErrConnClosed
		}
		m := &c.link.mux
		aside := item{raw: appendRecord(nil, recordAside, c.stream.conn, ask)}
		// What follows that record is taken for the response: there must be one.
		if err := m.push(&c.stream, aside, math.MaxInt); err != nil {
			return err
		}
		defer c.link.agent.grown()
		return c.queueParts(response, from, to, sums)
	})
}
