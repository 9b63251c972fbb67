package audience

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

const rootChannel = "ahp-root://"

// An audience is a group of viewers that share one connection to the host.
type audience struct {
	// Set by openLocked, then read-only.
	pool *Pool
	kind
	clientID string // at the host
	ctx      context.Context
	cancel   context.CancelFunc
	up       Upstream

	taken atomic.Bool // the host has accepted the connection

	// Guarded by the pool's mutex.
	base      []byte      // members of the host's answer to initialize that all viewers get; nil: no answer yet
	greetings []*greeting // viewers whose initialize or reconnect waits for base
	viewers   []*Viewer
	touched   []*Viewer // viewers with output for the next flush
	crowds    map[string]*crowd
	following int // number of viewers in crowds
	feeds     map[string]*feed
	requests  map[string]*sharedRequest // by content
	underWay  map[int64]*sharedRequest  // requests pending at the host, by id
	waiting   []*sharedRequest          // requests that wait because too many are pending
	asked     int                       // bytes of the unanswered requests
	lastID    int64
	seq       int64  // the highest serverSeq received
	acted     int64  // no action with this serverSeq or a lower one follows
	at        uint64 // messages received from the host
	ended     bool
	idle      *time.Timer
	out       [][]byte // messages for the host; sendAll sends them
	unsent    int      // bytes of out
	sending   bool

	in inboxState
}

// A feed is a channel that viewers are or were subscribed to.
type feed struct {
	channel       string
	subscriptions []*subscription // of viewers in no crowd; a crowd gets messages for all its viewers
	crowds        []*crowd
	asked         int  // unanswered subscribe requests from viewers
	open          bool // the audience is subscribed
}

// A subscription is one viewer's subscription to one channel.
type subscription struct {
	viewer *Viewer
	feed   *feed
	index  int    // index in feed.subscriptions; -1: removed, or its viewer is in a crowd
	asks   int    // number of the viewer's unanswered subscribe requests
	asked  int    // number of these requests that were sent to the host
	taken  bool   // the host has confirmed, so the viewer is subscribed
	floor  int64  // the snapshot contains all actions up to this serverSeq
	at     uint64 // audience.at when the host answered
}

// inboxState holds frames from the link that are not yet handled. The connection's
// credit bounds them, and maxUnread if the host-agent does not respect credit.
type inboxState struct {
	mu      sync.Mutex // guards the fields below; may be locked while the routing package's mutex is held
	frames  []routing.Frame
	bytes   int // of frames
	end     *ending
	working bool

	// Owned by work.
	pieces []byte // the pieces of an incomplete message
	shared []hostMessage
}

// ending is how the connection to the host ended.
type ending struct {
	code   ahp.CloseCode
	reason string
}

// inbox is an audience in its role as the link's client.
type inbox audience

// Event implements [routing.ClientConn]. Messages sent before the host accepts the
// connection wait in the link. A Probe needs no reaction, because an audience is
// always alive.
func (b *inbox) Event(e routing.Event) {
	if e == routing.Opened {
		b.taken.Store(true)
	}
}

func (b *inbox) Deliver(frames []routing.Frame) {
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	for i, f := range frames {
		if b.in.bytes += len(f.Data); b.in.bytes > maxUnread && (i > 0 || b.in.frames != nil) { // one frame may be longer
			b.in.frames, b.in.end = nil, &ending{ahp.CloseOverloaded, "the host-agent sends more than its credit"}
			break
		}
		b.in.frames = append(b.in.frames, f)
	}
	b.startLocked()
}

func (b *inbox) Closed(code ahp.CloseCode, reason string) {
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	b.in.end = &ending{code, reason}
	b.startLocked()
}

func (b *inbox) startLocked() {
	if !b.in.working {
		b.in.working = b.pool.cfg.Spawn((*audience)(b).work)
	}
}

// nextBatch takes the frames that are not yet handled. It reports false if there are
// none.
func (a *audience) nextBatch() (frames []routing.Frame, end *ending, ok bool) {
	a.in.mu.Lock()
	defer a.in.mu.Unlock()
	frames, end = a.in.frames, a.in.end
	a.in.frames, a.in.bytes, a.in.end = nil, 0, nil
	a.in.working = frames != nil || end != nil
	return frames, end, a.in.working
}

type hostMessage struct {
	env    ahp.Envelope
	text   *text   // for a notification
	answer *answer // for an answer

	verdict Verdict // for crowds
}

// work handles the link's frames until none are left. For each batch it parses the messages and
// asks a crowd for its verdicts without the pool's mutex, then delivers them with the mutex.
func (a *audience) work() {
	for {
		frames, end, ok := a.nextBatch()
		if !ok {
			return
		}
		credit := 0
		for _, f := range frames {
			a.read(f)
			credit += f.Credit
		}
		a.pool.mu.Lock()
		a.gather()
		judge := a.judge()
		a.pool.mu.Unlock()
		for i := range a.in.shared {
			s := &a.in.shared[i]
			switch {
			case s.env.Kind == ahp.Response:
				a.prepare(s)
			case s.env.Kind == ahp.Notification && judge != nil:
				s.verdict = judge.Judge(s.text.raw, &s.env)
			}
		}
		a.pool.mu.Lock()
		for i := range a.in.shared {
			a.fromHost(&a.in.shared[i])
		}
		a.flush()
		up := a.up
		if end != nil {
			a.endLocked(end.code, end.reason)
		}
		if a.ended {
			a.pool.cfg.Kept(-len(a.in.pieces))
			a.in.pieces = nil
		}
		a.pool.mu.Unlock()
		clear(a.in.shared)
		a.in.shared = a.in.shared[:0]
		if end != nil {
			up.Close(1000, "the audience has ended") // no effect if the link has ended the connection
		}
		up.Written(credit)
	}
}

// read adds a frame to the incomplete message, and appends each message that is now complete to
// in.shared.
func (a *audience) read(f routing.Frame) {
	if f.Shared == nil {
		f.Shared = &routing.Shared{Size: len(f.Data)}
	}
	a.pool.cfg.Decode(f.Data, func(payload, whole []byte, first, last, binary bool) {
		message, in := payload, &a.in
		if !first || !last {
			a.pool.cfg.Kept(len(payload))
			in.pieces = append(in.pieces, payload...)
			if !last {
				return
			}
			a.pool.cfg.Kept(-len(in.pieces))
			message, in.pieces, whole = in.pieces, nil, nil
		}
		// Gates of a restricted client pass only readable messages, so an unreadable
		// one can be ignored.
		if env, err := ahp.Peek(message); err == nil && !binary {
			s := hostMessage{env: env, text: &text{raw: message, first: true, last: true}}
			if whole != nil {
				s.text.plain = []routing.Frame{{Data: whole, Messages: 1, Shared: f.Shared}}
			}
			in.shared = append(in.shared, s)
		}
	})
}

func (a *audience) fromHost(s *hostMessage) {
	if a.ended {
		return
	}
	a.at++
	switch s.env.Kind {
	case ahp.Request:
		a.answerHost(&s.env)
	case ahp.Response:
		a.answered(s.answer)
	case ahp.Notification:
		a.notified(s)
	}
}

// answerHost answers a request from the host. Ping succeeds. All others get an error, because
// viewers are read-only.
func (a *audience) answerHost(env *ahp.Envelope) {
	answer := ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "this client is read-only", nil)
	if string(env.Method) == "ping" {
		answer = ahp.AppendResult(nil, env.ID, nil)
	}
	if params, ok := ahp.MemberOf(env.Params, "channel"); env.Channel != nil && (!ok || params.Raw == nil) {
		answer = ahp.AppendChannel(answer, env.Channel)
	}
	if a.send(answer); a.unsent > maxUnsent {
		a.closeLocked(ahp.CloseResync, "the host takes no answers")
	}
}

// notified delivers a notification to its channel's subscribers, or to all viewers if
// it is a broadcast.
func (a *audience) notified(s *hostMessage) {
	i := item{text: s.text, at: a.at}
	isAction := string(s.env.Method) == "action"
	if isAction {
		if seq, err := s.env.Said.Seq(); err == nil {
			i.seq = seq
		}
		a.seq, a.acted = max(a.seq, i.seq), max(a.acted, i.seq)
	}
	f := a.feeds[string(s.env.Channel)]
	switch {
	case f != nil && (isAction || f.channel != rootChannel):
		i.feed = f
		for _, c := range slices.Clone(f.crowds) {
			a.toCrowd(c, &i, s.verdict)
		}
		for _, s := range f.subscriptions {
			s.viewer.offer(s, &i)
		}
	case isAction: // no viewer is subscribed
	default:
		for _, c := range slices.Collect(maps.Values(a.crowds)) {
			a.toCrowd(c, &i, s.verdict)
		}
		for _, v := range a.viewers {
			if v.phase == live && v.crowd == nil {
				v.deliver(&i)
			}
		}
	}
}

// flush delivers the output of touched viewers.
func (a *audience) flush() {
	for _, c := range a.crowds {
		a.tell(c)
	}
	for _, v := range a.touched {
		v.touched = false
		v.hand()
		if v.failed && v.in == a {
			v.end(ahp.CloseResync, "too many messages waited for a snapshot")
		}
		if v.ready {
			v.ready = false
			v.client.Event(routing.Ready)
		}
	}
	clear(a.touched)
	a.touched = a.touched[:0]
}

func (a *audience) enter(v *Viewer) {
	v.in, v.index = a, len(a.viewers)
	a.viewers = append(a.viewers, v)
	if a.idle != nil {
		a.idle.Stop()
		a.idle = nil
	}
}

func (a *audience) leave(v *Viewer) {
	a.part(v)
	for _, s := range v.subscriptions {
		a.unsubscribe(s)
	}
	last := len(a.viewers) - 1
	a.viewers[v.index] = a.viewers[last]
	a.viewers[v.index].index = v.index
	a.viewers[last] = nil
	a.viewers = a.viewers[:last]
	v.drop()
	v.in = nil
	if last == 0 && !a.ended {
		a.idle = time.AfterFunc(linger, a.endIdle)
	}
}

// endIdle ends the audience if it still has no viewers.
func (a *audience) endIdle() {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	if len(a.viewers) == 0 && !a.ended {
		a.closeLocked(ahp.CloseShuttingDown, "")
	}
}

// closeLocked ends the audience and its connection to the host. Its viewers get the code and reason.
func (a *audience) closeLocked(code ahp.CloseCode, reason string) {
	up := a.up
	a.endLocked(code, reason)
	a.pool.cfg.Spawn(func() {
		up.Close(1000, "no viewers")
		(*inbox)(a).Closed(ahp.CloseShuttingDown, "") // work frees the pieces of an incomplete message
	})
}

func (a *audience) endLocked(code ahp.CloseCode, reason string) {
	if a.ended {
		return
	}
	a.ended = true
	a.cancel()
	a.pool.forgetLocked(a)
	if a.idle != nil {
		a.idle.Stop()
	}
	for _, q := range a.requests {
		if q.rest != nil {
			q.rest.Stop()
		}
	}
	for len(a.viewers) > 0 {
		a.viewers[len(a.viewers)-1].end(code, reason)
	}
	a.flush()
}

// feed returns a channel's feed, and creates it if necessary. It returns nil if there
// are too many.
func (a *audience) feed(channel string) *feed {
	f := a.feeds[channel]
	if f == nil && len(a.feeds) >= maxChannels {
		for name, old := range a.feeds { // forgets channels without subscribers; their messages count as broadcasts again
			if len(old.subscriptions) == 0 && len(old.crowds) == 0 && old.asked == 0 {
				delete(a.feeds, name)
			}
		}
		if len(a.feeds) >= maxChannels {
			return nil
		}
	}
	if f == nil {
		f = &feed{channel: channel}
		a.feeds[channel] = f
	}
	return f
}

// subscribe returns a viewer's subscription, and creates it if necessary.
func (a *audience) subscribe(v *Viewer, f *feed) *subscription {
	s := v.subscriptions[f.channel]
	if s == nil {
		s = &subscription{viewer: v, feed: f, index: len(f.subscriptions)}
		f.subscriptions = append(f.subscriptions, s)
		v.subscriptions[f.channel] = s
	}
	return s
}

func (a *audience) unsubscribe(s *subscription) {
	if s.index < 0 {
		return
	}
	f := s.feed
	s.detach()
	s.taken = false
	delete(s.viewer.subscriptions, f.channel)
	a.leaveFeed(f)
}

// leaveFeed unsubscribes the audience from a channel if no viewer is subscribed.
func (a *audience) leaveFeed(f *feed) {
	if len(f.subscriptions) > 0 || len(f.crowds) > 0 || f.asked > 0 || !f.open || a.ended {
		return
	}
	f.open = false
	params, _ := json.Marshal(map[string]string{"channel": f.channel}) // never fails
	a.send(append(append([]byte(`{"jsonrpc":"2.0","method":"unsubscribe","params":`), params...), '}'))
}

func (a *audience) send(message []byte) {
	a.out = append(a.out, message)
	a.unsent += len(message)
	if !a.sending {
		a.sending = a.pool.cfg.Spawn(a.sendAll)
	}
}

// sendAll sends queued messages to the host. It waits while the connection's queue is
// full.
func (a *audience) sendAll() {
	for {
		a.pool.mu.Lock()
		out := a.out
		a.out, a.unsent = nil, 0
		a.sending = len(out) > 0 && !a.ended
		sending, up := a.sending, a.up
		a.pool.mu.Unlock()
		if !sending {
			return
		}
		for _, message := range out {
			if up.Send(a.ctx, message) != nil {
				break // the connection has ended, and Closed reports that
			}
		}
	}
}
