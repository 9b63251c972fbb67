package gateway

import (
	"context"
	"sync"
	"time"

	"ahprelay/broker/link"
	"ahprelay/routing"
)

// A feeder publishes notifications of single viewers on the subjects of their channels, for
// readers of the NATS servers. It drops pieces while the servers are slow; readers see the
// gap. Nothing is published without a reader.
type feeder struct {
	host    hostKey
	source  string
	listens func(tenant, subject string) bool
	publish func(subject string, data []byte) error
	wake    chan struct{} // holds a token after take

	heard map[string]interest // by token; owned by take, which is called under a lock

	mu   sync.Mutex // guards the field below
	next fedPieces
}

// Fed pieces wait to be published. Their messages lie in one buffer.
type fedPieces struct {
	list []fedMessage
	data []byte
}

// A fedMessage has pieces of one channel.
type fedMessage struct {
	subject    string
	start, end int // in the buffer
}

// An interest is whether a channel has readers, as of a moment ago.
type interest struct {
	subject string
	any     bool
	until   time.Time
}

// Bounds of a feeder.
const (
	mostFed   = 8 << 20  // bytes of pieces that wait
	keptFed   = 1 << 20  // bytes of a buffer kept for reuse
	mostHeard = 2048     // channels with a known interest
	fullFed   = 64 << 10 // bytes from which a message takes no further piece
	hearAgain = 100 * time.Millisecond
)

// newFeeder returns a feeder for a host, or nil where there are no readers.
func (h *hosts) newFeeder(key hostKey) *feeder {
	if h.cfg.Listens == nil {
		return nil
	}
	return &feeder{
		host: key, source: h.cfg.Instance, listens: h.cfg.Listens, publish: h.cfg.Bus.Publish,
		wake: make(chan struct{}, 1), heard: map[string]interest{},
	}
}

// take queues a piece if its channel has readers.
func (f *feeder) take(token string, p routing.Piece) {
	now := time.Now()
	in, known := f.heard[token]
	if !known || now.After(in.until) {
		if len(f.heard) >= mostHeard {
			clear(f.heard)
		}
		in.subject = link.ChannelSubject(f.host.tenant, f.host.name, token)
		in.any, in.until = f.listens(f.host.tenant, in.subject), now.Add(hearAgain)
		f.heard[token] = in
	}
	if !in.any {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.next.data)+len(p.Data) > mostFed {
		return
	}
	f.next.add(f.source, in.subject, p)
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// add adds a piece to the last message, if that is of the same channel and has room, or to
// a new one.
func (w *fedPieces) add(source, subject string, p routing.Piece) {
	last, at := len(w.list)-1, len(w.data)
	if last < 0 || w.list[last].subject != subject || at-w.list[last].start >= fullFed {
		w.data = routing.AppendFeed(w.data, source)
		w.list = append(w.list, fedMessage{subject: subject, start: at})
		last++
	}
	w.data = routing.AppendPiece(w.data, p)
	w.list[last].end = len(w.data)
}

// run publishes until ctx ends.
func (f *feeder) run(ctx context.Context) {
	var pieces fedPieces
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		f.mu.Lock()
		pieces, f.next = f.next, pieces
		f.mu.Unlock()
		for _, p := range pieces.list {
			_ = f.publish(p.subject, routing.SealFeed(pieces.data[p.start:p.end])) // readers see the gap
		}
		clear(pieces.list)
		pieces.list, pieces.data = pieces.list[:0], pieces.data[:0]
		if cap(pieces.data) > keptFed {
			pieces = fedPieces{}
		}
	}
}
