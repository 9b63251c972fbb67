package routing

import "math"

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
