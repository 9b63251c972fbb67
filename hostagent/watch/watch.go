package watch

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"ahprelay/ahp"
	"ahprelay/broker/notice"
	"ahprelay/internal/clock"
)

// Times and bounds of a Watch.
const (
	retryFirst = 500 * time.Millisecond
	retryMost  = 5 * time.Second

	// refusedWait is the pause after the host has refused the Watch as a client.
	refusedWait = time.Minute

	// vagueAfter is how long a session may need input without a listed question before
	// an event is reported.
	vagueAfter = time.Second

	maxSessions  = 4096
	maxQuestions = 64
	maxAnswers   = 1024
)

// A Socket is a connection to the host, as in package hostagent.
type Socket interface {
	Read() (message []byte, binary bool, err error)
	Write(message []byte, binary bool) error
	Close(reason string)
}

// Config configures a Watch.
type Config struct {
	Dial   func(ctx context.Context) (Socket, error) // required
	Ledger *notice.Ledger                            // required; receives the events
	Log    *slog.Logger                              // required

	// Moments adds events that need no answer: sessions that finished or failed.
	Moments bool

	// Answers removes the answers that notifications may not offer from an event.
	// Default: removes none.
	Answers func(*notice.Event)

	// Working receives the number of sessions whose agents work, after each change. The
	// number is 0 while the host is not connected. It must not block. Default: not
	// called.
	Working func(sessions int)

	// Summary receives a session's summary, or the members that have changed. If older
	// is true, members that Summary received before are newer. Nil members mean that the
	// session has ended. Listed is called when the summaries of all sessions have
	// arrived. Neither may block; both may be nil.
	Summary func(session string, members []byte, older bool)
	Listed  func()

	// Tells reports whether a session may be watched. Default: always.
	Tells func(session string) bool
}

// A Watch watches one host while Run runs. Methods other than Run are safe for
// concurrent use.
type Watch struct {
	cfg      Config
	clientID string

	mu       sync.Mutex // guards the fields below
	sessions map[string]*session
	asked    map[int64]string // pending requests: the subscribed URI, or "" for listSessions
	touched  map[string]bool  // sessions changed since listSessions was sent, or in earlier pages; nil once the last page has arrived
	listed   int              // number of pages and sessions of the list that have arrived
	relist   bool             // the list is requested again after its last page
	restart  bool             // the list was requested again from its beginning, because the host has refused a later page
	nextID   int64
	sock     Socket
	open     map[string]*question           // by event id
	answered *simplelru.LRU[string, string] // the person that answered, by event ID
	ended    bool
	working  int // sessions whose agent works
	shown    int // number last given to Config.Working
}

type session struct {
	uri      string
	title    string
	status   int64
	modified string
	follows  bool                 // subscribed, or about to be
	asks     map[string]*question // by the host's id of the question
	vague    *time.Timer          // timer of the event without a question; nil if not running
	unclear  string               // id of the event without a question; "" for none
}

// Bits of a session's status.
const (
	failedBit  = 2
	workingBit = 8
	neededBit  = 16
)

// New returns a Watch, which Run starts.
func New(cfg Config) *Watch {
	answered, _ := simplelru.NewLRU[string, string](maxAnswers, nil) // fails only without a limit
	return &Watch{
		cfg: cfg, clientID: "ahp-host-agent-" + strings.ToLower(rand.Text()),
		sessions: map[string]*session{}, open: map[string]*question{}, answered: answered,
	}
}

// errRefused reports that the host refused the Watch as a client.
var errRefused = errors.New("the host refused the connection for notifications")

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	defer w.end()
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = retryFirst, retryMost
	for ctx.Err() == nil {
		err := w.watch(ctx, wait.Reset)
		if ctx.Err() != nil {
			return
		}
		pause := wait.NextBackOff()
		if errors.Is(err, errRefused) {
			pause = refusedWait
			w.cfg.Log.Warn("notifications unavailable for this host", "error", err)
		}
		clock.Sleep(ctx, pause)
	}
}

// Stats is a snapshot of a Watch.
type Stats struct {
	Connected bool // to the host
	Sessions  int
	Needs     int // open questions
}

// Stats returns the current state.
func (w *Watch) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Stats{Connected: w.sock != nil, Sessions: len(w.sessions), Needs: len(w.open)}
}

func (w *Watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for _, s := range w.sessions {
		s.clear()
	}
}

// watch follows one connection until it ends. It calls good when the host has accepted
// the Watch.
func (w *Watch) watch(ctx context.Context, good func()) error {
	sock, err := w.cfg.Dial(ctx)
	if err != nil {
		return err
	}
	defer sock.Close("host-agent stops watching")
	stop := context.AfterFunc(ctx, func() { sock.Close("host-agent stopped") })
	defer stop()
	if err := w.greet(sock); err != nil {
		return err
	}
	good()
	defer w.lost()
	for {
		message, _, err := sock.Read()
		if err != nil {
			return err
		}
		if err := w.take(message); err != nil {
			return err
		}
	}
}

// Versions lists the AHP versions offered to the host, in order of preference.
const Versions = `["1.1.0","1.0.0","0.10.0","0.9.0","0.8.0"]`

// greet initializes the connection and requests the sessions.
func (w *Watch) greet(sock Socket) error {
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":%q,` +
		`"clientInfo":{"name":"ahp-host-agent","version":"1"},"protocolVersions":%s,"capabilities":{}}}`
	if err := sock.Write(fmt.Appendf(nil, hello, w.clientID, Versions), false); err != nil {
		return err
	}
	env, err := FirstAnswer(sock)
	if err != nil {
		return err
	}
	if env.Error != nil {
		return fmt.Errorf("%w: %s", errRefused, notice.Cut(ahp.TextOf(env.Error, "message"), notice.MaxText))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sock, w.nextID, w.asked, w.touched, w.listed, w.relist, w.restart = sock, 1, map[int64]string{}, map[string]bool{}, 0, false, false
	for _, s := range w.sessions {
		s.follows = false
	}
	return w.askLocked("listSessions", "ahp-root://", "", "")
}

// Relist requests the sessions again, so that Config.Summary gets the whole summary of each.
// Without a connection, the next connection does that.
func (w *Watch) Relist() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sock == nil || w.touched != nil { // the list, or a part of it, is still to come
		w.relist = w.listed > 0
		return
	}
	w.touched = map[string]bool{}
	_ = w.askLocked("listSessions", "ahp-root://", "", "") // fails if the connection has ended
}

// FirstAnswer returns the first response on a connection, and skips messages before it.
// It is for connections on which only initialize was sent.
func FirstAnswer(sock Socket) (ahp.Envelope, error) {
	for {
		message, _, err := sock.Read()
		if err != nil {
			return ahp.Envelope{}, err
		}
		if env, err := ahp.Peek(message); err == nil && env.Kind == ahp.Response {
			return env, nil
		}
	}
}

func (w *Watch) lost() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sock = nil
	w.workingLocked()
	for _, s := range w.sessions {
		s.clear()
	}
}

func (w *Watch) askLocked(method, channel, cursor, about string) error {
	w.nextID++
	w.asked[w.nextID] = about
	params, _ := json.Marshal(struct { // strings always encode
		Channel string `json:"channel"`
		Cursor  string `json:"cursor,omitempty"`
	}{channel, cursor})
	return w.sock.Write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, w.nextID, method, params), false)
}

func (w *Watch) take(message []byte) error {
	env, err := ahp.Peek(message)
	if err != nil {
		return nil // unreadable messages are ignored
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.workingLocked()
	switch env.Kind {
	case ahp.Response:
		return w.answerLocked(&env)
	case ahp.Request:
		return w.sock.Write(ahp.AppendError(nil, env.ID, ahp.CodeMethodNotFound, "this client only watches", nil), false)
	}
	switch string(env.Method) {
	case "root/sessionAdded":
		return w.summaryLocked(ahp.TextOf(env.Params, "summary", "resource"), ahp.RawOf(env.Params, "summary"))
	case "root/sessionSummaryChanged":
		return w.summaryLocked(ahp.TextOf(env.Params, "session"), ahp.RawOf(env.Params, "changes"))
	case "root/sessionRemoved":
		w.forgetLocked(ahp.TextOf(env.Params, "session"))
	case "action":
		w.actionLocked(env.Params)
	}
	return nil
}

func (w *Watch) answerLocked(env *ahp.Envelope) error {
	id, err := ahp.Integer(env.ID) // a host may write 2.0 for 2
	if err != nil {
		return nil
	}
	about, known := w.asked[id]
	delete(w.asked, id)
	defer w.syncedLocked()
	switch {
	case !known:
		return nil
	case about == "" && env.Error != nil && w.listed > 0 && !w.restart: // the list may have changed since its first page
		w.listed, w.restart = 0, true
		return w.askLocked("listSessions", "ahp-root://", "", "")
	case about == "" && env.Error != nil:
		return fmt.Errorf("%w: listSessions: %s", errRefused, notice.Cut(ahp.TextOf(env.Error, "message"), notice.MaxText))
	case about == "":
		return w.listLocked(ahp.RawOf(env.Result, "items"), ahp.TextOf(env.Result, "nextCursor"))
	}
	s := w.sessions[about]
	if s == nil || !s.follows {
		return nil
	}
	there := map[string]bool{}
	for _, e := range ahp.ElementsOf(ahp.RawOf(env.Result, "snapshot", "state", "inputNeeded")) {
		there[ahp.TextOf(e.Raw, "id")] = true
		w.askedLocked(s, e.Raw)
	}
	for name := range s.asks {
		if !there[name] {
			w.withdrawLocked(s, name)
		}
	}
	w.vagueLocked(s)
	return nil
}

// syncedLocked lets the ledger send reports once all open events are known: relays
// withdraw the events that a report omits.
func (w *Watch) syncedLocked() {
	if len(w.asked) == 0 && w.touched == nil {
		w.cfg.Ledger.Ready()
	}
}

// listLocked handles a page of the list of sessions, and requests the next page if there
// is one. A session that has changed since the first request keeps its newer state. About
// maxSessions are requested.
func (w *Watch) listLocked(items []byte, next string) error {
	there := map[string]bool{}
	touched := w.touched
	w.touched = nil
	for _, e := range ahp.ElementsOf(items) {
		uri := ahp.TextOf(e.Raw, "resource")
		there[uri] = true
		if touched[uri] {
			if w.sessions[uri] != nil {
				w.summarizeLocked(uri, e.Raw, true)
			}
			continue
		}
		if err := w.summaryLocked(uri, e.Raw); err != nil {
			return err
		}
	}
	w.listed += 1 + len(there) // an empty page counts, too
	if next != "" && w.listed < maxSessions {
		maps.Copy(touched, there)
		w.touched = touched
		return w.askLocked("listSessions", "ahp-root://", next, "")
	}
	w.listed, w.restart = 0, false
	for uri := range w.sessions {
		if !there[uri] && !touched[uri] {
			w.forgetLocked(uri)
		}
	}
	if w.cfg.Listed != nil {
		w.cfg.Listed()
	}
	if w.relist {
		w.relist, w.touched = false, map[string]bool{}
		return w.askLocked("listSessions", "ahp-root://", "", "")
	}
	return nil
}

func (w *Watch) summarizeLocked(uri string, members []byte, older bool) {
	if w.cfg.Summary != nil {
		w.cfg.Summary(uri, members, older)
	}
}

// summaryLocked handles a session's summary, or a change of it.
func (w *Watch) summaryLocked(uri string, raw []byte) error {
	if uri == "" || len(uri) > notice.MaxURI || w.cfg.Tells != nil && !w.cfg.Tells(uri) {
		return nil
	}
	if w.touched != nil {
		w.touched[uri] = true
	}
	m := [...]ahp.Member{{Name: "status"}, {Name: "title"}, {Name: "modifiedAt"}}
	if !ahp.IsObject(raw) || ahp.Members(raw, m[:]) != nil {
		return nil
	}
	s := w.sessions[uri]
	known := s != nil
	if !known {
		if len(w.sessions) >= maxSessions {
			return nil
		}
		s = &session{uri: uri, asks: map[string]*question{}}
		w.sessions[uri] = s
	}
	if title, ok := ahp.Text(m[1].Raw); ok {
		s.title = notice.Cut(title, notice.MaxTitle)
	}
	if modified, ok := ahp.Text(m[2].Raw); ok {
		s.modified = modified
	}
	was := s.status
	if !ahp.IsNone(m[0].Raw) {
		status, err := ahp.Integer(m[0].Raw) // a host may write 24.0 for 24
		if err != nil {
			return nil
		}
		s.status = status
	}
	w.summarizeLocked(uri, raw, false)
	w.working += int(s.status&workingBit-was&workingBit) / workingBit
	if known {
		w.momentLocked(s, was)
	}
	return w.followLocked(s)
}

// workingLocked reports a changed number of sessions with a working agent.
func (w *Watch) workingLocked() {
	now := w.working
	if w.sock == nil {
		now = 0
	}
	if now != w.shown && w.cfg.Working != nil {
		w.cfg.Working(now)
	}
	w.shown = now
}

// momentLocked reports a session that has just finished or failed, if Config.Moments is set.
func (w *Watch) momentLocked(s *session, was int64) {
	var kind notice.Kind
	switch now := s.status; {
	case !w.cfg.Moments:
		return
	case now&failedBit != 0 && was&failedBit == 0:
		kind = notice.Failed
	case was&workingBit != 0 && now&workingBit == 0 && now&failedBit == 0:
		kind = notice.Done
	default:
		return
	}
	w.tell(notice.Event{ID: strings.ToLower(rand.Text()), Kind: kind, Session: s.uri, Title: s.title, At: time.Now().UTC()})
}

func (w *Watch) tell(e notice.Event) {
	e.Fit()
	w.cfg.Ledger.Add(e)
}

// followLocked subscribes to a session while it needs input, and unsubscribes
// afterwards.
func (w *Watch) followLocked(s *session) error {
	if s.status&neededBit != 0 {
		if s.follows {
			return nil
		}
		s.follows = true
		return w.askLocked("subscribe", s.uri, "", s.uri)
	}
	w.quietLocked(s) // its questions may have been answered while the Watch was disconnected
	if !s.follows {
		return nil
	}
	s.follows = false
	uri, _ := json.Marshal(s.uri)
	return w.sock.Write(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":%s}}`, uri), false)
}

// quietLocked withdraws a session's events.
func (w *Watch) quietLocked(s *session) {
	s.clear()
	for name := range s.asks {
		w.withdrawLocked(s, name)
	}
	w.clearUpLocked(s)
}

// clearUpLocked withdraws the session's event without a question.
func (w *Watch) clearUpLocked(s *session) {
	if s.unclear != "" {
		delete(w.open, s.unclear)
		w.cfg.Ledger.Withdraw(s.unclear)
		s.unclear = ""
	}
}

func (s *session) clear() {
	if s.vague != nil {
		s.vague.Stop()
		s.vague = nil
	}
}

func (w *Watch) forgetLocked(uri string) {
	if s := w.sessions[uri]; s != nil {
		w.quietLocked(s)
		w.working -= int(s.status&workingBit) / workingBit
		delete(w.sessions, uri)
		w.summarizeLocked(uri, nil, false)
	}
	if w.touched != nil {
		w.touched[uri] = true
	}
}

// actionLocked handles an action on a subscribed session.
func (w *Watch) actionLocked(params []byte) {
	m := [...]ahp.Member{{Name: "channel"}, {Name: "action"}, {Name: "rejectionReason"}}
	if ahp.Members(params, m[:]) != nil || !ahp.IsNone(m[2].Raw) {
		return
	}
	uri, _ := ahp.Text(m[0].Raw)
	s := w.sessions[uri]
	if s == nil || !s.follows {
		return
	}
	switch ahp.TextOf(m[1].Raw, "type") {
	case "session/inputNeededSet":
		w.askedLocked(s, ahp.RawOf(m[1].Raw, "request"))
	case "session/inputNeededRemoved":
		w.withdrawLocked(s, ahp.TextOf(m[1].Raw, "id"))
	}
}

// askedLocked adds or replaces a session's question.
func (w *Watch) askedLocked(s *session, raw []byte) {
	q, e, ok := readQuestion(s.uri, raw)
	if !ok {
		return
	}
	before := s.asks[q.name]
	if before == nil && len(s.asks) >= maxQuestions {
		return
	}
	if before != nil && before.event != q.event {
		w.withdrawLocked(s, q.name)
	}
	e.Title, e.At = s.title, time.Now().UTC()
	e.Fit()
	if w.cfg.Answers != nil {
		w.cfg.Answers(&e)
	}
	s.asks[q.name], w.open[e.ID] = q, q
	s.clear()
	w.clearUpLocked(s)
	w.cfg.Ledger.Add(e)
}

func (w *Watch) withdrawLocked(s *session, name string) {
	q := s.asks[name]
	if q == nil {
		return
	}
	delete(s.asks, name)
	delete(w.open, q.event)
	w.cfg.Ledger.Withdraw(q.event)
}

// vagueLocked starts the timer for an event without a question, if a session needs
// input but lists no question.
func (w *Watch) vagueLocked(s *session) {
	if len(s.asks) > 0 || s.vague != nil || s.unclear != "" || w.ended {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(vagueAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if s.vague != timer || w.ended {
			return
		}
		s.vague = nil
		s.unclear = notice.ID(s.uri, "input "+s.modified)
		w.open[s.unclear] = nil
		w.tell(notice.Event{ID: s.unclear, Kind: notice.Input, Session: s.uri, Title: s.title, At: time.Now().UTC()})
	})
	s.vague = timer
}
