package routing

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// ErrQueueFull reports a frame for which a connection's queue has no room.
var ErrQueueFull = errors.New("queue full")

const (
	// pieceCost is what a message, or a piece of one, counts against credit
	// and the bounds of queues besides its bytes: so those bound how many
	// small ones there are, too.
	pieceCost = 64

	// maxCredit is the most that a peer's credit adds up to.
	maxCredit = 1 << 30
)

// creditShare is the part of the initial credit that is given back in one
// piece: few, large credit records.
const creditShare = 4

// An item is one thing to send on a stream: one of raw, frame, body and chunk
// is set.
type item struct {
	raw    []byte // an encoded record
	frame  []byte // what is left of a message, or of a part of one
	whole  int    // length of that message, or part
	later  bool   // frame is not the first part of its message
	more   bool   // and not the last
	binary bool   // it is no text
	body   *body  // a reference
	chunk  *chunk // a reference to a part of a message
}

// size is what the item counts against its queue's bound.
func (it *item) size() int {
	switch {
	case it.body != nil:
		return it.body.size
	case it.raw != nil:
		return 0 // there are few of them
	case it.chunk != nil:
		return pieceCost // the chunk is counted where it is kept
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
	creditDue  int  // cost of the other direction's that were written and not credited yet
	uncredited int  // cost of the other direction's that came and were not credited yet
	window     int  // what the peer may send ahead
	bytes      bool // it carries bytes, which have a share of the link
	shares     bool // and waits for room in that
	ready      bool // waits for its turn in mux.turns
	ended      bool // the close record is queued: nothing more is taken
	left       bool // it has been sent: the peer may use the number anew

	moved time.Time // while there is no credit: when it ran out, or the peer last said that it goes on

	room  chan struct{} // holds a token after frames have left, for one that waits for room; may be nil
	waits bool          // the mux's owner wants to know when something has left

	node *batchNode // the last body that the mux's batch has for this connection; nil: none
}

// ofBytes has the stream carry bytes: it has a window of its own, each way.
func (s *stream) ofBytes() {
	s.bytes = true
	s.credit, s.window = min(s.credit, bytesWindow), min(s.window, bytesWindow)
}

// largeItem is the size from which one item does not count against its
// queue's bound.
const largeItem = 1 << 20

// behind is what is queued behind the item being sent. It does not matter
// whether a large item is being sent or is about to be: the largest does not
// count.
func (s *stream) behind() int {
	if s.items.len() == 0 {
		return 0
	}
	return s.queued - max(s.items.at(0).size(), s.large)
}

// pushed notes that an item was put at the end of the queue.
func (s *stream) pushed(size int) {
	s.queued += size
	if size >= largeItem && s.items.len() > 1 {
		s.large = max(s.large, size)
	}
}

// next takes the first item out of the queue.
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

// standing is how long a stream has waited for credit, and heard nothing from
// the peer of its taking anything; 0: it does not wait for that.
func (s *stream) standing(now time.Time) time.Duration {
	if s.credit > 0 || s.items.len() == 0 {
		return 0
	}
	return max(0, now.Sub(s.moved))
}

// A mux is the sending side of a link: a queue for each connection. They
// have turns, so that a large frame does not hold up other connections. A
// mux is not safe for concurrent use.
type mux struct {
	count    func(n int) // is told how much more is queued, of frames of all streams; nil: nobody is
	refsCost bool        // references take credit, as the peer gives it back

	delay delay // of items, one at a time

	drained func(s *stream) // is told when something has left of a stream whose owner waits for that

	control fifo[[]byte]  // encoded records that wait for no connection
	turns   fifo[*stream] // streams that have something to send, next first
	chunks  chunkTable    // parts of messages that the relay has; of host-agents only
	batch   batch         // references that wait for company
	share   share         // of streams of bytes
	closed  []uint64      // connections whose close record has left, since the owner last looked
	freed   []*stream     // scratch of flushBatch
}

// push queues an item. It takes one more while at most limit bytes are queued
// behind the item being sent.
func (m *mux) push(s *stream, it item, limit int) error { return m.pushCounted(s, it, limit, 0) }

// pushCounted is push of an item that the owner has counted as so many bytes.
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

// counted tells the owner how much more of an item is queued. Bodies belong to
// all: they are counted where they are kept.
func (m *mux) counted(it *item, n int) {
	if m.count != nil && it.body == nil {
		m.count(n)
	}
}

// end queues the close record, behind all that is queued, and takes nothing
// more.
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

// pop takes the first item of a stream, which leaves.
func (m *mux) pop(s *stream) item {
	m.delay.popped(s)
	return s.next()
}

// say queues a record that waits for no connection.
func (m *mux) say(record []byte) { m.control.push(record) }

// grant takes credit from the peer. Even if that is none, it is a sign that what
// was sent goes on.
func (m *mux) grant(s *stream, n int) {
	s.moved = time.Now()
	s.credit = min(s.credit+n, maxCredit)
	m.schedule(s)
}

// took notes that something of cost n came on this connection, and reports
// whether the peer had credit for it.
func (m *mux) took(s *stream, n int) bool {
	s.uncredited += n
	return s.uncredited <= s.window+pieceCost // the last piece may cost that more
}

// tookLate is took for what needs only some credit, however large it is.
func (m *mux) tookLate(s *stream, n int) bool {
	had := s.uncredited < s.window+pieceCost
	s.uncredited += n
	return had
}

// written notes that something of cost n which the peer sent on this
// connection is off our hands, and credits it in larger pieces.
func (m *mux) written(s *stream, n int) (due bool) {
	s.creditDue += n
	if s.creditDue < s.window/creditShare || s.left {
		return false
	}
	m.returnCredit(s, 0)
	return true
}

// returnCredit credits what is due on this connection, and n more, however little that
// is.
func (m *mux) returnCredit(s *stream, n int) {
	s.creditDue += n
	m.say(appendRecord(nil, recordCredit, s.conn, uint64(s.creditDue)))
	s.uncredited -= s.creditDue
	s.creditDue = 0
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

// released notes that the peer has packets up to a number, and reports whether
// streams go on that waited for that.
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
		return m.mayRefer(s) // grant goes on
	case s.node != nil && m.batch.held():
		return false // flushBatch goes on
	case it.chunk != nil && !it.chunk.sent:
		return false // sendChunk goes on
	}
	return it.raw != nil || s.credit > 0 && (!s.bytes || m.share.room()) // grant goes on, or released
}

// next returns the next payload of about size bytes, behind room for the
// packet's header, or nil and the time when the batch is to be sent. The
// bodies that it refers to are in m.batch.sent.
func (m *mux) next(size int, now time.Time) (payload []byte, again time.Time) {
	b := m.nextControl(size)
	for m.turns.len() > 0 && len(b) < size && !m.batch.full() {
		s := m.turns.pop()
		s.ready = false
		if s == &m.chunks.transfer {
			b = m.sendChunk(b, size)
			continue
		}
		if m.sendable(s) { // it was when it got its turn
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

// nextControl returns a payload of the records that wait for no connection.
func (m *mux) nextControl(size int) []byte {
	b := make([]byte, link.HeaderRoom, link.HeaderRoom+256)
	for m.control.len() > 0 && len(b) < size {
		b = append(b, m.control.pop()...)
	}
	return b
}

// turn sends the first item of a stream, or a piece of it, or the row of
// references at its front.
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
	if s.node != nil { // sent before this
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
	return m.piece(s, it, b, size)
}

// mayRefer reports whether a stream has credit for a reference.
func (m *mux) mayRefer(s *stream) bool { return !m.refsCost || s.credit > 0 }

// refer notes a reference in the batch, for which there is credit.
func (m *mux) refer(s *stream, b *body) {
	m.batch.add(s, b)
	if m.refsCost {
		s.spend(b.cost())
	}
}

// flushBatch sends the batch, and gives turns to those that waited for that.
func (m *mux) flushBatch(b []byte) []byte {
	if len(m.batch.joined) > 0 {
		m.delay.told(m.batch.since)
	}
	m.freed = append(m.freed[:0], m.batch.streams...)
	b = m.batch.append(b)
	for _, s := range m.freed {
		m.schedule(s)
	}
	clear(m.freed)
	return b
}

// piece sends as much of a frame as may go in one record.
func (m *mux) piece(s *stream, it *item, b []byte, size int) []byte {
	n := min(len(it.frame), s.credit, size)
	b = slices.Grow(b, n+4*binary.MaxVarintLen64)
	first, last := len(it.frame) == it.whole && !it.later, n == len(it.frame) && !it.more
	if first && last && !it.binary {
		b = appendBytes(appendRecord(b, recordFrame, s.conn), it.frame)
	} else {
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
		b = appendBytes(appendRecord(b, recordFragment, s.conn, flags), it.frame[:n])
	}
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
	m.pop(s)
	s.hasRoom()
	return b
}
