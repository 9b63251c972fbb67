package routing

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
	"ahprelay/internal/signal"
)

// ErrQueueFull reports that a connection's queue has no room for a message.
var ErrQueueFull = errors.New("queue full")

const (
	// pieceCost is added to the size of each message or piece, in credit and in queue
	// bounds. It thus bounds the number of small messages.
	pieceCost = 64

	// maxCredit is the most credit that a peer can accumulate.
	maxCredit = 1 << 30
)

// Credit is returned when 1/creditShare of the window is due, so that credit records
// are few.
const creditShare = 4

// An item is one unit to send on a stream. Exactly one of raw, frame, body and chunk
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

	aside bool      // frame is a sealed body or its tag, which stream.own does not count
	sum   *[32]byte // frame is a tag for the body with this sum, still to be computed; nil: no tag

	load  int     // bytes of raw that count towards the queue's bound
	fans  int     // connections to which the relay delivers raw
	frees *stream // raw has a message for this stream's connection; the stream continues when raw has left
}

// size returns how much the item counts towards the queue's bound.
func (it *item) size() int {
	switch {
	case it.body != nil:
		return it.body.size
	case it.raw != nil:
		return it.load // 0 for most kinds of records, because these are few
	case it.chunk != nil:
		return pieceCost // the chunkTable counts the chunk's bytes
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
	creditDue  int  // cost of received messages that were written, but whose credit was not yet returned
	uncredited int  // cost of received messages whose credit was not yet returned
	window     int  // bytes the peer may send ahead
	bytes      bool // a byte stream: see share.go
	shares     bool // waits for room in the link's share for byte streams
	ready      bool // is in mux.turns
	ended      bool // nothing more is accepted: the close record is queued, or the link has ended
	left       bool // the close record was sent: no credit is returned after it

	moved time.Time // while credit is used up: when it ran out, or when the peer last proved progress

	room  chan struct{} // has a token after items have left, for a caller that waits for room; may be nil
	waits bool          // mux.drained is called when items leave

	node *batchNode // the connection's node in the batch; nil: none

	tagger Tagger // makes tags, for a sealed host's connection
	own    uint64 // messages sent on the stream, except sealed bodies and tags
	barred int    // messages that are queued at a crowd, and precede the first item
}

// ofBytes marks a byte stream, and reduces its credit in both directions.
func (s *stream) ofBytes() {
	s.bytes = true
	s.credit, s.window = min(s.credit, bytesWindow), min(s.window, bytesWindow)
}

// largeItem is the size of a large item. One large item does not count towards its
// queue's bound.
const largeItem = 1 << 20

// behind returns the queued bytes that count towards the bound: all except the first
// item, which is being sent. If a later large item is the largest, that item is left
// out instead, so it may always be queued.
func (s *stream) behind() int {
	if s.items.len() == 0 {
		return 0
	}
	return s.queued - max(s.items.at(0).size(), s.large)
}

// pushed updates the sizes after an item was appended to the queue.
func (s *stream) pushed(size int) {
	s.queued += size
	if size >= largeItem && s.items.len() > 1 {
		s.large = max(s.large, size)
	}
}

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

func (s *stream) hasRoom() { signal.Send(s.room) }

func (s *stream) spend(n int) {
	s.credit -= n
	if s.credit <= 0 {
		s.moved = time.Now()
	}
}

// stalledFor returns how long the stream has waited for credit since the peer last
// proved progress. It is 0 if the stream does not wait for credit.
func (s *stream) stalledFor(now time.Time) time.Duration {
	if s.credit > 0 || s.items.len() == 0 {
		return 0
	}
	return max(0, now.Sub(s.moved))
}

// A mux is the sending side of a link, with a queue for each connection. Connections
// are served round-robin, so a large message does not delay other connections. A mux
// is not safe for concurrent use.
type mux struct {
	count func(n int) // receives changes of the bytes queued on all streams; may be nil

	delay delay // samples the items' delay

	drained func(s *stream) // called when an item has left a stream whose waits is set

	control fifo[[]byte]  // encoded records outside of any stream
	turns   fifo[*stream] // streams with something to send, next first
	chunks  chunkTable    // parts of messages that the relay has; host-agents only
	batch   batch         // references that wait for more references
	share   share         // of byte streams
	closed  []uint64      // numbers of the connections whose close record has left since the owner's last check
	freed   []*stream     // scratch of flushBatch
}

// push queues an item, unless more than limit bytes are queued already; see
// stream.behind.
func (m *mux) push(s *stream, it item, limit int) error { return m.pushCounted(s, it, limit, 0) }

// pushCounted is push for an item whose first counted bytes the owner has already
// counted.
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

// counted reports a change of an item's queued bytes to the owner. Bodies are shared
// between queues, so the bodyTable counts them.
func (m *mux) counted(it *item, n int) {
	if m.count != nil && it.body == nil {
		m.count(n)
	}
}

// end queues the close record behind all queued items. The stream accepts nothing
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

// pop removes a stream's first item from its queue and returns it, so that it can be sent.
func (m *mux) pop(s *stream) item {
	m.delay.popped(s)
	return s.next()
}

func (m *mux) sendControl(record []byte) { m.control.push(record) }

// grant adds credit from the peer. Even zero bytes prove that the peer makes progress.
func (m *mux) grant(s *stream, n int) {
	s.moved = time.Now()
	s.credit = min(s.credit+n, maxCredit)
	m.schedule(s)
}

// charge records that the peer has used n bytes of credit on this connection, and
// reports whether it had them.
func (m *mux) charge(s *stream, n int) bool {
	s.uncredited += n
	return s.uncredited <= s.window+pieceCost // the last piece may exceed the credit by its cost
}

// chargeLate is charge for a chunk, which may be sent while any credit is left,
// however large it is.
func (m *mux) chargeLate(s *stream, n int) bool {
	had := s.uncredited < s.window+pieceCost
	s.uncredited += n
	return had
}

// written records that received bytes with cost n were written. Once enough credit is
// due, it queues a credit record, and returns true.
func (m *mux) written(s *stream, n int) (due bool) {
	s.creditDue += n
	if s.creditDue < s.window/creditShare || s.left {
		return false
	}
	m.returnCredit(s, 0)
	return true
}

// returnCredit returns all credit that is due, and n more.
func (m *mux) returnCredit(s *stream, n int) {
	s.creditDue += n
	m.sendControl(appendRecord(nil, recordCredit, s.conn, uint64(s.creditDue)))
	s.uncredited -= s.creditDue
	s.creditDue = 0
}

// widen adds n, which may be negative, to the window. A reduction is subtracted from
// the next credit that is returned, which must be at least as large.
func (s *stream) widen(n int) {
	s.window += n
	s.creditDue += n
	s.uncredited += n
}

// schedule appends a stream to m.turns if its first item may be sent. Otherwise it
// registers the stream for the event that it waits for.
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

// released records that the peer has received all packets up to a number, and reports
// whether waiting streams continue.
func (m *mux) released(number uint64) (more bool) {
	for _, s := range m.share.released(number, time.Now()) {
		m.schedule(s)
		more = true
	}
	return more
}

// sendable reports whether a stream's first item may be sent now. The comments name
// the function that resumes the stream.
func (m *mux) sendable(s *stream) bool {
	if s.items.len() == 0 || s.barred > 0 { // resumed by push or left
		return false
	}
	it := s.items.at(0)
	switch {
	case it.body != nil:
		return m.mayRefer(s) // resumed by grant
	case s.node != nil && m.batch.held():
		return false // resumed by flushBatch
	case it.chunk != nil && !it.chunk.sent:
		return false // resumed by sendChunk
	}
	return it.raw != nil || s.credit > 0 && (!s.bytes || m.share.room()) // resumed by grant or released
}

// next returns a payload of about size bytes, behind room for the packet's header.
// m.batch.sent lists the bodies that the payload refers to. If there is nothing to
// send, next returns nil and the time when the batch is due.
func (m *mux) next(size int, now time.Time) (payload []byte, again time.Time) {
	b := m.nextControl(size)
	for m.turns.len() > 0 && len(b) < size && !m.batch.full() {
		s := m.turns.pop()
		s.ready = false
		if s == &m.chunks.transfer {
			b = m.sendChunk(b, size)
			continue
		}
		if m.sendable(s) { // since it was scheduled, this may have changed
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

func (m *mux) nextControl(size int) []byte {
	b := make([]byte, link.HeaderRoom, link.HeaderRoom+256)
	for m.control.len() > 0 && len(b) < size {
		b = append(b, m.control.pop()...)
	}
	return b
}

// turn sends a stream's first item, or a piece of it. If the first item is a
// reference, it sends all references at the front.
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
	if s.node != nil { // the connection's references in the batch precede this item
		b = m.flushBatch(b)
	}
	if it.raw != nil {
		b = append(b, it.raw...)
		m.left(s, m.pop(s))
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

// left handles the departure of a record: it updates the counts, and resumes the stream
// that has waited for the record.
func (m *mux) left(s *stream, it item) {
	s.queued -= it.load
	m.counted(&it, -it.load)
	m.batch.packed += it.fans
	if to := it.frees; to != nil {
		to.barred--
		to.own++
		m.schedule(to)
	}
}

func (m *mux) mayRefer(s *stream) bool { return s.credit > 0 }

// refer adds a reference to the batch and uses its credit.
func (m *mux) refer(s *stream, b *body) {
	m.batch.add(s, b)
	s.spend(b.cost())
}

// flushBatch sends the batch. It then schedules the streams with references in the
// batch, because their later items had to wait.
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

// piece appends one record to b: as much of the item's frame as size and the stream's
// credit permit.
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
