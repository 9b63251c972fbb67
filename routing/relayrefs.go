package routing

import (
	"fmt"
	"runtime"

	"ahprelay/broker/link"
)

// A row is the output for an entry of a refs record while the relay lacks some of its bodies.
type row struct {
	frames  []Frame // missing frames have no data
	missing int
	bytes   int // bytes of frames
	packet  uint64
	conns   []*RelayConn // connections that will receive the row
}

// A missingSlot is the position of a missing body in a row.
type missingSlot struct {
	row   *row
	index int
}

// refsRecord returns a handler for refs records, with or without tags.
func refsRecord(tagged bool) relayHandler {
	return func(r *RelayEnd, floor uint64, f *link.Fields) error { return r.refs(floor, f, tagged) }
}

// refs handles a refs record: the connections of each entry receive its bodies, and then
// their tags.
func (r *RelayEnd) refs(floor uint64, f *link.Fields, tagged bool) error {
	entries := f.Uvarint()
	r.bodies.forgetBelow(floor)
	last := floor
	for ; entries > 0 && !f.Bad; entries-- {
		var err error
		if r.list, last, err = readBodyList(f, r.list[:0], last); err != nil {
			return err
		}
		r.rows = int(min(entries-1, mostRows))
		if err = r.entry(f, tagged); err != nil {
			return err
		}
	}
	return nil
}

// entry reads the next set of connections from f, and sends them the bodies of r.list. It ignores byte
// streams: references need no credit, so they could fill the stream's queue.
func (r *RelayEnd) entry(f *link.Fields, tagged bool) error {
	r.budget -= len(r.list)
	r.set, r.tags = r.set[:0], entryTags{places: r.tags.places[:0]}
	conns := 0
	err := readConnSet(f, func(conn uint64) {
		r.budget -= max(1, len(r.list))
		if c := r.conns[conn]; r.budget >= 0 && c != nil && c.client != nil && !c.bytes {
			r.set, r.tags.places = append(r.set, c), append(r.tags.places, conns)
		}
		conns++
	})
	if err == nil && r.budget < 0 {
		return fmt.Errorf("%w: more than %d references in a packet", errBadRefs, maxRefs)
	}
	if tagged && err == nil {
		r.tags.read(f, conns, r.cfg.Append)
	}
	if err != nil || f.Bad || len(r.set) == 0 {
		return err
	}
	if missing := r.lookUp(); missing != nil {
		awaitRow(r, missing)
		return nil
	}
	r.deliverSet()
	return nil
}

// yieldAfter is the number of connections after which deliverSet lets other goroutines run. Without that, it keeps its
// processor for up to 10 ms.
const yieldAfter = 256

// deliverSet sends r.frames, and then the tags, to the connections of the current entry.
func (r *RelayEnd) deliverSet() {
	credit, bodies := creditOf(r.frames), len(r.frames)
	for i, c := range r.set {
		if c.client != nil {
			r.frames = append(r.frames[:bodies], r.tags.frames(i)...)
			c.stream.uncredited += credit
			c.deliver(r.frames)
		}
		if (i+1)%yieldAfter == 0 {
			runtime.Gosched()
		}
	}
}

// awaitRow queues a row, and then the tags, on the connections of the current entry.
func awaitRow(r *RelayEnd, missing *row) {
	for i, c := range r.set {
		if c.client != nil {
			missing.conns = append(missing.conns, c)
			c.addPending(pendingItem{row: missing, size: missing.bytes})
		}
		if c.client != nil {
			c.deliver(r.tags.frames(i))
		}
	}
}

func creditOf(frames []Frame) (credit int) {
	for i := range frames {
		credit += frames[i].Credit
	}
	return credit
}

// lookUp fills r.frames with the bodies of r.list. If bodies are missing, it requests them
// from the host-agent, and returns the row that they will complete.
func (r *RelayEnd) lookUp() *row {
	r.frames = r.frames[:0]
	if r.inRows() {
		return nil
	}
	var missing *row
	for i, number := range r.list {
		frame := r.bodies.frames[number]
		r.frames = append(r.frames, frame)
		if frame.Data != nil {
			continue
		}
		if missing == nil {
			missing = &row{packet: r.packet}
		}
		missing.missing++
		if len(r.awaited.slots[number]) == 0 {
			r.mux.sendControl(appendRecord(nil, recordNeed, number))
			r.lines.Wake()
		}
		r.awaited.add(number, missingSlot{missing, i})
	}
	if missing != nil {
		missing.frames = append(missing.frames, r.frames...)
		for _, f := range r.frames {
			missing.bytes += len(f.Data)
		}
		r.incomplete[r.packet]++
	}
	return missing
}

// body stores a published or requested body, and completes the rows that wait for it.
// Encoded is part of the memory in shared, and size is the length before encoding.
func (r *RelayEnd) body(number uint64, encoded []byte, size int, shared *Shared) {
	frame := Frame{Data: encoded, Messages: 1, Credit: size + pieceCost, Shared: shared}
	r.bodies.put(number, frame)
	for _, p := range r.awaited.take(number) {
		p.row.missing--
		p.row.frames[p.index] = frame
		p.row.bytes += len(frame.Data)
		if p.row.missing == 0 {
			r.rowComplete(p.row)
		}
		for _, c := range p.row.conns {
			c.pendingGrew(len(frame.Data))
		}
	}
}

// goneRecord handles the host-agent's answer that it no longer has a requested body.
func (r *RelayEnd) goneRecord(number uint64, _ *link.Fields) error {
	for _, p := range r.awaited.take(number) {
		p.row.missing--
		if p.row.missing == 0 {
			r.rowComplete(p.row)
		}
		for _, c := range p.row.conns {
			c.lose("a missing body is gone")
		}
	}
	return nil
}

// awaitedBodies lists the row positions that wait for requested bodies, by body number.
type awaitedBodies struct {
	slots map[uint64][]missingSlot
	count int // slots
}

func (a *awaitedBodies) add(number uint64, slot missingSlot) {
	a.slots[number] = append(a.slots[number], slot)
	a.count++
}

func (a *awaitedBodies) take(number uint64) []missingSlot {
	slots := a.slots[number]
	delete(a.slots, number)
	a.count -= len(slots)
	return slots
}

// rowComplete handles a row that lacks no more bodies.
func (r *RelayEnd) rowComplete(w *row) {
	r.incomplete[w.packet]--
	if r.incomplete[w.packet] > 0 {
		return
	}
	delete(r.incomplete, w.packet)
	if w.packet != r.packet { // else Handle reports the packet as done
		r.lines.Done(w.packet)
	}
}
