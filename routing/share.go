package routing

import "time"

// A share is how much of streams of bytes may be on its way on a link: so much
// that the link is used, and hardly anything waits on the way, where messages of
// others would have to wait behind it. Credit does not see to that: what a slow
// line takes seconds for, a browser behind it takes at once.
//
// It goes by the time from when a packet leaves until it is released. The least
// that was lately is what the way takes; what is more, something waits. With more
// of that than shareDelay the window is made smaller, at most once for what is
// under way, and else larger: at first by as much as has arrived, then by a piece
// for all that is under way (compare LEDBAT, RFC 6817).
type share struct {
	window  int // bytes that may be on their way
	out     int // that are
	leaving int // in the packet that is being put together
	sent    fifo[sharedPacket]
	waiting []*stream // that have something to send when there is room

	least, former time.Duration // in this period, and in the one before; 0: not known
	period        time.Time     // when this one began
	cut           uint64        // the window is not made smaller again before a later packet is released
}

type sharedPacket struct {
	number uint64
	bytes  int
	at     time.Time
}

const (
	firstShare  = 256 << 10
	leastWindow = 16 << 10
	mostWindow  = 4 << 20

	shareDelay  = 30 * time.Millisecond // acks wait for 20 ms themselves
	sharePeriod = 30 * time.Second
)

func (h *share) room() bool {
	if h.window == 0 {
		h.window = firstShare
	}
	return h.out+h.leaving < h.window
}

// wait has a stream scheduled when there is room.
func (h *share) wait(s *stream) {
	if !s.shares {
		s.shares = true
		h.waiting = append(h.waiting, s)
	}
}

// left notes that the packet leaves.
func (h *share) left(number uint64, now time.Time) {
	if h.leaving > 0 {
		h.sent.push(sharedPacket{number, h.leaving, now})
		h.out += h.leaving
		h.leaving = 0
	}
}

// released notes that packets up to a number have arrived, and returns the streams
// that may go on.
func (h *share) released(number uint64, now time.Time) []*stream {
	for h.sent.len() > 0 && h.sent.at(0).number <= number {
		p := h.sent.pop()
		h.out -= p.bytes
		h.adapt(p, now)
	}
	if !h.room() {
		return nil
	}
	waiting := h.waiting
	h.waiting = nil
	for _, s := range waiting {
		s.shares = false
	}
	return waiting
}

// adapt makes the window larger or smaller.
func (h *share) adapt(p sharedPacket, now time.Time) {
	took := now.Sub(p.at)
	if h.period.IsZero() || now.Sub(h.period) > sharePeriod {
		h.former, h.least, h.period = h.least, 0, now
	}
	if h.least == 0 || took < h.least {
		h.least = took
	}
	way := h.least
	if h.former > 0 {
		way = min(way, h.former)
	}
	switch {
	case took-way <= shareDelay && h.cut == 0: // it was never too large
		h.window = min(h.window+p.bytes, mostWindow)
	case took-way <= shareDelay:
		h.window = min(h.window+p.bytes*bytesPiece/h.window+1, mostWindow)
	case p.number > h.cut:
		h.window = max(h.window*3/4, leastWindow)
		if h.sent.len() > 0 {
			h.cut = h.sent.at(h.sent.len() - 1).number
		}
	}
}
