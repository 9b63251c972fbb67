package routing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// A queue passes values to a single reader in order. Any goroutine may push.
type queue[T any] struct {
	mu     sync.Mutex
	items  []T
	closed bool
	wake   chan struct{}
}

func newQueue[T any]() *queue[T] { return &queue[T]{wake: make(chan struct{}, 1)} }

func (q *queue[T]) push(v T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, v)
	q.signal()
}

// close ends the queue. The reader still gets the values pushed before.
func (q *queue[T]) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}

func (q *queue[T]) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take returns the next value; ok is false when the queue is closed and empty, or ctx
// has ended.
func (q *queue[T]) take(ctx context.Context) (v T, ok bool) {
	for ctx.Err() == nil {
		q.mu.Lock()
		if len(q.items) > 0 {
			v, q.items = q.items[0], q.items[1:]
			q.mu.Unlock()
			return v, true
		}
		closed := q.closed
		q.mu.Unlock()
		if closed {
			return v, false
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
		}
	}
	return v, false
}

// more returns at most most values from the front of the queue, up to the first that want refuses.
// It does not wait.
func (q *queue[T]) more(most int, want func(T) bool) (next []T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(next) < most && len(q.items) > 0 && want(q.items[0]) {
		next, q.items = append(next, q.items[0]), q.items[1:]
	}
	return next
}

// A pace is the speed of a reader: it waits for lag before each message, or reads nothing while it
// is stalled.
type pace struct {
	mu      sync.Mutex
	lag     time.Duration
	stalled bool
	change  chan struct{}

	since   time.Time // start of the stall
	longest time.Duration
	slow    bool // the reader was slow or stalled at least once
}

func (p *pace) set(lag time.Duration, stalled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled {
		p.longest = max(p.longest, time.Since(p.since))
	}
	if stalled && !p.stalled {
		p.since = time.Now()
	}
	p.slow = p.slow || stalled || lag > 0
	p.lag, p.stalled = lag, stalled
	if p.change != nil {
		close(p.change)
		p.change = nil
	}
}

// was returns whether the reader was ever slow or stalled, and its longest stall.
func (p *pace) was() (slow bool, longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled {
		return true, max(p.longest, time.Since(p.since))
	}
	return p.slow, p.longest
}

// wait waits until the reader may take the next message, or ctx ends.
func (p *pace) wait(ctx context.Context) {
	for {
		p.mu.Lock()
		lag, stalled := p.lag, p.stalled
		if stalled && p.change == nil {
			p.change = make(chan struct{})
		}
		change := p.change
		p.mu.Unlock()
		if !stalled {
			if lag > 0 {
				time.Sleep(lag)
			}
			return
		}
		select {
		case <-change:
		case <-ctx.Done():
			return
		}
	}
}

// A modelHost is the host. Under its lock it decides which messages each connection sends. Each
// connection's goroutine then sends them later at its own speed, as with real sockets.
type modelHost struct {
	world *modelWorld

	mu    sync.Mutex
	conns map[string]*modelConn            // by connection id, including ended connections
	order []*modelConn                     // the same connections in order of opening
	seqs  map[int]int                      // by channel
	dice  *rand.Rand                       // for random delays and for forgotten notifications
	known map[string]*routing.Notification // notifications already made, by host-agent and frame
}

// An emission is a message or a close which the host sends on a connection.
type emission struct {
	frame    []byte
	binary   bool
	channel  string // channel of a notification; "": no notification
	from, to int    // place in frame of content for several clients; to is 0: none
	ready    bool   // this frame is the answer to hello: Ready is called before it
	close    ahp.CloseCode
	reason   string
	after    time.Duration
	enter    *modelCrowd // in place of a message: the connection enters this crowd if it can
}

// A modelCrowd is a crowd with its members as the host knows them.
type modelCrowd struct {
	out *routing.Crowd

	mu      sync.Mutex // held during each change and message, so that they have one order; before modelConn.mu
	members map[*modelConn]bool
	bytes   atomic.Int64 // of all messages so far, with a cost for each
	over    bool
}

// maxTold bounds modelCrowd.bytes: a crowd's messages wait for no credit.
const maxTold = 256 << 10

// crowdStalls is the close reason for the members of a crowd that a relay takes too slowly.
const crowdStalls = "slow consumer: the relay takes nothing"

// enterCrowd makes the connection a member if it may enter within 200 ms. It first leaves its
// present crowd.
func (c *modelConn) enterCrowd(crowd *modelCrowd, size int) {
	for range 5 {
		if c.tryCrowd(crowd, size) {
			return
		}
		time.Sleep(40 * time.Millisecond)
	}
}

func (c *modelConn) tryCrowd(crowd *modelCrowd, size int) bool {
	c.seat.Lock()
	defer c.seat.Unlock()
	c.leaveCrowd()
	crowd.mu.Lock()
	defer crowd.mu.Unlock()
	message := frame("enters "+c.id, 0, size)
	if crowd.over || !crowd.out.MayEnter(c.conn) || crowd.out.Enter(c.conn, message) != nil {
		return crowd.over
	}
	crowd.members[c] = true
	crowd.told(len(message))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, message)
	c.crowd, c.crowds = crowd, append(c.crowds, crowd)
	return true
}

// leaveCrowd takes the connection out of its crowd, if it is in one. The seat is held.
func (c *modelConn) leaveCrowd() {
	crowd := c.crowd
	if crowd == nil {
		return
	}
	crowd.mu.Lock()
	defer crowd.mu.Unlock()
	delete(crowd.members, c)
	c.crowd = nil
	message := frame("leaves "+c.id, 0, 0)
	if crowd.out.Leave(c.conn, message) == nil {
		crowd.told(len(message))
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sent = append(c.sent, message)
	}
}

func (crowd *modelCrowd) told(n int) { crowd.bytes.Add(int64(n + 128)) }

// tell sends n messages to all members.
func (h *modelHost) tell(crowd *modelCrowd, words string, size, n int) {
	crowd.mu.Lock()
	defer crowd.mu.Unlock()
	var messages [][]byte
	for range n {
		before := int(crowd.bytes.Load())
		if before+size > maxTold {
			break
		}
		messages = append(messages, frame("told "+words, before, size))
		crowd.told(size)
	}
	for c := range crowd.members {
		c.mu.Lock()
		c.sent = append(c.sent, messages...)
		c.mu.Unlock()
	}
	crowd.out.Tell(messages)
}

// endCrowds takes all connections out of a host-agent's crowds, for good.
func (h *modelHost) endCrowds(crowds []*modelCrowd) {
	for _, crowd := range crowds {
		crowd.mu.Lock()
		crowd.over = true
		members := slices.Collect(maps.Keys(crowd.members))
		crowd.mu.Unlock()
		for _, c := range members {
			c.seat.Lock()
			c.leaveCrowd()
			c.seat.Unlock()
		}
	}
}

// A modelConn is the host's end of a connection.
type modelConn struct {
	host  *modelHost
	conn  *routing.AgentConn
	agent string
	id    string
	out   *queue[emission]
	in    *queue[arrived]
	pace  pace

	mu       sync.Mutex
	version  int
	channels map[int]bool
	sent     [][]byte // messages that the host-agent accepted
	got      [][]byte
	total    int // total size of sent, with a cost for each message
	flushes  []flush
	full     bool // the host-agent returned ErrStalled
	over     bool // the host-agent returned another error: the client has gone
	closing  ahp.CloseCode
	reason   string        // close reason beside closing
	gone     bool          // Closed was called
	dead     bool          // its host-agent was killed
	cut      bool          // routing has closed it with its crowd
	told     int           // number of messages in the reports so far
	own      int           // number of sent messages beside those of crowds
	crowds   []*modelCrowd // all crowds that it was in

	seat  sync.Mutex  // held while the connection enters or leaves a crowd, or must be in none; before modelCrowd.mu
	crowd *modelCrowd // guarded by seat
}

type arrived struct {
	message []byte // nil: a flush
	credit  int
}

// A flush is recorded when a client's flush reaches the host: the numbers of messages which the
// host had received and sent by then.
type flush struct{ got, sent int }

// connect returns the Connect function for the named host-agent: it records a modelConn for each
// connection.
func (h *modelHost) connect(agent string) func(*routing.AgentConn, routing.Open) routing.HostConn {
	return func(conn *routing.AgentConn, open routing.Open) routing.HostConn {
		c := &modelConn{
			host: h, conn: conn, agent: agent, id: open.ID, channels: map[int]bool{},
			out: newQueue[emission](), in: newQueue[arrived](),
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.conns[open.ID] != nil {
			h.world.fail("connection %s opened twice", open.ID)
		}
		h.conns[open.ID] = c
		h.order = append(h.order, c)
		h.world.wg.Go(func() {
			if conn.Opened() == nil {
				h.world.wg.Go(c.readLoop)
				c.sendLoop()
			}
		})
		return c
	}
}

func (h *modelHost) conn(id string) *modelConn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conns[id]
}

// live returns the connections which are open and whose host-agent runs.
func (h *modelHost) live() (list []*modelConn) {
	for _, c := range h.order {
		if c.alive() {
			list = append(list, c)
		}
	}
	return list
}

func (c *modelConn) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone && c.closing == 0 && !c.over && !c.full && !c.dead
}

// Deliver implements [routing.HostConn].
func (c *modelConn) Deliver(message []byte, _ bool, credit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		c.host.world.fail("%s: a message for the host after Closed", c.id)
	}
	c.in.push(arrived{message, credit})
}

// Flush implements [routing.HostConn].
func (c *modelConn) Flush() { c.in.push(arrived{}) }

// Closed implements [routing.HostConn].
func (c *modelConn) Closed(_ ahp.CloseCode, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		c.host.world.fail("%s: Closed twice at the host", c.id)
	}
	c.gone, c.cut = true, reason == crowdStalls
	c.in.close()
	c.out.close()
}

// emit queues an emission with a random delay. The host's lock is held.
func (h *modelHost) emit(c *modelConn, e emission) {
	e.after = time.Duration(h.dice.IntN(4)) * 20 * time.Microsecond
	c.out.push(e)
}

func (c *modelConn) sendLoop() {
	life := c.host.world.life
	for {
		if err := c.conn.Wait(life.Done()); err != nil {
			c.noteSent(nil, err)
			return
		}
		e, ok := c.out.take(life)
		if !ok {
			return
		}
		time.Sleep(e.after)
		if e.enter != nil {
			c.enterCrowd(e.enter, e.to)
			continue
		}
		c.seat.Lock()
		c.leaveCrowd()
		c.seat.Unlock()
		if len(e.frame) > routing.Reserved && c.conn.Reserve(life.Done(), len(e.frame)) != nil {
			c.noteSent(nil, routing.ErrConnClosed)
			return
		}
		if e.close != 0 {
			c.conn.Close(e.close, e.reason)
			return
		}
		if e.ready {
			_ = c.conn.Ready()
		}
		more := c.send(e)
		c.conn.Unreserve()
		if !more {
			return
		}
	}
}

// longestRow bounds the number of notifications in a row, which is a single call of Notify.
const longestRow = 5

// mayShare reports whether an emission is a plain notification, which may be part of a row.
func mayShare(e emission) bool {
	return e.channel != "" && !e.binary && e.to == 0 && e.close == 0 && !e.ready
}

// sendRow passes a notification to the host-agent, together with the notifications directly behind
// it in the queue. It reports whether the connection may send more.
func (c *modelConn) sendRow(first emission) bool {
	row := append([]emission{first}, c.out.more(longestRow-1, mayShare)...)
	notifications := make([]*routing.Notification, len(row))
	c.host.mu.Lock()
	for i, e := range row {
		key := c.agent + " " + string(e.frame[:min(len(e.frame), 60)]) // only dots follow
		n := c.host.known[key]
		if n == nil || c.host.dice.IntN(4) == 0 { // new, or made anew as if it had been forgotten
			n = routing.NewNotification(bytes.Clone(e.frame), []byte(e.channel))
			c.host.known[key] = n
		}
		notifications[i] = n
	}
	c.host.mu.Unlock()
	taken, due, err := c.conn.Notify(notifications)
	if due {
		c.conn.Send()
	}
	var sent [][]byte
	for _, e := range row[:taken] {
		sent = append(sent, e.frame)
	}
	return c.noteSent(sent, err)
}

// send passes an emission's frame to the host-agent, and reports whether the connection may send
// more.
func (c *modelConn) send(e emission) bool {
	if mayShare(e) && !c.host.world.bounds.Sealed {
		return c.sendRow(e)
	}
	var channel []byte
	if e.channel != "" && !c.host.world.bounds.Sealed {
		channel = []byte(e.channel)
	}
	sent := bytes.Clone(e.frame)
	var err error
	if e.to > 0 {
		err = c.conn.FromHostWith(e.frame, e.from, e.to)
	} else {
		err = c.conn.FromHost(e.frame, e.binary, channel)
	}
	if err != nil {
		return c.noteSent(nil, err)
	}
	return c.noteSent([][]byte{sent}, nil)
}

// noteSent records messages that the host-agent accepted, and the error that ended the sending, if
// any. It reports whether the connection may send more.
func (c *modelConn) noteSent(sent [][]byte, err error) bool {
	if errors.Is(err, routing.ErrStalled) {
		c.conn.Abort(ahp.CloseOverloaded, "slow consumer")
	}
	defer c.conn.Report(c.report)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, sent...)
	c.own += len(sent)
	for _, frame := range sent {
		c.total += len(frame) + 128
	}
	if err == nil {
		return true
	}
	c.full = errors.Is(err, routing.ErrStalled)
	c.over = !c.full
	return false
}

// report returns a Report with the number of messages sent, in total and since the previous report.
func (c *modelConn) report() routing.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := routing.Report{Conn: c.id, State: fmt.Appendf(nil, `{"sent":%d}`, c.own)}
	if n := c.own - c.told; n > 0 {
		r.Counts = []routing.Count{{Kind: "frame", Class: "sent", N: int64(n)}}
	}
	c.told = c.own
	return r
}

func (c *modelConn) readLoop() {
	life := c.host.world.life
	for {
		a, ok := c.in.take(life)
		if !ok {
			return
		}
		c.pace.wait(life)
		if a.message == nil {
			c.seat.Lock()
			c.leaveCrowd() // so that the answer follows the crowd's messages
			c.mu.Lock()
			c.flushes = append(c.flushes, flush{len(c.got), len(c.sent)})
			c.mu.Unlock()
			_ = c.conn.Flushed(false)
			c.seat.Unlock()
			continue
		}
		c.mu.Lock()
		c.got = append(c.got, a.message)
		c.mu.Unlock()
		c.conn.Written(a.credit)
		c.host.serve(c, a.message)
	}
}

// serve performs a client's request, for example "sub 2 300": a verb, a number, and the size of the
// answer.
func (h *modelHost) serve(c *modelConn, message []byte) {
	var verb string
	var number, size int
	if _, err := fmt.Sscanf(string(message[:min(len(message), 60)]), "%s %d %d", &verb, &number, &size); err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch verb {
	case "hello":
		c.version = number
		h.emit(c, emission{frame: frame("welcome", number, 0), ready: true})
	case "sub":
		c.channels[number] = true
		h.emit(c, emission{frame: frame(fmt.Sprint("snapshot ", h.seqs[number]), number, size)})
	case "read":
		prefix := "content for " + c.id + ": "
		text := frameAfter(prefix, "file", number, size)
		h.emit(c, emission{frame: append(text, contentEnd...), from: len(prefix), to: len(text)})
	case "unsub":
		delete(c.channels, number)
	case "ask":
		h.emit(c, emission{frame: frame("answer", number, size), binary: number%7 == 3})
	}
}

// contentEnd follows the content in a response.
const contentEnd = " end"

var dots = bytes.Repeat([]byte{'.'}, 4096)

// frame returns a message with words, number and size, padded with dots to size bytes.
func frame(words string, number, size int) []byte {
	return frameAfter("", words, number, size)
}

// frameAfter returns a frame behind a prefix, with room for a few bytes more. It fills one buffer:
// under the race detector, each copy of a large message takes long.
func frameAfter(prefix, words string, number, size int) []byte {
	text := make([]byte, 0, len(prefix)+max(size, 64+len(words))+len(contentEnd))
	text = append(text, prefix...)
	text = fmt.Appendf(text, "%s %d %d ", words, number, size)
	for n := len(prefix) + size; len(text) < n; {
		text = append(text, dots[:min(n-len(text), len(dots))]...)
	}
	return text
}

// event sends a notification to all connections subscribed to a channel, in the form for each
// connection's version. It returns their number.
func (h *modelHost) event(channel, size int, tag string) (told int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seqs[channel]++
	var forms [2][]byte
	for _, c := range h.live() {
		c.mu.Lock()
		version, subscribed := c.version, c.channels[channel]
		c.mu.Unlock()
		if !subscribed {
			continue
		}
		told++
		if forms[version] == nil {
			forms[version] = frame(fmt.Sprintf("action v%d c%d%s", version, channel, tag), h.seqs[channel], size)
		}
		// Each connection gets its own copy, as with messages from sockets.
		h.emit(c, emission{frame: bytes.Clone(forms[version]), channel: fmt.Sprint("ahp-chat:/", channel)})
	}
	return told
}

// askClients sends the same request, with the same id, on each open connection.
func (h *modelHost) askClients(number, size int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.live() {
		h.emit(c, emission{frame: frame("request", number, size)})
	}
}

// closeConn makes the host close a connection, behind all messages queued for it.
func (h *modelHost) closeConn(c *modelConn, code ahp.CloseCode, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.mu.Lock()
	c.closing, c.reason = code, reason
	c.mu.Unlock()
	h.emit(c, emission{close: code, reason: reason})
}

// restart acts like a restarted host: it closes all connections, and numbers events from 1 again.
func (h *modelHost) restart() {
	h.mu.Lock()
	list := h.live()
	clear(h.seqs)
	h.mu.Unlock()
	for _, c := range list {
		h.closeConn(c, ahp.CloseHostOffline, "host restarts")
	}
}

// A client is a client at a relay. It records what it sends and receives.
type client struct {
	world   *modelWorld
	relay   *relayProcess
	link    *routing.RelayEnd
	id      string
	conn    *routing.RelayConn
	in      *queue[routing.Frame]
	out     *queue[[]byte]
	pace    pace
	limit   int // most bytes that may wait in queue in, if the host-agent respects the credit
	version int
	begin   chan struct{} // closed at the event Opened, or when the connection ends

	mu      sync.Mutex
	sent    [][]byte
	asked   int // number of messages passed to send
	got     [][]byte
	partial [][]byte
	middle  bool
	queued  int
	opened  bool
	flushes []int // number of messages sent before each flush
	flushed []int // number of messages delivered before each answer to a flush
	whole   int   // number of messages delivered
	ready   int   // number of messages delivered before the event Ready; -1: no Ready
	code    ahp.CloseCode
	reason  string
	left    bool // the client closed the connection itself
	shut    bool // the client has closed: nothing more may be delivered
	killed  bool // the client ended together with its relay
}

// dial opens a client's connection at a relay and returns the client, or nil if the relay has no
// link.
func (w *modelWorld) dial(p *relayProcess, version int) *client {
	relay := p.current()
	if relay == nil {
		return nil
	}
	c := &client{
		world: w, relay: p, link: relay, id: w.name("conn"), version: version,
		in: newQueue[routing.Frame](), out: newQueue[[]byte](), limit: orDefault(w.bounds.RelayCredit, 1<<20) + 3<<20, ready: -1, begin: make(chan struct{}),
	}
	c.mu.Lock() // the relay may call before c.conn is set
	conn, err := relay.Open(routing.Open{ID: c.id, Subject: "ada"}, c)
	c.conn = conn
	c.mu.Unlock()
	if err != nil {
		return nil // the link has just ended
	}
	w.mu.Lock()
	w.clients = append(w.clients, c)
	w.mu.Unlock()
	w.wg.Go(c.readLoop)
	w.wg.Go(c.sendLoop)
	c.send(frame("hello", version, 0))
	return c
}

// maxClients bounds the number of clients in a run. Ended clients count.
const maxClients = 24

// comeBack connects a new client in place of a closed one, as soon as the relay has a link. It
// gives up after 10 s.
func (c *client) comeBack() {
	w := c.world
	for range 100 {
		if len(w.everybody()) >= maxClients || w.life.Err() != nil {
			return
		}
		if next := w.dial(c.relay, c.version); next != nil {
			next.send(frame("sub", 0, 300))
			next.send(frame("sub", 1, 0))
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// everybody returns all clients, including ended clients.
func (w *modelWorld) everybody() []*client {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.clients)
}

// flush queues a flush behind the client's messages.
func (c *client) flush() { c.out.push(nil) }

// send queues a message from the client.
func (c *client) send(message []byte) {
	c.mu.Lock()
	c.asked++
	c.mu.Unlock()
	c.out.push(message)
}

func (c *client) sendLoop() {
	select {
	case <-c.begin:
	case <-c.world.life.Done():
		return
	}
	for {
		m, ok := c.out.take(c.world.life)
		if !ok {
			break
		}
		if m == nil {
			c.mu.Lock()
			c.flushes = append(c.flushes, len(c.sent))
			c.mu.Unlock()
			c.conn.Flush()
			continue
		}
		if err := c.conn.Send(c.world.life, m); err != nil {
			return
		}
		c.mu.Lock()
		c.sent = append(c.sent, m)
		c.mu.Unlock()
	}
	if c.world.life.Err() == nil {
		c.close(1000)
	}
}

func (c *client) close(code ahp.CloseCode) {
	c.conn.Close(code, "bye")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shut = true
}

// leave closes the connection when all queued messages are sent.
func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	c.out.close()
}

// Event implements [routing.ClientConn].
func (c *client) Event(e routing.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.code != 0 || c.shut || c.opened == (e == routing.Opened) {
		c.world.fail("%s: event %d before Opened, after Closed or twice", c.id, e)
	}
	switch e {
	case routing.Opened:
		c.opened = true
		close(c.begin)
	case routing.Ready:
		c.ready = c.whole
	case routing.Flushed:
		c.flushed = append(c.flushed, c.whole)
	}
}

// Deliver implements [routing.ClientConn].
func (c *client) Deliver(frames []routing.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.code != 0 || c.shut || !c.opened {
		c.world.fail("%s: output before Opened or after Closed", c.id)
	}
	for _, f := range frames {
		whole := c.whole
		pieces(f.Data, func(flags byte, _ []byte) {
			if flags&2 != 0 {
				c.whole++
			}
		})
		if c.whole != whole+f.Messages {
			c.world.fail("%s: output with %d messages that says %d", c.id, c.whole-whole, f.Messages)
		}
		c.in.push(f)
		c.queued += len(f.Data)
	}
	if c.queued > c.limit {
		c.world.fail("%s: %d bytes wait for it", c.id, c.queued)
	}
}

// Closed implements [routing.ClientConn].
func (c *client) Closed(code ahp.CloseCode, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.code != 0 {
		c.world.fail("%s: Closed twice", c.id)
	}
	if !c.opened {
		close(c.begin)
	}
	c.code, c.reason = code, reason
	c.in.close()
	c.out.close()
	if !c.killed && c.version == 0 {
		c.world.wg.Go(c.comeBack)
	}
}

func (c *client) readLoop() {
	for {
		f, ok := c.in.take(c.world.life)
		if !ok {
			return
		}
		c.pace.wait(c.world.life)
		c.mu.Lock()
		c.queued -= len(f.Data)
		pieces(f.Data, c.take)
		c.mu.Unlock()
		if f.Credit > 0 {
			c.conn.Written(f.Credit)
		}
		if f.Credit%3 == 0 {
			c.conn.Progress()
		}
	}
}

// take adds a piece to the incomplete message, and records a complete message. It answers a
// request.
func (c *client) take(flags byte, piece []byte) {
	first, last := flags&1 != 0, flags&2 != 0
	if first == c.middle {
		c.world.fail("%s: piece with flags %d, in the middle of a message: %v", c.id, flags, c.middle)
	}
	c.partial = append(c.partial, piece)
	c.middle = !last
	if !last {
		return
	}
	message := joined(c.partial)
	c.partial = nil
	c.got = append(c.got, message)
	if number, ok := strings.CutPrefix(string(message[:min(len(message), 40)]), "request "); ok && !c.endedLocked() {
		c.asked++
		c.out.push(frame("response "+strings.Fields(number)[0], 1, 0))
	}
}
