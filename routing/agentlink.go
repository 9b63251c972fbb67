package routing

import (
	"encoding/json"
	"fmt"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// An agentLink is the host-agent's end of one link. It implements [link.Traffic]. The AgentEnd's
// mutex guards it.
type agentLink struct {
	agent       *AgentEnd
	relay       string
	lines       link.Lines
	credit      int  // bytes each connection may send ahead
	feeds       bool // the relay publishes fed records, and the host is not sealed
	knowsCrowds bool

	mux     mux
	conns   map[uint64]*AgentConn
	watches map[uint64]*channelLink // by watch number, until unwatch is sent
	answers fifo[answer]            // for bodies requested by the relay
	packets fifo[sentBodies]
	pinned  int // bytes of bodies referenced by unreleased packets
	given   int // bytes of bodies in unreleased answers
	ended   bool

	crowds    map[uint64]*crowdLine
	lastCrowd uint64

	reports     fifo[*AgentConn] // connections with a report
	round       int              // reports of this round that are not yet queued
	nextReports time.Time        // when the next round may begin
}

// An answer is a body that the relay has requested. The body is nil if the host-agent no longer
// has it.
type answer struct {
	number uint64
	body   *body
}

const (
	// answerSize is the approximate size of a packet with answers.
	answerSize = 64 << 10

	// maxAsked bounds how many bodies a relay may have requested from the host-agent
	// without an answer yet.
	maxAsked = 1 << 17
)

// sentBodies are bodies that must be kept until a packet is released. The packet refers to them,
// or is an answer with their bytes.
type sentBodies struct {
	number uint64
	answer bool
	bodies []*body
}

// watch asks the relay to subscribe to a channel's bodies.
func (l *agentLink) watch(ch *channel, on *channelLink) {
	l.watches[ch.number] = on
	l.mux.sendControl(appendBytes(appendRecord(nil, recordWatch, ch.number), []byte(ch.token)))
	l.lines.Wake()
}

func (l *agentLink) unwatch(ch *channel) {
	delete(l.watches, ch.number)
	l.mux.sendControl(appendRecord(nil, recordUnwatch, ch.number))
	l.lines.Wake()
}

func (l *agentLink) Next(number uint64, size int, now time.Time) (payload []byte, again time.Time) {
	l.agent.mu.Lock()
	defer l.agent.mu.Unlock()
	defer l.agent.eased()
	if payload = l.answer(number); payload != nil || size == 0 || l.ended {
		return payload, time.Time{}
	}
	again = l.queueReports(now)
	if l.pinned > l.agent.cfg.Pinned { // resumed by Released
		if l.mux.control.len() > 0 {
			payload = l.mux.nextControl(size)
		}
		return payload, again
	}
	payload, batch := l.mux.next(size, now)
	l.mux.share.left(number, now)
	if again.IsZero() || !batch.IsZero() && batch.Before(again) {
		again = batch
	}
	l.mux.closed = l.mux.closed[:0] // the relay decides when a number is free
	if bodies := l.mux.batch.takeSent(); len(bodies) > 0 {
		l.sent(sentBodies{number: number, bodies: bodies})
	}
	return payload, again
}

// answer returns a payload with requested bodies. It does so even when too many bytes are pinned,
// because the relay may need these bodies before it can release a packet. The bound for unreleased
// answers never blocks such a body: the relay requests the bodies of its oldest unreleased packet
// first, and these are no larger than the pinned bytes.
func (l *agentLink) answer(number uint64) []byte {
	if l.answers.len() == 0 || l.given > l.agent.cfg.Pinned+maxBody {
		return nil
	}
	b := make([]byte, link.HeaderRoom, link.HeaderRoom+256)
	var bodies []*body
	for l.answers.len() > 0 && len(b) < answerSize {
		a := l.answers.pop()
		if a.body == nil {
			b = appendRecord(b, recordGone, a.number)
			continue
		}
		b = appendBytes(appendRecord(b, recordBody, a.number), a.body.frame)
		bodies = append(bodies, a.body)
	}
	l.sent(sentBodies{number, true, bodies})
	return b
}

// sent pins the bodies that a packet needs until its release.
func (l *agentLink) sent(p sentBodies) {
	for _, b := range p.bodies {
		l.pin(p.answer, b.size)
	}
	l.packets.push(p)
}

// pin adds n to the bytes of bodies that unreleased packets need.
func (l *agentLink) pin(answer bool, n int) {
	if answer {
		l.given += n
		return
	}
	l.pinned += n
	l.mux.batch.room = l.agent.cfg.Pinned - l.pinned
}

func (l *agentLink) Released(number uint64) (more bool) {
	l.agent.mu.Lock()
	defer l.agent.mu.Unlock()
	for l.packets.len() > 0 && l.packets.at(0).number <= number {
		p := l.packets.pop()
		for _, b := range p.bodies {
			l.pin(p.answer, -b.size)
			l.agent.bodies.release(b)
			more = true
		}
	}
	more = l.mux.released(number) || more
	l.agent.eased()
	return more && l.waits()
}

// waits reports whether the link has data to send.
func (l *agentLink) waits() bool {
	return l.answers.len() > 0 || l.mux.control.len() > 0 || l.mux.turns.len() > 0 || len(l.mux.batch.streams) > 0
}

func (l *agentLink) Handle(_ uint64, payload []byte) (done bool, err error) {
	f := link.Fields{B: payload}
	for len(f.B) > 0 {
		if err := l.record(&f); err != nil {
			return false, err
		}
		if f.Bad {
			return false, fmt.Errorf("%w: cut short", link.ErrBadPacket)
		}
	}
	return true, nil
}

// An agentHandler handles a record from a relay. It reads the fields after the number, and
// ignores the record if they are cut short (f.Bad).
type agentHandler func(l *agentLink, number uint64, f *link.Fields) error

// agentRecords has a handler for each kind of record from relays.
var agentRecords = [recordKinds]agentHandler{
	recordFrame:    (*agentLink).frameRecord,
	recordFragment: (*agentLink).fragmentRecord,
	recordClose:    (*agentLink).closeRecord,
	recordCredit:   (*agentLink).creditRecord,
	recordOpen:     (*agentLink).openRecord,
	recordWatching: (*agentLink).watchingRecord,
	recordNeed:     (*agentLink).needRecord,
	recordFlush:    (*agentLink).flushRecord,
	recordMove:     (*agentLink).moveRecord,
}

func (l *agentLink) record(f *link.Fields) error {
	l.agent.mu.Lock()
	defer l.agent.mu.Unlock()
	if l.ended {
		f.B = nil
		return nil
	}
	kind, number := recordKind(f.Byte()), f.Uvarint()
	if kind >= recordKinds || agentRecords[kind] == nil {
		return fmt.Errorf("%w: record %d from a relay", link.ErrBadPacket, kind)
	}
	return agentRecords[kind](l, number, f)
}

func (l *agentLink) creditRecord(number uint64, f *link.Fields) error {
	n := f.Uvarint()
	if c := l.conns[number]; c != nil && n < 1<<31 {
		c.credited = min(c.credited+int(n), maxCredit)
		l.mux.grant(&c.stream, int(n))
		l.lines.Wake()
	}
	return nil
}

func (l *agentLink) watchingRecord(number uint64, _ *link.Fields) error {
	if on := l.watches[number]; on != nil {
		on.ready = true
	}
	return nil
}

func (l *agentLink) flushRecord(number uint64, _ *link.Fields) error {
	if c := l.conns[number]; c != nil && !c.hostClosed {
		c.host.Flush()
	}
	return nil
}

func (l *agentLink) moveRecord(number uint64, f *link.Fields) error {
	ticket, until, holder := f.Bytes(), f.Uvarint(), f.Bytes()
	c := l.conns[number]
	if f.Bad {
		return nil
	}
	if len(ticket) == 0 || len(ticket) > MaxTicket || len(holder) > maxHolder {
		return fmt.Errorf("%w: a ticket of %d bytes, a holder of %d", link.ErrBadPacket, len(ticket), len(holder))
	}
	m := Move{Ticket: string(ticket), Until: time.Unix(int64(min(until, 1<<40)), 0)}
	if err := json.Unmarshal(holder, &m.Holder); err != nil {
		return fmt.Errorf("%w: holder: %w", link.ErrBadPacket, err)
	}
	if c == nil || c.hostClosed {
		return nil
	}
	if mover, ok := c.host.(Mover); ok {
		mover.Move(m)
	} else {
		c.host.Flush()
	}
	return nil
}

func (l *agentLink) openRecord(number uint64, f *link.Fields) error {
	data := f.Bytes()
	if f.Bad {
		return nil
	}
	if l.conns[number] != nil || number >= maxConns {
		return fmt.Errorf("%w: connection %d opened twice or out of range", link.ErrBadPacket, number)
	}
	open, err := decodeOpen(data)
	if err != nil {
		return err
	}
	c := &AgentConn{link: l, stream: stream{conn: number, credit: l.credit, window: l.agent.cfg.Credit}, bytes: open.Canvas != nil}
	if c.bytes {
		c.stream.ofBytes()
	}
	l.conns[number] = c
	c.counted(+1)
	c.host = l.agent.cfg.Connect(c, open)
	c.stream.tagger, _ = c.host.(Tagger)
	return nil
}

func (l *agentLink) frameRecord(number uint64, f *link.Fields) error {
	message := f.Bytes()
	if f.Bad {
		return nil
	}
	c := l.conns[number]
	cost := len(message) + pieceCost
	switch {
	case c == nil || c.received || c.partial != nil:
		return fmt.Errorf("%w: unexpected message on connection %d", link.ErrBadPacket, number)
	case !l.mux.charge(&c.stream, cost):
		return fmt.Errorf("%w: message on connection %d beyond its credit", link.ErrBadPacket, number)
	}
	if !c.hostClosed {
		c.unwritten += cost
		c.host.Deliver(message, false, cost)
	}
	return nil
}

// fragmentRecord collects the pieces of a message for the host. Each piece's credit is returned
// on arrival, because the message may exceed the credit. But no credit is returned while earlier
// messages wait for the host, or while memory is short (mayUpload): messages would pile up before
// a host that does not read. So the buffered bytes exceed the credit by at most one message.
func (l *agentLink) fragmentRecord(number uint64, f *link.Fields) error {
	flags, data := f.Uvarint(), f.Bytes()
	if f.Bad {
		return nil
	}
	c := l.conns[number]
	cost := len(data) + pieceCost
	switch {
	case c == nil || c.received:
		return fmt.Errorf("%w: unexpected fragment on connection %d", link.ErrBadPacket, number)
	case !l.mux.charge(&c.stream, cost):
		return fmt.Errorf("%w: fragment on connection %d beyond its credit", link.ErrBadPacket, number)
	case c.hostClosed:
		return nil
	case (flags&fragmentFirst != 0) != (c.partial == nil):
		return fmt.Errorf("%w: unexpected fragment on connection %d", link.ErrBadPacket, number)
	case len(c.partial)+len(data) > l.agent.cfg.MaxFrame: // relays enforce this bound themselves
		c.forgetFragments()
		reason := fmt.Sprintf("more than %d bytes for the host", l.agent.cfg.MaxFrame)
		c.end(ahp.CloseMessageTooBig, reason)
		c.closeHost(ahp.CloseMessageTooBig, reason)
		return nil
	}
	c.partial = append(c.partial, data...)
	if flags&fragmentFirst != 0 && c.partial != nil {
		l.agent.uploads = append(l.agent.uploads, c)
	}
	c.fed = time.Now()
	l.agent.held += len(data)
	if flags&fragmentLast == 0 {
		c.kept += cost
		c.repay(0)
		l.agent.grown()
		return nil
	}
	message := c.partial
	c.link.agent.endPartial(c)
	c.whole += len(message)
	l.agent.wholes += len(message)
	c.unwritten += cost
	c.host.Deliver(message, flags&fragmentBinary != 0, cost)
	l.agent.grown()
	return nil
}

// closeRecord handles a close from the relay. It ends the connection to the host, and confirms
// the close to the relay.
func (l *agentLink) closeRecord(number uint64, f *link.Fields) error {
	code, reason := ahp.CloseCode(f.Uvarint()), string(f.Bytes())
	c := l.conns[number]
	if f.Bad || c == nil || c.received {
		return nil
	}
	c.received = true
	c.forgetFragments()
	l.mux.drop(&c.stream, l.agent.bodies.release) // the client is gone
	c.end(code, reason)
	c.closeHost(code, reason)
	l.agent.eased()
	return nil
}

func (l *agentLink) needRecord(number uint64, _ *link.Fields) error {
	if l.answers.len() >= maxAsked {
		return fmt.Errorf("%w: relay requested more than %d bodies", link.ErrBadPacket, maxAsked)
	}
	b := l.agent.bodies.numbered(number)
	if b != nil && b.frame == nil {
		b = nil
	}
	if b != nil {
		b.uses++
	}
	l.answers.push(answer{number, b})
	l.lines.Wake()
	return nil
}

func (l *agentLink) Ended(reason error) {
	l.agent.mu.Lock()
	defer l.agent.mu.Unlock()
	l.ended = true
	l.agent.forgetLink(l)
	defer l.agent.eased()
	for _, on := range l.crowds {
		l.mux.drop(&on.stream, nil)
	}
	clear(l.crowds)
	for _, c := range l.conns {
		leaveCrowd(c)
		c.forgetFragments()
		l.mux.drop(&c.stream, l.agent.bodies.release)
		if !c.stream.ended {
			c.stream.ended = true
			c.counted(-1)
		}
		c.proceed()
		c.received = true
		c.closeHost(ahp.CloseResync, reason.Error())
	}
	clear(l.conns)
	l.reports = fifo[*AgentConn]{}
	l.mux.chunks.dropAll(l.mux.count)
	for _, n := range l.mux.batch.nodes {
		l.agent.bodies.release(n.body)
	}
	l.mux.batch.reset()
	for l.packets.len() > 0 {
		for _, b := range l.packets.pop().bodies {
			l.agent.bodies.release(b)
		}
	}
	for l.answers.len() > 0 {
		if b := l.answers.pop().body; b != nil {
			l.agent.bodies.release(b)
		}
	}
}
