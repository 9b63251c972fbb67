package routing

// frameCost is added to each body's size in bounds.
const frameCost = 128

// A bodyStore holds a relay's bodies from one host-agent instance, encoded for
// clients.
type bodyStore struct {
	limit  int // in bytes
	frames map[uint64]Frame
	order  fifo[uint64] // numbers in order of arrival
	bytes  int
	kept   func(n int) // receives changes of the number of bytes held
}

func newBodyStore(limit int, kept func(n int)) bodyStore {
	return bodyStore{limit: limit, frames: map[uint64]Frame{}, kept: kept}
}

// put adds a new body and drops the oldest. A client's missing body is requested
// again.
func (s *bodyStore) put(number uint64, frame Frame) {
	s.frames[number] = frame
	s.order.push(number)
	s.counted(len(frame.Data) + frameCost)
	s.shrink(s.limit)
}

// shrink drops the oldest bodies until the given number of bytes is held, or a single
// body.
func (s *bodyStore) shrink(bytes int) {
	for s.bytes > bytes && s.order.len() > 1 {
		s.drop()
	}
}

func (s *bodyStore) counted(n int) {
	s.bytes += n
	s.kept(n)
}

// forgetBelow drops the oldest bodies while their numbers are below floor.
func (s *bodyStore) forgetBelow(floor uint64) {
	for s.order.len() > 0 && *s.order.at(0) < floor {
		s.drop()
	}
}

func (s *bodyStore) drop() {
	number := s.order.pop()
	s.counted(-len(s.frames[number].Data) - frameCost)
	delete(s.frames, number)
}
