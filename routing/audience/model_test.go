package audience

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// The model is a host with a counter for each channel, viewers that subscribe, leave and return,
// and connections that sometimes end. The host sends snapshots later than it makes them, and may
// send actions late. Each viewer must receive a channel's numbers in order and without gaps, and in
// the end the host's number.

var modelChannels = []string{"mock:/0", "mock:/1", "mock:/2", "ahp-root://"}

type modelStep struct{ kind, who, what, n int }

const (
	stepAct = iota
	stepBurst
	stepTell
	stepCome
	stepGo
	stepSub
	stepUnsub
	stepRead
	stepPause
	stepCut
)

// A model is the state of one run.
type model struct {
	rand *rand.Rand
	pool *Pool
	wait sync.WaitGroup

	mu      sync.Mutex
	err     error
	seq     int
	counts  map[string]int
	conns   []*modelConn
	viewers []*modelViewer
	version int // version of the content that viewers read
}

func (m *model) fail(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf(format, args...)
	}
}

// A modelConn is an audience's connection at the host.
type modelConn struct {
	m      *model
	client routing.ClientConn
	subs   map[string]bool
	asked  map[string]time.Time // time of the last request with the same content
	lag    time.Duration        // delay before actions are sent
	late   chan string          // actions that wait for lag
	closed chan struct{}
}

func (m *model) open(_ routing.Open, client routing.ClientConn) (Upstream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &modelConn{m: m, client: client, subs: map[string]bool{}, asked: map[string]time.Time{}, late: make(chan string, 1<<16), closed: make(chan struct{})}
	c.lag = time.Duration(m.rand.IntN(3)*20) * time.Millisecond
	m.conns = append(m.conns, c)
	m.wait.Go(c.sendLate)
	return c, nil
}

// Send implements [Upstream].
func (c *modelConn) Send(_ context.Context, message []byte) error {
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	env, err := ahp.Peek(message)
	if err != nil || strings.Contains(string(message), "viewer-") {
		m.fail("the host got %s: %v", message, err)
		return nil
	}
	id, channel := string(env.ID), string(env.Channel)
	if env.Kind == ahp.Request {
		what := string(env.Method) + " " + string(env.Params)
		if last, ok := c.asked[what]; ok && time.Since(last) < spacing {
			m.fail("%s is asked again after %v", what, time.Since(last))
		}
		c.asked[what] = time.Now()
	}
	pause := func() time.Duration { return time.Duration(m.rand.IntN(4)*10) * time.Millisecond }
	making, telling := pause(), pause()
	switch string(env.Method) {
	case "initialize":
		c.after(telling, func() string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"serverSeq":%d}}`, id, m.seq) })
	case "subscribe":
		c.subs[channel] = true
		m.wait.Go(func() {
			time.Sleep(making)
			m.mu.Lock()
			answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"snapshot":{"resource":%q,"state":%d,"more":%q,"fromSeq":%d}}}`, id, channel, m.counts[channel], strings.Repeat("x", m.rand.IntN(2)*1000), m.seq)
			m.mu.Unlock()
			time.Sleep(telling)
			m.mu.Lock()
			defer m.mu.Unlock()
			c.deliver(answer)
		})
	case "unsubscribe":
		delete(c.subs, channel)
	case "resourceRead":
		c.after(telling, func() string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"version":%d}}`, id, m.version) })
	}
	return nil
}

// after sends an answer after the delay d. It calls answer then, so that the answer has the state
// of that time.
func (c *modelConn) after(d time.Duration, answer func() string) {
	c.m.wait.Go(func() {
		time.Sleep(d)
		c.m.mu.Lock()
		defer c.m.mu.Unlock()
		c.deliver(answer())
	})
}

// deliver sends messages to the audience, some of them in pieces.
func (c *modelConn) deliver(messages ...string) {
	select {
	case <-c.closed:
		return
	default:
	}
	var data []byte
	for _, text := range messages {
		if c.m.rand.IntN(4) == 0 {
			c.client.Deliver([]routing.Frame{{Data: data}, {Data: encode([]byte(text[:3]), true, false, false)}, {Data: encode([]byte(text[3:]), false, true, false), Credit: 1}})
			data = nil
			continue
		}
		data = append(data, encode([]byte(text), true, true, false)...)
	}
	c.client.Deliver([]routing.Frame{{Data: data}})
}

func (c *modelConn) sendLate() {
	for {
		select {
		case text := <-c.late:
			time.Sleep(c.lag)
			c.m.mu.Lock()
			list := []string{text}
			for len(c.late) > 0 {
				list = append(list, <-c.late)
			}
			c.deliver(list...)
			c.m.mu.Unlock()
		case <-c.closed:
			return
		}
	}
}

func (c *modelConn) Written(int)                 {}
func (c *modelConn) Close(ahp.CloseCode, string) { c.end() }

// end ends the connection. It returns true for the first call.
func (c *modelConn) end() bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	select {
	case <-c.closed:
		return false
	default:
		close(c.closed)
		return true
	}
}

// act increments a channel's counter, and sends the action to all connections subscribed to the
// channel.
func (m *model) act(channel string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seq++
	m.counts[channel]++
	m.tell(channel, fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":%q,"action":{"type":"x","n":%d,"more":%q},"serverSeq":%d}}`, channel, m.counts[channel], strings.Repeat("y", m.rand.IntN(2)*200), m.seq))
}

func (m *model) tell(channel, text string) {
	for _, c := range m.conns {
		if c.subs[channel] {
			c.late <- text
		}
	}
}

// A modelViewer is a viewer that checks each message it receives.
type modelViewer struct {
	m  *model
	id string
	v  *Viewer

	greeted bool
	gone    bool
	counts  map[string]int // last number for each channel of which it has a snapshot
	asked   map[string]int // number of subscribe requests by channel
	lastID  int
	pending map[string]string // unanswered requests by id: channel, or content's version
	seq     int
	piece   []byte
	crowd   *modelCrowd
}

func (m *model) come(id string, again bool, channels []string) {
	w := &modelViewer{m: m, id: id, counts: map[string]int{}, asked: map[string]int{}, pending: map[string]string{"0": ""}}
	m.mu.Lock()
	m.viewers = append(m.viewers, w)
	m.mu.Unlock()
	w.v = m.pool.Enter("link", look, w, len(m.viewers)%2 == 0)
	list, _ := json.Marshal(channels)
	if again {
		w.send(`{"jsonrpc":"2.0","id":0,"method":"reconnect","params":{"channel":"ahp-root://","clientId":%q,"subscriptions":%s}}`, id, list)
		return
	}
	w.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"channel":"ahp-root://","clientId":%q,"protocolVersions":["1"],"initialSubscriptions":%s}}`, id, list)
}

func (w *modelViewer) send(format string, args ...any) {
	if err := w.v.Send(context.Background(), fmt.Appendf(nil, format, args...)); err != nil && !errors.Is(err, routing.ErrConnClosed) {
		w.m.fail("send: %v", err)
	}
}

func (w *modelViewer) Event(routing.Event) {}

func (w *modelViewer) Closed(ahp.CloseCode, string) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.gone = true
}

// Deliver implements [routing.ClientConn].
func (w *modelViewer) Deliver(frames []routing.Frame) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for _, f := range frames {
		decode(f.Data, func(_, whole []byte, _, _, _ bool) {
			w.piece = append(w.piece, whole...)
			message, last, err := inflate(w.piece)
			if err != nil {
				w.m.fail("%s: %v", w.id, err)
			}
			if last {
				w.take(message)
				w.piece = nil
			}
		})
	}
}

// A modelCrowd passes messages to its viewers. Some viewers leave it by themselves.
type modelCrowd struct {
	m       *model
	viewers []*modelViewer
	left    []routing.ClientConn
}

// Tell implements [Crowd].
func (c *modelCrowd) Tell(messages [][]byte, _ int64) (left []routing.ClientConn) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if len(c.viewers) > 0 && c.m.rand.IntN(4) == 0 {
		w := c.viewers[c.m.rand.IntN(len(c.viewers))]
		w.part()
		c.left = append(c.left, w)
	}
	for _, w := range c.viewers {
		for _, message := range messages {
			w.take(message)
		}
	}
	left, c.left = c.left, nil
	return left
}

// Judge implements [Crowd].
func (c *modelCrowd) Judge([]byte, *ahp.Envelope) Verdict {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.rand.IntN(8) == 0 {
		return ToEach
	}
	return ToAll
}

// End implements [Crowd].
func (c *modelCrowd) End() {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if len(c.viewers) > 0 {
		c.m.fail("a crowd with %d viewers ends", len(c.viewers))
	}
}

// Follow implements [Follower]. Some viewers cannot follow yet.
func (w *modelViewer) Follow(to Crowd) bool {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.m.rand.IntN(3) == 0 {
		return false
	}
	w.crowd = to.(*modelCrowd)
	w.crowd.viewers = append(w.crowd.viewers, w)
	w.crowd.left = slices.DeleteFunc(w.crowd.left, func(other routing.ClientConn) bool { return other == w })
	return true
}

// Part implements [Follower].
func (w *modelViewer) Part() {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.part()
}

func (w *modelViewer) part() {
	if w.crowd != nil {
		w.crowd.viewers = slices.DeleteFunc(w.crowd.viewers, func(other *modelViewer) bool { return other == w })
		w.crowd = nil
	}
}

type modelSnapshot struct {
	Resource string
	State    int
	FromSeq  int
}

// take checks a message: it must belong to a pending request or to a channel with a snapshot, and
// an action must have the next number.
func (w *modelViewer) take(text []byte) {
	var msg struct {
		ID     *int
		Method string
		Params struct {
			Channel   string
			Action    struct{ N int }
			ServerSeq int
		}
		Result *struct {
			Snapshot  *modelSnapshot
			Snapshots []modelSnapshot
			Version   int
		}
		Error json.RawMessage
	}
	if err := json.Unmarshal(text, &msg); err != nil || w.gone {
		w.m.fail("%s is told %s: %v, gone: %t", w.id, text, err, w.gone)
		return
	}
	if msg.ID != nil {
		about, ok := w.pending[fmt.Sprint(*msg.ID)]
		if delete(w.pending, fmt.Sprint(*msg.ID)); !ok || msg.Result == nil {
			w.m.fail("%s is answered %s", w.id, text)
			return
		}
		w.greeted = true
		if msg.Result.Snapshot != nil {
			msg.Result.Snapshots = []modelSnapshot{*msg.Result.Snapshot}
		}
		for _, s := range msg.Result.Snapshots {
			if w.counts[s.Resource] > s.State && w.asked[s.Resource] == 0 {
				w.m.fail("%s is shown an old state of %s: %d; it had %d", w.id, s.Resource, s.State, w.counts[s.Resource])
			}
			w.counts[s.Resource] = s.State
		}
		if msg.Result.Version > 0 && fmt.Sprint(msg.Result.Version) < about {
			w.m.fail("%s has read version %d; when it asked there was %s", w.id, msg.Result.Version, about)
		}
		return
	}
	n, ok := w.counts[msg.Params.Channel]
	switch {
	case !w.greeted:
		w.m.fail("%s is told %s before its answer", w.id, text)
	case msg.Method != "action" && msg.Params.Channel == rootChannel: // a broadcast
	case !ok:
		w.m.fail("%s is told %s, to which it is not subscribed", w.id, text)
	case msg.Method != "action":
	case msg.Params.Action.N != n+1:
		w.m.fail("%s is told %d of %s behind %d", w.id, msg.Params.Action.N, msg.Params.Channel, n)
	case msg.Params.ServerSeq <= w.seq:
		w.m.fail("%s is told serverSeq %d behind %d", w.id, msg.Params.ServerSeq, w.seq)
	}
	if msg.Method == "action" {
		w.counts[msg.Params.Channel], w.seq = n+1, msg.Params.ServerSeq
	}
}

// step performs a step of the plan.
func (m *model) step(s modelStep) {
	channel := modelChannels[s.what%len(modelChannels)]
	var w *modelViewer
	m.mu.Lock()
	if n := len(m.viewers); n > 0 {
		w = m.viewers[s.who%n]
	}
	busy := w == nil || w.gone || !w.greeted
	m.mu.Unlock()
	switch s.kind {
	case stepAct:
		m.act(channel)
	case stepBurst:
		for n := range s.n {
			m.act(modelChannels[(s.what+n)%len(modelChannels)])
		}
	case stepTell:
		m.mu.Lock()
		m.version++
		m.tell(channel, fmt.Sprintf(`{"jsonrpc":"2.0","method":"note","params":{"channel":%q}}`, channel))
		m.mu.Unlock()
	case stepCome:
		m.come(fmt.Sprint("viewer-", len(m.viewers)), false, modelChannels[:s.n%len(modelChannels)])
	case stepPause:
		time.Sleep(time.Duration(s.n) * 5 * time.Millisecond)
	case stepCut:
		if len(m.conns) > 0 {
			c := m.conns[len(m.conns)-1]
			if c.end() {
				c.client.Closed(ahp.CloseResync, "cut")
			}
		}
	}
	if busy {
		return
	}
	switch s.kind {
	case stepGo:
		m.leave(w)
		if s.n%2 == 0 {
			m.come(w.id, true, modelChannels[:s.what%len(modelChannels)])
		}
	case stepSub:
		w.ask("subscribe", channel, channel)
	case stepUnsub:
		m.mu.Lock()
		pending := slices.Contains(slices.Collect(maps.Values(w.pending)), channel)
		if !pending {
			delete(w.counts, channel)
		}
		m.mu.Unlock()
		if !pending {
			w.send(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":%q}}`, channel)
		}
	case stepRead:
		m.mu.Lock()
		now := fmt.Sprint(m.version)
		m.mu.Unlock()
		w.ask("resourceRead", "ahp-root://", now)
	}
}

// ask sends a request. About is what take compares with the answer: the channel, or the content's
// version.
func (w *modelViewer) ask(method, channel, about string) {
	w.m.mu.Lock()
	w.lastID++
	id := w.lastID
	w.pending[fmt.Sprint(id)] = about
	if method == "subscribe" {
		w.asked[channel]++
	}
	w.m.mu.Unlock()
	w.send(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"channel":%q}}`, id, method, channel)
}

func (m *model) leave(w *modelViewer) {
	w.v.Close(1000, "")
	m.mu.Lock()
	defer m.mu.Unlock()
	w.gone = true
}

// rest waits until nothing happens any more. Then each viewer must have all its answers, and the
// host's numbers.
func (m *model) rest() {
	time.Sleep(5 * time.Second)
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.viewers {
		if w.gone {
			continue
		}
		if len(w.pending) > 0 {
			m.fail("%s is not answered: %v", w.id, w.pending)
		}
		for channel, n := range w.counts {
			if n != m.counts[channel] {
				m.fail("%s has %d of %s; the host is at %d", w.id, n, channel, m.counts[channel])
			}
		}
	}
}

// runModel performs the steps of a plan, and returns the first violation.
func runModel(t *testing.T, seed uint64, steps []modelStep) (err error) {
	synctest.Test(t, func(*testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		m := &model{rand: rand.New(rand.NewPCG(seed, 0)), counts: map[string]int{}, version: 1000}
		kept := 0
		m.pool = New(Config{
			Open: m.open, Encode: encode, Decode: decode, Deflate: deflate, Life: ctx,
			Spawn: func(f func()) bool { m.wait.Go(f); return true },
			Kept:  func(n int) { m.mu.Lock(); defer m.mu.Unlock(); kept += n },
			Crowd: func() Crowd { return &modelCrowd{m: m} },
		})
		for _, s := range steps {
			m.step(s)
			if s.n%3 == 0 {
				synctest.Wait()
			}
		}
		m.rest()
		for _, c := range m.conns {
			if c.end() {
				c.client.Closed(ahp.CloseResync, "over")
			}
		}
		synctest.Wait()
		cancel()
		m.wait.Wait()
		if audiences, viewers := m.pool.Stats(); audiences != 0 || viewers != 0 || kept != 0 {
			m.fail("%d audiences, %d viewers and %d bytes are left", audiences, viewers, kept)
		}
		err = m.err
	})
	return err
}

// TestViewersSeeWhatTheModelSends runs random plans of the model. No plan may have a violation.
func TestViewersSeeWhatTheModelSends(t *testing.T) {
	often := []int{stepAct, stepAct, stepAct, stepBurst, stepBurst, stepTell, stepCome, stepCome, stepGo, stepSub, stepSub, stepSub, stepUnsub, stepRead, stepRead, stepPause, stepPause, stepPause, stepCut}
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) modelStep {
			draw := func(name string) int { return rapid.IntRange(0, 19).Draw(rt, name) }
			kind := rapid.SampledFrom(often).Draw(rt, "kind")
			if kind == stepCut && draw("whether") > 3 {
				kind = stepAct
			}
			return modelStep{kind, draw("who"), draw("what"), draw("n")}
		}), 1, 80).Draw(rt, "steps")
		if err := runModel(t, seed, steps); err != nil {
			rt.Fatal(err)
		}
	})
}
