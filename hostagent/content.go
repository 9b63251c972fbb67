package hostagent

import (
	"bytes"
	"context"
	"crypto/rand"
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

// Bounds of canvas reads per connection. A result stays in memory until the
// client has received it, so few reads run at the same time.
const (
	maxReads    = 1024 // most reads that run or are queued
	readsAtOnce = 8    // most reads that run at the same time
)

// A canvasGate replaces the addresses of canvases in messages to the client. It also
// forgets canvases from which the client unsubscribes, and closes the previews of
// removed sessions.
type canvasGate struct {
	canvas *contentproxy.Conn
	live   *live
	conn   *hostConn
}

func (g canvasGate) FromClient(_ []byte, env *ahp.Envelope) gate.Decision {
	g.canvas.FromClient(env)
	if string(env.Method) == "unsubscribe" {
		g.live.forget(g.conn, string(env.Channel))
	}
	return gate.Decision{}
}

func (g canvasGate) FromHost(_ []byte, _ *ahp.Envelope, reading *view.Reading) gate.Decision {
	g.canvas.FromHost(reading)
	g.live.previews.sessionsGone(reading)
	return gate.Decision{}
}

// response passes a response of the host to the sender of the request: the
// client or the host-agent itself. If the host refuses to read a canvas, the
// host-agent serves the content.
func (r *hostReader) response(ctx context.Context, wg *sync.WaitGroup, message []byte, env *ahp.Envelope, reading *view.Reading) error {
	asked, _ := r.c.asks.pop(env.ID)
	out, read := r.c.canvas.Answer(message, env, reading)
	r.c.askAbout(r.c.canvas.Asks(), false)
	if reading != nil {
		r.c.askAbout(reading.Asks, true)
	}
	answer := r.toClient
	switch {
	case asked.about != nil:
		r.c.canvas.Settle(*asked.about)
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
	case r.reads <- struct{}{}:
	default:
		return answer(read.TooMany())
	}
	wg.Go(func() {
		defer func() { <-r.reads }()
		select {
		case r.reading <- struct{}{}:
			defer func() { <-r.reading }()
		case <-ctx.Done():
			return
		}
		if err := r.c.conn.WaitToAnswer(r.c.ended); errors.Is(err, routing.ErrStalled) {
			r.c.slow()
		} else if err == nil {
			r.c.askAbout(read.Asks(), false)
			_ = answer(read.Answer(ctx)) // fails if the client has left
		}
	})
	return nil
}

func (r *hostReader) toClient(m contentproxy.Message) error {
	return r.c.conn.FromHostWith(m.Bytes, m.From, m.To)
}

// askAbout subscribes to channels in the client's name, to learn their state.
// The gates judge these requests like the client's own. If waits is true, the
// client's messages wait for the answers, at most stateTime.
func (c *hostConn) askAbout(list []view.Ask, waits bool) {
	for _, about := range list {
		id := fmt.Appendf(nil, "%q", "host-agent-"+rand.Text())
		if !c.asks.add(ask{id: id, about: &about, waits: waits}) {
			c.canvas.Settle(about)
			continue
		}
		request := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"subscribe","params":%s}`, id, about.Params)
		c.writer.queueUp(delivery{message: request, about: &about})
	}
}

// dropAsk removes an unsent request.
func (c *hostConn) dropAsk(id []byte, about *view.Ask) {
	c.asks.pop(id)
	c.canvas.Settle(*about)
}

// maxAsks bounds the pending requests.
const maxAsks = 64

// asks holds the pending requests that the host-agent has sent on a client's
// connection.
type asks struct {
	mu      sync.Mutex
	list    []ask
	waited  int           // entries with waits set and without an answer
	settled chan struct{} // closed when waited becomes 0
	until   time.Time     // the client's messages wait no longer than this
}

// stateTime is how long messages of a client that resumed wait for the host's
// answers to askAbout.
const stateTime = 5 * time.Second

// An ask is a request of the host-agent itself. Either about or reply is set.
type ask struct {
	about *view.Ask     // the channel whose state is requested
	waits bool          // the client's messages wait for the answer
	reply chan<- []byte // receives the host's answer; has capacity 1
	id    []byte
}

// read requests a canvas's content from the host in the client's name, and
// returns the answer.
func (c *hostConn) read(ctx context.Context, channel, uri string) ([]byte, error) {
	return c.ask(ctx, "canvasReadResource", map[string]string{"channel": channel, "uri": uri})
}

var errTooManyAsks = errors.New("too many pending requests of the host-agent")

// add records a request. It returns false if there is no room.
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

// pending returns a channel that is closed when the awaited answers have
// arrived, and the longest time to wait. The channel is nil if no answer is
// awaited.
func (a *asks) pending() (settled <-chan struct{}, most time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waited == 0 {
		return nil, 0
	}
	return a.settled, time.Until(a.until)
}

// awaitState waits for the state that askAbout requested when the client
// resumed: the gates need it to judge the client's messages.
func (w *hostWriter) awaitState() {
	settled, most := w.c.asks.pending()
	if settled == nil || most <= 0 {
		return
	}
	select {
	case <-settled:
	case <-time.After(most):
	case <-w.c.ended:
	}
}

// has reports whether a request is pending.
func (a *asks) has(id []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.list, func(one ask) bool { return ahp.SameID(one.id, id) })
}

// pop removes and returns the pending request with an id.
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
