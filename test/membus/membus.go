// Package membus is a NATS server in memory, for tests on fake time.
package membus

import (
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"ahprelay/broker/link"
)

// A Net connects its participants, each of which uses it as its [link.Bus]. Its zero
// value is ready for use. Messages arrive at once and in order. Like NATS, a Net drops
// a message if the receiver's channel is full.
type Net struct {
	mu   sync.Mutex
	subs []*sub
	lose func(subject string) bool
}

type sub struct {
	pattern []string
	into    chan *nats.Msg
}

// Lose makes the Net drop each message for whose subject drop returns true. A nil drop
// ends this.
func (n *Net) Lose(drop func(subject string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lose = drop
}

// Publish implements [link.Bus].
func (n *Net) Publish(subject string, data []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lose != nil && n.lose(subject) {
		return nil
	}
	tokens := strings.Split(subject, ".")
	for _, s := range n.subs {
		if !slices.EqualFunc(s.pattern, tokens, func(want, got string) bool { return want == "*" || want == got }) {
			continue
		}
		select {
		case s.into <- &nats.Msg{Subject: subject, Data: slices.Clone(data)}:
		default:
		}
	}
	return nil
}

// Together implements [link.Bus].
func (n *Net) Together(_ string, publish func()) { publish() }

// Subscribe implements [link.Bus]. In subject, * stands for any token.
func (n *Net) Subscribe(subject string, into chan *nats.Msg) (cancel func(), err error) {
	s := &sub{strings.Split(subject, "."), into}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subs = append(n.subs, s)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.subs = slices.DeleteFunc(n.subs, func(o *sub) bool { return o == s })
	}, nil
}

var _ link.Bus = (*Net)(nil)
