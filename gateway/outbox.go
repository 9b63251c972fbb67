package gateway

import (
	"errors"
	"os"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/internal/lockorder"
	"ahprelay/routing"
)

// keepQueue is how long an emptied queue may be to be used again, in frames.
const keepQueue = 32

// frameCost is what a frame counts against bounds besides its bytes: its place
// in the queue, which may be half empty, and what memory is rounded up to.
const frameCost = 128

// maxOwn is how many messages of the relay's own may wait for the end of another.
const maxOwn = 256

// flushTime is how long a client may take for what is queued before a close, and for that.
const flushTime = 30 * time.Second

// An outbox holds what a client is still to be sent. One goroutine, which
// runs only while there is something, writes all that is queued in as few
// calls as possible.
type outbox struct {
	sock    *socket
	limit   int                   // bytes queued behind what is being written
	budget  *budget               // of all clients
	written func(credit int)      // credit of frames that have been written
	ended   func(end closing)     // the last call: the queue is empty after a close, or writing failed
	spawn   func(func()) bool     // starts a goroutine that the server waits for
	packing packing               // what is compressed; owned by run, but for on
	delayed func(seconds float64) // how long something has waited until the kernel took it, of a part of all; nil: nobody wants to know

	mu      lockorder.Mutex[lockorder.Outbox] // guards all that follows; nothing is called under it but spawn and budget
	queue   []routing.Frame                   // from head on
	head    int
	bytes   int      // of queue
	leaving int      // bytes that are counted for what is being written
	pushed  uint64   // bytes of all frames that were ever queued
	passed  uint64   // and of those that the kernel has taken
	midway  bool     // the last piece of a message is to come
	own     [][]byte // messages of the relay's own that wait for that
	writing bool
	sampler routing.Sampler
	since   time.Time // when the first of what is queued came, at the earliest; zero: it is not measured
	closing *closing  // nothing is taken any more
	overdue *time.Timer
}

// closing is why a connection ends.
type closing struct {
	code   ahp.CloseCode
	reason string
	full   bool // what is queued is not to be written
	lost   bool // there is nobody to tell
}

// slowConsumer is how the reason of a close with CloseOverloaded begins if it
// is the client that takes too little.
const slowConsumer = "slow consumer"

// push queues frames. A client that takes too little is given up.
func (o *outbox) push(frames ...routing.Frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing != nil {
		return
	}
	if o.bytes > o.limit { // so the writer has work, and sees the end next
		o.dropLocked()
		o.endLocked(closing{code: ahp.CloseOverloaded, reason: slowConsumer + ": too much is queued", full: true})
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
	if f.Data[0]&^(finBit|rsv1Bit) < opClose {
		o.midway = f.Data[0]&finBit == 0 // several in one are whole
	}
}

// pushOwn queues a message of the relay's own, which must not stand between the pieces
// of another.
func (o *outbox) pushOwn(frame []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing != nil {
		return
	}
	if len(o.own) >= maxOwn {
		o.dropLocked()
		o.endLocked(closing{code: ahp.CloseOverloaded, reason: slowConsumer + ": too many answers wait", full: true})
	} else {
		o.own = append(o.own, frame)
		o.ownLocked()
	}
	o.startLocked()
}

// ownLocked queues what the relay has to say, if it may.
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

// makeRoomLocked moves the queue to the front if much of it is written.
func (o *outbox) makeRoomLocked() {
	if o.head > keepQueue && o.head > len(o.queue)/2 {
		n := copy(o.queue, o.queue[o.head:])
		clear(o.queue[n:])
		o.queue, o.head = o.queue[:n], 0
	}
}

// pingFrame is a ping without a payload.
var pingFrame = appendFrame(nil, finBit|opPing, nil)

// ping queues a ping, and returns the mark to ask [outbox.past] for.
func (o *outbox) ping() (mark uint64) {
	o.push(routing.Frame{Data: pingFrame})
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pushed
}

// past reports whether the kernel has taken all up to a mark.
func (o *outbox) past(mark uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.passed >= mark
}

// close ends the outbox behind what is queued. It returns why it ends: the
// first call counts.
func (o *outbox) close(code ahp.CloseCode, reason string) closing {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing == nil {
		o.endLocked(closing{code: code, reason: reason})
		o.startLocked()
	}
	return *o.closing
}

// abort ends the outbox without what is queued. It returns why it ends: the
// first call of abort or close counts.
func (o *outbox) abort(end closing) closing {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropLocked()
	if o.closing == nil {
		o.endLocked(end)
		o.startLocked()
	} else {
		o.closing.full, o.closing.lost = true, end.lost
	}
	return *o.closing
}

func (o *outbox) endLocked(end closing) {
	o.closing = &end
	o.overdue = time.AfterFunc(flushTime, o.sock.kill)
}

func (o *outbox) startLocked() {
	if !o.writing {
		o.writing = true
		if !o.spawn(o.run) { // the server has ended
			o.dropLocked()
			o.closing = &closing{code: closeLost, lost: true}
		}
	}
}

// dropLocked empties the queue.
func (o *outbox) dropLocked() {
	o.budget.refund(o.queue[o.head:])
	o.queue, o.head, o.bytes = nil, 0, 0
}

// queued returns how many bytes wait.
func (o *outbox) queued() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

// held returns how many bytes wait, and are being written.
func (o *outbox) held() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes + o.leaving
}

// A writeBatch is what is written in one call of the kernel: several small frames, or one.
type writeBatch struct {
	frames []routing.Frame
	joined *[]byte // of scratch, if there were several
	packed int     // bytes of the frame in its place, if that is compressed
	beside int     // bytes that are held below for that time
	bytes  int
	credit int
	since  time.Time // as the outbox has it
}

var writeBatches = sync.Pool{New: func() any { return new(writeBatch) }}

// run writes until nothing is queued.
func (o *outbox) run() {
	l := writeBatches.Get().(*writeBatch)
	defer writeBatches.Put(l)
	for {
		end, more := o.nextBatch(l)
		if end != nil {
			o.ended(*end)    // which is written too: the client may take nothing
			o.overdue.Stop() // set by whoever has ended it
		}
		if !more {
			return
		}
		err := o.sock.write(o.join(l))
		o.wrote(l, err)
		if err != nil {
			o.ended(o.fail(err))
			return
		}
	}
}

// nextBatch fills a batch from the queue; if nothing is queued, it returns how the
// outbox ends or that there is nothing more for now.
func (o *outbox) nextBatch(l *writeBatch) (end *closing, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l.since = o.since
	for bytes := 0; o.head < len(o.queue); o.head++ {
		f := &o.queue[o.head]
		alone := o.packing.alone(f.Data)
		if bytes += len(f.Data); (bytes > writePiece || alone) && len(l.frames) > 0 {
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
		return nil, true
	case o.closing != nil:
		end := *o.closing
		return &end, false // writing stays true: nothing starts again
	}
	o.writing = false
	return nil, false
}

// scratch are buffers to join frames in, each four times as large as those
// before it: a client that takes nothing holds one for long.
var scratch [3]sync.Pool

func init() {
	for i := range scratch {
		scratch[i].New = func() any { b := make([]byte, 0, writePiece>>(2*(len(scratch)-1-i))); return &b }
	}
}

// scratchFor returns the pool whose buffers have room for so many bytes.
func scratchFor(n int) *sync.Pool {
	for i := range scratch {
		if n <= writePiece>>(2*(len(scratch)-1-i)) {
			return &scratch[i]
		}
	}
	return nil
}

// join returns what is to be written, together. Of several frames the copy
// counts, and they no more.
func (o *outbox) join(l *writeBatch) []byte {
	l.bytes, l.credit = 0, 0
	for i := range l.frames {
		l.bytes += len(l.frames[i].Data)
		l.credit += l.frames[i].Credit
	}
	if len(l.frames) == 1 {
		packed := o.packing.pack(l.frames[0].Data)
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
	l.beside = o.sock.conn.holds(l.bytes)
	o.budget.add(cap(joined) + l.beside)
	o.budget.refund(l.frames)
	clear(l.frames)
	l.frames = l.frames[:0]
	o.leave(cap(joined) + l.beside)
	return joined
}

// leave notes how much is counted for what is being written.
func (o *outbox) leave(bytes int) {
	o.mu.Lock()
	o.leaving = bytes
	o.mu.Unlock()
}

// wrote notes that a batch has been written, or has failed to be, and empties it.
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

// fail notes that writing failed, and returns why the connection ends.
func (o *outbox) fail(err error) closing {
	end := closing{code: closeLost, reason: "connection lost"}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		end = closing{code: ahp.CloseOverloaded, reason: slowConsumer + ": takes nothing"}
	}
	end = o.close(end.code, end.reason)
	end.lost = true
	o.mu.Lock()
	defer o.mu.Unlock()
	o.overdue.Stop()
	o.dropLocked()
	return end
}
