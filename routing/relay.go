package routing

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
	"ahprelay/internal/lockorder"
)

// A Frame is output for a client: encoded by functions of a [RelayEndConfig], or bytes of a
// stream. Its bytes may be shared and must not be changed.
type Frame struct {
	Data     []byte
	Messages int // messages that end in the frame
	Credit   int // argument for [RelayConn.Written] once the frame is written

	// Shared is the memory behind Data if several clients receive it, else nil.
	Shared *Shared
}

// A Shared is memory behind frames for several clients.
type Shared struct {
	Size int // bytes

	// Holders counts the frame queues that hold this memory. The queues' owners update it.
	Holders atomic.Int32
}

// Join appends next to the frame if next follows it directly in the same shared memory, and
// reports whether it did.
func (f *Frame) Join(next Frame) bool {
	n := len(f.Data)
	if f.Shared == nil || f.Shared != next.Shared || cap(f.Data)-n < len(next.Data) || len(next.Data) == 0 || &f.Data[:n+1][n] != &next.Data[0] {
		return false
	}
	f.Data = f.Data[:n+len(next.Data)]
	f.Messages += next.Messages
	f.Credit += next.Credit
	return true
}

// A ClientConn is a client's connection at the relay. The link's reader calls its methods,
// which must not block, nor call back into the [RelayConn].
type ClientConn interface {
	// Event takes an event from the host-agent.
	Event(e Event)

	// Deliver queues output for the client. It may keep the frames, but not the slice.
	Deliver(frames []Frame)

	// Closed reports that the connection has ended, and why. The relay still writes the
	// messages queued before.
	Closed(code ahp.CloseCode, reason string)
}

// An Event is a host-agent's report about a client's connection.
type Event int

const (
	Opened  Event = iota // the host accepts messages
	Ready                // the host has accepted the client's initialize or reconnect
	Probe                // the client has connected again: check whether this older connection is alive
	Flushed              // the host has all messages sent before the Flush, and the host's earlier messages are delivered
	Moved                // like Flushed, for a Move: the host-agent keeps the connection, and stores all later messages from the host
)

// A RelayEndConfig sets the bounds of a [RelayEnd]. A zero field means its default.
type RelayEndConfig struct {
	Agent string // the host-agent's instance

	// Encode returns the output for a message, or for a piece of a message. The output of a
	// piece can be written before the next piece arrives.
	Encode func(piece []byte, first, last, binary bool) []byte

	// Append appends the output for a complete message. Default: it calls Encode.
	Append func(b, message []byte, binary bool) []byte

	// EncodeIn encodes the complete message buffer[at:]. It may overwrite all of buffer.
	// Default: Encode.
	EncodeIn func(buffer []byte, at int, binary bool) []byte

	Credit       int // bytes the host-agent may send ahead on each new connection; default 1 MiB
	MostCredit   int // the same, for a connection whose client reads: see Lend; default Credit
	MaxFrame     int // longest message in bytes; default 128 MiB
	QueueLimit   int // bytes queued for the host on each connection before Send waits; default 256 KiB
	BodyLimit    int // bytes of bodies held; default 32 MiB
	ChunkLimit   int // bytes of chunks held; default 64 MiB
	PendingLimit int // bytes waiting for a missing body, for each connection; default 8 MiB

	// Queued is called with each change of the bytes queued for the host. It runs under
	// locks and must not block. May be nil.
	Queued func(n int)

	// Kept is called with each change of the bytes stored in bodies, chunks, unread byte
	// streams, and queues that wait for missing bodies. It runs under locks and must not block. May be nil.
	Kept func(n int)

	// Lend reserves n bytes of credit beyond Credit, and reports whether they were
	// available. A negative n gives bytes back. With n = 0 it reports whether the last
	// reservation for any connection succeeded. It is called under locks and must not
	// block. Default: always succeeds.
	Lend func(n int) bool

	// Hold may block for some seconds because memory is short. It is called before records
	// that take memory, without locks. May be nil.
	Hold func()

	// Feed publishes a piece of a notification on a channel's NATS subject, where other
	// programs read it. It is called under locks, must not block, and must not keep the
	// piece's data. Default: nothing is published.
	Feed func(token string, p Piece)

	// Report receives the host-agent's report about a connection, even after that
	// connection has ended. It is called under locks and must not block. May be nil.
	Report func(Report)
}

func (c RelayEndConfig) withDefaults() RelayEndConfig {
	c.Credit = cmp.Or(c.Credit, 1<<20)
	c.MostCredit = max(c.MostCredit, c.Credit)
	if c.Lend == nil {
		c.Lend = func(int) bool { return true }
	}
	c.MaxFrame = cmp.Or(c.MaxFrame, 128<<20)
	c.QueueLimit = cmp.Or(c.QueueLimit, 256<<10)
	c.BodyLimit = cmp.Or(c.BodyLimit, 32<<20)
	c.ChunkLimit = cmp.Or(c.ChunkLimit, 64<<20)
	if c.Append == nil {
		c.Append = func(b, message []byte, binary bool) []byte {
			return append(b, c.Encode(message, true, true, binary)...)
		}
	}
	if c.EncodeIn == nil {
		c.EncodeIn = func(buffer []byte, at int, binary bool) []byte { return c.Encode(buffer[at:], true, true, binary) }
	}
	c.PendingLimit = cmp.Or(c.PendingLimit, 8<<20)
	if c.Kept == nil {
		c.Kept = func(int) {}
	}
	return c
}

// Bounds of the memory that a host-agent can occupy at a relay. A host-agent without faults
// stays below them.
const (
	maxMissingSlots = 1 << 20 // slots for missing bodies in rows
	maxControl      = 1 << 18 // control records waiting to leave
)

// A RelayEnd is the relay's end of one link. It assembles each client's stream from frames,
// references and bodies. It implements [link.RelayTraffic] and is safe for concurrent use.
type RelayEnd struct {
	cfg RelayEndConfig

	mu         lockorder.Mutex[lockorder.Routing] // guards the fields below and the connections
	lines      link.RelayLines
	mux        mux
	credit     int  // bytes that may be sent ahead on each connection
	sealed     bool // bodies are binary messages
	conns      map[uint64]*RelayConn
	crowds     map[uint64]*relayCrowd // that have connections at this relay
	numbers    connNumbers
	bodies     bodyStore
	chunks     chunkStore
	watched    map[uint64]string // watch number to token
	awaited    awaitedBodies
	incomplete map[uint64]int // for each packet, the number of its rows that wait for bodies
	ended      error

	packet uint64 // the packet being handled
	budget int    // references that the remaining records of the packet may contain
	list   []uint64
	set    []*RelayConn
	tags   entryTags // of the connections of set
	frames []Frame   // scratch
	run    [][]byte  // scratch
	feed   feed
	rows   int // entries that follow in the refs record, at most mostRows
	block  block
}

// NewRelayEnd returns a RelayEnd; Start joins it to its link.
func NewRelayEnd(cfg RelayEndConfig) *RelayEnd {
	cfg = cfg.withDefaults()
	return &RelayEnd{
		cfg: cfg, mux: mux{count: cfg.Queued}, conns: map[uint64]*RelayConn{}, crowds: map[uint64]*relayCrowd{},
		bodies: bodyStore{limit: cfg.BodyLimit, frames: map[uint64]Frame{}, kept: cfg.Kept},
		chunks: chunkStore{limit: cfg.ChunkLimit, chunks: map[uint64]*storedChunk{}, kept: cfg.Kept},
		feed:   feed{publish: cfg.Feed}, watched: map[uint64]string{}, awaited: awaitedBodies{slots: map[uint64][]missingSlot{}}, incomplete: map[uint64]int{},
	}
}

// Hello returns the bounds and features announced to the host-agent.
func (r *RelayEnd) Hello() link.Hello {
	return link.Hello{Credit: r.cfg.Credit, MaxFrame: r.cfg.MaxFrame, Chunks: r.cfg.ChunkLimit, Features: []string{link.FeatureSealed, link.FeatureTags, link.FeatureCrowds}}
}

// Start attaches the RelayEnd to its link. Call it before the link calls the RelayEnd.
func (r *RelayEnd) Start(answer link.Hello, lines link.RelayLines) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines, r.credit, r.sealed = lines, min(answer.Credit, maxCredit), answer.Has(link.FeatureSealed)
}

// ErrTooManyConns reports that a link has no free connection number.
var ErrTooManyConns = errors.New("too many connections")

// Open makes the host-agent connect a client to the host. The client then gets the event
// Opened, or Closed.
func (r *RelayEnd) Open(open Open, client ClientConn) (*RelayConn, error) {
	return r.open(open, client, false)
}

func (r *RelayEnd) open(open Open, client ClientConn, ofBytes bool) (*RelayConn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil {
		return nil, r.ended
	}
	number, err := r.numbers.take()
	if err != nil {
		return nil, err
	}
	c := &RelayConn{
		relay: r, client: client,
		stream: stream{conn: number, credit: r.credit, window: r.cfg.Credit, room: make(chan struct{}, 1)},
		bytes:  ofBytes,
		binary: open.Sealed,
	}
	if ofBytes {
		c.stream.ofBytes()
	}
	c.window = c.stream.window
	r.conns[number] = c
	if err := r.mux.push(&c.stream, item{raw: appendOpen(nil, number, open)}, r.cfg.QueueLimit); err != nil {
		return nil, err
	}
	r.lines.Wake()
	return c, nil
}

type connNumbers struct {
	free []uint64 // used numbers that are free again
	last uint64   // highest number used
}

func (n *connNumbers) take() (uint64, error) {
	if free := len(n.free); free > 0 {
		number := n.free[free-1]
		n.free = n.free[:free-1]
		return number, nil
	}
	if n.last+1 >= maxConns {
		return 0, ErrTooManyConns
	}
	n.last++
	return n.last, nil
}

// Next implements [link.Traffic].
func (r *RelayEnd) Next(number uint64, size int, now time.Time) (payload []byte, again time.Time) {
	if size == 0 {
		return nil, time.Time{} // host-agents never wait for a packet from a relay
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	payload, again = r.mux.next(size, now)
	r.mux.share.left(number, now)
	for _, number := range r.mux.closed {
		if c := r.conns[number]; c != nil {
			c.sentClose = true
			c.recycle()
		}
	}
	r.mux.closed = r.mux.closed[:0]
	return payload, again
}

// Released implements [link.Traffic].
func (r *RelayEnd) Released(number uint64) (more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mux.share.sent.len() == 0 {
		return false
	}
	return r.mux.released(number)
}

// Body implements [link.RelayTraffic].
func (r *RelayEnd) Body(payload []byte) (intact bool) {
	payload, intact = openBodies(payload)
	if !intact {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	shared := &Shared{Size: len(payload)}
	readBodies(payload, r.cfg.Agent, func(number uint64, free, start, end int) {
		if r.ended == nil && r.bodies.frames[number].Data == nil {
			r.body(number, r.cfg.EncodeIn(payload[free:end], start-free, r.sealed), end-start, shared)
		}
	})
	return true
}

// When memory is short, a RelayEnd shrinks its stored bodies to BodyLimit/shedShare bytes.
const shedShare = 8

// Shed drops most bodies, because memory is short. If a dropped body is needed later, the
// relay requests it again.
func (r *RelayEnd) Shed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil {
		r.bodies.shrink(r.cfg.BodyLimit / shedShare)
	}
}

// Ended implements [link.Traffic].
func (r *RelayEnd) Ended(reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	code, detail := ahp.CloseResync, reason.Error()
	var gone *link.AgentGoneError
	switch {
	case errors.As(reason, &gone):
		code, detail = ahp.CloseHostOffline, gone.Reason
	case errors.Is(reason, link.ErrSilent):
		code = ahp.CloseHostOffline
	}
	r.ended = reason
	for _, c := range r.conns {
		c.finish(code, detail)
	}
	r.cfg.Kept(-r.bodies.bytes - r.chunks.bytes)
	r.bodies, r.chunks, r.awaited = bodyStore{}, chunkStore{}, awaitedBodies{} // frees their memory even if a client still holds its RelayConn
}

// Handle implements [link.Traffic]. It calls Hold before the first record that takes memory.
// It handles the records before that one without a wait: credit lets clients' messages leave,
// which frees memory.
func (r *RelayEnd) Handle(packet uint64, payload []byte) (done bool, err error) {
	f := link.Fields{B: payload}
	if len(payload) > 0 && bringsNothing(recordKind(payload[0])) {
		if done, err = r.records(packet, &f, bringsNothing); err != nil || len(f.B) == 0 {
			return done, err
		}
	}
	if r.cfg.Hold != nil {
		r.cfg.Hold()
	}
	return r.records(packet, &f, func(recordKind) bool { return true })
}

// bringsNothing reports whether records with this kind take no memory.
func bringsNothing(kind recordKind) bool {
	return kind == recordCredit || kind == recordFlushed || kind == recordMoved || kind == recordReady || kind == recordOpened
}

// records handles a packet's records up to the first record that take refuses by its kind.
// It reports whether every handled record has all its bodies.
func (r *RelayEnd) records(packet uint64, f *link.Fields, take func(recordKind) bool) (done bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.packet, r.budget = packet, 2*maxRefs
	for len(f.B) > 0 && r.ended == nil && take(recordKind(f.B[0])) {
		if err := r.record(f); err != nil {
			return false, err
		}
		if f.Bad {
			return false, fmt.Errorf("%w: cut short", link.ErrBadPacket)
		}
	}
	if r.awaited.count > maxMissingSlots || r.mux.control.len() > maxControl {
		return false, fmt.Errorf("%w: %d references to missing bodies and %d control records exceed the bounds", link.ErrBadPacket, r.awaited.count, r.mux.control.len())
	}
	r.packet = 0
	r.block.drop()
	return r.incomplete[packet] == 0, nil
}

// A relayHandler handles a record from a host-agent. It reads the fields after the number,
// and ignores the record if they are cut short (f.Bad).
type relayHandler func(r *RelayEnd, number uint64, f *link.Fields) error

// relayRecords has a handler for each kind of record from host-agents.
var relayRecords = [recordKinds]relayHandler{
	recordFrame:    (*RelayEnd).frameRecord,
	recordFragment: (*RelayEnd).fragmentRecord,
	recordFeed:     (*RelayEnd).feedRecord,
	recordFed:      (*RelayEnd).fedRecord,
	recordClose:    (*RelayEnd).closeRecord,
	recordCredit:   (*RelayEnd).creditRecord,
	recordOpened:   (*RelayEnd).openedRecord,
	recordWatch:    (*RelayEnd).watchRecord,
	recordUnwatch:  (*RelayEnd).unwatchRecord,
	recordRefs:     refsRecord(false),
	recordBody:     (*RelayEnd).bodyRecord,
	recordGone:     (*RelayEnd).goneRecord,
	recordReady:    eventRecord(Ready),
	recordProbe:    eventRecord(Probe),
	recordFlushed:  lateRecord(Flushed),
	recordMoved:    lateRecord(Moved),
	recordChunk:    (*RelayEnd).chunkRecord,
	recordDrop:     (*RelayEnd).dropRecord,
	recordChunkRef: (*RelayEnd).chunkRefRecord,
	recordReport:   (*RelayEnd).reportRecord,
	recordTagged:   refsRecord(true),
	recordPlace:    placeRecord,
	recordTold:     toldRecord,
}

func (r *RelayEnd) record(f *link.Fields) error {
	kind, number := recordKind(f.Byte()), f.Uvarint()
	if kind >= recordKinds || relayRecords[kind] == nil {
		return fmt.Errorf("%w: record %d from a host-agent", link.ErrBadPacket, kind)
	}
	return relayRecords[kind](r, number, f)
}

// live returns the connection with a number, or nil if that client has left.
func (r *RelayEnd) live(number uint64) *RelayConn {
	if c := r.conns[number]; c != nil && c.client != nil {
		return c
	}
	return nil
}

func eventRecord(e Event) relayHandler {
	return func(r *RelayEnd, number uint64, _ *link.Fields) error {
		if c := r.live(number); c != nil {
			c.client.Event(e)
		}
		return nil
	}
}

func (r *RelayEnd) openedRecord(number uint64, _ *link.Fields) error {
	if c := r.live(number); c != nil && !c.opened {
		c.opened = true
		c.client.Event(Opened)
	}
	return nil
}

// lateRecord returns a handler that reports an event after the items pending on the
// connection.
func lateRecord(e Event) relayHandler {
	return func(r *RelayEnd, number uint64, _ *link.Fields) error {
		if c := r.live(number); c != nil {
			c.late(e)
		}
		return nil
	}
}

func (r *RelayEnd) closeRecord(number uint64, f *link.Fields) error {
	code, reason := ahp.CloseCode(f.Uvarint()), string(f.Bytes())
	if c := r.conns[number]; c != nil && !f.Bad {
		c.closedByHost(code, reason)
	}
	return nil
}

func (r *RelayEnd) creditRecord(number uint64, f *link.Fields) error {
	n := f.Uvarint()
	if c := r.conns[number]; c != nil && n < 1<<31 {
		r.mux.grant(&c.stream, int(n))
		r.lines.Wake()
	}
	return nil
}

func (r *RelayEnd) bodyRecord(number uint64, f *link.Fields) error {
	if data := f.Bytes(); !f.Bad && number != 0 && r.bodies.frames[number].Data == nil {
		encoded := r.cfg.Encode(data, true, true, r.sealed)
		r.body(number, encoded, len(data), &Shared{Size: len(encoded)})
	}
	return nil
}

// mostOfRun is the longest message, in bytes, that is joined with others.
const mostOfRun = 2 << 10

// frameRecord handles a message for one client. It joins short messages that follow in f
// for the same client into one frame, so that queues handle fewer frames.
func (r *RelayEnd) frameRecord(conn uint64, f *link.Fields) error {
	return r.frameFrom(conn, f.Bytes(), f)
}

// frameFrom is frameRecord for a message, data, that has already been read from f. Each
// reason to end a run of frames has its branch.
func (r *RelayEnd) frameFrom(conn uint64, data []byte, f *link.Fields) error {
	if f.Bad {
		return nil
	}
	c := r.live(conn)
	if c == nil || c.bytes || len(data) > mostOfRun {
		return r.piece(conn, data, fragmentFirst|fragmentLast)
	}
	total := len(data)
	r.run = append(r.run[:0], data)
	for {
		ahead := *f
		kind, channel := recordKind(ahead.Byte()), uint64(0)
		if kind != recordFrame && kind != recordFed || ahead.Uvarint() != conn {
			break
		}
		if kind == recordFed {
			channel = ahead.Uvarint()
		}
		next := ahead.Bytes()
		if total += len(next); ahead.Bad || len(next) > mostOfRun || total > mostBlock {
			break
		}
		*f = ahead
		r.run = append(r.run, next)
		r.feed.take(channel, conn, next, fragmentFirst|fragmentLast)
	}
	defer clear(r.run)
	if len(r.run) == 1 {
		return r.piece(conn, data, fragmentFirst|fragmentLast)
	}
	frame := Frame{Messages: len(r.run), Data: make([]byte, 0, total+maxFrameHead*len(r.run))}
	for _, message := range r.run {
		cost := len(message) + pieceCost
		if !r.mux.charge(&c.stream, cost) {
			return fmt.Errorf("%w: message on connection %d beyond its credit", link.ErrBadPacket, conn)
		}
		frame.Credit += cost
		frame.Data = r.cfg.Append(frame.Data, message, false)
	}
	r.frames = append(r.frames[:0], frame)
	c.deliver(r.frames)
	return nil
}

// maxFrameHead is the assumed size of an encoded frame's header, for allocation.
const maxFrameHead = 4

func (r *RelayEnd) fragmentRecord(conn uint64, f *link.Fields) error {
	flags, channel := f.Uvarint(), uint64(0)
	if flags&fragmentFed != 0 {
		channel = f.Uvarint()
	}
	data := f.Bytes()
	if f.Bad {
		return nil
	}
	r.feed.take(channel, conn, data, flags)
	return r.piece(conn, data, flags)
}

// piece delivers a message, or a piece of a message, to one client.
func (r *RelayEnd) piece(conn uint64, data []byte, flags uint64) error {
	c := r.conns[conn]
	if c == nil {
		return fmt.Errorf("%w: message on unknown connection %d", link.ErrBadPacket, conn)
	}
	cost := len(data) + pieceCost
	if c.client != nil && !r.mux.charge(&c.stream, cost) {
		return fmt.Errorf("%w: message on connection %d beyond its credit", link.ErrBadPacket, conn)
	}
	if c.client == nil { // the client has left, and the host-agent will soon learn it
		return nil
	}
	last := flags&fragmentLast != 0
	frame := Frame{Credit: cost}
	if c.bytes {
		frame.Data = bytes.Clone(data)
	} else {
		frame.Data = r.cfg.Encode(data, flags&fragmentFirst != 0, last, flags&fragmentBinary != 0)
	}
	if last {
		frame.Messages = 1
	}
	r.frames = append(r.frames[:0], frame)
	c.deliver(r.frames)
	return nil
}

// watchRecord subscribes to a channel's bodies, then confirms it to the host-agent.
// Subscription and confirmation use the same NATS connection, so the confirmation never
// overtakes the subscription.
func (r *RelayEnd) watchRecord(number uint64, f *link.Fields) error {
	token := string(f.Bytes())
	if f.Bad {
		return nil
	}
	if !validToken(token) || r.watched[number] != "" || len(r.watched) >= maxChannels {
		return fmt.Errorf("%w: invalid watch %d; %d channels are watched", link.ErrBadPacket, number, len(r.watched))
	}
	if err := r.lines.Watch(token); err != nil {
		return fmt.Errorf("watch a channel: %w", err)
	}
	r.watched[number] = token
	r.mux.sendControl(appendRecord(nil, recordWatching, number))
	r.lines.Wake()
	return nil
}

func (r *RelayEnd) unwatchRecord(number uint64, _ *link.Fields) error {
	if token, ok := r.watched[number]; ok {
		delete(r.watched, number)
		r.lines.Unwatch(token)
	}
	return nil
}
