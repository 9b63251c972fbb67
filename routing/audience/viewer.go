package audience

import (
	"context"
	"strings"

	"ahprelay/ahp"
	"ahprelay/auth/gate"
	"ahprelay/routing"
)

// A phase is where a viewer stands.
type phase int

const (
	fresh   phase = iota // it has not begun
	joining              // it has said initialize or reconnect, which is not answered
	live
	gone
)

// A Viewer is one client of an audience. It has the methods of a
// [routing.RelayConn], in the place of which it stands. Safe for concurrent use, but
// one goroutine at a time may Send.
type Viewer struct {
	// Set by Enter, then read-only.
	pool   *Pool
	name   string
	open   routing.Open
	client routing.ClientConn

	deflates bool // it takes compressed messages, and gains by them

	// Guarded by the pool's mutex.
	phase         phase
	in            *audience // nil while fresh, and when gone
	index         int       // in its viewers
	clientID      string    // that it gives itself
	asked         int       // requests without an answer
	subscriptions map[string]*subscription
	flying        int // requests for subscriptions that are under way at the host
	held          []item
	heldSize      int
	failed        bool            // too much is held: it is to be closed
	ready         bool            // it is to be told Ready
	touched       bool            // it is in the audience's touched
	out           []routing.Frame // to be handed over by flush
}

// An item is a notification on its way to viewers.
type item struct {
	text *text
	feed *feed  // nil: it is for all
	seq  int64  // serverSeq of an action; 0: it has none
	at   uint64 // of audience.at
}

// itemCost is what an item counts against a bound besides its bytes.
const itemCost = 64

// Send takes one message of the viewer's, which may be kept. The error is
// [routing.ErrConnClosed] once it has ended.
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
	switch {
	case env.Kind == ahp.Request:
		v.request(&env)
	case env.Kind == ahp.Notification && string(env.Method) == "unsubscribe":
		if s := v.subscriptions[string(env.Channel)]; s != nil {
			v.in.unsubscribe(s)
		}
	case env.Kind == ahp.Notification && string(env.Method) == "dispatchAction" && v.in != nil:
		if echo := gate.TakeBack(&env, v.clientID, v.in.seq, "this link only looks"); echo != nil {
			v.say(echo)
		}
	} // nobody asks a viewer anything, and what else it could tell is for who may do something
	if v.in == nil {
		v.hand()
	} else {
		v.in.flush()
	}
	return nil
}

// SendCounted is [Viewer.Send]: what is counted for a message nobody waits for.
func (v *Viewer) SendCounted(ctx context.Context, message []byte, counted int) error {
	if err := v.Send(ctx, message); err != nil {
		return err
	}
	v.pool.cfg.Queued(-counted)
	return nil
}

// Written does nothing: what a viewer takes holds nobody back.
func (v *Viewer) Written(int) {}

// Progress does nothing, as Written.
func (v *Viewer) Progress() {}

// Queued returns 0: nothing of a viewer's waits for the host.
func (v *Viewer) Queued() int { return 0 }

// Flush tells the client [routing.Flushed]: what it has sent is done with.
func (v *Viewer) Flush() { v.client.Event(routing.Flushed) }

// Abort is Close.
func (v *Viewer) Abort(code ahp.CloseCode, reason string) { v.Close(code, reason) }

// Close takes the viewer out of its audience. Nothing more is delivered.
func (v *Viewer) Close(ahp.CloseCode, string) {
	v.pool.mu.Lock()
	defer v.pool.mu.Unlock()
	v.phase = gone
	if v.in != nil {
		v.in.leave(v)
	}
}

// Waits reports whether the viewer is in an audience whose connection the host has not taken yet.
func (v *Viewer) Waits() bool {
	v.pool.mu.Lock()
	defer v.pool.mu.Unlock()
	return v.in != nil && !v.in.taken.Load()
}

// HostClient is the clientId that stands for the viewer at the host, "" while there is
// none.
func (v *Viewer) HostClient() string {
	v.pool.mu.Lock()
	defer v.pool.mu.Unlock()
	if v.in == nil {
		return ""
	}
	return v.in.clientID
}

// end tells the viewer that its connection to the host has ended.
func (v *Viewer) end(code ahp.CloseCode, reason string) {
	v.phase = gone
	v.in.leave(v)
	v.client.Closed(code, reason)
}

// request takes a request.
func (v *Viewer) request(env *ahp.Envelope) {
	method := string(env.Method)
	mcp := strings.HasPrefix(string(env.Channel), "mcp:")
	switch {
	case method == "ping" && !mcp:
		v.say(ahp.AppendResult(nil, env.ID, nil))
	case v.asked >= maxAsked:
		v.refuse(env, ahp.CodeRateLimited, "too many requests without an answer")
	case method == "initialize" && !mcp:
		v.initialize(env)
	case method == "reconnect" && !mcp:
		v.reconnect(env)
	case v.phase != live:
		v.refuse(env, ahp.CodeInvalidRequest, "initialize first")
	case method == "subscribe":
		v.subscribe(env)
	case mcp && mcpReads[method] || !mcp && reads[method]:
		v.ask(env)
	default:
		v.refuse(env, ahp.CodePermissionDenied, "this link only looks")
	}
}

// refuse answers a request with an error.
func (v *Viewer) refuse(env *ahp.Envelope, code int, why string) {
	answer := ahp.AppendError(nil, env.ID, code, why, nil)
	if isTop(env) {
		answer = ahp.AppendChannel(answer, env.Channel)
	}
	v.say(answer)
}

// isTop reports whether a message has its channel at its top level only.
func isTop(env *ahp.Envelope) bool {
	if env.Channel == nil {
		return false
	}
	_, inParams := ahp.MemberOf(env.Params, "channel")
	return !inParams
}

// say sends the viewer a message of its own, behind what it is kept.
func (v *Viewer) say(message []byte) {
	v.deliver(&item{text: &text{raw: message, first: true, last: true}})
}

// offer gives a viewer what has come on a channel that it watches, or asks to.
func (v *Viewer) offer(s *subscription, i *item) {
	switch {
	case s.asked > 0, s.taken && v.phase == joining:
		v.hold(i) // until its snapshot is there
	case !s.taken, i.seq != 0 && i.seq <= s.floor:
	default:
		v.deliver(i)
	}
}

// deliver sends the viewer an item, or holds it behind those that are held.
func (v *Viewer) deliver(i *item) {
	if len(v.held) > 0 {
		v.hold(i)
		return
	}
	v.pushText(i.text)
}

// pushText is push for a message.
func (v *Viewer) pushText(t *text) {
	for _, f := range t.frames(&v.pool.cfg, v.packs(len(t.raw), packLeast)) {
		v.push(f)
	}
}

// touch has flush look at the viewer.
func (v *Viewer) touch() {
	if v.in != nil && !v.touched {
		v.touched = true
		v.in.touched = append(v.in.touched, v)
	}
}

// push appends a frame to what is handed over next. Frames that stand one behind the
// other in memory, as they have come together, become one again.
func (v *Viewer) push(f routing.Frame) {
	v.touch()
	f.Credit = 0
	if n := len(v.out); n == 0 || !v.out[n-1].Join(f) {
		v.out = append(v.out, f)
	}
}

// hold keeps an item until the answers are there that it comes behind.
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

// drop forgets what is held.
func (v *Viewer) drop() {
	v.pool.cfg.Kept(-v.heldSize)
	v.held, v.heldSize = nil, 0
}

// hand hands over what the viewer is to be sent.
func (v *Viewer) hand() {
	if len(v.out) > 0 && v.phase != gone {
		v.client.Deliver(v.out)
	}
	clear(v.out)
	v.out = v.out[:0]
}

// release lets go what is held, if no answer is to come before it any more.
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

// isFor reports whether an item that was held is to be sent: it is, unless the
// viewer's snapshot has it, or it came before that.
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
