package audience

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// A sharedRequest merges equal requests from several viewers. At most one of them is
// pending at the host, and two are sent at least spacing apart. A viewer that asks
// meanwhile waits for the next, so an answer is never older than the viewer's
// request.
type sharedRequest struct {
	key     string
	request []byte // without its id
	feed    *feed  // for subscribe
	waiting []*waiter
	flying  []*waiter
	asked   bool        // the request was sent and has no answer yet
	inLine  bool        // in audience.waiting, until fewer requests are pending at the host
	rested  bool        // spacing has passed since the request was last sent
	rest    *time.Timer // sets rested
}

// A waiter is a viewer's unanswered request.
type waiter struct {
	viewer       *Viewer
	id           []byte        // the raw id of the viewer's request; nil: part of a greeting
	subscription *subscription // the subscription that was requested; may be nil
	greet        *greeting     // the greeting that the request is part of; may be nil
	place        int           // index in greet.answers
}

// subscribe handles a viewer's subscribe. Of its params, only channel and view are
// sent to the host.
func (v *Viewer) subscribe(env *ahp.Envelope) {
	channel := string(env.Channel)
	if channel == "" {
		v.refuse(env, ahp.CodeInvalidParams, "no channel")
		return
	}
	v.join(channel, ahp.RawOf(env.Params, "view"), &waiter{viewer: v, id: bytes.Clone(env.ID)}, func(why string) { v.refuse(env, ahp.CodeRateLimited, why) })
}

// join requests a channel's snapshot from the host for a viewer.
func (v *Viewer) join(channel string, view []byte, w *waiter, refuse func(why string)) {
	a := v.in
	f := a.feed(channel)
	if f == nil || v.subscriptions[channel] == nil && len(v.subscriptions) >= maxSubscriptions {
		refuse("too many channels")
		return
	}
	w.subscription = a.subscribe(v, f)
	name, _ := json.Marshal(channel) // never fails
	params := append([]byte(`{"channel":`), name...)
	if view != nil {
		params = append(append(params, `,"view":`...), compact(view)...)
	}
	a.ask("subscribe", append(params, '}'), nil, w)
}

// ask handles a request that equal requests of other viewers may share.
func (v *Viewer) ask(env *ahp.Envelope) {
	w := &waiter{viewer: v, id: bytes.Clone(env.ID)}
	var top []byte
	if isTop(env) {
		top = env.Channel
	}
	v.in.ask(string(env.Method), compact(env.Params), top, w)
}

// compact returns JSON without white space, so that equal requests compare equal.
func compact(raw []byte) []byte {
	var b bytes.Buffer
	if raw == nil || json.Compact(&b, raw) != nil {
		return nil
	}
	return b.Bytes()
}

// ask adds a viewer to the sharedRequest with the same content.
func (a *audience) ask(method string, params, channel []byte, w *waiter) {
	name, _ := json.Marshal(method) // never fails
	request := append([]byte(`"method":`), name...)
	if params != nil {
		request = append(append(request, `,"params":`...), params...)
	}
	request = append(request, '}')
	if channel != nil {
		request = ahp.AppendChannel(request, channel)
	}
	key := string(request)
	q := a.requests[key]
	if q == nil {
		q = &sharedRequest{key: key, request: request, rested: true}
		a.requests[key] = q
		a.asked += len(key)
	}
	if w.subscription != nil {
		q.feed = w.subscription.feed // if no viewer waited, its earlier feed may be forgotten
	}
	w.viewer.asked++
	a.asked += len(w.id)
	q.waiting = append(q.waiting, w)
	if q.feed != nil {
		q.feed.asked++
		w.subscription.asks++
	}
	a.turn(q)
}

// turn sends a request to the host if viewers wait for it, the previous answer has arrived and
// spacing has passed. If too many requests are pending, it queues the request. It deletes a request
// for which no viewer waits.
func (a *audience) turn(q *sharedRequest) {
	switch {
	case q.asked, q.inLine, !q.rested:
	case len(q.waiting) == 0:
		delete(a.requests, q.key)
		a.asked -= len(q.key)
	case len(a.underWay) >= maxUnderWay:
		q.inLine = true
		a.waiting = append(a.waiting, q)
	default:
		a.lastID++
		a.underWay[a.lastID] = q
		q.asked, q.rested = true, false
		q.flying, q.waiting = q.waiting, nil
		for _, w := range q.flying {
			if w.subscription != nil {
				w.subscription.asked++
				w.viewer.flying++
			}
		}
		q.rest = time.AfterFunc(spacing, func() { a.rested(q) })
		id := strconv.AppendInt([]byte(`{"jsonrpc":"2.0","id":`), a.lastID, 10)
		a.send(append(append(id, ','), q.request...))
	}
}

// rested is the timer's function: spacing has passed since the request was sent, so the next may
// follow.
func (a *audience) rested(q *sharedRequest) {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	if !a.ended {
		q.rested = true
		a.turn(q)
	}
}

func (a *audience) answered(ans *answer) {
	id, err := ahp.Integer(ans.env.ID)
	if err == nil && id == greetID && a.base == nil {
		a.greeted(ans)
		return
	}
	q := a.underWay[id]
	if err != nil || q == nil {
		return
	}
	delete(a.underWay, id)
	flying := q.flying
	q.flying, q.asked = nil, false
	if q.feed != nil && ans.err == nil {
		q.feed.open = true
		a.seq = max(a.seq, ans.seq)
	}
	for _, w := range flying {
		a.asked -= len(w.id)
		a.answerOne(w, ans)
	}
	if q.feed != nil {
		q.feed.asked -= len(flying)
		a.leaveFeed(q.feed)
	}
	a.turn(q)
	for len(a.waiting) > 0 && len(a.underWay) < maxUnderWay {
		next := a.waiting[0]
		a.waiting = a.waiting[1:]
		next.inLine = false
		a.turn(next)
	}
}

func (a *audience) answerOne(w *waiter, ans *answer) {
	v, s := w.viewer, w.subscription
	if s != nil {
		s.asks--
		s.asked--
		v.flying--
	}
	if v.in != a {
		return // the viewer has left
	}
	v.asked--
	switch {
	case s == nil || s.index < 0: // no subscription was requested, or the viewer has unsubscribed
	case ans.err == nil:
		s.taken, s.floor, s.at = true, ans.seq, a.at
	case !s.taken && s.asks == 0:
		a.unsubscribe(s)
	}
	switch {
	case w.greet != nil:
		w.greet.part(w.place, ans)
	case s != nil:
		ans.to(v, w.id, v.push) // before the held messages
	default:
		ans.to(v, w.id, func(f routing.Frame) { v.deliver(&item{text: &text{plain: []routing.Frame{f}}}) })
	}
	v.release()
}
