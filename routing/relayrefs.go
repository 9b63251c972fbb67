package routing

import "ahprelay/broker"

// refs takes a refs record: each connection of an entry is sent the bodies of
// its list.
func (r *Relay) refs(packet, floor uint64, f *broker.Fields) error {
	entries := f.Uvarint()
	r.bodies.forgetBelow(floor)
	last := floor
	for ; entries > 0 && !f.Bad; entries-- {
		var err error
		if r.list, last, err = readBodyList(f, r.list[:0], last); err != nil {
			return err
		}
		complete := r.lookUp()
		err = readConnSet(f, func(conn uint64) {
			c := r.conns[conn]
			switch {
			case c == nil || c.client == nil:
			case complete:
				c.deliver(r.frames)
			default:
				r.deliverLater(c, packet)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lookUp fills r.frames with the bodies of r.list, and reports whether all
// are there. A missing one has no data.
func (r *Relay) lookUp() (complete bool) {
	r.frames = r.frames[:0]
	complete = true
	for _, number := range r.list {
		data := r.bodies.frames[number]
		complete = complete && data != nil
		r.frames = append(r.frames, Frame{Data: data})
	}
	return complete
}

// deliverLater queues r.frames for a client as what it is owed, and asks for
// those that are missing.
func (r *Relay) deliverLater(c *RelayConn, packet uint64) {
	for i, frame := range r.frames {
		if frame.Data != nil {
			c.owed.push(debt{frame: frame})
			continue
		}
		number := r.list[i]
		c.owed.push(debt{body: number, packet: packet})
		r.unsolved[packet]++
		if len(r.awaited[number]) == 0 {
			r.mux.control = appendRecord(r.mux.control, recordNeed, number)
			r.lines.Wake()
		}
		r.awaited[number] = append(r.awaited[number], c)
	}
	c.pay()
	if c.owed.len() > maxOwed {
		c.lose("too much waits for a missing body")
	}
}

// solved notes that one reference of a packet waits no more.
func (r *Relay) solved(packet uint64) {
	r.unsolved[packet]--
	if r.unsolved[packet] == 0 {
		delete(r.unsolved, packet)
		r.lines.Done(packet)
	}
}

// body takes a body that was heard, or sent on request.
func (r *Relay) body(number uint64, message []byte) {
	if r.bodies.frames[number] != nil {
		return
	}
	frame := r.cfg.Encode(message, true, true, false)
	r.bodies.put(number, frame)
	waiting := r.awaited[number]
	delete(r.awaited, number)
	for _, c := range waiting {
		c.resolve(number, frame)
	}
}

// gone takes the host-agent's word that it has a body no more.
func (r *Relay) gone(number uint64) {
	waiting := r.awaited[number]
	delete(r.awaited, number)
	for _, c := range waiting {
		c.lose("a missing body is gone")
	}
}
