package gateway

import (
	"sync"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// writePiece is how much is handed to the kernel in one call, in bytes.
const writePiece = 64 << 10

// keepQueue is how long an emptied queue may be to be used again, in frames.
const keepQueue = 256

// An outbox holds what a client is still to be sent. One goroutine, which
// runs only while there is something, writes all that is queued in as few
// calls as possible.
type outbox struct {
	sock    *socket
	limit   int               // bytes queued behind what is being written
	written func(credit int)  // credit of frames that have been written
	ended   func(end closing) // the last call: the queue is empty after a close, or writing failed
	spawn   func(func()) bool // starts a goroutine that the server waits for

	mu      sync.Mutex // guards all that follows; nothing is called under it
	queue   []routing.Frame
	spare   []routing.Frame // the queue before, empty
	bytes   int             // queued, or with the writer and not written
	writing bool
	closing *closing // nothing is taken any more
}

type closing struct {
	code   ahp.CloseCode
	reason string
	failed error // writing failed: there is nobody to tell
}

// push queues frames. A client that takes too little is given up.
func (o *outbox) push(frames ...routing.Frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing != nil {
		return
	}
	if o.bytes > o.limit {
		o.queue, o.bytes = nil, 0
		o.closing = &closing{code: ahp.CloseOverloaded, reason: "slow consumer"}
		return // the writer has work, and sees this next
	}
	for _, f := range frames {
		o.queue = append(o.queue, f)
		o.bytes += len(f.Data)
	}
	o.startLocked()
}

// close ends the outbox behind what is queued. The first call counts.
func (o *outbox) close(code ahp.CloseCode, reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing == nil {
		o.closing = &closing{code: code, reason: reason}
		o.startLocked()
	}
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

// buffers are where frames are put together for one call.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, writePiece); return &b }}

// run writes until nothing is queued.
func (o *outbox) run() {
	for {
		o.mu.Lock()
		frames, end := o.queue, o.closing
		if len(frames) == 0 && end == nil {
			o.writing = false
			o.mu.Unlock()
			return
		}
		o.queue, o.spare = o.spare, nil
		o.mu.Unlock()
		if len(frames) == 0 {
			o.ended(*end) // writing stays true: nothing starts again
			return
		}
		err := o.write(frames)
		clear(frames)
		if err != nil {
			o.ended(closing{code: ahp.CloseOverloaded, reason: "slow consumer", failed: err})
			return
		}
		if cap(frames) <= keepQueue {
			o.mu.Lock()
			o.spare = frames[:0]
			o.mu.Unlock()
		}
	}
}

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
		if err := o.sock.write(piece); err != nil {
			return err
		}
		o.wrote(len(piece), credit)
		b, credit = b[:0], 0
	}
	return nil
}

// wrote notes what the kernel has taken.
func (o *outbox) wrote(bytes, credit int) {
	o.mu.Lock()
	o.bytes -= bytes
	o.mu.Unlock()
	if credit > 0 {
		o.written(credit)
	}
}
