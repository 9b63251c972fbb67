package audience

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// A world is a pool with the test as its host: it answers through a hostEnd for each connection.
type world struct {
	*testing.T
	pool   *Pool
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu     sync.Mutex
	hosts  []*hostEnd
	queued int
	kept   int
	broken error // why no connection to the host opens; nil: it opens

	told int // number of calls of Tell; guarded by the pool's mutex
}

// inWorld runs a test with a new world on fake time. In the end, it fails if audiences, viewers or
// bytes are left.
func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		w := &world{T: t, cancel: cancel}
		w.pool = New(Config{
			Open: w.open, Crowd: w.crowd, Encode: encode, Decode: decode, Life: ctx,
			Spawn:  func(f func()) bool { w.wait.Go(f); return true },
			Queued: func(n int) { w.count(&w.queued, n) },
			Kept:   func(n int) { w.count(&w.kept, n) },
		})
		defer func() {
			for _, h := range w.all() {
				h.client.Closed(ahp.CloseResync, "over")
			}
			cancel()
			synctest.Wait()
			w.wait.Wait()
			if audiences, viewers := w.pool.Stats(); audiences != 0 || viewers != 0 || w.kept != 0 {
				w.Errorf("at the test's end, %d audiences, %d viewers and %d kept bytes are left; want none", audiences, viewers, w.kept)
			}
		}()
		test(w)
	})
}

func (w *world) count(what *int, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*what += n
}

func (w *world) all() []*hostEnd {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.hosts)
}

// encode prefixes a piece with its length and two flags, like a WebSocket header.
func encode(piece []byte, first, last, _ bool) []byte {
	return fmt.Appendf(nil, "%08d%t,%t;%s", len(piece), first, last, piece)
}

// deflate stands for a compressing encoder: it changes each byte and marks the piece.
func deflate(piece []byte, first, last, _ bool) []byte {
	turned := slices.Clone(piece)
	for i := range turned {
		turned[i] ^= 1
	}
	return fmt.Appendf(nil, "%08d%t,%t,z;%s", len(piece), first, last, turned)
}

// inflate reverses deflate and joins the pieces. It reports whether the message is whole, and
// returns an error if pieces of a message have different forms.
func inflate(encoded []byte) (message []byte, whole bool, err error) {
	packed, begun := false, false
	var wrong error
	decode(encoded, func(payload, all []byte, first, last, _ bool) {
		z := bytes.Contains(all[:len(all)-len(payload)], []byte(",z;"))
		if first {
			packed, begun = z, true
		}
		if z != packed || !begun {
			wrong = fmt.Errorf("a piece is compressed: %t, and its message is compressed: %t; want both the same, and a first piece before it", z, packed)
		}
		for _, c := range payload {
			if z {
				c ^= 1
			}
			message = append(message, c)
		}
		whole = last
	})
	return message, whole, wrong
}

func decode(encoded []byte, piece func(payload, whole []byte, first, last, binary bool)) {
	for len(encoded) > 0 {
		var n int
		_, _ = fmt.Sscanf(string(encoded[:8]), "%d", &n)
		flags, _, _ := strings.Cut(string(encoded[8:]), ";")
		first, last, _ := strings.Cut(strings.TrimSuffix(flags, ",z"), ",")
		end := 8 + len(flags) + 1 + n
		piece(encoded[end-n:end:end], encoded[:end], first == "true", last == "true", false)
		encoded = encoded[end:]
	}
}

// A hostEnd is the host's end of an audience's connection. It records the messages.
type hostEnd struct {
	open   routing.Open
	client routing.ClientConn
	answer func(h *hostEnd, id, method, channel string, params json.RawMessage) // answers requests; may be nil

	mu     sync.Mutex
	got    []string
	credit int
	closed bool
}

func (w *world) open(open routing.Open, client routing.ClientConn) (Upstream, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return nil, w.broken
	}
	h := &hostEnd{open: open, client: client}
	w.hosts = append(w.hosts, h)
	return h, nil
}

// Send implements [Upstream].
func (h *hostEnd) Send(_ context.Context, message []byte) error {
	h.mu.Lock()
	h.got = append(h.got, string(message))
	answer := h.answer
	h.mu.Unlock()
	if env, err := ahp.Peek(message); answer != nil && err == nil && env.Kind == ahp.Request {
		answer(h, string(env.ID), string(env.Method), string(env.Channel), env.Params)
	}
	return nil
}

// Written implements [Upstream].
func (h *hostEnd) Written(credit int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credit += credit
}

// Close implements [Upstream].
func (h *hostEnd) Close(ahp.CloseCode, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
}

// say sends messages to the audience in one frame.
func (h *hostEnd) say(messages ...string) {
	var data []byte
	for _, m := range messages {
		data = append(data, encode([]byte(m), true, true, false)...)
	}
	h.client.Deliver([]routing.Frame{{Data: data, Messages: len(messages), Credit: len(data)}})
}

// messages returns what the host has received since the last call.
func (h *hostEnd) messages() []string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.got
	h.got = nil
	return got
}

// hostConn returns the n-th connection to the host, counted from 0. It fails if there is none.
func (w *world) hostConn(n int) *hostEnd {
	w.Helper()
	synctest.Wait()
	hosts := w.all()
	if len(hosts) <= n {
		w.Fatalf("there are %d connections at the host; want %d", len(hosts), n+1)
	}
	return hosts[n]
}

func (h *hostEnd) isClosed() bool {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed
}

// paid returns the credit that the audience has returned so far.
func (h *hostEnd) paid() int {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.credit
}

// A clientEnd is a viewer's client. It records messages, events and close codes.
type clientEnd struct {
	w *world
	v *Viewer

	mu     sync.Mutex
	got    []string
	piece  []byte
	events []routing.Event
	closed []ahp.CloseCode

	follows *toldCrowd // guarded by the pool's mutex
}

// enter connects a viewer for the link with a name and the permissions in open.
func (w *world) enter(name string, open routing.Open) *clientEnd {
	c := &clientEnd{w: w}
	c.v = w.pool.Enter(name, open, c, false)
	return c
}

var look = routing.Open{Access: "read", Channels: []string{"mock:/1"}}

// begun connects a viewer that has sent initialize with channels as its subscriptions. It does not
// wait for the answer.
func (w *world) begun(clientID string, channels ...string) *clientEnd {
	c := w.enter("link", look)
	c.send(hello(clientID, channels...))
	return c
}

func hello(clientID string, channels ...string) string {
	list, _ := json.Marshal(append([]string{}, channels...))
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"channel":"ahp-root://","clientId":%q,"protocolVersions":["1.0.0"],"capabilities":{"canvas":{}},"initialSubscriptions":%s}}`, clientID, list)
}

// Event implements [routing.ClientConn].
func (c *clientEnd) Event(e routing.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
}

// Deliver implements [routing.ClientConn].
func (c *clientEnd) Deliver(frames []routing.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range frames {
		n := 0
		decode(f.Data, func(payload, _ []byte, first, last, _ bool) {
			if first != (len(c.piece) == 0) {
				c.w.Errorf("a piece is marked as its message's first: %t, behind the pieces %q; want the mark exactly when no piece is pending", first, c.piece)
			}
			if c.piece = append(c.piece, payload...); last {
				c.got = append(c.got, string(c.piece))
				c.piece = nil
				n++
			}
		})
		if n != f.Messages {
			c.w.Errorf("a frame has %d messages; want the %d in its header", n, f.Messages)
		}
	}
}

// Closed implements [routing.ClientConn].
func (c *clientEnd) Closed(code ahp.CloseCode, _ string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = append(c.closed, code)
}

// closes returns the close codes that the viewer has received: at most one.
func (c *clientEnd) closes() []ahp.CloseCode {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *clientEnd) send(message string) {
	c.w.Helper()
	if err := c.v.Send(context.Background(), []byte(message)); err != nil {
		c.w.Errorf("sending %s: %v; want no error", message, err)
	}
}

// ask sends a request.
func (c *clientEnd) ask(id any, method, params string) {
	c.w.Helper()
	raw, _ := json.Marshal(id)
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, raw, method, params))
}

// messages returns what the viewer has received since the last call.
func (c *clientEnd) messages() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	got := c.got
	c.got = nil
	return got
}

// want fails unless the viewer has received exactly these messages since the last call of want or
// messages.
func (c *clientEnd) want(want ...string) {
	c.w.Helper()
	if got := c.messages(); !slices.Equal(got, want) {
		c.w.Errorf("the viewer got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// action returns the text of an action with a serverSeq.
func action(channel string, seq int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":%q,"action":{"type":"chat/delta"},"serverSeq":%d}}`, channel, seq)
}

// snapshot returns the JSON of a channel's snapshot with a fromSeq.
func snapshot(channel string, seq int) string {
	return fmt.Sprintf(`{"resource":%q,"state":{"n":%d},"fromSeq":%d}`, channel, seq, seq)
}

func result(id any, result string) string {
	raw, _ := json.Marshal(id)
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, raw, result)
}

// greets is a host's answer to initialize.
const greets = `{"protocolVersion":"1.0.0","serverSeq":5,"snapshots":[],"serverInfo":{"name":"x"},"later":[1, 2]}`

// greeted returns the answer to a viewer's initialize, with a serverSeq and snapshots.
func greeted(seq int, snapshots ...string) string {
	return result("hello", fmt.Sprintf(`{"protocolVersion":"1.0.0","serverInfo":{"name":"x"},"later":[1, 2],"serverSeq":%d,"snapshots":[%s]}`, seq, strings.Join(snapshots, ",")))
}

// spaced waits for the time spacing, after which the audience may send an equal request again.
func spaced() {
	time.Sleep(spacing)
	synctest.Wait()
}

// A toldCrowd is a Crowd that delivers each message to its clients. At every fifth call of Tell, a
// client has left by itself.
type toldCrowd struct {
	w       *world
	clients []*clientEnd
	left    []routing.ClientConn
}

func (w *world) crowd() Crowd { return &toldCrowd{w: w} }

// Tell implements [Crowd].
func (c *toldCrowd) Tell(messages [][]byte, _ int64) (left []routing.ClientConn) {
	if c.w.told++; c.w.told%5 == 0 && len(c.clients) > 0 {
		c.left = append(c.left, c.clients[0])
		c.clients[0].Part()
	}
	for _, client := range c.clients {
		for _, m := range messages {
			client.Deliver([]routing.Frame{{Data: encode(m, true, true, false), Messages: 1}})
		}
	}
	left, c.left = c.left, nil
	return left
}

// Judge implements [Crowd].
func (c *toldCrowd) Judge(message []byte, _ *ahp.Envelope) Verdict {
	if len(message)%7 == 0 {
		return ToEach
	}
	return ToAll
}

// End implements [Crowd].
func (c *toldCrowd) End() {
	if len(c.clients) > 0 {
		c.w.Error("a crowd with clients ends; want it empty")
	}
}

// Follow implements [Follower].
func (c *clientEnd) Follow(to Crowd) bool {
	if c.v.deflates {
		return false
	}
	c.follows = to.(*toldCrowd)
	c.follows.clients = append(c.follows.clients, c)
	c.follows.left = slices.DeleteFunc(c.follows.left, func(other routing.ClientConn) bool { return other == c })
	return true
}

// Part implements [Follower].
func (c *clientEnd) Part() {
	if c.follows != nil {
		c.follows.clients = slices.DeleteFunc(c.follows.clients, func(other *clientEnd) bool { return other == c })
		c.follows = nil
	}
}
