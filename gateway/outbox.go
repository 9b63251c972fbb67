package gateway

import (
	"errors"
	"os"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// writePiece is how much is handed to the kernel in one call, in bytes.
const writePiece = 64 << 10

// keepQueue is how long an emptied queue may be to be used again, in frames.
const keepQueue = 256

// flushTime is how long a client may take for what is queued before a close.
const flushTime = 30 * time.Second

// An outbox holds what a client is still to be sent. One goroutine, which
// runs only while there is something, writes all that is queued in as few
// calls as possible.
type outbox struct {
	sock    *socket
	limit   int               // bytes queued behind what is being written
	written func(credit int)  // credit of frames that have been written
	ended   func(end closing) // the last call: the queue is empty after a close, or writing failed
	spawn   func(func()) bool // starts a goroutine that the server waits for

	mu      sync.Mutex // guards all that follows; nothing is called under it but spawn
	queue   []routing.Frame
	spare   []routing.Frame // the queue before, empty
	bytes   int             // queued, or with the writer and not being written
	writing bool
	closing *closing // nothing is taken any more
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
		o.queue, o.bytes = nil, 0
		o.endLocked(closing{code: ahp.CloseOverloaded, reason: slowConsumer + ": too much is queued", full: true})
		return
	}
	for _, f := range frames {
		o.queue = append(o.queue, f)
		o.bytes += len(f.Data)
	}
	o.startLocked()
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

func (o *outbox) endLocked(end closing) {
	o.closing = &end
	o.overdue = time.AfterFunc(flushTime, o.sock.kill)
}

func (o *outbox) startLocked() {
	if !o.writing {
		o.writing = true
		o.spawn(o.run)
	}
}

// queued returns how many bytes wait.
func (o *outbox) queued() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

// run writes until nothing is queued.
func (o *outbox) run() {
	for {
		frames, end, more := o.take()
		if end != nil {
			o.ended(*end)
		}
		if !more {
			return
		}
		if err := o.write(frames); err != nil {
			o.ended(o.fail(err))
			return
		}
		o.giveBack(frames)
	}
}

// take returns what is queued; if nothing is, how the outbox ends or that
// there is nothing more for now.
func (o *outbox) take() (frames []routing.Frame, end *closing, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case len(o.queue) > 0:
		frames, o.queue, o.spare = o.queue, o.spare, nil
		return frames, nil, true
	case o.closing != nil:
		o.overdue.Stop()
		return nil, o.closing, false // writing stays true: nothing starts again
	}
	o.writing = false
	return nil, nil, false
}

// giveBack keeps a queue to be used again.
func (o *outbox) giveBack(frames []routing.Frame) {
	clear(frames)
	if cap(frames) > keepQueue {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spare = frames[:0]
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
	o.queue, o.bytes = nil, 0
	return end
}

// buffers are where frames are put together for one call.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, writePiece); return &b }}

// write writes frames, several at a time where they are small.
func (o *outbox) write(frames []routing.Frame) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	b, credit := (*buf)[:0], 0
	for i, f := range frames {
		credit += f.Credit
		piece := f.Data
		if len(b)+len(f.Data) <= writePiece {
			b = append(b, f.Data...)
			if i < len(frames)-1 && len(b)+len(frames[i+1].Data) <= writePiece {
				continue
			}
			piece = b
		}
		if !o.begin(len(piece)) {
			return nil
		}
		if err := o.sock.write(piece); err != nil {
			return err
		}
		if credit > 0 {
			o.written(credit)
		}
		b, credit = b[:0], 0
	}
	return nil
}

// begin notes that so many bytes are about to be written, unless they are not
// wanted any more.
func (o *outbox) begin(bytes int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing != nil && o.closing.full {
		return false
	}
	o.bytes -= bytes
	return true
}
