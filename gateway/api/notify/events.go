package notify

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/notify"
	"ahprelay/internal/signal"
)

// Limits for event streams.
const (
	streamsOfSubject = 16   // concurrent streams of a subject
	streamsInAll     = 4096 // concurrent streams of all tenants; a tenant may have as many as are free
	StreamBeat       = 15 * time.Second
	streamWrite      = 30 * time.Second // timeout for a write
	streamLife       = time.Hour        // then the stream ends, and the client reconnects
	streamPiece      = 64 << 10         // bytes in a write; the last event may exceed it
)

// joinedEvery divides time into periods. In each, one event at most reports that a subject
// has joined a session.
const joinedEvery = 10 * time.Minute

// Joined adds an event when a host has admitted a client with a token for a session, such as a
// link's.
func (a *API) Joined(who auth.Client, tenant, host string) {
	if len(who.Channels) != 1 || strings.Contains(who.Channels[0], "*") {
		return
	}
	now := time.Now().UTC()
	e := notice.Event{
		ID: notice.ID(who.Channels[0], "joined "+who.Subject+" "+now.Truncate(joinedEvery).Format(time.RFC3339)), Kind: notice.Joined,
		Session: who.Channels[0], Text: who.Subject, At: now,
	}
	e.Fit()
	a.Board.Add(tenant, host, e, false)
}

// A shownEvent is an event as sent to clients.
type shownEvent struct {
	Host string `json:"host"`
	notice.Event
	Needs  bool   `json:"needsYou"` // the event stays open until a person acts
	Digest string `json:"digest"`   // digest of the event, for an answer
}

// A shownEnd tells clients that an event is no longer open.
type shownEnd struct {
	Host    string      `json:"host"`
	ID      string      `json:"id"`
	Kind    notice.Kind `json:"kind"`
	Session string      `json:"session,omitempty"`
}

// streams counts the event streams.
type streams struct {
	mu  sync.Mutex
	all int
	of  map[[2]string]int // number of streams, by tenant, and by tenant and subject
}

// enter counts a new stream until leave is called. It returns false if there are too
// many.
func (a *streams) enter(who auth.Client) (leave func(), ok bool) {
	keys := [...][2]string{{who.Tenant}, {who.Tenant, who.Subject}} // a subject is not ""
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[keys[0]] >= streamsInAll-a.all || a.of[keys[1]] >= streamsOfSubject {
		return nil, false
	}
	a.all++
	for _, key := range keys {
		a.of[key]++
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all--
		for _, key := range keys {
			if a.of[key]--; a.of[key] == 0 {
				delete(a.of, key)
			}
		}
	}, true
}

// serveEvents streams events as Server-Sent Events. A client that names its last event
// (Last-Event-ID) receives the later ones. Otherwise, or if this relay no longer knows
// that event, the client receives all open events.
func (a *API) serveEvents(w http.ResponseWriter, r *http.Request) {
	who, ok := a.Caller.Client(w, r)
	if !ok {
		return
	}
	leave, ok := a.streams.enter(who)
	if !ok {
		w.Header().Set("Retry-After", "60")
		authn.WriteJSON(w, http.StatusTooManyRequests, map[string]string{"error": "too many event streams"})
		return
	}
	defer leave()
	if a.follow != nil {
		defer a.follow(r.Context(), who.Tenant)()
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // disables buffering in proxies
	stream := eventStream{api: a, who: who, w: w, control: http.NewResponseController(w), next: a.afterEvent(r)}
	if stream.say(": events of "+notice.Cut(who.Subject, auth.MaxSubjectLen)+"\nretry: 2000\n\n") == nil {
		stream.follow(r)
	}
}

// afterEvent returns the number in Last-Event-ID. It returns unknownEvent if a different
// relay, or an earlier process, assigned the number.
func (a *API) afterEvent(r *http.Request) uint64 {
	instance, number, _ := strings.Cut(r.Header.Get("Last-Event-ID"), "-")
	seq, err := strconv.ParseUint(number, 10, 63)
	if err != nil || instance != a.Instance {
		return unknownEvent
	}
	return seq
}

// unknownEvent is greater than any event number.
const unknownEvent = 1 << 63

// EndStreams ends all event streams. Their clients reconnect.
func (a *API) EndStreams() { a.ending.Do(func() { close(a.over) }) }

// An eventStream sends a tenant's events to a client as Server-Sent Events.
type eventStream struct {
	api     *API
	who     auth.Client
	w       http.ResponseWriter
	control *http.ResponseController
	next    uint64
}

// sayAll sends items in several writes of bounded size.
func (e *eventStream) sayAll(items []notify.Item) error {
	var text strings.Builder
	for i := range items {
		e.append(&text, &items[i])
		if text.Len() > streamPiece || text.Len() > 0 && i == len(items)-1 {
			if err := e.say(text.String()); err != nil {
				return err
			}
			text.Reset()
		}
	}
	return nil
}

// follow sends events until the client disconnects, its token is no longer valid, the
// relay stops, or streamLife has passed.
func (e *eventStream) follow(r *http.Request) {
	beat := time.Tick(StreamBeat)
	end := time.After(min(streamLife, time.Until(e.who.Expires)))
	revoked := make(chan struct{}, 1)
	unsubscribe := e.api.Caller.Revoked.Subscribe(func() { signal.Send(revoked) })
	defer unsubscribe()
	for {
		items, next, more, _ := e.api.Board.After(e.who.Tenant, e.next)
		if e.api.Caller.IsRevoked(e.who) || time.Now().After(e.who.Expires) {
			return
		}
		if e.sayAll(items) != nil {
			return
		}
		e.next = next
		select {
		case <-more:
		case <-revoked:
		case <-beat:
			if e.say(":\n\n") != nil {
				return
			}
		case <-end:
			return
		case <-r.Context().Done():
			return
		case <-e.api.Life.Done():
			return
		case <-e.api.over:
			return
		}
	}
}

// append appends an item to a write, if the client may see it.
func (e *eventStream) append(text *strings.Builder, item *notify.Item) {
	if !notify.MayHear(e.who, item.Tenant, item.Host, &item.Event) {
		return
	}
	var shown any = shownEvent{item.Host, item.Event, item.Event.Kind.Needs(), item.Event.Digest()}
	if item.Change == notify.Withdrawn {
		shown = shownEnd{item.Host, item.Event.ID, item.Event.Kind, item.Event.Session}
	}
	data, err := json.Marshal(shown)
	if err != nil {
		return // all fields can be encoded
	}
	fmt.Fprintf(text, "id: %s-%d\nevent: %s\ndata: %s\n\n", e.api.Instance, item.Seq, item.Change, data)
}

func (e *eventStream) say(text string) error {
	// In tests, the writer supports no deadline.
	_ = e.control.SetWriteDeadline(time.Now().Add(streamWrite))
	if _, err := e.w.Write([]byte(text)); err != nil {
		return err
	}
	return e.control.Flush()
}
