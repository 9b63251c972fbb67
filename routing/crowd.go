package routing

import (
	"fmt"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// A Crowd is connections that all receive the same messages, however many they are. A
// message crosses each link once, without their numbers. A connection enters and leaves with a
// message of its own, exactly between two messages of the crowd. All messages are binary, and take no credit: a client that is slow is closed
// by its relay, and all clients of a relay that takes nothing are closed by the host-agent.
type Crowd struct {
	agent *AgentEnd
	lines []*crowdLine // guarded by the agent's mutex, as are their fields
}

// A crowdLine is a crowd's connections on one link.
type crowdLine struct {
	link    *agentLink
	number  uint64
	stream  stream
	members map[*AgentConn]struct{}
	over    bool // the crowd has ended
}

// NewCrowd returns a crowd without connections.
func (a *AgentEnd) NewCrowd() *Crowd { return &Crowd{agent: a} }

// MayEnter reports whether a connection may enter a crowd: everything before has left, and
// its relay knows crowds.
func (cr *Crowd) MayEnter(c *AgentConn) bool {
	c.link.agent.mu.Lock()
	defer c.link.agent.mu.Unlock()
	s := &c.stream
	return c.link.tags && c.crowd == nil && !s.ended && s.items.len() == 0 && s.barred == 0 && s.node == nil
}

// Enter adds a connection, for which MayEnter was true and which has sent nothing since. It gets the message
// first.
func (cr *Crowd) Enter(c *AgentConn, message []byte) error {
	return c.link.with(func() error {
		if c.stream.ended || c.crowd != nil {
			return ErrConnClosed
		}
		on := cr.on(c.link)
		on.place(c, 1, message)
		on.members[c] = struct{}{}
		c.crowd = on
		return nil
	})
}

// Leave removes a connection, which gets the message behind those of the crowd so far. All
// that it sends later follows.
func (cr *Crowd) Leave(c *AgentConn, message []byte) error {
	return c.link.with(func() error {
		if c.stream.ended || c.crowd == nil {
			return ErrConnClosed
		}
		c.crowd.place(c, 0, message)
		leaveCrowd(c)
		return nil
	})
}

// Tell sends messages to all connections.
func (cr *Crowd) Tell(messages [][]byte) {
	cr.agent.mu.Lock()
	defer cr.agent.mu.Unlock()
	defer cr.agent.grown()
	for _, on := range cr.lines {
		if len(on.members) > 0 {
			on.tell(messages)
		}
	}
}

// on returns the crowd's part of a link.
func (cr *Crowd) on(l *agentLink) *crowdLine {
	kept := cr.lines[:0]
	var found *crowdLine
	for _, on := range cr.lines {
		switch {
		case on.link == l:
			found = on
		case on.link.ended:
			continue
		}
		kept = append(kept, on)
	}
	cr.lines = kept
	if found == nil {
		for _, other := range l.crowds {
			other.forget()
		}
		l.lastCrowd++
		found = &crowdLine{link: l, number: l.lastCrowd, members: map[*AgentConn]struct{}{}}
		cr.lines = append(cr.lines, found)
		l.crowds[found.number] = found
	}
	return found
}

// End forgets the crowd, which has no connections.
func (cr *Crowd) End() {
	cr.agent.mu.Lock()
	defer cr.agent.mu.Unlock()
	for _, on := range cr.lines {
		on.over = true
		on.forget()
	}
	cr.lines = nil
}

// forget forgets a crowd that is over, once everything has left.
func (on *crowdLine) forget() {
	if on.over && on.stream.items.len() == 0 {
		delete(on.link.crowds, on.number)
	}
}

// place queues the message with which a connection enters or leaves.
func (on *crowdLine) place(c *AgentConn, enters uint64, message []byte) {
	record := appendBytes(appendRecord(nil, recordPlace, on.number, c.stream.conn, enters), message)
	c.stream.barred++
	on.push(item{raw: record, load: len(record) + pieceCost, frees: &c.stream})
}

func (on *crowdLine) tell(messages [][]byte) {
	for _, m := range messages {
		record := appendBytes(appendRecord(nil, recordTold, on.number), m)
		on.push(item{raw: record, load: len(record) + pieceCost, fans: len(on.members)})
	}
	if on.stream.queued > on.link.agent.cfg.QueueLimit {
		on.cut()
	}
}

// push queues a record.
func (on *crowdLine) push(it item) {
	mux := &on.link.mux
	on.stream.items.push(it)
	on.stream.pushed(it.load)
	mux.counted(&it, it.load)
	mux.schedule(&on.stream)
	on.link.lines.Wake()
}

// cut ends all connections of a link that takes nothing.
func (on *crowdLine) cut() {
	l := on.link
	for c := range on.members {
		l.mux.drop(&c.stream, l.agent.bodies.release)
		c.end(ahp.CloseOverloaded, stalledCrowd)
		c.closeHost(ahp.CloseOverloaded, stalledCrowd)
	}
	for on.stream.items.len() > 0 {
		l.mux.left(&on.stream, on.stream.items.pop())
	}
}

// stalledCrowd is the close reason for a crowd whose relay takes nothing.
const stalledCrowd = "slow consumer: the relay takes nothing"

// leaveCrowd removes a connection from its crowd.
func leaveCrowd(c *AgentConn) {
	if c.crowd != nil {
		delete(c.crowd.members, c)
		c.crowd = nil
	}
}

// A relayCrowd is a crowd's connections at the relay.
type relayCrowd struct {
	number  uint64
	members map[*RelayConn]struct{}
}

func (c *RelayConn) leaveCrowd() {
	if crowd := c.crowd; crowd != nil {
		c.crowd = nil
		delete(crowd.members, c)
		if len(crowd.members) == 0 {
			delete(c.relay.crowds, crowd.number)
		}
	}
}

// placeRecord makes a connection enter or leave a crowd.
func placeRecord(r *RelayEnd, number uint64, f *link.Fields) error {
	conn, enters, data := f.Uvarint(), f.Uvarint(), f.Bytes()
	c := r.live(conn)
	if f.Bad || c == nil {
		return nil
	}
	if c.bytes || (enters == 1) != (c.crowd == nil) || enters > 1 || c.crowd != nil && c.crowd.number != number {
		return fmt.Errorf("%w: connection %d has no such place in a crowd", link.ErrBadPacket, conn)
	}
	if enters == 0 {
		c.leaveCrowd()
	} else {
		crowd := r.crowds[number]
		if crowd == nil {
			crowd = &relayCrowd{number, map[*RelayConn]struct{}{}}
			r.crowds[number] = crowd
		}
		c.crowd = crowd
		crowd.members[c] = struct{}{}
	}
	r.frames = append(r.frames[:0], Frame{Data: r.cfg.Append(nil, data, true), Messages: 1})
	c.deliver(r.frames)
	return nil
}

// toldRecord passes a crowd's message to all its connections. It takes no credit: a relay
// closes clients that are slow.
func toldRecord(r *RelayEnd, number uint64, f *link.Fields) error {
	data := f.Bytes()
	crowd := r.crowds[number]
	if f.Bad || crowd == nil {
		return nil
	}
	if r.budget <= 0 {
		return fmt.Errorf("%w: more than %d messages of crowds in a packet", errBadRefs, maxRefs)
	}
	r.budget -= len(crowd.members)
	encoded := r.cfg.Append(nil, data, true)
	frame := Frame{Data: encoded, Messages: 1, Shared: &Shared{Size: len(encoded)}}
	for c := range crowd.members { // which may end
		r.frames = append(r.frames[:0], frame)
		c.deliver(r.frames)
	}
	return nil
}
