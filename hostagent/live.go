package hostagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/contentproxy"
	"ahprelay/internal/clock"
	"ahprelay/internal/fair"
	"ahprelay/internal/signal"
	"ahprelay/routing"
)

// Canvases by URL. A relay opens a byte stream for each browser connection that
// shows a canvas, and authenticates the browser. The stream carries HTTP/1.1
// requests, which the server here answers.
//
// This file authorizes each request at its start, and again every checkEvery
// while it lasts. A request is permitted if its client, with the same
// authority, has a connection here on which the host has confirmed a
// subscription to the canvas. A connection that ended at most awayTime ago,
// without an unsubscribe, counts as well. Streams to previews work in the same
// way; see previews.go.

// CanvasLive limits the use of canvases by URL.
type CanvasLive string

// Values of CanvasLive.
const (
	CanvasOn   CanvasLive = "on"   // clients have the same rights by URL as in band
	CanvasRead CanvasLive = "read" // all clients may only look: GET and HEAD, and WebSockets with CanvasSockets
	CanvasOff  CanvasLive = "off"  // no canvases by URL, except content that the host itself serves
)

func (l CanvasLive) check() error {
	switch l {
	case "", CanvasOn, CanvasRead, CanvasOff:
		return nil
	}
	return fmt.Errorf("host-agent: CanvasLive is %q; want %s, %s or %s", l, CanvasOn, CanvasRead, CanvasOff)
}

// Times and bounds of canvas streams.
const (
	checkEvery = 250 * time.Millisecond
	awayTime   = 10 * time.Minute // a client that left may return within this time, the default of the relays' --hold
	arriveTime = 30 * time.Second // a client that returned has this long to subscribe again

	maxStreams  = 2048 // most streams, for all relays together
	maxAway     = 1024 // most remembered clients that have left
	hostReads   = 32   // most concurrent reads of content from the host
	clientReads = 16
	readsWait   = 4096
)

// live serves canvases by URL.
type live struct {
	agent  *Agent
	server *http.Server
	local  *Local // the server's listener for streams
	reads  *fair.Turns
	opened chan struct{} // a stream has been opened; capacity 1

	previews previews

	mu      sync.Mutex // guards the fields below
	streams map[*canvasStream]bool
	away    *simplelru.LRU[viewer, map[string]shown]
}

type viewer struct{ subject, clientID, authority string }

// shown records a canvas that was visible to a client when its connection
// ended.
type shown struct {
	known  *view.Host
	policy gate.Policy
	until  time.Time
}

type canvasStream struct {
	*routing.ByteConn
	open  routing.Open
	shows atomic.Bool // set while a permitted request is served
}

func (s *canvasStream) viewer() viewer {
	return viewer{s.open.Subject, s.open.Canvas.ClientID, s.open.Canvas.Authority}
}

func newLive(a *Agent) *live {
	l := &live{
		agent: a, local: NewLocal("canvases"), opened: make(chan struct{}, 1), reads: fair.New(readsWait, hostReads, clientReads),
		previews: previews{open: map[string]*openPreview{}}, streams: map[*canvasStream]bool{},
	}
	l.away, _ = simplelru.NewLRU[viewer, map[string]shown](maxAway, nil) // fails only without a limit
	l.server = &http.Server{
		Handler:        l,
		MaxHeaderBytes: 256 << 10, // the relay has its own bound
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, streamKey{}, conn)
		},
	}
	return l
}

// streamKey is the context key of a request's canvasStream.
type streamKey struct{}

// serve accepts streams until ctx ends, and then ends them.
func (l *live) serve(ctx context.Context) {
	defer context.AfterFunc(ctx, l.end)()
	_ = l.server.Serve(l.local) // until end
}

func (l *live) end() {
	_ = errors.Join(l.local.Close(), l.server.Close())
	for _, s := range l.all() {
		s.Cut(ahp.CloseHostOffline, stoppedReason)
	}
}

// connect accepts a stream from a relay and returns at once.
func (l *live) connect(conn *routing.AgentConn, open routing.Open) routing.HostConn {
	bytes, end := conn.Bytes(open.ID)
	s := &canvasStream{ByteConn: bytes, open: open}
	l.mu.Lock()
	full := len(l.streams) >= maxStreams
	if !full {
		l.streams[s] = true
	}
	l.mu.Unlock()
	signal.Send(l.opened)
	l.agent.conns.Go(func() {
		if full {
			s.Cut(ahp.CloseOverloaded, "too many streams to canvases")
			return
		}
		defer l.leave(s)
		select {
		case l.local.conns <- s:
		case <-l.local.done:
			s.Cut(ahp.CloseHostOffline, stoppedReason)
		}
		<-s.Done()
	})
	return end
}

func (l *live) leave(s *canvasStream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.streams, s)
}

func (l *live) all() []*canvasStream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.streams))
}

// left records the visible canvases of a client whose connection ends: the
// client may return. If the client was kicked or its token has ended, left
// removes the client's records instead.
func (l *live) left(c *hostConn, clientID string) {
	l.previews.clientLeft(c.open.Subject, c.open.Authority(), c.isSentAway())
	known := c.gates.View.Host()
	if clientID == "" || known != l.agent.known { // the canvases of a command's process end with the connection
		return
	}
	who := viewer{c.open.Subject, clientID, c.open.Authority()}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.isSentAway() { // under mu: hide sees the record that is made below, or left sees that hide's caller has kicked c
		l.away.Remove(who)
		return
	}
	until := time.Now().Add(awayTime)
	seen, _ := l.away.Get(who)
	for _, channel := range c.canvas.Views() {
		if seen == nil {
			seen = map[string]shown{}
			l.away.Add(who, seen)
		}
		seen[channel] = shown{known, c.policy, until}
	}
}

// forget removes the record of a canvas after the client's unsubscribe.
func (l *live) forget(c *hostConn, channel string) {
	c.writer.mu.Lock()
	clientID := c.writer.clientID
	c.writer.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if seen, ok := l.away.Peek(viewer{c.open.Subject, clientID, c.open.Authority()}); ok {
		delete(seen, channel)
	}
}

// hide removes the records of departed clients from which an owner has hidden a session. Those clients'
// connections must be kicked before.
func (l *live) hide(owner string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, who := range l.away.Keys() {
		seen, _ := l.away.Peek(who)
		maps.DeleteFunc(seen, func(_ string, one shown) bool {
			return who.subject != owner || !one.policy.Access.Includes(auth.AccessTalk)
		})
	}
}

// wasShown returns the record of a departed client's canvas.
func (l *live) wasShown(who viewer, channel string) (shown, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen, _ := l.away.Get(who)
	one, ok := seen[channel]
	return one, ok && time.Now().Before(one.until)
}

func (l *live) connsOf(who viewer) (list []*hostConn) {
	for _, c := range l.agent.clients.of(who.clientID) {
		if c.open.Subject == who.subject && !c.isSentAway() && c.open.Authority() == who.authority {
			list = append(list, c)
		}
	}
	return list
}

// errBlocked reports a client kicked by the host's owner.
var errBlocked = errors.New(kickedReason)

// A canvasView is what a browser may see of a canvas: where its content is,
// with which permissions, and on which connection the host shows it. The
// connection is nil while the client is away, and for a preview.
type canvasView struct {
	place   contentproxy.Place
	policy  gate.Policy
	conn    *hostConn
	preview bool
}

// view returns the canvasView of a stream, or an error if access is denied.
func (l *live) view(ctx context.Context, s *canvasStream) (canvasView, error) {
	if _, blocked := l.agent.blocked.has(s.open); blocked {
		return canvasView{}, errBlocked
	}
	if s.open.Canvas.Preview {
		return l.previewView(s)
	}
	who, at := s.viewer(), s.open.Canvas
	var why error
	for _, c := range l.connsOf(who) {
		looked, asks := c.canvas.Look(at.Channel, at.Instance, contentproxy.Fresh)
		c.askAbout(asks, false)
		place, err := looked.Place(ctx)
		if contentproxy.Code(err) != ahp.CodePermissionDenied { // the client is subscribed on c
			return canvasView{place: place, policy: c.policy, conn: c}, err
		}
		why = err
	}
	was, ok := l.wasShown(who, at.Channel)
	if !ok {
		if why == nil {
			why = errAway
		}
		return canvasView{}, why
	}
	if _, known := was.known.Canvas(at.Channel); !known { // the host has restarted
		return canvasView{}, errAway
	}
	place, err := l.agent.canvases.PlaceOf(was.known, at.Channel, at.Instance)
	return canvasView{place: place, policy: was.policy}, err
}

// isForNow reports whether the reason for a denied access may soon end: the
// client may return, or it has connected and has not subscribed yet.
func (l *live) isForNow(s *canvasStream, err error) bool {
	if errors.Is(err, errAway) || errors.Is(err, errUnattended) {
		return true
	}
	return contentproxy.Code(err) == ahp.CodePermissionDenied && slices.ContainsFunc(l.connsOf(s.viewer()), func(c *hostConn) bool {
		return time.Since(c.since) < arriveTime
	})
}

// errAway reports that no connection shows the canvas to the client.
var errAway = errors.New("no client that views this canvas is connected to the host")

// watch ends the streams that are no longer permitted, until ctx ends. It
// sleeps while there are neither streams nor previews.
func (l *live) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.opened:
			l.watchStreams(ctx)
		}
	}
}

// watchStreams checks the streams until all streams and previews have ended.
func (l *live) watchStreams(ctx context.Context) {
	for clock.Sleep(ctx, checkEvery) {
		l.previews.endIdle()
		streams := l.all()
		for _, s := range streams {
			if !l.mayStay(s) {
				s.Cut(ahp.CloseForbidden, "the canvas is no longer shown")
			}
		}
		if len(streams) == 0 && l.previews.none() {
			return
		}
	}
}

// mayStay reports whether a stream may continue. A stream on which no request
// runs may stay: its next request is checked when it starts.
func (l *live) mayStay(s *canvasStream) bool {
	if !s.shows.Load() {
		return true
	}
	if _, blocked := l.agent.blocked.has(s.open); blocked {
		return false
	}
	if s.open.Canvas.Preview {
		_, err := l.previewView(s)
		return err == nil
	}
	who, at := s.viewer(), s.open.Canvas
	for _, c := range l.connsOf(who) {
		subscribed, shown, asks := c.canvas.StillShows(at.Channel, at.Instance)
		c.askAbout(asks, false)
		if subscribed {
			return shown
		}
	}
	was, ok := l.wasShown(who, at.Channel)
	if !ok {
		return false
	}
	_, err := l.agent.canvases.PlaceOf(was.known, at.Channel, at.Instance)
	return err == nil
}

// ServeHTTP answers a request on a stream.
func (l *live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s, ok := r.Context().Value(streamKey{}).(*canvasStream)
	if !ok {
		http.Error(w, "no stream", http.StatusInternalServerError)
		return
	}
	if _, blocked := l.agent.blocked.has(s.open); !blocked && s.open.Canvas.Preview && s.open.Canvas.Check {
		l.servePreviews(w, r, s)
		return
	}
	seen, err := l.view(r.Context(), s)
	if err != nil {
		if l.isForNow(s, err) {
			w.Header().Set(contentproxy.ForNowHeader, "1")
		}
		refuseLive(w, statusOf(err), err.Error())
		return
	}
	use := l.allows(&seen)
	if s.open.Canvas.Check {
		l.checked(w, s, use)
		return
	}
	if status, why := use.refuses(r); status != 0 {
		if status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", "GET, HEAD")
		}
		refuseLive(w, status, why)
		return
	}
	if !use.use {
		maps.DeleteFunc(r.Header, func(name string, _ []string) bool {
			return !readOnlyHeaders[name] && !strings.HasPrefix(name, "Sec-") // only the browser can set headers with this prefix
		})
	}
	s.shows.Store(true)
	defer s.shows.Store(false)
	if seen.place.AtHost() {
		l.serveFromHost(w, r, s, &seen)
		return
	}
	_ = http.NewResponseController(w).EnableFullDuplex() // the application may answer before the request has ended
	l.agent.canvases.Serve(w, r, seen.place)
}

func refuseLive(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, why, status)
}

// A usage holds what a client may do with a canvas or preview by URL: look at it with GET
// and HEAD, use it with any method, and open WebSockets.
type usage struct{ look, use, sockets bool }

// allows returns the permitted uses of a canvas: the client's permissions,
// limited by the host's owner.
func (l *live) allows(seen *canvasView) usage {
	look, use := seen.policy.Canvas()
	if seen.preview {
		look = seen.policy.Previews()
		use = look
	}
	cfg := &l.agent.cfg
	u := usage{look: look && cfg.CanvasLive != CanvasOff}
	if seen.place.AtHost() && !seen.preview { // same as in band
		return u
	}
	u.use = u.look && use && cfg.CanvasLive != CanvasRead
	u.sockets = u.use || u.look && cfg.CanvasSockets
	return u
}

// refuses returns the status and text that refuse a request, or status 0 if the
// request is permitted.
func (u usage) refuses(r *http.Request) (status int, why string) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch upgrades := len(r.Header["Upgrade"]) > 0; {
	case !u.look:
		return http.StatusForbidden, "canvases by URL are disabled on this host, or not permitted to this client"
	case upgrades && !(u.sockets && reads && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")):
		return http.StatusForbidden, "this canvas is read-only: WebSockets are not permitted"
	case !reads && !u.use:
		return http.StatusMethodNotAllowed, "this canvas is read-only: only GET and HEAD are permitted"
	case reads && !u.use && r.ContentLength != 0:
		return http.StatusBadRequest, "this canvas is read-only: request bodies are not permitted"
	}
	return 0, ""
}

// word returns the usage as named in tickets.
func (u usage) word() string {
	if u.use {
		return "use"
	}
	return "look"
}

// accessHeader carries the permitted usage in the response to a check: look or use.
const accessHeader = "Ahp-Canvas-Access"

// checked answers a check. A relay makes one before it issues a ticket for a
// canvas.
func (l *live) checked(w http.ResponseWriter, s *canvasStream, use usage) {
	if !use.look {
		refuseLive(w, http.StatusForbidden, "canvases by URL are disabled on this host, or not permitted to this client")
		return
	}
	at, access := s.open.Canvas, use.word()
	l.agent.auditOften(&s.open, connectsAtOnce, "canvas", "", "canvas", shorten(at.Channel), "instance", shorten(at.Instance), "access", access, "address", s.open.Remote)
	w.Header().Set(accessHeader, access)
	w.WriteHeader(http.StatusNoContent)
}

// statusOf returns the HTTP status for an access error.
func statusOf(err error) int {
	if known, ok := err.(*liveError); ok {
		return known.status
	}
	switch contentproxy.Code(err) {
	case ahp.CodeNotFound:
		return http.StatusGone
	case ahp.CodeInvalidParams:
		return http.StatusNotFound
	}
	return http.StatusForbidden
}
