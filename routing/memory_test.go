package routing_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/broker/link"
)

// A memoryNet is an in-memory NATS server for the buses that its method bus returns. A message
// takes 5 µs, and the test decides which messages are lost.
type memoryNet struct {
	mu   sync.Mutex
	subs []*memorySub
	lose func(from, subject string, data []byte) bool // may be nil

	sent map[string]int // bytes by publishing bus

	wg sync.WaitGroup // the buses' goroutines
}

type memorySub struct {
	subject string
	bus     *memoryBus
	into    chan *nats.Msg
}

// A memoryBus is one connection to a memoryNet. All messages for its subscriptions arrive in the
// order in which they were published.
type memoryBus struct {
	net  *memoryNet
	name string
	in   *queue[delivery]
}

type delivery struct {
	msg  *nats.Msg
	into chan *nats.Msg
}

const latency = 5 * time.Microsecond

func (n *memoryNet) bus(ctx context.Context, name string) *memoryBus {
	b := &memoryBus{net: n, name: name, in: newQueue[delivery]()}
	n.wg.Go(func() {
		for {
			d, ok := b.in.take(ctx)
			if !ok {
				return
			}
			time.Sleep(latency)
			select {
			case d.into <- d.msg:
			default: // like NATS, which drops messages for a slow subscriber
			}
		}
	})
	return b
}

func (b *memoryBus) Publish(subject string, data []byte) error {
	n := b.net
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent[b.name] += len("PUB   \r\n\r\n") + len(subject) + len(data) + 4
	if n.lose != nil && n.lose(b.name, subject, data) {
		return nil
	}
	for _, s := range n.subs {
		if matches(s.subject, subject) {
			s.bus.in.push(delivery{&nats.Msg{Subject: subject, Data: bytes.Clone(data)}, s.into})
		}
	}
	return nil
}

// Together implements [link.Bus].
func (b *memoryBus) Together(_ string, publish func()) { publish() }

func (b *memoryBus) Subscribe(subject string, into chan *nats.Msg) (func(), error) {
	s := &memorySub{subject, b, into}
	n := b.net
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subs = append(n.subs, s)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		for i, have := range n.subs {
			if have == s {
				n.subs = append(n.subs[:i:i], n.subs[i+1:]...)
			}
		}
	}, nil
}

func matches(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	if len(p) != len(s) {
		return false
	}
	for i := range p {
		if p[i] != "*" && p[i] != s[i] {
			return false
		}
	}
	return true
}

var _ link.Bus = (*memoryBus)(nil)
