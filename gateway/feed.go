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
	list []fedPiece
	data []byte
}

type fedPiece struct {
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
	mostFed   = 8 << 20 // bytes of pieces that wait
	keptFed   = 1 << 20 // bytes of a buffer kept for reuse
	mostHeard = 2048    // channels with a known interest
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
	p.Source = f.source
	f.mu.Lock()
	defer f.mu.Unlock()
	start := len(f.next.data)
	if start+len(p.Data) > mostFed {
		return
	}
	f.next.data = routing.AppendPiece(f.next.data, p)
	f.next.list = append(f.next.list, fedPiece{in.subject, start, len(f.next.data)})
	select {
	case f.wake <- struct{}{}:
	default:
	}
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
			_ = f.publish(p.subject, pieces.data[p.start:p.end]) // readers see the gap
		}
		clear(pieces.list)
		pieces.list, pieces.data = pieces.list[:0], pieces.data[:0]
		if cap(pieces.data) > keptFed {
			pieces = fedPieces{}
		}
	}
}
