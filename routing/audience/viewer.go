package audience

import (
	"context"
	"strings"

	"ahprelay/ahp"
	"ahprelay/auth/gate"
	"ahprelay/routing"
)

// A phase is a viewer's state in its conversation.
type phase int

const (
	fresh   phase = iota // before initialize or reconnect
	joining              // initialize or reconnect is not yet answered
	live
	gone
)

// A Viewer is one client of an audience. It takes the place of a [routing.RelayConn],
// and has all its methods except Move. It is safe for concurrent use, but only one
// goroutine at a time may call Send.
type Viewer struct {
	// Set by Enter, then read-only.
	pool   *Pool
	name   string
	open   routing.Open
	client routing.ClientConn

	deflates bool // the client wants compression

	// Guarded by the pool's mutex.
	phase         phase
	in            *audience // nil while the viewer is fresh or gone
	index         int       // index in audience.viewers
	clientID      string    // chosen by the client
	asked         int       // unanswered requests
	subscriptions map[string]*subscription
	flying        int // subscribe requests pending at the host
	held          []item
	heldSize      int
	failed        bool            // too much is held: flush closes the viewer
	ready         bool            // the event Ready is due
	touched       bool            // the viewer is in audience.touched
	out           []routing.Frame // delivered by flush
	crowd         *crowd          // nil: the viewer gets its messages alone
}

// An item is a notification on its way to viewers.
type item struct {
	text *text
	feed *feed  // nil: a broadcast
	seq  int64  // serverSeq of the action; 0: no action
	at   uint64 // audience.at when it arrived
}

// itemCost is added to the size of each held item.
const itemCost = 64

// Send handles one message from the client, and may keep it. The error is
// [routing.ErrConnClosed] once the viewer has ended, or describes an unreadable message.
func (v *Viewer) Send(_ context.Context, message []byte) error {
	env, err := ahp.Peek(message)
	if err != nil {
		return err
	}
	v.pool.mu.Lock()
	defer v.pool.mu.Unlock()
	if v.phase == gone {
		return routing.ErrConnClosed
	}
	if v.in != nil {
		v.in.part(v)
	}
	switch {
	case env.Kind == ahp.Request:
		v.request(&env)
	case env.Kind == ahp.Notification && string(env.Method) == "unsubscribe":
		if s := v.subscriptions[string(env.Channel)]; s != nil {
			v.in.unsubscribe(s)
		}
	case env.Kind == ahp.Notification && string(env.Method) == "dispatchAction" && v.in != nil:
		if echo, _ := gate.TakeBack(&env, v.clientID, v.in.seq, "this link is read-only"); echo != nil {
			v.reply(echo)
		}
	} // other notifications and answers are dropped: viewers are read-only
	if v.in == nil {
		v.hand()
	} else {
		v.in.flush()
	}
	return nil
}

// SendCounted is [Viewer.Send]. It releases the counted bytes at once, because
// viewers have no queue towards the host.
func (v *Viewer) SendCounted(ctx context.Context, message []byte, counted int) error {
	if err := v.Send(ctx, message); err != nil {
		return err
	}
	v.pool.cfg.Queued(-counted)
	return nil
}

// Written does nothing, because viewers do not slow down the host.
func (v *Viewer) Written(int) {}

// Progress does nothing, like Written.
func (v *Viewer) Progress() {}

// Queued returns 0: a viewer has no queue towards the host.
func (v *Viewer) Queued() int { return 0 }

// Flush delivers [routing.Flushed] at once.
func (v *Viewer) Flush() { v.client.Event(routing.Flushed) }

// Abort is Close.
func (v *Viewer) Abort(code ahp.CloseCode, reason string) { v.Close(code, reason) }

// Close removes the viewer from its audience. Nothing more is delivered.
func (v *Viewer) Close(ahp.CloseCode, string) {
	v.pool.mu.Lock()
	defer v.pool.mu.Unlock()
	v.phase = gone
	if v.in != nil {
		v.in.leave(v)
	}
}

// Waits reports whether the audience's connection still waits for the host.
func (v *Viewer) Waits() bool {
	v.pool.mu.Lock()
	defer v.pool.mu.Unlock()
	return v.in != nil && !v.in.taken.Load()
}

// HostClient returns the audience's clientId at the host, or "" without an audience.
func (v *Viewer) HostClient() string {
	v.pool.mu.Lock()
	defer v.pool.mu.Unlock()
	if v.in == nil {
		return ""
	}
	return v.in.clientID
}

// end closes the viewer: the connection to the host has ended, or too much is held.
func (v *Viewer) end(code ahp.CloseCode, reason string) {
	v.phase = gone
	v.in.leave(v)
	v.client.Closed(code, reason)
}

// lose closes a viewer without an audience.
func (v *Viewer) lose(code ahp.CloseCode, reason string) {
	v.phase = gone
	v.client.Closed(code, reason)
}

func (v *Viewer) request(env *ahp.Envelope) {
	method := string(env.Method)
	mcp := strings.HasPrefix(string(env.Channel), "mcp:")
	switch {
	case method == "ping" && !mcp:
		v.reply(ahp.AppendResult(nil, env.ID, nil))
	case v.asked >= maxAsked, v.in != nil && v.in.asked+len(env.ID)+len(env.Params)+len(env.Channel) > maxAskedBytes:
		v.refuse(env, ahp.CodeRateLimited, "too many unanswered requests")
	case method == "initialize" && !mcp:
		v.initialize(env)
	case method == "reconnect" && !mcp:
		v.reconnect(env)
	case v.phase != live:
		v.refuse(env, ahp.CodeInvalidRequest, "initialize first")
	case method == "subscribe":
		v.subscribe(env)
	case shared(env): // the gates at the host-agent check it with the link's authority
		v.ask(env)
	default:
		v.refuse(env, ahp.CodePermissionDenied, "this link is read-only")
	}
}

// shared reports whether equal requests with this method may be merged.
func shared(env *ahp.Envelope) bool {
	m, _ := ahp.MethodOn(string(env.Channel), string(env.Method))
	return m.Shared
}

func (v *Viewer) refuse(env *ahp.Envelope, code int, why string) {
	answer := ahp.AppendError(nil, env.ID, code, why, nil)
	if isTop(env) {
		answer = ahp.AppendChannel(answer, env.Channel)
	}
	v.reply(answer)
}

// isTop reports whether a message has its channel at the top level and not in params.
func isTop(env *ahp.Envelope) bool {
	if env.Channel == nil {
		return false
	}
	_, inParams := ahp.MemberOf(env.Params, "channel")
	return !inParams
}

// reply sends a message to this viewer only, after held messages.
func (v *Viewer) reply(message []byte) {
	v.deliver(&item{text: &text{raw: message, first: true, last: true}})
}

// offer delivers an item to a subscribed viewer, or holds it while the snapshot is
// pending. It drops the item if the snapshot contains it, or if the host has not
// confirmed the subscription.
func (v *Viewer) offer(s *subscription, i *item) {
	switch {
	case s.asked > 0, s.taken && v.phase == joining:
		v.hold(i) // until the snapshot arrives
	case !s.taken, i.seq != 0 && i.seq <= s.floor:
	default:
		v.deliver(i)
	}
}

// deliver appends an item to the output. If items are held, it holds this item too,
// to preserve the order.
func (v *Viewer) deliver(i *item) {
	if len(v.held) > 0 {
		v.hold(i)
		return
	}
	v.pushText(i.text)
}

// pushText appends a message's frames to the viewer's output.
func (v *Viewer) pushText(t *text) {
	for _, f := range t.frames(&v.pool.cfg, v.packs(len(t.raw), packLeast)) {
		v.push(f)
	}
}

func (v *Viewer) touch() {
	if v.in != nil && !v.touched {
		v.touched = true
		v.in.touched = append(v.in.touched, v)
	}
}

// push appends a frame to the viewer's output. Frames that are neighbours in memory
// are joined.
func (v *Viewer) push(f routing.Frame) {
	v.touch()
	f.Credit = 0
	if n := len(v.out); n == 0 || !v.out[n-1].Join(f) {
		v.out = append(v.out, f)
	}
}

// hold keeps an item until the pending answers have arrived.
func (v *Viewer) hold(i *item) {
	size := len(i.text.raw) + itemCost
	if v.heldSize+size > maxHeldBytes || len(v.held) >= maxHeldItems {
		v.failed = true
		v.touch()
	}
	if v.failed {
		return
	}
	v.held = append(v.held, *i)
	v.heldSize += size
	v.pool.cfg.Kept(size)
}

func (v *Viewer) drop() {
	v.pool.cfg.Kept(-v.heldSize)
	v.held, v.heldSize = nil, 0
}

func (v *Viewer) hand() {
	if len(v.out) > 0 && v.phase != gone {
		v.client.Deliver(v.out)
	}
	clear(v.out)
	v.out = v.out[:0]
}

// release delivers the held items once no subscribe is pending.
func (v *Viewer) release() {
	if v.phase == live && v.flying == 0 && len(v.held) > 0 {
		held := v.held
		v.drop()
		for n := range held {
			if v.isFor(&held[n]) {
				v.pushText(held[n].text)
			}
		}
	}
}

// isFor reports whether a held item must be delivered: the viewer is subscribed, and
// the snapshot does not contain the item.
func (v *Viewer) isFor(i *item) bool {
	if i.feed == nil {
		return true
	}
	s := v.subscriptions[i.feed.channel]
	switch {
	case s == nil || !s.taken:
		return false
	case i.seq != 0:
		return i.seq > s.floor
	}
	return i.at > s.at
}
