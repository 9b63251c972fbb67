package gateway

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
	"ahprelay/internal/lockorder"
	"ahprelay/routing"
)

// keepQueue is the largest empty queue kept for reuse, in frames.
const keepQueue = 32

// frameCost is the memory for a queued frame in addition to its bytes: its slot in a
// slice that may be half empty, and rounding by the allocator.
const frameCost = 128

// maxOwn is the largest number of the relay's own messages that wait behind an incomplete
// fragmented message.
const maxOwn = 256

// flushTime limits the delivery of queued data and of the close frame after it.
const flushTime = 30 * time.Second

// An outbox queues frames for a client. While the queue has frames, the outbox and the tenant's other
// outboxes take turns at writing, each in as few system calls as possible.
type outbox struct {
	sock    *wire.Socket
	limit   int                   // when bytes exceeds it, push closes the client
	budget  *budget               // shared by all clients
	written func(credit int)      // called with the credit of written frames
	ended   func(end closing)     // called once, last: the queue of a closed outbox is empty, or writing has failed
	writers *writers              // gives the outbox a place to write, in turn
	tenant  string                // of the host; shares places
	packing wire.Packing          // compression; used only by write, except packing.On, which is read-only
	delayed func(seconds float64) // observes the delay of a sample of writes; nil: not measured

	placed atomic.Bool // the outbox has a place; see writers

	mu      lockorder.Mutex[lockorder.Outbox] // guards the fields below; only writers.add, budget and packing are called under it
	queue   []routing.Frame                   // frames to write, from head on
	head    int
	bytes   int      // bytes in queue, with frameCost
	leaving int      // bytes of memory that the current write uses
	pushed  uint64   // bytes of all frames ever queued
	passed  uint64   // bytes of all frames that the kernel has accepted
	midway  bool     // a fragmented message is incomplete
	own     [][]byte // the relay's own messages, which wait for the end of that message
	writing bool     // the outbox has a place or waits for one
	sampler routing.Sampler
	since   time.Time // when a frame last arrived in the empty queue; zero: not measured
	closing *closing  // set once no more frames are accepted
	overdue *time.Timer
}

// closing is the reason for a connection's end.
type closing struct {
	code   ahp.CloseCode
	reason string
	lost   bool // the client is unreachable
}

// slowConsumer begins the close reason for a client that reads too slowly.
const slowConsumer = "slow consumer"

// push queues frames. If the queue was longer than the limit, it closes the client
// instead.
func (o *outbox) push(frames ...routing.Frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing != nil {
		return
	}
	if o.bytes > o.limit { // the queue is not empty, so the writer will see the end
		o.dropLocked()
		o.endLocked(closing{code: ahp.CloseOverloaded, reason: slowConsumer + ": too much is queued"})
		return
	}
	o.makeRoomLocked()
	for _, f := range frames {
		o.queueLocked(f)
	}
	o.budget.charge(frames)
	o.ownLocked()
	o.startLocked()
}

func (o *outbox) queueLocked(f routing.Frame) {
	if o.head == len(o.queue) {
		o.since = o.sampler.Now()
	}
	o.queue = append(o.queue, f)
	o.bytes += len(f.Data) + frameCost
	o.pushed += uint64(len(f.Data))
	if f.Data[0]&^(wire.FinBit|wire.RSV1Bit) < wire.OpClose {
		o.midway = f.Data[0]&wire.FinBit == 0 // several frames in one Data are whole messages
	}
}

// pushOwn queues a message from the relay itself, but never between the fragments of
// another message.
func (o *outbox) pushOwn(frame []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing != nil {
		return
	}
	if len(o.own) >= maxOwn {
		o.dropLocked()
		o.endLocked(closing{code: ahp.CloseOverloaded, reason: slowConsumer + ": too many queued answers"})
	} else {
		o.own = append(o.own, frame)
		o.ownLocked()
	}
	o.startLocked()
}

// ownLocked queues the relay's own messages unless a fragmented message is incomplete.
func (o *outbox) ownLocked() {
	if o.midway || len(o.own) == 0 {
		return
	}
	for _, frame := range o.own {
		f := routing.Frame{Data: frame, Messages: 1}
		o.queueLocked(f)
		o.budget.charge([]routing.Frame{f})
	}
	o.own = nil
}

// makeRoomLocked drops written frames from the front of the queue's slice when they
// occupy most of it.
func (o *outbox) makeRoomLocked() {
	if o.head > keepQueue && o.head > len(o.queue)/2 {
		n := copy(o.queue, o.queue[o.head:])
		clear(o.queue[n:])
		o.queue, o.head = o.queue[:n], 0
	}
}

// pingFrame is a ping without payload.
var pingFrame = wire.AppendFrame(nil, wire.FinBit|wire.OpPing, nil)

// ping queues a ping, and returns the ping's mark for [outbox.past].
func (o *outbox) ping() (mark uint64) {
	o.push(routing.Frame{Data: pingFrame})
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pushed
}

// past reports whether the kernel has accepted all bytes up to a mark from [outbox.ping].
func (o *outbox) past(mark uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.passed >= mark
}

// close ends the outbox after the queued frames are written. It returns the first reason
// given for the end.
func (o *outbox) close(code ahp.CloseCode, reason string) closing {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing == nil {
		o.endLocked(closing{code: code, reason: reason})
		o.startLocked()
	}
	return *o.closing
}

// abort ends the outbox and discards the queued frames. It returns the first reason given
// for the end.
func (o *outbox) abort(end closing) closing {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropLocked()
	if o.closing == nil {
		o.endLocked(end)
		o.startLocked()
	} else {
		o.closing.lost = end.lost
	}
	return *o.closing
}

func (o *outbox) endLocked(end closing) {
	o.closing = &end
	o.overdue = time.AfterFunc(flushTime, o.sock.Kill)
}

func (o *outbox) startLocked() {
	if !o.writing {
		o.writing = true
		o.waitLocked()
	}
}

// waitLocked makes the outbox wait for a place.
func (o *outbox) waitLocked() {
	if !o.writers.add(o) {
		o.loseLocked()
	}
}

// lose discards the frames of an outbox that gets no place, because the server has ended.
func (o *outbox) lose() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.loseLocked()
}

func (o *outbox) loseLocked() {
	o.dropLocked()
	o.closing = &closing{code: wire.CloseLost, lost: true}
}

func (o *outbox) dropLocked() {
	o.budget.refund(o.queue[o.head:])
	o.queue, o.head, o.bytes = nil, 0, 0
}

func (o *outbox) queued() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

// held returns the bytes queued and in the current write.
func (o *outbox) held() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes + o.leaving
}

// A writeBatch holds the frames for one system call: a single frame, or several small
// frames.
type writeBatch struct {
	frames []routing.Frame
	joined *[]byte // buffer from the scratch pools, for several frames
	packed int     // size of the compressed frame that replaces the original
	beside int     // bytes that TLS holds during the write
	bytes  int
	credit int
	since  time.Time // outbox.since for these frames
}

var writeBatches = sync.Pool{New: func() any { return new(writeBatch) }}

// write writes a batch at the outbox's place. more reports whether the outbox may have further frames,
// and kept whether the caller still has the place.
func (o *outbox) write(l *writeBatch) (more, kept bool) {
	o.placed.Store(true)
	end, more, kept := o.nextBatch(l)
	if end != nil {
		o.leavePlace()
		o.ended(*end)    // writes the close frame, and may block
		o.overdue.Stop() // was set together with closing
		return false, false
	}
	if !more {
		return false, kept
	}
	batch := o.join(l)
	if !o.sock.Conn.StandsSince().IsZero() { // a close frame of the library, or a record of TLS itself, is ahead
		o.leavePlace()
	}
	err := o.sock.Write(batch)
	o.wrote(l, err)
	if err != nil {
		o.leavePlace()
		o.ended(o.fail(err))
		return false, false
	}
	if o.placed.Swap(false) {
		return true, true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writing = o.head < len(o.queue) || o.closing != nil; o.writing {
		o.waitLocked()
	}
	return true, false
}

// leavePlace gives up the outbox's place, if it has one. It is called before a call that may block,
// such as a write whose batch the kernel does not accept at once.
func (o *outbox) leavePlace() {
	if o.placed.Swap(false) {
		o.writers.leave(o.tenant)
	}
}

// nextBatch moves frames from the queue into a batch. If the queue is empty, it returns
// the reason for the end, or nil and false if the outbox has not ended. In the second case the
// outbox is at its place no longer, and kept reports whether the caller still has that place.
func (o *outbox) nextBatch(l *writeBatch) (end *closing, more, kept bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l.since = o.since
	for bytes := 0; o.head < len(o.queue); o.head++ {
		f := &o.queue[o.head]
		alone := o.packing.Alone(f.Data)
		if bytes += len(f.Data); (bytes > wire.WritePiece || alone) && len(l.frames) > 0 {
			break
		}
		l.frames = append(l.frames, *f)
		o.bytes -= len(f.Data) + frameCost
		*f = routing.Frame{}
		if alone {
			o.head++
			break
		}
	}
	if o.head == len(o.queue) {
		o.queue, o.head = o.queue[:0], 0
		if cap(o.queue) > keepQueue {
			o.queue = nil
		}
	}
	switch {
	case len(l.frames) > 0:
		return nil, true, true
	case o.closing != nil:
		end := *o.closing
		return &end, false, false // writing stays true: the outbox does not write again
	}
	kept, o.writing = o.placed.Swap(false), false
	return nil, false, kept
}

// scratch are pools of buffers for joining frames, in three sizes. A buffer no larger
// than necessary matters, because a client that does not read occupies its buffer for
// long. Each size is four times the previous one.
var scratch [3]sync.Pool

func init() {
	for i := range scratch {
		scratch[i].New = func() any { b := make([]byte, 0, wire.WritePiece>>(2*(len(scratch)-1-i))); return &b }
	}
}

// scratchFor returns the pool with the smallest buffers that fit n bytes, or nil if none fit.
func scratchFor(n int) *sync.Pool {
	for i := range scratch {
		if n <= wire.WritePiece>>(2*(len(scratch)-1-i)) {
			return &scratch[i]
		}
	}
	return nil
}

// join returns the batch as one buffer. If it copies frames, the budget counts the copy
// instead of the frames.
func (o *outbox) join(l *writeBatch) []byte {
	l.bytes, l.credit = 0, 0
	for i := range l.frames {
		l.bytes += len(l.frames[i].Data)
		l.credit += l.frames[i].Credit
	}
	if len(l.frames) == 1 {
		packed := o.packing.Pack(l.frames[0].Data)
		if packed == nil {
			o.leave(l.bytes)
			return l.frames[0].Data
		}
		l.packed = cap(packed)
		o.budget.add(l.packed)
		o.budget.refund(l.frames)
		clear(l.frames)
		l.frames = l.frames[:0]
		o.leave(l.packed)
		return packed
	}
	l.joined = scratchFor(l.bytes).Get().(*[]byte)
	joined := (*l.joined)[:0]
	for i := range l.frames {
		joined = append(joined, l.frames[i].Data...)
	}
	l.beside = o.sock.Conn.Holds(l.bytes)
	o.budget.add(cap(joined) + l.beside)
	o.budget.refund(l.frames)
	clear(l.frames)
	l.frames = l.frames[:0]
	o.leave(cap(joined) + l.beside)
	return joined
}

// leave records how many bytes of memory the current write uses.
func (o *outbox) leave(bytes int) {
	o.mu.Lock()
	o.leaving = bytes
	o.mu.Unlock()
}

// wrote records a write's result, and empties the batch.
func (o *outbox) wrote(l *writeBatch, err error) {
	o.budget.refund(l.frames)
	clear(l.frames)
	l.frames = l.frames[:0]
	o.budget.add(-l.packed - l.beside)
	l.packed, l.beside = 0, 0
	if l.joined != nil {
		o.budget.add(-cap(*l.joined))
		scratchFor(cap(*l.joined)).Put(l.joined)
		l.joined = nil
	}
	o.mu.Lock()
	o.leaving = 0
	if err == nil {
		o.passed += uint64(l.bytes)
	}
	o.mu.Unlock()
	if err == nil && l.credit > 0 {
		o.written(l.credit)
	}
	if err == nil && o.delayed != nil && !l.since.IsZero() {
		o.delayed(time.Since(l.since).Seconds())
	}
}

// fail records a failed write, and returns the reason with which the connection ends.
func (o *outbox) fail(err error) closing {
	end := closing{code: wire.CloseLost, reason: "connection lost"}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		end = closing{code: ahp.CloseOverloaded, reason: slowConsumer + ": accepts no data"}
	}
	end = o.close(end.code, end.reason)
	end.lost = true
	o.mu.Lock()
	defer o.mu.Unlock()
	o.overdue.Stop()
	o.dropLocked()
	return end
}
