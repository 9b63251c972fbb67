package gateway

import (
	"context"
	"sync"
	"time"

	"ahprelay/broker/link"
	"ahprelay/internal/signal"
	"ahprelay/routing"
)

// A feeder publishes AHP notifications for single viewers on NATS subjects, one for each
// channel, if there are subscribers. While the NATS servers are slow, it drops
// notifications; subscribers can detect the gap.
type feeder struct {
	host    hostKey
	source  string
	listens func(tenant, subject string) bool
	publish func(subject string, data []byte) error
	wake    chan struct{} // wakes run after take; capacity 1

	heard map[string]interest // by [routing.ChannelToken]; owned by take, which is called under a lock

	mu   sync.Mutex // guards the field below
	next fedPieces
}

// fedPieces are pieces of notifications that wait to be published. Their messages share a
// buffer.
type fedPieces struct {
	list []fedMessage
	data []byte
}

// A fedMessage is a NATS message with pieces for one channel.
type fedMessage struct {
	subject    string
	start, end int // offsets in the buffer
}

// An interest caches whether a channel has subscribers.
type interest struct {
	subject string
	any     bool
	until   time.Time
}

// Limits for a feeder.
const (
	mostFed   = 8 << 20  // bytes of waiting pieces
	keptFed   = 1 << 20  // largest buffer kept for reuse, in bytes
	mostHeard = 2048     // channels with a cached interest
	fullFed   = 64 << 10 // a message of this size gets no further piece

	hearAgain = 100 * time.Millisecond // an interest is looked up again after this time
)

// newFeeder returns a feeder for a host, or nil if notifications are not published.
func (h *hosts) newFeeder(key hostKey) *feeder {
	if h.cfg.Listens == nil {
		return nil
	}
	return &feeder{
		host: key, source: h.cfg.Instance, listens: h.cfg.Listens, publish: h.cfg.Bus.Publish,
		wake: make(chan struct{}, 1), heard: map[string]interest{},
	}
}

// take queues a piece if its channel has subscribers. Beyond mostFed, it drops the piece.
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
	signal.Send(f.wake)
}

// add appends a piece to the last message if that has the same channel and is not full,
// and otherwise begins a new message.
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
