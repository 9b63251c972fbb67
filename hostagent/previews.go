package hostagent

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
	"ahprelay/contentproxy"
)

// Previews. A client may open a port of the host's loopback interface in the browser, also
// without a canvas. The host's owner must permit the port, and the client's token a raw
// connection to it (createTcpConnection). A preview belongs to the subject and to one
// session, to which the client must be subscribed when it opens the preview. It does not
// belong to a connection, because the preview's browser tab may stay open longer than the
// client. Relays send these requests on a stream for checks:
//
//	POST   /?port=3000  opens a preview, or finds the open one → Preview
//	GET    /            → the subject's previews in that session, or all for ahp-root://
//	DELETE /?id=…       closes one of the listed previews
//
// A preview stays open until it is closed, its session is removed, the owner kicks its
// subject or a connection of that subject, or it is unused for previewIdle. Each preview
// has a new id, so an address of a closed preview never works again.

// Bounds of previews.
const (
	maxPreviews      = 256 // most open previews at a host
	subjectsPreviews = 32  // most open previews of a subject
	previewIdle      = time.Hour
)

// A PortRange is a range of ports for previews.
type PortRange struct{ From, To uint16 }

// ParsePorts parses "3000-5999", or a single port.
func ParsePorts(text string) (PortRange, error) {
	from, to, span := strings.Cut(text, "-")
	if !span {
		to = from
	}
	first, err := parsePort(from)
	last, err2 := parsePort(to)
	if errors.Join(err, err2) != nil || first > last {
		return PortRange{}, fmt.Errorf("%q: want a port such as 3000, or a range such as 3000-5999", text)
	}
	return PortRange{first, last}, nil
}

// parsePort parses a port in its canonical form only.
func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("%q: want a port from 1 to 65535", text)
	}
	return uint16(n), nil
}

// Has reports whether a port is in the range.
func (r PortRange) Has(port uint16) bool { return r.From <= port && port <= r.To }

// A Preview is a port of the host's loopback interface, opened by a client.
type Preview struct {
	ID      string    `json:"id"`
	Port    uint16    `json:"port"`
	Channel string    `json:"channel"` // URI of the session to which the preview belongs
	Subject string    `json:"subject"`
	Since   time.Time `json:"since"`
}

// previews holds a host's open previews.
type previews struct {
	mu   sync.Mutex // guards the field below
	open map[string]*openPreview
}

type openPreview struct {
	Preview
	authority string // only clients with this class of authority may use the preview
	policy    gate.Policy
	used      time.Time // when a browser last sent a request
	left      time.Time // when a client that may use the preview last left; zero if that client was kicked or its token has ended
}

func (p *openPreview) isFor(who viewer) bool {
	return p.Subject == who.subject && p.authority == who.authority
}

var errPreviews = fmt.Errorf("too many open previews (limits: %d per subject, %d in total): close one first", subjectsPreviews, maxPreviews)

// add opens a preview, or returns the open one for the same subject, authority, session and port.
func (p *previews) add(who viewer, channel string, port uint16, policy gate.Policy) (Preview, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := 0
	for _, one := range p.open {
		if one.isFor(who) && one.Channel == channel && one.Port == port {
			one.used = time.Now()
			return one.Preview, nil
		}
		if one.Subject == who.subject {
			own++
		}
	}
	if own >= subjectsPreviews || len(p.open) >= maxPreviews {
		return Preview{}, errPreviews
	}
	now := time.Now()
	one := &openPreview{
		Preview:   Preview{ID: strings.ToLower(rand.Text()), Port: port, Channel: channel, Subject: who.subject, Since: now.UTC()},
		authority: who.authority, policy: policy, used: now,
	}
	p.open[one.ID] = one
	return one.Preview, nil
}

// use finds the preview for a browser's request, and records the use.
func (p *previews) use(who viewer, id string) (openPreview, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.open[id]
	if one == nil || !one.isFor(who) {
		return openPreview{}, false
	}
	one.used = time.Now()
	return *one, true
}

// clientLeft records that a client's connection has ended.
func (p *previews) clientLeft(subject, authority string, sentAway bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.open {
		if one.Subject != subject || one.authority != authority {
			continue
		}
		if one.left = time.Now(); sentAway {
			one.left = time.Time{}
		}
	}
}

// list returns the matching previews, the oldest first.
func (p *previews) list(wanted func(*openPreview) bool) []Preview {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := []Preview{}
	for _, one := range p.open {
		if wanted(one) {
			list = append(list, one.Preview)
		}
	}
	slices.SortFunc(list, func(a, b Preview) int { return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.ID, b.ID)) })
	return list
}

// end closes the previews for which over returns true, and returns their number. watch then
// ends their streams.
func (p *previews) end(over func(*openPreview) bool) (ended int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, one := range p.open {
		if over(one) {
			delete(p.open, id)
			ended++
		}
	}
	return ended
}

// sessionsGone closes the previews of sessions that a host message removes.
func (p *previews) sessionsGone(reading *view.Reading) {
	if reading == nil {
		return
	}
	for _, fact := range reading.Facts {
		if fact.Kind == view.SessionGone {
			p.end(func(one *openPreview) bool { return one.Channel == fact.Of })
		}
	}
}

func (p *previews) endIdle() {
	since := time.Now().Add(-previewIdle)
	p.end(func(one *openPreview) bool { return !one.used.After(since) })
}

func (p *previews) none() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open) == 0
}

var errNoPreview = &liveError{http.StatusGone, "the preview is closed"}

// A liveError is an access error with its HTTP status.
type liveError struct {
	status int
	why    string
}

func (e *liveError) Error() string { return e.why }

// previewView returns the canvasView of the preview that a browser's stream names.
func (l *live) previewView(s *canvasStream) (canvasView, error) {
	one, ok := l.previews.use(s.viewer(), s.open.Canvas.Instance)
	if !ok {
		return canvasView{}, errNoPreview
	}
	if !l.isAttended(s, &one) {
		return canvasView{}, errUnattended
	}
	place, err := l.mayPreview(one.policy, one.Port)
	return canvasView{place: place, policy: one.policy, preview: true}, err
}

// errUnattended reports that the browser's token has expired and no client of the preview's
// subject is connected.
var errUnattended = &liveError{http.StatusForbidden, "the token has expired, and no client of its subject is connected to the host"}

// isAttended reports whether the stream's token is valid, or a client with the same subject
// and authority is connected, or left within awayTime and may return. A page in its own tab
// may outlive the client's page, but not the subject's authorization.
func (l *live) isAttended(s *canvasStream, one *openPreview) bool {
	now := time.Now()
	if s.open.Expires == nil || now.Before(*s.open.Expires) || now.Before(one.left.Add(awayTime)) {
		return true
	}
	return slices.ContainsFunc(l.agent.clients.every(), func(c *hostConn) bool {
		return c.open.Subject == one.Subject && !c.isSentAway() && c.open.Authority() == one.authority
	})
}

// mayPreview returns the place of a port, if a client with this policy may open it.
func (l *live) mayPreview(policy gate.Policy, port uint16) (contentproxy.Place, error) {
	if !policy.Previews() {
		return contentproxy.Place{}, &liveError{http.StatusForbidden, "the token does not permit opening ports of the host"}
	}
	if !slices.ContainsFunc(l.agent.cfg.PreviewPorts, func(r PortRange) bool { return r.Has(port) }) {
		return contentproxy.Place{}, &liveError{http.StatusForbidden, "the host's owner does not permit this port (host-agent run --preview-port)"}
	}
	return l.agent.canvases.PlaceAt(strconv.Itoa(int(port)))
}

// servePreviews answers a relay's request about a client's previews.
func (l *live) servePreviews(w http.ResponseWriter, r *http.Request, s *canvasStream) {
	who, at := s.viewer(), s.open.Canvas
	ofSubject := func(one *openPreview) bool {
		return one.Subject == who.subject && (at.Channel == one.Channel || at.Channel == "ahp-root://")
	}
	conns := l.connsOf(who)
	if len(conns) == 0 {
		refuseLive(w, http.StatusForbidden, errAway.Error())
		return
	}
	if !conns[0].policy.Previews() {
		refuseLive(w, http.StatusForbidden, "the token does not permit opening ports of the host")
		return
	}
	switch r.Method {
	case http.MethodPost:
		l.openPreview(w, r, s, conns)
	case http.MethodGet:
		say(w, http.StatusOK, l.previews.list(ofSubject))
	case http.MethodDelete:
		id := r.URL.Query().Get("id")
		if l.previews.end(func(one *openPreview) bool { return one.ID == id && ofSubject(one) }) == 0 {
			refuseLive(w, http.StatusGone, errNoPreview.why)
			return
		}
		l.agent.auditOften(&s.open, auditEventsAtOnce, "port", "closed", "closed", id, "token", s.open.Token)
		w.WriteHeader(http.StatusNoContent)
	default:
		refuseLive(w, http.StatusMethodNotAllowed, "want POST, GET or DELETE")
	}
}

// openPreview opens a preview for a client with these connections.
func (l *live) openPreview(w http.ResponseWriter, r *http.Request, s *canvasStream, conns []*hostConn) {
	port, err := parsePort(r.URL.Query().Get("port"))
	if err != nil {
		refuseLive(w, http.StatusNotFound, err.Error())
		return
	}
	channel := s.open.Canvas.Channel
	if channel == "ahp-root://" || !slices.ContainsFunc(conns, func(c *hostConn) bool { return c.subscribed(channel) }) {
		refuseLive(w, http.StatusForbidden, "subscribe to the session first")
		return
	}
	policy := conns[0].policy // the same for all, because their authority is equal
	use := usage{}
	if _, err = l.mayPreview(policy, port); err == nil {
		use = l.allows(&canvasView{policy: policy, preview: true})
		if !use.look {
			err = &liveError{http.StatusForbidden, "the host's owner has disabled canvases by URL"}
		}
	}
	var one Preview
	if err == nil {
		one, err = l.previews.add(s.viewer(), channel, port, policy)
	}
	if err != nil {
		refuseLive(w, statusOf(err), err.Error())
		return
	}
	l.agent.auditOften(&s.open, auditEventsAtOnce, "port", "", "port", port, "preview", one.ID, "channel", shorten(channel), "token", s.open.Token, "address", s.open.Remote)
	w.Header().Set(accessHeader, use.word())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(one) // fails if the requester has left
}

// subscribed reports whether the host has confirmed a subscription.
func (c *hostConn) subscribed(channel string) bool {
	c.order.Lock()
	defer c.order.Unlock()
	return c.gates.View.Subscribed(channel)
}
