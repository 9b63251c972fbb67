package routing

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"ahprelay/broker/link"
)

// Clients that read the same content get responses that differ only before and after
// that content. Such a response is sent in parts: bytes of its own, and chunks of
// content. A chunk that a relay has does not cross again. The host-agent identifies a chunk
// by its SHA-256, gives it a number, sends its bytes before the first reference
// to it, and sends drop when the relay is to forget it. So the host-agent always
// knows which chunks a relay has. A reference only replaces bytes that the host has just
// sent on the same connection, so chunks need no access checks.
const (
	// chunkSize is the size of every chunk except a content's last.
	chunkSize = 1 << 20

	// minChunk is the smallest content that is sent as chunks.
	minChunk = 2 << 10

	// maxPieces bounds the pieces of a chunk.
	maxPieces = 256
)

type chunk struct {
	number uint64
	sum    [sha256.Size]byte
	size   int
	left   []byte    // unsent bytes
	sent   bool      // all bytes were sent
	uses   int       // queued references
	waits  []*stream // streams that wait for it
}

// wait registers a stream that is scheduled when the chunk has been sent.
func (ch *chunk) wait(s *stream) {
	if ch != nil && !ch.sent && !slices.Contains(ch.waits, s) {
		ch.waits = append(ch.waits, s)
	}
}

// A chunkTable lists the chunks that one relay has. Their total is bounded by the
// limit in the relay's hello.
type chunkTable struct {
	limit    int // in bytes
	bySum    map[[sha256.Size]byte]*chunk
	order    fifo[*chunk] // roughly in the order of last use
	bytes    int
	last     uint64
	transfer stream       // pseudo-stream that is scheduled while chunks are pending
	pending  fifo[*chunk] // chunks to be sent
}

// chunkSums returns the SHA-256 of each chunk in part of a message.
func chunkSums(part []byte) (sums [][sha256.Size]byte) {
	for len(part) > 0 {
		n := min(len(part), chunkSize)
		sums = append(sums, sha256.Sum256(part[:n]))
		part = part[n:]
	}
	return sums
}

// FromHostWith is FromHost for a response whose content, message[from:to], is likely
// to appear in more responses.
func (c *AgentConn) FromHostWith(message []byte, from, to int) error {
	if to-from < minChunk {
		return c.FromHost(message, false, nil)
	}
	message = kept(message)
	sums := chunkSums(message[from:to]) // slow, so without the lock
	c.link.agent.mu.Lock()
	defer c.link.agent.mu.Unlock()
	if c.stream.ended {
		return ErrConnClosed
	}
	defer c.link.agent.grown()
	return c.queueParts(message, from, to, sums)
}

// queueParts queues the bytes before the content, references to its chunks, and the
// rest.
func (c *AgentConn) queueParts(message []byte, from, to int, sums [][sha256.Size]byte) error {
	m := &c.link.mux
	items := []item{{frame: message[:from], whole: from, more: true}}
	for _, sum := range sums {
		n := min(to-from, chunkSize)
		ch := m.chunk(sum, message[from:from+n])
		if ch == nil {
			break // the rest goes with this message
		}
		ch.uses++
		items = append(items, item{chunk: ch})
		from += n
	}
	items = append(items, item{frame: message[from:], whole: len(message) - from, later: true})
	for _, it := range items {
		c.stream.items.push(it)
		c.stream.pushed(it.size())
		m.counted(&it, it.size())
	}
	m.schedule(&c.stream)
	c.filled()
	c.link.lines.Wake()
	return nil
}

// chunk returns the chunk with a hash. If the relay does not have it, chunk queues its
// bytes. It returns nil if the relay has no room.
func (m *mux) chunk(sum [sha256.Size]byte, data []byte) *chunk {
	t := &m.chunks
	if ch := t.bySum[sum]; ch != nil {
		return ch
	}
	if !m.makeRoom(len(data)) {
		return nil
	}
	t.last++
	ch := &chunk{number: t.last, sum: sum, size: len(data), left: data}
	if t.bySum == nil {
		t.bySum = map[[sha256.Size]byte]*chunk{}
	}
	t.bySum[sum] = ch
	t.order.push(ch)
	t.bytes += ch.size + frameCost
	m.count(ch.size)
	t.pending.push(ch)
	if !t.transfer.ready {
		t.transfer.ready = true
		m.turns.push(&t.transfer)
	}
	return ch
}

// makeRoom makes the relay drop its oldest unused chunks until n more bytes fit, and
// reports whether they do. Chunks in use move to the end of the order.
func (m *mux) makeRoom(n int) bool {
	t := &m.chunks
	for tries := t.order.len(); t.bytes+n+frameCost > t.limit; tries-- {
		if tries <= 0 {
			return false
		}
		ch := t.order.pop()
		if ch.uses > 0 || !ch.sent {
			t.order.push(ch)
			continue
		}
		delete(t.bySum, ch.sum)
		t.bytes -= ch.size + frameCost
		m.sendControl(appendRecord(nil, recordDrop, ch.number))
	}
	return true
}

func (m *mux) sendChunk(b []byte, size int) []byte {
	t := &m.chunks
	ch := *t.pending.at(0)
	n := min(len(ch.left), size)
	var flags uint64
	if n == len(ch.left) {
		flags = fragmentLast
	}
	b = appendBytes(appendRecord(b, recordChunk, ch.number, flags), ch.left[:n])
	ch.left = ch.left[n:]
	m.count(-n)
	if flags != 0 {
		ch.sent, ch.left = true, nil
		t.pending.pop()
		for _, s := range ch.waits {
			m.schedule(s)
		}
		ch.waits = nil
	}
	if t.transfer.ready = t.pending.len() > 0; t.transfer.ready {
		m.turns.push(&t.transfer)
	}
	return b
}

// chunkRef sends a reference to a chunk. The reference uses as much credit as the
// chunk's bytes, so the credit may become negative.
func (m *mux) chunkRef(s *stream, it *item, b []byte) []byte {
	b = appendRecord(b, recordChunkRef, s.conn, it.chunk.number)
	it.chunk.uses--
	s.spend(it.chunk.size + pieceCost)
	s.queued -= it.size()
	m.counted(it, -it.size())
	m.pop(s)
	return b
}

// dropAll reports all unsent chunks as no longer queued.
func (t *chunkTable) dropAll(count func(n int)) {
	for t.pending.len() > 0 {
		count(-len(t.pending.pop().left))
	}
}

// A chunkStore stores the chunks that a relay received from one host-agent instance.
type chunkStore struct {
	limit    int
	chunks   map[uint64]*storedChunk
	bytes    int
	kept     func(n int) // receives changes of the number of bytes held
	arriving uint64      // the chunk being received; 0: none
}

func (s *chunkStore) counted(n int) {
	s.bytes += n
	s.kept(n)
}

// A storedChunk is a chunk, encoded for clients.
type storedChunk struct {
	frames []Frame
	size   int
}

func (r *RelayEnd) chunkRecord(number uint64, f *link.Fields) error {
	flags, data := f.Uvarint(), f.Bytes()
	if f.Bad {
		return nil
	}
	s := &r.chunks
	ch := s.chunks[number]
	switch {
	case ch == nil && s.arriving == 0:
		ch = new(storedChunk)
		s.chunks[number] = ch
		s.counted(frameCost)
		s.arriving = number
	case number != s.arriving:
		return fmt.Errorf("%w: unexpected chunk %d", link.ErrBadPacket, number)
	}
	ch.size += len(data)
	s.counted(len(data))
	if s.bytes > s.limit || ch.size > chunkSize || len(ch.frames) >= maxPieces {
		return fmt.Errorf("%w: %d bytes of chunks, one of %d bytes in %d pieces", link.ErrBadPacket, s.bytes, ch.size, len(ch.frames)+1)
	}
	encoded := r.cfg.Encode(data, false, false, false)
	ch.frames = append(ch.frames, Frame{Data: encoded, Credit: len(data), Shared: &Shared{Size: len(encoded)}})
	if flags&fragmentLast != 0 {
		s.arriving = 0
		ch.frames[len(ch.frames)-1].Credit += pieceCost
	}
	return nil
}

func (r *RelayEnd) dropRecord(number uint64, f *link.Fields) error {
	if f.Bad {
		return nil
	}
	s := &r.chunks
	ch := s.chunks[number]
	if ch == nil || number == s.arriving {
		return fmt.Errorf("%w: unexpected drop of chunk %d", link.ErrBadPacket, number)
	}
	delete(s.chunks, number)
	s.counted(-ch.size - frameCost)
	return nil
}

func (r *RelayEnd) chunkRefRecord(conn uint64, f *link.Fields) error {
	number := f.Uvarint()
	if f.Bad {
		return nil
	}
	s := &r.chunks
	ch := s.chunks[number]
	if ch == nil || number == s.arriving {
		return fmt.Errorf("%w: chunk %d does not exist", link.ErrBadPacket, number)
	}
	c := r.conns[conn]
	if c == nil {
		return fmt.Errorf("%w: chunk on unknown connection %d", link.ErrBadPacket, conn)
	}
	if c.client == nil {
		return nil
	}
	if !r.mux.chargeLate(&c.stream, ch.size+pieceCost) {
		return fmt.Errorf("%w: chunk on connection %d beyond its credit", link.ErrBadPacket, conn)
	}
	r.frames = append(r.frames[:0], ch.frames...)
	c.deliver(r.frames)
	return nil
}
