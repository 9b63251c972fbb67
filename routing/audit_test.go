package routing

import (
	"errors"
	"fmt"
	"time"

	"ahprelay/broker/link"
)

// beside is how many bytes the model's host may add to a full queue: it calls Wait only before each
// row of messages, and a row may exceed the bound.
const beside = 64 << 10

// Audit returns an error if the host-agent's counters disagree with its queues, or a bound is
// exceeded. If rest is set, nothing may be queued or pending.
func (a *AgentEnd) Audit(rest bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	uses := map[*body]int{}
	open, held, wholes, reserved := 0, 0, 0, 0
	uploads := map[*AgentConn]bool{}
	for _, c := range a.uploads {
		uploads[c] = true
	}
	relays := map[string]bool{}
	for _, l := range a.links {
		if relays[l.relay] {
			return fmt.Errorf("%s has two links", l.relay)
		}
		relays[l.relay] = true
		if err := l.audit(uses, rest); err != nil {
			return fmt.Errorf("link to %s: %w", l.relay, err)
		}
		for i := range l.mux.chunks.pending.len() {
			held += len((*l.mux.chunks.pending.at(i)).left)
		}
		for _, on := range l.crowds {
			held += on.stream.queued
		}
		for _, c := range l.conns {
			if !c.stream.ended {
				open++
			}
			held += len(c.partial) + c.whole
			wholes += c.whole
			reserved += c.reserved
			if uploads[c] != (c.partial != nil) {
				return fmt.Errorf("connection %d: %d bytes of a message have arrived, and the connection is listed as uploading: %v", c.stream.conn, len(c.partial), uploads[c])
			}
			delete(uploads, c)
			if c.stream.ended && (c.room != nil || c.stream.waits) {
				return fmt.Errorf("connection %d: a goroutine waits for a connection that has ended", c.stream.conn)
			}
			if _, waits := a.waiters[c]; c.stream.waits != waits || waits && rest {
				return fmt.Errorf("connection %d: the stream is marked as waited for: %v, and its waiter is listed: %v", c.stream.conn, c.stream.waits, waits)
			}
			for i := range c.stream.items.len() {
				if it := c.stream.items.at(i); it.body == nil {
					held += it.size()
				}
			}
		}
	}
	if open != a.conns {
		return fmt.Errorf("%d connections are open, and the counter is %d", open, a.conns)
	}
	if wholes != a.wholes || reserved > a.reserved || len(uploads) > 0 {
		return fmt.Errorf("%d bytes wait whole for the host, counted %d; %d are being read, counted %d; %d connections have ended in a message", wholes, a.wholes, reserved, a.reserved, len(uploads))
	}
	if rest && (len(a.turns) > 0 || a.reserved > 0 || a.short && a.total() <= a.cfg.MaxQueued*3/8) {
		return fmt.Errorf("at rest, %d messages wait for their turn, %d bytes are being read, and memory is short: %v; want none", len(a.turns), a.reserved, a.short)
	}
	if worst, _ := a.worst(time.Now()); held != a.held || held+a.bodies.kept > a.cfg.MaxQueued && worst != nil {
		return fmt.Errorf("%d bytes are held and %d of old bodies kept; counted %d, the limit is %d", held, a.bodies.kept, a.held, a.cfg.MaxQueued)
	}
	waiting := 0
	for i := range a.publish.len() {
		waiting += (*a.publish.at(i)).size
	}
	if waiting != a.waiting || a.queued-a.left != uint64(a.publish.len()) {
		return fmt.Errorf("%d bytes wait to be published, and the counter is %d", waiting, a.waiting)
	}
	if rest && waiting > 0 {
		return fmt.Errorf("at rest, %d bytes wait to be published; want none", waiting)
	}
	return a.bodies.audit(uses, rest)
}

func (t *bodyTable) audit(uses map[*body]int, rest bool) error {
	bytes, kept, last := 0, 0, uint64(0)
	for _, q := range []*fifo[*body]{&t.old, &t.recent} {
		for i := range q.len() {
			b := *q.at(i)
			if b.number <= last {
				return fmt.Errorf("body %d follows body %d in the table; want ascending numbers", b.number, last)
			}
			last = b.number
			if uses[b] != b.uses {
				return fmt.Errorf("body %d is used %d times, and its counter is %d", b.number, uses[b], b.uses)
			}
			if (b.uses > 0 || q == &t.recent) && b.frame == nil {
				return fmt.Errorf("body %d is in use without its bytes", b.number)
			}
			delete(uses, b)
			switch {
			case q == &t.recent:
				bytes += b.size
			case b.uses > 0:
				kept += b.size
			}
		}
	}
	for b, n := range uses {
		if n > 0 {
			return fmt.Errorf("body %d is used %d times, and missing in the table", b.number, n)
		}
	}
	if kept != t.kept {
		return fmt.Errorf("%d bytes of old bodies are kept, and the counter is %d", kept, t.kept)
	}
	if bytes != t.bytes || bytes > t.window && t.recent.len() > 1 {
		return fmt.Errorf("%d bytes of bodies are in a window of %d, and the counter is %d", bytes, t.window, t.bytes)
	}
	if rest && t.old.len() > 0 {
		return fmt.Errorf("at rest, %d old bodies are kept", t.old.len())
	}
	return nil
}

func (l *agentLink) audit(uses map[*body]int, rest bool) error {
	largest := 0
	count := func(b *body) {
		uses[b]++
		largest = max(largest, b.size)
	}
	if err := l.auditCrowds(rest); err != nil {
		return err
	}
	for _, c := range l.conns {
		for i := range c.stream.items.len() {
			if b := c.stream.items.at(i).body; b != nil {
				count(b)
			}
		}
		if err := c.stream.audit(l.agent.cfg.QueueLimit+beside, rest); err != nil {
			return err
		}
	}
	bytes := 0
	for _, n := range l.mux.batch.nodes {
		count(n.body)
		bytes += n.body.size
	}
	for _, b := range l.mux.batch.sent {
		count(b)
	}
	pinned := map[bool]int{}
	for i := range l.packets.len() {
		p := l.packets.at(i)
		for _, b := range p.bodies {
			count(b)
			pinned[p.answer] += b.size
		}
	}
	for i := range l.answers.len() {
		if b := l.answers.at(i).body; b != nil {
			count(b)
		}
	}
	if pinned[false] != l.pinned || pinned[true] != l.given || bytes != l.mux.batch.bytes || l.mux.batch.room != l.agent.cfg.Pinned-l.pinned {
		return fmt.Errorf("%v bytes are pinned and %d in the batch; counted %d, %d and %d", pinned, bytes, l.pinned, l.given, l.mux.batch.bytes)
	}
	if limit := l.agent.cfg.Pinned; pinned[false]+bytes > limit+largest || pinned[true] > limit+maxBody+answerSize+largest {
		return fmt.Errorf("%v bytes are pinned and %d in the batch, with a limit of %d", pinned, bytes, limit)
	}
	for i := range l.reports.len() {
		if (*l.reports.at(i)).report == nil {
			return errors.New("a report is due for an unknown connection")
		}
	}
	if rest && l.reports.len() > 0 {
		return fmt.Errorf("%d reports wait", l.reports.len())
	}
	if rest && (len(l.mux.batch.streams) > 0 || l.packets.len() > 0 || l.answers.len() > 0) {
		return fmt.Errorf("%d streams in the batch, %d packets are not released, %d answers wait", len(l.mux.batch.streams), l.packets.len(), l.answers.len())
	}
	if err := l.auditChunks(rest); err != nil {
		return err
	}
	if rest {
		for _, c := range l.conns {
			if c.stream.ended || c.received {
				return fmt.Errorf("connection %d is half closed", c.stream.conn)
			}
			if c.partial != nil || c.whole+c.unwritten+c.kept != 0 {
				return fmt.Errorf("connection %d: %d bytes wait for the host, credit of %d and %d", c.stream.conn, len(c.partial)+c.whole, c.unwritten, c.kept)
			}
		}
	}
	return l.mux.audit(rest)
}

// auditCrowds compares the crowds with their members, and the records that wait in them with those
// that their connections wait for.
func (l *agentLink) auditCrowds(rest bool) error {
	barred := map[*stream]int{}
	for number, on := range l.crowds {
		for c := range on.members {
			if c.crowd != on || c.stream.ended || l.conns[c.stream.conn] != c {
				return fmt.Errorf("connection %d is a member of crowd %d, and has ended or is in another", c.stream.conn, number)
			}
		}
		for i := range on.stream.items.len() {
			if to := on.stream.items.at(i).frees; to != nil {
				barred[to]++
			}
		}
		if limit := l.agent.cfg.QueueLimit + beside; on.stream.queued > limit {
			return fmt.Errorf("crowd %d: %d bytes queued; the limit is %d", number, on.stream.queued, limit)
		}
		if err := on.stream.audit(l.agent.cfg.QueueLimit+beside, rest); err != nil {
			return fmt.Errorf("crowd %d: %w", number, err)
		}
	}
	for _, c := range l.conns {
		if c.stream.barred != barred[&c.stream] {
			return fmt.Errorf("connection %d waits for %d messages in crowds, and counts %d", c.stream.conn, barred[&c.stream], c.stream.barred)
		}
		if c.crowd != nil && !mapHas(c.crowd.members, c) {
			return fmt.Errorf("connection %d names a crowd that does not list it as a member", c.stream.conn)
		}
	}
	return nil
}

func mapHas[K comparable](m map[K]struct{}, k K) bool {
	_, has := m[k]
	return has
}

func (l *agentLink) auditChunks(rest bool) error {
	t := &l.mux.chunks
	uses := map[*chunk]int{}
	for _, c := range l.conns {
		for i := range c.stream.items.len() {
			if ch := c.stream.items.at(i).chunk; ch != nil {
				uses[ch]++
			}
		}
	}
	bytes := 0
	for i := range t.order.len() {
		ch := *t.order.at(i)
		bytes += ch.size + frameCost
		if ch.uses != uses[ch] || t.bySum[ch.sum] != ch {
			return fmt.Errorf("chunk %d is used %d times, and counted %d", ch.number, uses[ch], ch.uses)
		}
	}
	if bytes != t.bytes || bytes > t.limit || len(t.bySum) != t.order.len() {
		return fmt.Errorf("%d bytes of %d chunks, counted %d of %d; the limit is %d", bytes, t.order.len(), t.bytes, len(t.bySum), t.limit)
	}
	if rest && t.pending.len() > 0 {
		return fmt.Errorf("%d chunks are to be sent", t.pending.len())
	}
	return nil
}

func (m *mux) audit(rest bool) error {
	if rest && (m.control.len() > 0 || m.turns.len() > 0) {
		return fmt.Errorf("%d records and %d streams wait to be sent", m.control.len(), m.turns.len())
	}
	missing := 0
	for _, a := range m.batch.joined {
		if a.missing {
			missing++
		}
	}
	if missing != m.batch.missing {
		return fmt.Errorf("%d bodies are missing in the batch, and counted %d", missing, m.batch.missing)
	}
	return nil
}

func (s *stream) audit(limit int, rest bool) error {
	queued, largest := 0, 0
	for i := range s.items.len() {
		size := s.items.at(i).size()
		queued += size
		largest = max(largest, size)
	}
	if queued != s.queued || s.behind() > limit+largest {
		return fmt.Errorf("connection %d: %d bytes queued, counted %d, %d behind the first; the limit is %d", s.conn, queued, s.queued, s.behind(), limit)
	}
	if rest && s.items.len() > 0 {
		return fmt.Errorf("connection %d: %d items queued", s.conn, s.items.len())
	}
	return nil
}

// Audit returns an error if the relay's counters disagree with its queues, or a bound is exceeded.
// If rest is set, nothing may be queued or pending.
func (r *RelayEnd) Audit(rest bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil {
		return nil
	}
	stored := 0
	for _, f := range r.bodies.frames {
		stored += len(f.Data) + frameCost
	}
	if stored != r.bodies.bytes || len(r.bodies.frames) != r.bodies.order.len() || stored > r.bodies.limit && r.bodies.order.len() > 1 {
		return fmt.Errorf("%d bytes of %d bodies stored, counted %d of %d; the limit is %d",
			stored, len(r.bodies.frames), r.bodies.bytes, r.bodies.order.len(), r.bodies.limit)
	}
	chunked := 0
	for _, ch := range r.chunks.chunks {
		chunked += ch.size + frameCost
	}
	if chunked != r.chunks.bytes || chunked > r.chunks.limit || rest && r.chunks.arriving != 0 {
		return fmt.Errorf("%d bytes of chunks, counted %d; the limit is %d; number %d is arriving", chunked, r.chunks.bytes, r.chunks.limit, r.chunks.arriving)
	}
	places, rows, incomplete := 0, map[*row]bool{}, map[uint64]int{}
	for _, list := range r.awaited.slots {
		places += len(list)
		for _, p := range list {
			if !rows[p.row] {
				rows[p.row] = true
				incomplete[p.row.packet]++
			}
		}
	}
	if places != r.awaited.count || len(incomplete) != len(r.incomplete) {
		return fmt.Errorf("%d places and %d packets wait for bodies, counted %d and %d", places, len(incomplete), r.awaited.count, len(r.incomplete))
	}
	for packet, n := range incomplete {
		if r.incomplete[packet] != n {
			return fmt.Errorf("packet %d has %d parts with missing bodies, and the counter is %d", packet, n, r.incomplete[packet])
		}
	}
	if rest && places > 0 {
		return fmt.Errorf("%d places wait for bodies", places)
	}
	for number, c := range r.conns {
		if err := c.audit(rest); err != nil {
			return fmt.Errorf("connection %d: %w", number, err)
		}
	}
	for number, crowd := range r.crowds {
		for c := range crowd.members {
			if c.crowd != crowd {
				return fmt.Errorf("crowd %d has a member that is not in it", number)
			}
		}
		if len(crowd.members) == 0 || crowd.number != number {
			return fmt.Errorf("crowd %d has %d members and the number %d", number, len(crowd.members), crowd.number)
		}
	}
	for number, c := range r.conns {
		if c.crowd != nil && (r.crowds[c.crowd.number] != c.crowd || !mapHas(c.crowd.members, c)) {
			return fmt.Errorf("connection %d names a crowd that does not list it as a member", number)
		}
	}
	if uint64(len(r.conns)+len(r.numbers.free)) != r.numbers.last {
		return fmt.Errorf("%d connections and %d free numbers, of %d", len(r.conns), len(r.numbers.free), r.numbers.last)
	}
	return r.mux.audit(rest)
}

func (c *RelayConn) audit(rest bool) error {
	sum := 0
	for i := range c.pending.len() {
		d := c.pending.at(i)
		sum += pendingCost + d.size
		if d.row != nil {
			sum += d.row.bytes - d.size
		}
	}
	if sum != c.pendingBytes || c.pendingBytes > c.relay.cfg.PendingLimit {
		return fmt.Errorf("%d bytes are pending, counted %d; the limit is %d", sum, c.pendingBytes, c.relay.cfg.PendingLimit)
	}
	if rest && (c.client == nil || c.received || sum > 0) {
		return fmt.Errorf("at rest, the client's connection is half closed, or bytes are pending")
	}
	return c.stream.audit(c.relay.cfg.QueueLimit, rest)
}

// CountAnswers returns how many bodies that a relay has requested are in a host-agent's packet. It
// returns an error for a packet that it cannot read, because a wrong count would mislead the model.
func CountAnswers(packet []byte) (n int, err error) {
	f := link.Fields{B: packet[:max(0, len(packet)-bodySum)]} // without the checksum
	if version, kind := f.Byte(), f.Byte(); version == 0 || kind != 1 {
		return 0, nil // a packet of the handshake, or without records
	}
	for range 3 { // skips epoch, number and released number
		f.Uvarint()
	}
	for len(f.B) > 0 {
		kind, _ := recordKind(f.Byte()), f.Uvarint()
		if kind == recordBody {
			n++
		}
		err := skipRecord(kind, &f)
		if err == nil && f.Bad {
			err = link.ErrBadPacket
		}
		if err != nil {
			return n, fmt.Errorf("a host-agent's record with the kind %d: %w", kind, err)
		}
	}
	return n, nil
}

// skipRecord reads the fields behind the number in a host-agent's record.
func skipRecord(kind recordKind, f *link.Fields) error {
	switch kind {
	case recordOpened, recordUnwatch, recordGone, recordReady, recordProbe, recordFlushed, recordDrop, recordMoved:
	case recordCredit, recordChunkRef:
		f.Uvarint()
	case recordFrame, recordWatch, recordBody, recordFeed, recordReport, recordTold:
		f.Bytes()
	case recordClose, recordChunk, recordFed:
		f.Uvarint()
		f.Bytes()
	case recordFragment:
		if f.Uvarint()&fragmentFed != 0 {
			f.Uvarint()
		}
		f.Bytes()
	case recordPlace:
		f.Uvarint()
		f.Uvarint()
		f.Bytes()
	case recordRefs, recordTagged:
		return skipEntries(f, kind == recordTagged)
	default:
		return errors.New("unknown")
	}
	return nil
}

func skipEntries(f *link.Fields, tagged bool) error {
	for entries := f.Uvarint(); entries > 0 && !f.Bad; entries-- {
		if _, _, err := readBodyList(f, nil, 1<<40); err != nil {
			return err
		}
		conns := 0
		if err := readConnSet(f, func(uint64) { conns++ }); err != nil {
			return err
		}
		if tagged && conns > 0 {
			new(entryTags).read(f, conns, func(b, _ []byte, _ bool) []byte { return b })
		}
	}
	return nil
}
