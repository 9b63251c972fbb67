package routing

// mostJoining bounds the incomplete messages that a Joiner stores.
const mostJoining = 64

// A Joiner assembles published messages from their pieces.
type Joiner struct {
	open  map[joinKey]*joining
	order fifo[joinKey]
}

type joinKey struct {
	source string
	number uint64
}

type joining struct {
	next uint64
	data []byte
}

// Add adds a piece, and returns the message that it completes, or nil. If a piece is
// missing, the message is dropped.
func (j *Joiner) Add(p Piece) []byte {
	if p.Index == 0 && p.Last {
		return p.Data
	}
	if j.open == nil {
		j.open = map[joinKey]*joining{}
	}
	key := joinKey{p.Source, p.Number}
	m := j.open[key]
	switch {
	case m == nil && p.Index > 0:
		return nil
	case m == nil:
		m = &joining{}
		j.open[key] = m
		j.order.push(key)
		for j.order.len() > mostJoining {
			delete(j.open, j.order.pop())
		}
	case p.Index != m.next:
		delete(j.open, key)
		return nil
	}
	m.data, m.next = append(m.data, p.Data...), m.next+1
	if !p.Last {
		return nil
	}
	delete(j.open, key)
	return m.data
}
