package routing

import "ahprelay/internal/ablation"

// Bounds of blocks, in bytes.
const (
	leastBlock = 4 << 10
	mostBlock  = 64 << 10 // about the size of one write to a client
	mostOfOne  = 8 << 10  // longer bodies are not copied
	mostCopied = 1 << 20  // for one packet
	mostRows   = 8        // consecutive, similar rows that a block is sized for
)

// A block stores consecutive bodies, encoded for clients, side by side in memory. A
// row is the list of bodies that one connection receives. Each row is a range of a
// block, so queues and writers handle it like a single body. Connections can share a
// block, because their rows often differ only in where they end. A block is filled
// while one packet is handled. Without blocks, a relay needs 1.2 times the
// processor time for a delivery to 100 clients.
type block struct {
	shared *Shared
	copied int            // bytes of this packet's blocks so far
	data   []byte         // of fixed capacity, so that parts already in use never move
	bodies []blockBody    // the block's bodies
	places map[uint64]int // from body number to index in bodies
}

type blockBody struct {
	number     uint64
	start, end int // offsets in data
	credit     int
}

// begin starts a new block. Within bounds, it has room for 1+others rows of the given
// bytes.
func (b *block) begin(bytes, others int) {
	size := min(max(bytes*min(1+others, mostRows), leastBlock), mostBlock)
	b.copied += size
	b.shared, b.data = &Shared{Size: size}, make([]byte, 0, size)
	b.bodies = b.bodies[:0]
	clear(b.places)
}

// drop removes the block. Its memory lives on while frames refer to it.
func (b *block) drop() {
	if b.shared != nil {
		b.shared, b.copied, b.data, b.bodies = nil, 0, nil, b.bodies[:0]
		clear(b.places)
	}
}

func (b *block) add(number uint64, f Frame) bool {
	frame := f.Data
	if len(frame) > cap(b.data)-len(b.data) {
		return false
	}
	if b.places == nil {
		b.places = map[uint64]int{}
	}
	b.places[number] = len(b.bodies)
	b.bodies = append(b.bodies, blockBody{number, len(b.data), len(b.data) + len(frame), f.Credit})
	b.data = append(b.data, frame...)
	return true
}

// inRows fills r.frames with the bodies of r.list, as few frames as possible. It
// returns false if a body is missing.
func (r *RelayEnd) inRows() bool {
	for rest := r.list; len(rest) > 0; {
		n, ok := r.row(rest)
		if !ok {
			r.frames = r.frames[:0]
			return false
		}
		rest = rest[n:]
	}
	return true
}

// row appends one frame to r.frames with as many bodies from the front of a list as
// possible, and returns their number. It returns false if a body is missing. Each
// reason to end a row has its branch.
func (r *RelayEnd) row(list []uint64) (n int, ok bool) {
	if n := r.together(list); n > 0 {
		return n, true
	}
	b := &r.block
	at, known := b.places[list[0]]
	if !known {
		frame := r.bodies.frames[list[0]]
		if frame.Data == nil {
			return 0, false
		}
		if len(list) == 1 || len(frame.Data) > mostOfOne || b.copied >= mostCopied || ablation.Rows {
			r.frames = append(r.frames, frame)
			return 1, true
		}
		if !b.add(list[0], frame) {
			b.begin(len(list)*len(frame.Data), r.rows)
			b.add(list[0], frame)
		}
		at = len(b.bodies) - 1
	}
	credit := b.bodies[at].credit
	for n = 1; n < len(list); n++ {
		if next := at + n; next < len(b.bodies) {
			if b.bodies[next].number != list[n] {
				break
			}
			credit += b.bodies[next].credit
			continue
		}
		if _, known := b.places[list[n]]; known {
			break
		}
		frame := r.bodies.frames[list[n]]
		if frame.Data == nil {
			return 0, false
		}
		if len(frame.Data) > mostOfOne || !b.add(list[n], frame) {
			break
		}
		credit += frame.Credit
	}
	r.frames = append(r.frames, Frame{
		Data: b.data[b.bodies[at].start:b.bodies[at+n-1].end:b.bodies[at+n-1].end], Messages: n, Credit: credit, Shared: b.shared,
	})
	return n, true
}

// together appends one frame to r.frames with the bodies from the front of a list that
// already are neighbours in shared memory. It returns their number, or 0 if the first
// two are not neighbours.
func (r *RelayEnd) together(list []uint64) (n int) {
	row := r.bodies.frames[list[0]]
	for n = 1; n < len(list) && row.Join(r.bodies.frames[list[n]]); n++ {
	}
	if n == 1 {
		return 0
	}
	r.frames = append(r.frames, row)
	return n
}
