package hostagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"ahprelay/auth/gate"
	"ahprelay/contentproxy"
	"ahprelay/internal/fair"
	"ahprelay/routing"
)

// Canvases by URL. A relay opens streams of bytes for a browser that is shown a
// canvas, as a client with a token is shown it on its connection to the host; each
// carries requests of HTTP/1.1, which one server here answers. The relay has seen
// to who the browser is. What it may see is decided here, for each request, and
// while it lasts every checkEvery: the client has a connection with the very same
// authority, on which the host has confirmed that it is subscribed to that open
// instance; or it had one, not longer than awayTime ago, and has not unsubscribed.
// Streams to previews are served in the same way: see previews.go.

// CanvasLive says what clients may do with canvases by URL, at most.
type CanvasLive string

// The values of CanvasLive.
const (
	CanvasOn   CanvasLive = "on"   // what they may do with the canvas otherwise
	CanvasRead CanvasLive = "read" // look: GET and HEAD
	CanvasOff  CanvasLive = "off"  // nothing; canvases are read in band
)

func (l CanvasLive) check() error {
	switch l {
	case "", CanvasOn, CanvasRead, CanvasOff:
		return nil
	}
	return fmt.Errorf("host-agent: CanvasLive is %q; want %s, %s or %s", l, CanvasOn, CanvasRead, CanvasOff)
}

// Times and bounds of streams to canvases.
const (
	checkEvery = 250 * time.Millisecond
	awayTime   = 10 * time.Minute // relays hold clients that come again as long
	arriveTime = 30 * time.Second // in which a client that has connected subscribes again

	maxStreams  = 2048 // of all relays
	maxAway     = 1024 // clients that are gone, and may come again
	hostReads   = 32   // of content of the host's own at a time
	clientReads = 16
	readsWait   = 4096
)

// live serves canvases by URL.
type live struct {
	agent  *Agent
	server *http.Server
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	reads  *fair.Turns

	previews previews

	mu      sync.Mutex // guards the fields below
	streams map[*canvasStream]bool
	away    *simplelru.LRU[viewer, map[string]shown]
}

// A viewer is a client, with what it may do.
type viewer struct{ subject, clientID, authority string }

// shown is a canvas that a client was shown when it went.
type shown struct {
	known  *view.Host
	policy gate.Policy
	until  time.Time
}

// A canvasStream is a stream to a canvas.
type canvasStream struct {
	*routing.ByteConn
	open  routing.Open
	shows atomic.Bool // while a request is served: it may see what it asks for
}

func (s *canvasStream) viewer() viewer {
	return viewer{s.open.Subject, s.open.Canvas.ClientID, s.open.Canvas.Authority}
}

func newLive(a *Agent) *live {
	l := &live{
		agent: a, conns: make(chan net.Conn), closed: make(chan struct{}), reads: fair.New(readsWait, hostReads, clientReads),
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

// streamKey is where the context of a request has its canvasStream.
type streamKey struct{}

// serve takes streams until ctx ends, and then ends them.
func (l *live) serve(ctx context.Context) {
	defer context.AfterFunc(ctx, l.end)()
	_ = l.server.Serve(streamListener{l}) // until end
}

// end ends all streams.
func (l *live) end() {
	l.once.Do(func() { close(l.closed) })
	_ = l.server.Close()
	for _, s := range l.all() {
		s.Cut(ahp.CloseHostOffline, stoppedReason)
	}
}

// A streamListener is the [net.Listener] of the streams.
type streamListener struct{ *live }

// Accept implements [net.Listener].
func (l streamListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (l streamListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements [net.Listener].
func (l streamListener) Addr() net.Addr { return &net.UnixAddr{Name: "canvases", Net: "ahp-link"} }

// connect is called for each stream that a relay opens. It returns at once.
func (l *live) connect(conn *routing.AgentConn, open routing.Open) routing.HostConn {
	bytes, end := conn.Bytes(open.ID)
	s := &canvasStream{ByteConn: bytes, open: open}
	l.mu.Lock()
	full := len(l.streams) >= maxStreams
	if !full {
		l.streams[s] = true
	}
	l.mu.Unlock()
	l.agent.conns.Go(func() {
		if full {
			s.Cut(ahp.CloseOverloaded, "too many streams to canvases")
			return
		}
		defer l.leave(s)
		select {
		case l.conns <- s:
		case <-l.closed:
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
	list := make([]*canvasStream, 0, len(l.streams))
	for s := range l.streams {
		list = append(list, s)
	}
	return list
}

// left notes what a client is shown whose connection ends, for when it comes
// again. A client that was sent away is not shown it.
func (l *live) left(c *hostConn, clientID string) {
	sentAway := c.isSentAway()
	l.previews.clientLeft(c.open.Subject, c.open.Authority(), sentAway)
	known := c.gates.View.Host()
	if clientID == "" || known != l.agent.known { // a process that ends with the connection has no canvases
		return
	}
	who := viewer{c.open.Subject, clientID, c.open.Authority()}
	l.mu.Lock()
	defer l.mu.Unlock()
	if sentAway {
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

// forget notes that a client does not want to be shown a canvas any more.
func (l *live) forget(c *hostConn, channel string) {
	c.mu.Lock()
	clientID := c.clientID
	c.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if seen, ok := l.away.Peek(viewer{c.open.Subject, clientID, c.open.Authority()}); ok {
		delete(seen, channel)
	}
}

// wasShown returns what a client was shown when it went.
func (l *live) wasShown(who viewer, channel string) (shown, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen, _ := l.away.Get(who)
	one, ok := seen[channel]
	return one, ok && time.Now().Before(one.until)
}

// connsOf returns the connections that a viewer has now.
func (l *live) connsOf(who viewer) (list []*hostConn) {
	for _, c := range l.agent.clients.of(who.clientID) {
		if c.open.Subject == who.subject && !c.isSentAway() && c.open.Authority() == who.authority {
			list = append(list, c)
		}
	}
	return list
}

// errBarred reports a client that the host's owner has kicked.
var errBarred = errors.New(kickedReason)

// A canvasView is what is shown to a browser of a canvas: where the content is, what may be done
// with it, and the connection on which the host shows it; nil: the client is away,
// or it is a preview.
type canvasView struct {
	place   contentproxy.Place
	policy  gate.Policy
	conn    *hostConn
	preview bool
}

// look returns what a stream shows, or why it shows nothing.
func (l *live) look(ctx context.Context, s *canvasStream) (canvasView, error) {
	if _, barred := l.agent.barred.has(s.open); barred {
		return canvasView{}, errBarred
	}
	if s.open.Canvas.Preview {
		return l.lookPreview(s)
	}
	who, at := s.viewer(), s.open.Canvas
	var why error
	for _, c := range l.connsOf(who) {
		looked, asks := c.canvas.Look(at.Channel, at.Instance, contentproxy.Fresh)
		c.askAbout(asks, false)
		place, err := looked.Place(ctx)
		if contentproxy.Code(err) != ahp.CodePermissionDenied { // it is subscribed
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
	if _, known := was.known.Canvas(at.Channel); !known { // the host has started anew
		return canvasView{}, errAway
	}
	place, err := l.agent.canvases.PlaceOf(was.known, at.Channel, at.Instance)
	return canvasView{place: place, policy: was.policy}, err
}

// isForNow reports whether what keeps a stream from being shown anything may change by itself: the client comes back, or
// has connected and is about to subscribe.
func (l *live) isForNow(s *canvasStream, err error) bool {
	if errors.Is(err, errAway) || errors.Is(err, errUnattended) {
		return true
	}
	return contentproxy.Code(err) == ahp.CodePermissionDenied && slices.ContainsFunc(l.connsOf(s.viewer()), func(c *hostConn) bool {
		return time.Since(c.since) < arriveTime
	})
}

// errAway reports a client that has no connection, and had none of late.
var errAway = errors.New("the client that was shown this canvas is not connected to the host")

// watch cuts streams off that show what they may not any more, until ctx ends.
func (l *live) watch(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.previews.endIdle()
			for _, s := range l.all() {
				if !l.mayStay(s) {
					s.Cut(ahp.CloseForbidden, "the canvas is not shown any more")
				}
			}
		}
	}
}

// mayStay reports whether a stream may go on, as far as is known. One that shows
// nothing may: the answer to what it is asked says whether it may show that.
func (l *live) mayStay(s *canvasStream) bool {
	if !s.shows.Load() {
		return true
	}
	if _, barred := l.agent.barred.has(s.open); barred {
		return false
	}
	if s.open.Canvas.Preview {
		_, err := l.lookPreview(s)
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
	if _, barred := l.agent.barred.has(s.open); !barred && s.open.Canvas.Preview && s.open.Canvas.Check {
		l.servePreviews(w, r, s)
		return
	}
	seen, err := l.look(r.Context(), s)
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
		onlyLookHeaders(r.Header)
	}
	s.shows.Store(true)
	defer s.shows.Store(false)
	if seen.place.AtHost() {
		l.serveFromHost(w, r, s, &seen)
		return
	}
	_ = http.NewResponseController(w).EnableFullDuplex() // an answer may come before the request has ended
	l.agent.canvases.Serve(w, r, seen.place)
}

// refuseLive answers in place of the application.
func refuseLive(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, why, status)
}

// A usage is what may be done with a canvas.
type usage struct{ look, use, sockets bool }

// allows returns what may be done with what a stream shows: what the client may
// do with the canvas otherwise, and the host's owner lets canvases do.
func (l *live) allows(seen *canvasView) usage {
	look, use := seen.policy.Canvas()
	if seen.preview {
		look = seen.policy.Previews()
		use = look
	} else if seen.place.AtHost() { // it is as in band
		return usage{look: look}
	}
	cfg := &l.agent.cfg
	u := usage{look: look && cfg.CanvasLive != CanvasOff}
	u.use = u.look && use && cfg.CanvasLive != CanvasRead
	u.sockets = u.use || u.look && cfg.CanvasSockets
	return u
}

// refuses returns with what status a request is refused, 0 if it is not.
func (u usage) refuses(r *http.Request) (status int, why string) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch upgrades := len(r.Header["Upgrade"]) > 0; {
	case !u.look:
		return http.StatusForbidden, "canvases may not be looked at by URL here"
	case upgrades && !(u.sockets && reads && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")):
		return http.StatusForbidden, "this canvas can only be looked at: no WebSockets"
	case !reads && !u.use:
		return http.StatusMethodNotAllowed, "this canvas can only be looked at"
	case reads && !u.use && r.ContentLength != 0:
		return http.StatusBadRequest, "this canvas can only be looked at: no request bodies"
	}
	return 0, ""
}

// word is what a ticket calls it.
func (u usage) word() string {
	if u.use {
		return "use"
	}
	return "look"
}

// accessHeader is where an answer to a check says what may be done: look or use.
const accessHeader = "Ahp-Canvas-Access"

// checked answers a check, which a relay makes before it gives a ticket.
func (l *live) checked(w http.ResponseWriter, s *canvasStream, use usage) {
	if !use.look {
		refuseLive(w, http.StatusForbidden, "canvases may not be looked at by URL here")
		return
	}
	at, access := s.open.Canvas, use.word()
	l.agent.often(&s.open, comingsAtOnce, "canvas", "", "canvas", shorten(at.Channel), "instance", shorten(at.Instance), "access", access, "address", s.open.Remote)
	w.Header().Set(accessHeader, access)
	w.WriteHeader(http.StatusNoContent)
}

// statusOf is the HTTP status for why nothing is shown.
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
