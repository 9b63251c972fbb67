package hostagent

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
	"ahprelay/contentproxy"
	"ahprelay/routing"
)

// Reads of canvas content on one connection. What is read waits in the stream to
// the client: so more is read only when there is room for it.
const (
	maxReads    = 1024 // under way or waiting for their turn
	readsAtOnce = 8    // under way
)

// A canvasGate has addresses minted on the way to the client, and tells what is
// shown by URL of what ends.
type canvasGate struct {
	canvas *contentproxy.Conn
	live   *live
	conn   *hostConn
}

// FromClient implements [gate.Gate].
func (g canvasGate) FromClient(_ []byte, env *ahp.Envelope) gate.Decision {
	g.canvas.FromClient(env)
	if string(env.Method) == "unsubscribe" {
		g.live.forget(g.conn, string(env.Channel))
	}
	return gate.Decision{}
}

// FromHost implements [gate.Gate].
func (g canvasGate) FromHost(_ []byte, _ *ahp.Envelope, said *view.Reading) gate.Decision {
	g.canvas.FromHost(said)
	g.live.previews.sessionsGone(said)
	return gate.Decision{}
}

// response passes a response from the host to the client, or to the host-agent's own
// request. Reads that the host does not serve are served here.
func (c *hostConn) response(ctx context.Context, wg *sync.WaitGroup, message []byte, env *ahp.Envelope, said *view.Reading) error {
	asked, _ := c.asks.pop(env.ID)
	out, read := c.canvas.Answer(message, env, said)
	c.askAbout(c.canvas.Asks(), false)
	if said != nil {
		c.askAbout(said.Asks, true)
	}
	answer := c.toClient
	switch {
	case asked.about != nil:
		c.canvas.Settle(*asked.about)
		return nil
	case asked.reply != nil:
		answer = func(m contentproxy.Message) error {
			asked.reply <- bytes.Clone(m.Bytes)
			return nil
		}
	}
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
			c.askAbout(read.Asks(), false)
			_ = answer(read.Answer(ctx)) // fails if the client is gone
		}
	})
	return nil
}

func (c *hostConn) toClient(m contentproxy.Message) error {
	return c.conn.FromHostWith(m.Bytes, m.From, m.To)
}

// askAbout asks the host for the state of channels, by subscribes as the client's own. The
// gates judge them like the client's. If the client waits, its own messages go on when the
// host has answered.
func (c *hostConn) askAbout(list []view.Ask, waits bool) {
	for _, about := range list {
		id := fmt.Appendf(nil, "%q", "host-agent-"+rand.Text())
		if !c.asks.add(ask{id: id, about: &about, waits: waits}) {
			c.canvas.Settle(about)
			continue
		}
		request := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"subscribe","params":%s}`, id, about.Params)
		c.queueUp(delivery{message: request, about: &about})
	}
}

// unasked notes that an ask of the host-agent's own does not go to the host.
func (c *hostConn) unasked(id []byte, about *view.Ask) {
	c.asks.pop(id)
	c.canvas.Settle(*about)
}

// maxAsks bounds the unanswered requests.
const maxAsks = 64

// asks are the requests on a connection that are not the client's.
type asks struct {
	mu      sync.Mutex
	list    []ask
	waited  int           // how many of the list the client's messages wait for
	settled chan struct{} // closed when there is none of these any more
	until   time.Time     // for how long they are waited for
}

// stateTime is how long a client's messages wait for the state that the host is asked for
// when the client resumes.
const stateTime = 5 * time.Second

// An ask is a request of the host-agent's own: about or reply is set.
type ask struct {
	about *view.Ask     // about a channel
	waits bool          // the client's messages wait for the answer
	reply chan<- []byte // receives the answer to a read of content by URL, and has room for it
	id    []byte
}

// read asks the host for content, as the client would, and returns the answer.
func (c *hostConn) read(ctx context.Context, channel, uri string) ([]byte, error) {
	id := fmt.Appendf(nil, "%q", "host-agent-"+rand.Text())
	params, err := json.Marshal(map[string]string{"channel": channel, "uri": uri})
	if err != nil {
		return nil, err
	}
	reply := make(chan []byte, 1)
	if !c.asks.add(ask{id: id, reply: reply}) {
		return nil, errTooManyAsks
	}
	c.queueUp(delivery{message: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"canvasReadResource","params":%s}`, id, params)})
	select {
	case answer := <-reply:
		return answer, nil
	case <-c.ended:
		return nil, routing.ErrConnClosed
	case <-ctx.Done():
		c.asks.pop(id) // the answer goes to nobody
		return nil, ctx.Err()
	}
}

// errTooManyAsks reports a request for which there is no room.
var errTooManyAsks = errors.New("too many requests of the host-agent's own")

// add notes a request, and reports whether there is room for it.
func (a *asks) add(one ask) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list) >= maxAsks {
		return false
	}
	a.list = append(a.list, one)
	if one.waits {
		if a.waited++; a.waited == 1 {
			a.settled, a.until = make(chan struct{}), time.Now().Add(stateTime)
		}
	}
	return true
}

// pending returns what is closed when the host has answered what the client's messages
// wait for, and how long that may take; nil: there is nothing to wait for.
func (a *asks) pending() (settled <-chan struct{}, most time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waited == 0 {
		return nil, 0
	}
	return a.settled, time.Until(a.until)
}

// stateTold waits until the host has told the state that it was asked for when the client
// resumed: what the client may do depends on it.
func (c *hostConn) stateTold() {
	settled, most := c.asks.pending()
	if settled == nil || most <= 0 {
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-settled:
	case <-timer.C:
	case <-c.ended:
	}
}

// has reports whether a request is one of them.
func (a *asks) has(id []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.list, func(one ask) bool { return ahp.SameID(one.id, id) })
}

// pop returns which request a response answers.
func (a *asks) pop(id []byte) (one ask, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.list, func(one ask) bool { return ahp.SameID(one.id, id) })
	if i < 0 {
		return ask{}, false
	}
	one = a.list[i]
	a.list = slices.Delete(a.list, i, i+1)
	if one.waits {
		if a.waited--; a.waited == 0 {
			close(a.settled)
		}
	}
	return one, true
}
