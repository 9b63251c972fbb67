package routing

import (
	"fmt"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker"
)

// An agentLink is the host-agent's end of what one link carries. It
// implements [broker.Traffic]. The agent's mutex guards it.
type agentLink struct {
	agent  *Agent
	relay  string
	lines  broker.Lines
	credit int // bytes that each connection may send ahead

	mux     mux
	conns   map[uint64]*AgentConn
	answers fifo[*body] // asked for by the relay
	packets fifo[sentBodies]
	pinned  int // bytes of bodies in packets
	gone    bool
}

// sentBodies are the bodies that a packet refers to.
type sentBodies struct {
	number uint64
	bodies []*body
}

// with calls f under the agent's lock.
func (l *agentLink) with(f func() error) error {
	l.agent.mu.Lock()
	defer l.agent.mu.Unlock()
	return f()
}

// ask has the relay listen to a channel's bodies.
func (l *agentLink) ask(ch *channel) {
	l.mux.control = appendBytes(appendRecord(l.mux.control, recordWatch, ch.number), []byte(ch.token))
	l.lines.Wake()
}

func (l *agentLink) unask(ch *channel) {
	l.mux.control = appendRecord(l.mux.control, recordUnwatch, ch.number)
	l.lines.Wake()
}

// Next implements [broker.Traffic].
func (l *agentLink) Next(number uint64, size int, now time.Time) (payload []byte, again time.Time) {
	l.agent.mu.Lock()
	defer l.agent.mu.Unlock()
	if l.answers.len() > 0 {
		b := l.answers.pop()
		payload = make([]byte, broker.HeaderRoom, broker.HeaderRoom+len(b.frame)+32)
		payload = appendBytes(appendRecord(payload, recordBody, b.number), b.frame)
		l.sent(number, []*body{b})
		return payload, time.Time{}
	}
	if l.pinned > l.agent.cfg.Pinned && len(l.mux.control) == 0 {
		return nil, time.Time{} // Released goes on
	}
	payload, again = l.mux.next(size, now)
	l.mux.closed = l.mux.closed[:0] // the relay decides when a number is free
	if bodies := l.mux.batch.takeSent(); len(bodies) > 0 {
		l.sent(number, bodies)
	}
	return payload, again
}

// sent notes which bodies a packet needs until it is released.
func (l *agentLink) sent(number uint64, bodies []*body) {
	for _, b := range bodies {
		l.pinned += b.size
	}
	l.packets.push(sentBodies{number, bodies})
}

// Released implements [broker.Traffic].
func (l *agentLink) Released(number uint64) {
	l.agent.mu.Lock()
	defer l.agent.mu.Unlock()
	for l.packets.len() > 0 && l.packets.at(0).number <= number {
		for _, b := range l.packets.pop().bodies {
			l.pinned -= b.size
			l.agent.bodies.release(b)
		}
	}
}

// Handle implements [broker.Traffic].
func (l *agentLink) Handle(_ uint64, payload []byte) (done bool, err error) {
	f := broker.Fields{B: payload}
	for len(f.B) > 0 {
		if err := l.record(&f); err != nil {
			return false, err
		}
		if f.Bad {
			return false, fmt.Errorf("%w: cut short", broker.ErrBadPacket)
		}
	}
	return true, nil
}

// record takes one record from the relay. If it is cut short, it does
// nothing but mark f as bad.
func (l *agentLink) record(f *broker.Fields) error {
	l.agent.mu.Lock()
	defer l.agent.mu.Unlock()
	if l.gone {
		f.B = nil
		return nil
	}
	switch kind, number := recordKind(f.Byte()), f.Uvarint(); kind {
	case recordOpen:
		if data := f.Bytes(); !f.Bad {
			return l.open(number, data)
		}
	case recordFrame:
		if data := f.Bytes(); !f.Bad {
			return l.frame(number, data)
		}
	case recordFragment:
		flags := f.Uvarint()
		if data := f.Bytes(); !f.Bad {
			return l.fragment(number, flags, data)
		}
	case recordClose:
		code, reason := ahp.CloseCode(f.Uvarint()), string(f.Bytes())
		if !f.Bad {
			l.closed(number, code, reason)
		}
	case recordCredit:
		n := f.Uvarint()
		if c := l.conns[number]; c != nil && n < 1<<31 {
			l.mux.grant(&c.stream, int(n))
			l.lines.Wake()
		}
	case recordWatching:
		l.watching(number)
	case recordNeed:
		l.need(number)
	default:
		return fmt.Errorf("%w: record %d from a relay", broker.ErrBadPacket, kind)
	}
	return nil
}

func (l *agentLink) open(number uint64, data []byte) error {
	if l.conns[number] != nil || number >= maxConns {
		return fmt.Errorf("%w: connection %d opened twice or out of range", broker.ErrBadPacket, number)
	}
	open, err := decodeOpen(data)
	if err != nil {
		return err
	}
	c := &AgentConn{link: l, stream: stream{conn: number, credit: l.credit}}
	l.conns[number] = c
	l.agent.conns++
	c.host = l.agent.cfg.Connect(c, open)
	return nil
}

// frame passes a message to the host.
func (l *agentLink) frame(number uint64, message []byte) error {
	c := l.conns[number]
	if c == nil || c.received {
		return fmt.Errorf("%w: message on connection %d, which is not open", broker.ErrBadPacket, number)
	}
	c.host.Deliver(message, false, len(message))
	return nil
}

// fragment collects a message, crediting its pieces as they come: the limit
// of a message bounds what is collected.
func (l *agentLink) fragment(number, flags uint64, data []byte) error {
	c := l.conns[number]
	if c == nil || c.received || (flags&fragmentFirst != 0) != (c.partial == nil) {
		return fmt.Errorf("%w: fragment on connection %d out of place", broker.ErrBadPacket, number)
	}
	if len(c.partial)+len(data) > l.agent.cfg.MaxFrame {
		return fmt.Errorf("%w: message of more than %d bytes", broker.ErrBadPacket, l.agent.cfg.MaxFrame)
	}
	c.partial = append(c.partial, data...)
	if flags&fragmentLast == 0 {
		if l.mux.written(&c.stream, len(data)) {
			l.lines.Wake()
		}
		return nil
	}
	message := c.partial
	c.partial = nil
	c.host.Deliver(message, flags&fragmentBinary != 0, len(data))
	return nil
}

// closed ends the connection in the direction to the host, and then in the
// other.
func (l *agentLink) closed(number uint64, code ahp.CloseCode, reason string) {
	c := l.conns[number]
	if c == nil || c.received {
		return
	}
	c.received = true
	l.mux.drop(&c.stream, l.agent.bodies.release) // the client is gone
	c.end(code, reason)
	c.host.Closed(code, reason)
}

// watching notes that the relay listens to a channel.
func (l *agentLink) watching(number uint64) {
	for _, ch := range l.agent.channels.byURI {
		if ch.number != number {
			continue
		}
		for _, on := range ch.links {
			if on.link == l && on.asked {
				on.ready = true
				on.idle = 0
			}
		}
	}
}

// need sends a body that the relay has missed.
func (l *agentLink) need(number uint64) {
	b := l.agent.bodies.numbered(number)
	if b == nil || b.frame == nil {
		l.mux.control = appendRecord(l.mux.control, recordGone, number)
	} else {
		b.uses++
		l.answers.push(b)
	}
	l.lines.Wake()
}

// Ended implements [broker.Traffic].
func (l *agentLink) Ended(reason error) {
	l.agent.mu.Lock()
	defer l.agent.mu.Unlock()
	l.gone = true
	l.agent.forgetLink(l)
	for _, c := range l.conns {
		l.mux.drop(&c.stream, l.agent.bodies.release)
		if !c.stream.ended {
			c.stream.ended = true
			l.agent.conns--
		}
		if !c.received {
			c.received = true
			c.host.Closed(ahp.CloseResync, reason.Error())
		}
	}
	clear(l.conns)
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
		l.agent.bodies.release(l.answers.pop())
	}
}
