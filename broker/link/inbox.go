package link

import (
	"context"
	"sync"

	"github.com/nats-io/nats.go"

	"ahprelay/internal/signal"
)

// InboxBytes bounds the bytes that wait for the reader of an [Inbox], once in the queue and once in the
// batch. On a link, a host-agent sends less before it waits: a window of packets, and bodies within its clients'
// credit.
const InboxBytes = 32 << 20

// An Inbox queues the messages that host-agents send to a relay for one reader. Beyond InboxBytes it drops them,
// as NATS does beyond the capacity of In: else a host-agent could fill the relay's memory while the reader is
// busy, because NATS bounds the number of messages only.
type Inbox struct {
	In    chan *nats.Msg // for subscriptions
	Ready chan struct{}  // signals that Next may have a message; capacity 1
	batch []*nats.Msg    // taken from the queue; owned by the reader

	mu    sync.Mutex // guards the fields below
	queue []*nats.Msg
	bytes int // size of queue
}

// NewInbox returns an Inbox with room for a number of messages; Run fills it.
func NewInbox(room int) *Inbox {
	return &Inbox{In: make(chan *nats.Msg, room), Ready: make(chan struct{}, 1)}
}

// Run queues messages until ctx ends.
func (i *Inbox) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-i.In:
			i.add(msg)
		}
	}
}

func (i *Inbox) add(msg *nats.Msg) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.bytes+len(msg.Data) > InboxBytes || len(i.queue) >= cap(i.In) {
		return // the host-agent repeats it
	}
	i.queue = append(i.queue, msg)
	i.bytes += len(msg.Data)
	signal.Send(i.Ready)
}

// Next returns the next message, or nil. If more follow, it signals Ready. Only the reader may call it.
func (i *Inbox) Next() *nats.Msg {
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
	more := len(i.batch) > 0
	if !more { // add's signal for a later message may be the one for msg
		i.mu.Lock()
		more = len(i.queue) > 0
		i.mu.Unlock()
	}
	if more {
		signal.Send(i.Ready)
	}
	return msg
}
