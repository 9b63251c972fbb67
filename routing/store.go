package routing

// frameCost is what a body counts against a bound besides its bytes.
const frameCost = 128

// A bodyStore holds the bodies that a relay has heard of one host-agent
// instance, encoded for clients.
type bodyStore struct {
	limit  int // bytes
	frames map[uint64]Frame
	order  fifo[uint64] // the numbers, as they came
	bytes  int
	kept   func(n int) // is told how many bytes more are held
}

func newBodyStore(limit int, kept func(n int)) bodyStore {
	return bodyStore{limit: limit, frames: map[uint64]Frame{}, kept: kept}
}

// put adds a body that is not there. The oldest make room for it; what a
// client still needs of them is asked for again.
func (s *bodyStore) put(number uint64, frame Frame) {
	s.frames[number] = frame
	s.order.push(number)
	s.counted(len(frame.Data) + frameCost)
	s.shrink(s.limit)
}

// shrink drops the oldest bodies until at most so many bytes are held, or one
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

// forgetBelow drops the bodies with numbers below floor, as far as they came
// before all others.
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
