package routing

import (
	"fmt"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// A Crowd is a set of connections, at any number of relays, which all receive the same messages.
// The host-agent sends each message once on each link. The record holds the crowd's number and no
// connection's number, so its size does not depend on how many connections receive it. A record on
// the same link puts a connection into the crowd or takes it out, so each enters and leaves exactly
// between two messages. All messages are binary. They take no credit: a relay closes a client that
// reads too slowly, and the host-agent closes all members at a relay whose link takes nothing.
type Crowd struct {
	agent *AgentEnd
	lines []*crowdLine // guarded by the agent's mutex, as are their fields
}

// A crowdLine is the part of a crowd on one link: its members there, and the records that wait for
// the link.
type crowdLine struct {
	link    *agentLink
	number  uint64
	stream  stream
	members map[*AgentConn]struct{}
	over    bool // End was called
}

// NewCrowd returns a crowd without connections.
func (a *AgentEnd) NewCrowd() *Crowd { return &Crowd{agent: a} }

// MayEnter reports whether a connection may enter a crowd: it is in no crowd, all its earlier
// messages have left the host-agent, and its relay knows crowds.
func (cr *Crowd) MayEnter(c *AgentConn) bool {
	c.link.agent.mu.Lock()
	defer c.link.agent.mu.Unlock()
	s := &c.stream
	return c.link.knowsCrowds && c.crowd == nil && !s.ended && s.items.len() == 0 && s.barred == 0 && s.node == nil
}

// Enter adds a connection and queues message as the first message that the connection receives in
// the crowd. The caller has seen MayEnter return true, and has sent nothing on the connection
// since.
func (cr *Crowd) Enter(c *AgentConn, message []byte) error {
	c.link.agent.mu.Lock()
	defer c.link.agent.mu.Unlock()
	if c.stream.ended || c.crowd != nil {
		return ErrConnClosed
	}
	on := cr.on(c.link)
	on.place(c, 1, message)
	on.members[c] = struct{}{}
	c.crowd = on
	return nil
}

// Leave removes a connection. It queues message behind the crowd's messages so far; messages sent
// on the connection later follow.
func (cr *Crowd) Leave(c *AgentConn, message []byte) error {
	c.link.agent.mu.Lock()
	defer c.link.agent.mu.Unlock()
	if c.stream.ended || c.crowd == nil {
		return ErrConnClosed
	}
	c.crowd.place(c, 0, message)
	leaveCrowd(c)
	return nil
}

// Tell queues messages for all connections in the crowd.
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

// on returns the crowd's part on a link, and creates it if necessary. It forgets parts on links
// that have ended.
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

// End ends the crowd. All connections have left it before.
func (cr *Crowd) End() {
	cr.agent.mu.Lock()
	defer cr.agent.mu.Unlock()
	for _, on := range cr.lines {
		on.over = true
		on.forget()
	}
	cr.lines = nil
}

// forget removes the crowd's part from its link, if End was called and all queued records have
// left.
func (on *crowdLine) forget() {
	if on.over && on.stream.items.len() == 0 {
		delete(on.link.crowds, on.number)
	}
}

// place queues the record with which a connection enters (enters is 1) or leaves (0), and its
// message.
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

func (on *crowdLine) push(it item) {
	mux := &on.link.mux
	on.stream.items.push(it)
	on.stream.pushed(it.load)
	mux.counted(&it, it.load)
	mux.schedule(&on.stream)
	on.link.lines.Wake()
}

// cut drops the queued records on a link whose relay takes nothing. It closes the crowd's
// connections there, and each connection that is named in a dropped record.
func (on *crowdLine) cut() {
	for c := range on.members {
		on.stall(c)
	}
	for on.stream.items.len() > 0 {
		it := on.stream.items.pop()
		if it.frees != nil {
			on.stall(on.link.conns[it.frees.conn])
		}
		on.link.mux.left(&on.stream, it)
	}
}

func (on *crowdLine) stall(c *AgentConn) {
	if c != nil {
		on.link.mux.drop(&c.stream, on.link.agent.bodies.release)
		c.end(ahp.CloseOverloaded, stalledCrowd)
		c.closeHost(ahp.CloseOverloaded, stalledCrowd)
	}
}

// stalledCrowd is the close reason for a crowd's connections at a relay whose link takes nothing.
const stalledCrowd = "slow consumer: the relay takes nothing"

func leaveCrowd(c *AgentConn) {
	if c.crowd != nil {
		delete(c.crowd.members, c)
		c.crowd = nil
	}
}

// A relayCrowd is the set of a crowd's connections at this relay.
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

// placeRecord handles a record which puts a connection into a crowd, or takes it out. The client
// gets the record's message.
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

// toldRecord handles a record with a crowd's message: it passes the message to all members at this
// relay. The message takes no credit, because the relay closes slow clients.
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
	for c := range crowd.members { // deliver may end c and so remove it from the map
		r.frames = append(r.frames[:0], frame)
		c.deliver(r.frames)
	}
	return nil
}
