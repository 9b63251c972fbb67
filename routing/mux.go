package routing

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// ErrQueueFull reports a frame for which the connection's queue has no room.
var ErrQueueFull = errors.New("queue full")

const (
	// pieceCost is added to each message's or piece's size in credit and queue bounds.
	// It bounds the number of small messages.
	pieceCost = 64

	// maxCredit is the most credit that a peer can accumulate.
	maxCredit = 1 << 30
)

// creditShare is the part of the initial credit that is returned in one record: few,
// large credit records.
const creditShare = 4

// An item is one unit to send on a stream: exactly one of raw, frame, body and chunk
// is set.
type item struct {
	raw    []byte // an encoded record
	frame  []byte // the unsent rest of a message, or of a part of a message
	whole  int    // length of the complete message or part
	later  bool   // frame is not the first part of its message
	more   bool   // frame is not the last part of its message
	binary bool   // not a text message
	fed    uint64 // number of the channel on which the relay publishes the frame; 0: it does not
	body   *body  // a reference
	chunk  *chunk // a reference to a part of a message

	aside bool      // frame is a sealed body or its tag: not counted in stream.own
	sum   *[32]byte // frame becomes the tag of the body with this sum; nil: it is no tag
}

// size returns the item's share of its queue's bound.
func (it *item) size() int {
	switch {
	case it.body != nil:
		return it.body.size
	case it.raw != nil:
		return 0 // records are few
	case it.chunk != nil:
		return pieceCost // the chunk's bytes are counted elsewhere
	}
	return len(it.frame) + pieceCost
}

// A stream is the sending side of one connection on a link.
type stream struct {
	conn       uint64
	items      fifo[item]
	queued     int  // sizes of items
	large      int  // size of the largest item behind the first, if that is at least largeItem
	credit     int  // cost of frames that may be sent
	creditDue  int  // cost of received frames that were written but not yet credited
	uncredited int  // cost of received frames not yet credited
	window     int  // bytes the peer may send ahead
	bytes      bool // carries bytes, which have a share of the link
	shares     bool // waits for room in that share
	ready      bool // waits for its turn in mux.turns
	ended      bool // the close record is queued: nothing more is taken
	left       bool // the close record was sent: the peer may reuse the number

	moved time.Time // while there is no credit: when it ran out, or the peer last proved progress

	room  chan struct{} // holds a token after frames have left, for a caller that waits for room; may be nil
	waits bool          // the mux's owner waits for items to leave

	node *batchNode // the batch's last node for this connection; nil: none

	tagger Tagger // of a sealed host's connection
	own    uint64 // messages that have left, without sealed bodies and tags
}

// ofBytes makes the stream carry bytes, with a window of its own in each direction.
func (s *stream) ofBytes() {
	s.bytes = true
	s.credit, s.window = min(s.credit, bytesWindow), min(s.window, bytesWindow)
}

// largeItem is the size from which one item does not count against its queue's bound.
const largeItem = 1 << 20

// behind returns the bytes queued behind the item being sent. The largest item never
// counts, whether it is being sent or about to be.
func (s *stream) behind() int {
	if s.items.len() == 0 {
		return 0
	}
	return s.queued - max(s.items.at(0).size(), s.large)
}

// pushed records a new item at the end of the queue.
func (s *stream) pushed(size int) {
	s.queued += size
	if size >= largeItem && s.items.len() > 1 {
		s.large = max(s.large, size)
	}
}

// next removes the first item from the queue.
func (s *stream) next() item {
	it := s.items.pop()
	if s.large == 0 || s.items.len() > 0 && s.items.at(0).size() < s.large {
		return it
	}
	s.large = 0
	for i := 1; i < s.items.len(); i++ {
		if size := s.items.at(i).size(); size >= largeItem {
			s.large = max(s.large, size)
		}
	}
	return it
}

func (s *stream) hasRoom() {
	select {
	case s.room <- struct{}{}:
	default:
	}
}

// spend takes credit for n bytes.
func (s *stream) spend(n int) {
	s.credit -= n
	if s.credit <= 0 {
		s.moved = time.Now()
	}
}

// stalledFor returns how long the stream has waited for credit without a sign of the
// peer's progress. It is 0 if the stream does not wait for credit.
func (s *stream) stalledFor(now time.Time) time.Duration {
	if s.credit > 0 || s.items.len() == 0 {
		return 0
	}
	return max(0, now.Sub(s.moved))
}

// A mux is the sending side of a link: a queue for each connection. Connections take
// turns, so that a large frame does not delay other connections. A mux is not safe for
// concurrent use.
type mux struct {
	count func(n int) // receives changes of the bytes queued on all streams; may be nil

	delay delay // samples the items' delay

	drained func(s *stream) // called when an item has left a stream whose owner waits

	control fifo[[]byte]  // encoded records outside of any stream
	turns   fifo[*stream] // streams with something to send, next first
	chunks  chunkTable    // parts of messages that the relay has; host-agents only
	batch   batch         // references that wait for company
	share   share         // of byte streams
	closed  []uint64      // connections whose close record has left since the owner's last check
	freed   []*stream     // scratch of flushBatch
}

// push queues an item. It accepts an item while at most limit bytes are queued behind
// the item being sent.
func (m *mux) push(s *stream, it item, limit int) error { return m.pushCounted(s, it, limit, 0) }

// pushCounted is push for an item of which the owner has already counted some bytes.
func (m *mux) pushCounted(s *stream, it item, limit, counted int) error {
	if s.behind() > limit {
		return ErrQueueFull
	}
	s.items.push(it)
	s.pushed(it.size())
	m.counted(&it, it.size()-counted)
	m.schedule(s)
	return nil
}

// counted reports a change of an item's queued bytes to the owner. Bodies are shared,
// so they are counted where they are kept.
func (m *mux) counted(it *item, n int) {
	if m.count != nil && it.body == nil {
		m.count(n)
	}
}

// end queues the close record behind everything queued. The stream takes nothing more.
func (m *mux) end(s *stream, code ahp.CloseCode, reason string) {
	if s.ended {
		return
	}
	s.ended = true
	s.items.push(item{raw: appendClose(nil, s.conn, code, reason)})
	m.schedule(s)
}

// drop empties a stream's queue, except for the close record.
func (m *mux) drop(s *stream, release func(*body)) {
	var last item
	for s.items.len() > 0 {
		last = s.items.pop()
		m.counted(&last, -last.size())
		if last.body != nil {
			release(last.body)
		}
		if last.chunk != nil {
			last.chunk.uses--
		}
	}
	s.queued, s.large = 0, 0
	m.delay.dropped(s)
	if s.waits {
		m.drained(s)
	}
	if s.ended && last.raw != nil {
		s.items.push(last)
		m.schedule(s) // it may have waited for credit
	}
}

// pop removes the first item of a stream, which leaves.
func (m *mux) pop(s *stream) item {
	m.delay.popped(s)
	return s.next()
}

// sendControl queues a record outside of any stream.
func (m *mux) sendControl(record []byte) { m.control.push(record) }

// grant takes credit from the peer. Even zero credit proves that the stream makes
// progress.
func (m *mux) grant(s *stream, n int) {
	s.moved = time.Now()
	s.credit = min(s.credit+n, maxCredit)
	m.schedule(s)
}

// charge records that the peer sent something with cost n on this connection, and
// reports whether it had the credit.
func (m *mux) charge(s *stream, n int) bool {
	s.uncredited += n
	return s.uncredited <= s.window+pieceCost // the last piece may exceed the credit by its cost
}

// chargeLate is charge for something that needs only some credit, however large it is.
func (m *mux) chargeLate(s *stream, n int) bool {
	had := s.uncredited < s.window+pieceCost
	s.uncredited += n
	return had
}

// written records that received bytes with cost n were written. It returns credit in
// larger pieces, and reports whether a record is due.
func (m *mux) written(s *stream, n int) (due bool) {
	s.creditDue += n
	if s.creditDue < s.window/creditShare || s.left {
		return false
	}
	m.returnCredit(s, 0)
	return true
}

// returnCredit returns the connection's due credit plus n, however little that is.
func (m *mux) returnCredit(s *stream, n int) {
	s.creditDue += n
	m.sendControl(appendRecord(nil, recordCredit, s.conn, uint64(s.creditDue)))
	s.uncredited -= s.creditDue
	s.creditDue = 0
}

// widen adds n, which may be negative, to the bytes that the peer may send ahead. A
// reduction takes effect with the credit that is returned next, which must be as much.
func (s *stream) widen(n int) {
	s.window += n
	s.creditDue += n
	s.uncredited += n
}

// schedule gives a stream a turn if it can use one.
func (m *mux) schedule(s *stream) {
	switch {
	case s.ready:
	case m.sendable(s):
		s.ready = true
		m.turns.push(s)
	case s.items.len() == 0:
	case s.bytes && !m.share.room():
		m.share.wait(s)
	default:
		s.items.at(0).chunk.wait(s)
	}
}

// released records that the peer has all packets up to a number, and reports whether
// waiting streams continue.
func (m *mux) released(number uint64) (more bool) {
	for _, s := range m.share.released(number, time.Now()) {
		m.schedule(s)
		more = true
	}
	return more
}

// sendable reports whether a stream's first item may leave.
func (m *mux) sendable(s *stream) bool {
	if s.items.len() == 0 {
		return false
	}
	it := s.items.at(0)
	switch {
	case it.body != nil:
		return m.mayRefer(s) // grant continues
	case s.node != nil && m.batch.held():
		return false // flushBatch continues
	case it.chunk != nil && !it.chunk.sent:
		return false // sendChunk continues
	}
	return it.raw != nil || s.credit > 0 && (!s.bytes || m.share.room()) // grant or released continues
}

// next returns a payload of about size bytes, with room for the packet's header in
// front. If there is none, it returns nil and the time when the batch is due. The
// referenced bodies are in m.batch.sent.
func (m *mux) next(size int, now time.Time) (payload []byte, again time.Time) {
	b := m.nextControl(size)
	for m.turns.len() > 0 && len(b) < size && !m.batch.full() {
		s := m.turns.pop()
		s.ready = false
		if s == &m.chunks.transfer {
			b = m.sendChunk(b, size)
			continue
		}
		if m.sendable(s) { // true when it got its turn
			b = m.turn(s, b, size)
			if s.waits {
				m.drained(s)
			}
		}
		m.schedule(s)
	}
	if m.batch.due(now) {
		b = m.flushBatch(b)
	}
	if len(b) == link.HeaderRoom {
		return nil, m.batch.deadline()
	}
	return b, time.Time{}
}

// nextControl returns a payload of control records.
func (m *mux) nextControl(size int) []byte {
	b := make([]byte, link.HeaderRoom, link.HeaderRoom+256)
	for m.control.len() > 0 && len(b) < size {
		b = append(b, m.control.pop()...)
	}
	return b
}

// turn sends a stream's first item, a piece of it, or all references at its front.
func (m *mux) turn(s *stream, b []byte, size int) []byte {
	it := s.items.at(0)
	if it.body != nil {
		for s.items.len() > 0 && s.items.at(0).body != nil && !m.batch.full() && m.mayRefer(s) {
			it := m.pop(s)
			s.queued -= it.size()
			m.refer(s, it.body)
			it.body.uses-- // the batch holds it now
		}
		return b
	}
	if s.node != nil { // must be sent before this item
		b = m.flushBatch(b)
	}
	if it.raw != nil {
		b = append(b, it.raw...)
		m.pop(s)
		if s.ended && s.items.len() == 0 {
			s.left = true
			m.closed = append(m.closed, s.conn)
		}
		return b
	}
	if it.chunk != nil {
		return m.chunkRef(s, it, b)
	}
	if it.sum != nil {
		copy(it.frame, s.tag(sumOf(it.sum)))
		it.sum = nil
	}
	return m.piece(s, it, b, size)
}

// mayRefer reports whether a stream has credit for a reference.
func (m *mux) mayRefer(s *stream) bool { return s.credit > 0 }

// refer adds a reference to the batch, for which there is credit.
func (m *mux) refer(s *stream, b *body) {
	m.batch.add(s, b)
	s.spend(b.cost())
}

// flushBatch sends the batch, and schedules the streams that waited for it.
func (m *mux) flushBatch(b []byte) []byte {
	if len(m.batch.joined) > 0 {
		m.delay.measured(m.batch.since)
	}
	m.freed = append(m.freed[:0], m.batch.streams...)
	b = m.batch.append(b)
	for _, s := range m.freed {
		m.schedule(s)
	}
	clear(m.freed)
	return b
}

// piece sends as much of a frame as fits into one record.
func (m *mux) piece(s *stream, it *item, b []byte, size int) []byte {
	n := min(len(it.frame), s.credit, size)
	b = slices.Grow(b, n+4*binary.MaxVarintLen64)
	first, last := len(it.frame) == it.whole && !it.later, n == len(it.frame) && !it.more
	b = it.append(b, s.conn, n, first, last)
	s.spend(n + pieceCost)
	if s.bytes {
		m.share.leaving += n
	}
	if n < len(it.frame) {
		s.queued -= n
		m.counted(it, -n)
		it.frame = it.frame[n:]
		return b
	}
	s.queued -= n + pieceCost
	m.counted(it, -n-pieceCost)
	if !it.aside && last {
		s.own++
	}
	m.pop(s)
	s.hasRoom()
	return b
}

// append encodes the first n bytes of an item's frame.
func (it *item) append(b []byte, conn uint64, n int, first, last bool) []byte {
	switch {
	case first && last && it.fed != 0:
		return appendBytes(appendRecord(b, recordFed, conn, it.fed), it.frame)
	case first && last && !it.binary:
		return appendBytes(appendRecord(b, recordFrame, conn), it.frame)
	}
	var flags uint64
	if first {
		flags |= fragmentFirst
	}
	if last {
		flags |= fragmentLast
	}
	if it.binary {
		flags |= fragmentBinary
	}
	if it.fed != 0 {
		b = appendRecord(b, recordFragment, conn, flags|fragmentFed, it.fed)
	} else {
		b = appendRecord(b, recordFragment, conn, flags)
	}
	return appendBytes(b, it.frame[:n])
}
