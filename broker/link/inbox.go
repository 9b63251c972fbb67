package link

import (
	"context"
	"sync"

	"github.com/nats-io/nats.go"

	"ahprelay/internal/signal"
)

// inboxBytes bounds the bytes that wait for a relay's reader, once in the queue and once in the batch. A
// host-agent sends less before it waits: a window of packets, and bodies within its clients' credit.
const inboxBytes = 32 << 20

// An inbox queues the messages of a relay's subscriptions for its reader. Beyond inboxBytes it drops them,
// as NATS does beyond inboxSize: else a host-agent could fill the relay's memory while the reader is
// busy, because NATS bounds the number of messages only.
type inbox struct {
	in    chan *nats.Msg // from the subscriptions
	ready chan struct{}  // signals that next has a message; capacity 1
	batch []*nats.Msg    // taken from the queue; owned by the reader

	mu    sync.Mutex // guards the fields below
	queue []*nats.Msg
	bytes int // size of queue
}

func newInbox() *inbox {
	return &inbox{in: make(chan *nats.Msg, inboxSize), ready: make(chan struct{}, 1)}
}

// run queues messages until ctx ends.
func (i *inbox) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-i.in:
			i.add(msg)
		}
	}
}

func (i *inbox) add(msg *nats.Msg) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.bytes+len(msg.Data) > inboxBytes || len(i.queue) >= inboxSize {
		return // the peer resends it
	}
	i.queue = append(i.queue, msg)
	i.bytes += len(msg.Data)
	signal.Send(i.ready)
}

// next returns the next message, or nil. If more follow, it signals ready.
func (i *inbox) next() *nats.Msg {
	if len(i.batch) == 0 {
		i.mu.Lock()
		i.batch, i.queue, i.bytes = i.queue, nil, 0
		i.mu.Unlock()
	}
	if len(i.batch) == 0 {
		return nil
	}
	msg := i.batch[0]
	i.batch[0], i.batch = nil, i.batch[1:]
	if len(i.batch) > 0 {
		signal.Send(i.ready)
	}
	return msg
}
