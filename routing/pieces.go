package routing

// mostJoining bounds the messages in pieces that a Joiner holds.
const mostJoining = 64

// A Joiner joins the pieces of published messages.
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

// Add adds a piece, and returns the message that it completes, or nil. A message without
// one of its pieces never completes.
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
