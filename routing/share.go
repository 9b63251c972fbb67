package routing

import "time"

// A share bounds the byte streams' data in flight on a link. The link stays in use,
// but hardly anything queues on the network, where messages would have to wait behind
// it. Credit does not achieve that: a browser behind a slow line takes at once what
// the line needs seconds for.
//
// It measures the time from a packet's departure to its release. The shortest recent
// time is the network's own; any excess is queueing. With more than shareDelay of
// queueing, the window shrinks, at most once for the data in flight. Otherwise it
// grows: at first by the bytes that have arrived, then by one piece for each window
// (compare LEDBAT, RFC 6817).
type share struct {
	window  int // bound of bytes in flight
	out     int // bytes in flight
	leaving int // bytes in the packet being made
	sent    fifo[sharedPacket]
	waiting []*stream // streams with data to send when there is room

	least, previous time.Duration // in this period, and in the previous; 0: unknown
	period          time.Time     // start of this period
	cut             uint64        // the window does not shrink again before a later packet is released
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

	shareDelay  = 30 * time.Millisecond // acknowledgements wait for 20 ms themselves
	sharePeriod = 30 * time.Second
)

func (h *share) room() bool {
	if h.window == 0 {
		h.window = firstShare
	}
	return h.out+h.leaving < h.window
}

// wait schedules a stream when there is room.
func (h *share) wait(s *stream) {
	if !s.shares {
		s.shares = true
		h.waiting = append(h.waiting, s)
	}
}

// left records that a packet leaves.
func (h *share) left(number uint64, now time.Time) {
	if h.leaving > 0 {
		h.sent.push(sharedPacket{number, h.leaving, now})
		h.out += h.leaving
		h.leaving = 0
	}
}

// released records the arrival of packets up to a number, and returns the streams that
// may go on.
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

// adapt changes the window.
func (h *share) adapt(p sharedPacket, now time.Time) {
	took := now.Sub(p.at)
	if h.period.IsZero() || now.Sub(h.period) > sharePeriod {
		h.previous, h.least, h.period = h.least, 0, now
	}
	if h.least == 0 || took < h.least {
		h.least = took
	}
	base := h.least
	if h.previous > 0 {
		base = min(base, h.previous)
	}
	switch {
	case took-base <= shareDelay && h.cut == 0: // it was never too large
		h.window = min(h.window+p.bytes, mostWindow)
	case took-base <= shareDelay:
		h.window = min(h.window+p.bytes*bytesPiece/h.window+1, mostWindow)
	case p.number > h.cut:
		h.window = max(h.window*3/4, leastWindow)
		if h.sent.len() > 0 {
			h.cut = h.sent.at(h.sent.len() - 1).number
		}
	}
}
