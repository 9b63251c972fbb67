package routing

// frameCost is added to the size of each body and chunk in bounds.
const frameCost = 128

// A bodyStore stores bodies from one host-agent instance at a relay, encoded for
// clients.
type bodyStore struct {
	limit  int // in bytes
	frames map[uint64]Frame
	order  fifo[uint64] // numbers in order of arrival
	bytes  int
	kept   func(n int) // receives changes of the number of bytes held
}

// put stores a new body and drops the oldest bodies beyond the limit. A dropped body
// can be requested again.
func (s *bodyStore) put(number uint64, frame Frame) {
	s.frames[number] = frame
	s.order.push(number)
	s.counted(len(frame.Data) + frameCost)
	s.shrink(s.limit)
}

// shrink drops the oldest bodies until at most the given number of bytes is stored. It
// keeps the newest body.
func (s *bodyStore) shrink(bytes int) {
	for s.bytes > bytes && s.order.len() > 1 {
		s.drop()
	}
}

func (s *bodyStore) counted(n int) {
	s.bytes += n
	s.kept(n)
}

// forgetBelow drops bodies with numbers below floor, which no later record names. It
// stops at the first body, in order of arrival, that is not below.
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
