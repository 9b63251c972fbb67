package routing

// A bodyStore holds the bodies that a relay has heard of one host-agent
// instance, encoded for clients.
type bodyStore struct {
	limit  int // bytes
	frames map[uint64][]byte
	bytes  int
	floor  uint64 // no number below is in frames
}

func newBodyStore(limit int) bodyStore {
	return bodyStore{limit: limit, frames: map[uint64][]byte{}}
}

// put adds a body. The oldest make room for it; what a client still needs of
// them is asked for again.
func (s *bodyStore) put(number uint64, frame []byte) {
	if s.frames[number] != nil || number < s.floor {
		return
	}
	s.frames[number] = frame
	s.bytes += len(frame)
	for s.bytes > s.limit && s.floor < number {
		s.forgetBelow(s.floor + 1)
	}
}

// forgetBelow drops the bodies with numbers below floor.
func (s *bodyStore) forgetBelow(floor uint64) {
	if floor <= s.floor {
		return
	}
	if floor-s.floor > uint64(2*len(s.frames)+64) {
		for n := range s.frames {
			if n < floor {
				s.drop(n)
			}
		}
		s.floor = floor
	}
	for ; s.floor < floor; s.floor++ {
		s.drop(s.floor)
	}
}

func (s *bodyStore) drop(number uint64) {
	s.bytes -= len(s.frames[number])
	delete(s.frames, number)
}
