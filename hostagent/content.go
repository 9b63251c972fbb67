package hostagent

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"

	"ahprelay/ahp"
	"ahprelay/contentproxy"
	"ahprelay/routing"
)

// Reads of canvas content on one connection. What is read waits in the stream to
// the client: so more is read only when there is room for it.
const (
	maxReads    = 1024 // under way or waiting for their turn
	readsAtOnce = 8    // under way
)

// response passes a response of the host's on to whom asked: the client, or
// the relay on its connection. What the host does not serve is served here.
func (c *hostConn) response(ctx context.Context, wg *sync.WaitGroup, message []byte, env *ahp.Envelope) error {
	answer := c.toClient
	if ask, ok := c.asks.take(env.ID); ok {
		answer = func(m contentproxy.Message) error { return c.conn.Answer(ask, m.Bytes, m.From, m.To) }
	}
	out, read := c.canvas.FromHost(message, env)
	if read == nil {
		return answer(out)
	}
	select {
	case c.reads <- struct{}{}:
	default:
		return answer(read.TooMany())
	}
	wg.Go(func() {
		defer func() { <-c.reads }()
		select {
		case c.reading <- struct{}{}:
			defer func() { <-c.reading }()
		case <-ctx.Done():
			return
		}
		if err := c.conn.WaitToAnswer(c.ended); errors.Is(err, routing.ErrStalled) {
			c.slow()
		} else if err == nil {
			_ = answer(read.Answer(ctx)) // fails if the client is gone
		}
	})
	return nil
}

func (c *hostConn) toClient(m contentproxy.Message) error {
	return c.conn.FromHostWith(m.Bytes, m.From, m.To)
}

// Ask implements [routing.HostConn].
func (c *hostConn) Ask(number uint64, request []byte) {
	env, err := ahp.Peek(request)
	if err == nil && env.Kind == ahp.Request && c.asks.add(ask{number, bytes.Clone(env.ID)}) {
		c.queueUp(delivery{message: request}) // no relay sends anything else
	}
}

// maxAsks bounds what a relay may ask for at a time; relays have a lower bound
// of their own.
const maxAsks = 64

// asks are the requests that relays have asked on a connection.
type asks struct {
	mu   sync.Mutex
	list []ask
}

type ask struct {
	number uint64
	id     []byte
}

// add notes a request, and reports whether there is room for it.
func (a *asks) add(one ask) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list) >= maxAsks {
		return false
	}
	a.list = append(a.list, one)
	return true
}

// take returns which request a response answers.
func (a *asks) take(id []byte) (number uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.list, func(one ask) bool { return ahp.SameID(one.id, id) })
	if i < 0 {
		return 0, false
	}
	number = a.list[i].number
	a.list = slices.Delete(a.list, i, i+1)
	return number, true
}
