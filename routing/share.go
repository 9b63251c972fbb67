package routing

import "time"

// A share bounds the bytes that all byte streams together have in flight on a link. It
// keeps the network busy, but avoids queues in the network, because messages would
// have to wait behind them. Credit alone cannot avoid such queues: a browser at the far
// end takes bytes at once that a slow line needs seconds to carry.
//
// The share measures the time from sending a packet to its release. The shortest
// recent time is the network's own delay; anything longer is queueing. If queueing
// exceeds shareDelay, the window shrinks, at most once per round trip. Otherwise it
// grows: at first by the bytes that have arrived, and after its first reduction by one
// piece per window (compare LEDBAT, RFC 6817).
type share struct {
	window  int // bound of bytes in flight
	out     int // bytes in flight
	leaving int // bytes in the packet that is being built
	sent    fifo[sharedPacket]
	waiting []*stream // streams with data that wait for room

	least, previous time.Duration // shortest time in this period, and in the previous period; 0: unknown
	period          time.Time     // start of this period
	cut             uint64        // number of a packet: the window shrinks again only when a later packet is released
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

	shareDelay  = 30 * time.Millisecond // must exceed 20 ms, by which acknowledgements may be delayed
	sharePeriod = 30 * time.Second
)

func (h *share) room() bool {
	if h.window == 0 {
		h.window = firstShare
	}
	return h.out+h.leaving < h.window
}

// wait registers a stream that is scheduled when there is room.
func (h *share) wait(s *stream) {
	if !s.shares {
		s.shares = true
		h.waiting = append(h.waiting, s)
	}
}

func (h *share) left(number uint64, now time.Time) {
	if h.leaving > 0 {
		h.sent.push(sharedPacket{number, h.leaving, now})
		h.out += h.leaving
		h.leaving = 0
	}
}

// released records that the peer has received all packets up to a number. It returns
// the streams that may continue.
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
	case took-base <= shareDelay && h.cut == 0: // the window has never been too large
		h.window = min(h.window+p.bytes, mostWindow)
	case took-base <= shareDelay:
		h.window = min(h.window+p.bytes*bytesPiece/h.window+1, mostWindow)
	case p.number > h.cut:
		h.window = max(h.window*3/4, leastWindow)
		if h.cut = p.number; h.sent.len() > 0 {
			h.cut = h.sent.at(h.sent.len() - 1).number
		}
	}
}
