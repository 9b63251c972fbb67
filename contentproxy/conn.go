package contentproxy

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
)

// A Conn is one client's connection to the host. One goroutine may show it
// what the client sends while another shows it what the host sends.
type Conn struct {
	host *Host

	mu       sync.Mutex
	waiting  []waiting        // requests of the client
	canvases map[string]*seen // by channel; those that the client is subscribed to
	asks     []Ask            // that are to be taken
}

// A waiting request is one whose answer matters here.
type waiting struct {
	id      []byte
	method  string
	channel string
	uri     string   // of a read
	params  []byte   // of a subscribe
	resumed []string // subscriptions of a reconnect
	left    []string // what the client has unsubscribed from since
}

// seen is a canvas as this client sees it.
type seen struct {
	canvas
	closed bool
	params []byte        // with which the client has subscribed; nil: the host may not be asked with these
	told   time.Time     // when the host has last said here what the canvas is
	asked  chan struct{} // closed when the host has answered an Ask; nil: it is not being asked
}

// Conn returns a connection that has seen nothing yet.
func (h *Host) Conn() *Conn {
	return &Conn{host: h, canvases: map[string]*seen{}}
}

// Canvas channels begin with this.
const canvasChannel = "ahp-canvas:"

// FromClient takes note of a message of the client's.
func (c *Conn) FromClient(env *ahp.Envelope) {
	switch string(env.Method) {
	case "dispatchAction":
		if bytes.HasPrefix(env.Channel, []byte(canvasChannel)) {
			c.host.claimed(env)
		}
	case "unsubscribe":
		c.unsubscribed(string(env.Channel))
	case "initialize":
		c.await(env, waiting{})
	case "subscribe":
		c.await(env, waiting{params: askParams(env.Params)})
	case "reconnect":
		if params, err := ahp.ReadReconnectParams(env.Params); err == nil {
			c.await(env, waiting{resumed: params.Subscriptions})
		}
	case "canvasReadResource", "resourceRead":
		if uri, ok := member(env.Params, "uri"); ok {
			text, _ := ahp.Text(uri.Raw)
			c.await(env, waiting{uri: text})
		}
	}
}

// await notes a request, so that its answer is known.
func (c *Conn) await(env *ahp.Envelope, w waiting) {
	if env.Kind != ahp.Request {
		return
	}
	w.method, w.channel = string(env.Method), string(env.Channel)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) < maxWaiting {
		w.id = bytes.Clone(env.ID)
		c.waiting = append(c.waiting, w)
	}
}

// unsubscribed notes that the client wants to hear no more of a canvas, not even
// in answers that are still to come.
func (c *Conn) unsubscribed(channel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(channel)
	delete(c.canvases, channel)
	for i := range c.waiting {
		w := &c.waiting[i]
		concerned := w.channel == channel || slices.Contains(w.resumed, channel) || w.method == "initialize" && len(w.left) < maxCanvases
		if concerned && !slices.Contains(w.left, channel) {
			w.left = append(w.left, channel)
		}
	}
}

// answered returns the request that a response answers.
func (c *Conn) answered(id []byte) (waiting, bool) {
	for i, w := range c.waiting {
		if ahp.SameID(w.id, id) {
			c.waiting = slices.Delete(c.waiting, i, i+1)
			return w, true
		}
	}
	return waiting{}, false
}

// A Message is for the client. Its Bytes from From to To, if there are any, are
// content, which is likely to be the same for others.
type Message struct {
	Bytes    []byte
	From, To int
}

// FromHost takes a message of the host's. It returns the message, in which
// addresses may be minted, or the read that is to be served in its place.
func (c *Conn) FromHost(message []byte, env *ahp.Envelope) (Message, *Read) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var r rewriter
	switch {
	case env.Kind == ahp.Response && len(c.waiting) > 0:
		w, ok := c.answered(env.ID)
		if !ok {
			break
		}
		if read := c.read(w, env); read != nil {
			return Message{}, read
		}
		if w.uri != "" {
			return withContent(message), nil
		}
		if m, ok := member(message, "result"); ok {
			c.response(&r, w, m.Raw, m.Offset())
		}
	case env.Kind == ahp.Notification && string(env.Method) == "action":
		if isCanvas := bytes.HasPrefix(env.Channel, []byte(canvasChannel)); isCanvas || env.Said.MayBeOf("session/") && mayCloseCanvases(message) {
			if m, ok := member(message, "params"); ok {
				c.action(&r, m.Raw, m.Offset())
			}
		}
	}
	return Message{Bytes: r.apply(message)}, nil
}

// member returns a member of a raw object that has it.
func member(object []byte, name string) (ahp.Member, bool) {
	m := [...]ahp.Member{{Name: name}}
	err := ahp.Members(object, m[:])
	return m[0], err == nil && m[0].Raw != nil
}

// mayCloseCanvases is a cheap look at a session's action: whether it may say which
// canvases the session has open.
func mayCloseCanvases(message []byte) bool {
	const rare = "CanvasesChanged" // it begins with what texts seldom have, and so is found fast
	return bytes.Contains(message, []byte(rare)) && bytes.Contains(message, []byte("open"+rare))
}

// response learns from an accepted request.
func (c *Conn) response(r *rewriter, w waiting, result []byte, at int) {
	m := [...]ahp.Member{{Name: "snapshot"}, {Name: "snapshots"}, {Name: "actions"}, {Name: "missing"}}
	if ahp.Members(result, m[:]) != nil {
		return
	}
	snapshot, snapshots, actions := &m[0], &m[1], &m[2]
	missing, _ := ahp.Texts(m[3].Raw)
	for _, channel := range append(w.resumed, w.channel) {
		if strings.HasPrefix(channel, canvasChannel) && !slices.Contains(missing, channel) {
			c.subscribed(channel)
		}
	}
	if snapshot.Raw != nil {
		c.snapshot(r, snapshot.Raw, at+snapshot.Offset())
	}
	each(snapshots, at, func(raw []byte, at int) { c.snapshot(r, raw, at) })
	each(actions, at, func(raw []byte, at int) { c.action(r, raw, at) })
	if s := c.canvases[w.channel]; s != nil && w.method == "subscribe" {
		s.params = w.params
	}
	for _, channel := range w.left {
		delete(c.canvases, channel)
	}
	if !c.host.cfg.Off {
		c.askUnknown(w.resumed)
	}
}

// each calls f with each element of an array.
func each(array *ahp.Member, at int, f func(raw []byte, at int)) {
	if array.Raw == nil {
		return
	}
	elements, _ := ahp.Elements(array.Raw)
	for i := range elements {
		f(elements[i].Raw, at+array.Offset()+elements[i].Offset())
	}
}

// subscribed notes that the host has let the client see a canvas. After a
// reconnect there may be no snapshot: then what the host said on an earlier
// connection holds.
func (c *Conn) subscribed(channel string) *seen {
	s := c.canvases[channel]
	if s == nil {
		if len(c.canvases) >= maxCanvases {
			return new(seen)
		}
		s = &seen{params: askParams(quotedChannel(channel))}
		c.canvases[channel] = s
	}
	if known, ok := c.host.known(channel); ok && s.instance == "" {
		s.canvas = known
	}
	return s
}

// snapshot learns from {resource, state}.
func (c *Conn) snapshot(r *rewriter, raw []byte, at int) {
	m := [...]ahp.Member{{Name: "resource"}, {Name: "state"}}
	if ahp.Members(raw, m[:]) != nil || m[1].Raw == nil {
		return
	}
	channel, _ := ahp.Text(m[0].Raw)
	if strings.HasPrefix(channel, canvasChannel) {
		c.state(r, channel, m[1].Raw, at+m[1].Offset())
		return
	}
	open := [...]ahp.Member{{Name: "openCanvases"}}
	if ahp.Members(m[1].Raw, open[:]) == nil && open[0].Raw != nil {
		c.openCanvases(channel, open[0].Raw)
	}
}

// state learns from the whole state of a canvas, and mints.
func (c *Conn) state(r *rewriter, channel string, raw []byte, at int) {
	m := [...]ahp.Member{{Name: "instanceId"}, {Name: "provider"}}
	if ahp.Members(raw, m[:]) != nil {
		return
	}
	s := c.subscribed(channel)
	s.instance, _ = ahp.Text(m[0].Raw)
	s.closed, s.server, s.origin, s.told = false, isServer(m[1].Raw), origin{}, time.Now()
	c.address(r, s, raw, at, func(o origin) bool { return c.host.mayBeClients(channel, o) })
	c.host.learn(channel, s.canvas)
}

// isServer reports whether a provider is the host.
func isServer(provider []byte) bool {
	kind := [...]ahp.Member{{Name: "kind"}}
	if provider == nil || ahp.Members(provider, kind[:]) != nil {
		return false
	}
	text, _ := ahp.Text(kind[0].Raw)
	return text == "server"
}

// address looks at the url and contentUri of a canvas's state, or of a change
// of it, and mints, but not what is doubtful.
func (c *Conn) address(r *rewriter, s *seen, raw []byte, at int, doubtful func(origin) bool) {
	m := [...]ahp.Member{{Name: "url"}, {Name: "contentUri"}}
	if ahp.Members(raw, m[:]) != nil {
		return
	}
	for i := range m {
		if m[i].Raw == nil {
			continue
		}
		text, _ := ahp.Text(m[i].Raw)
		o, u, ok := splitLoopback(text)
		if !ok || c.host.cfg.Off || !s.server || s.instance == "" || slices.Contains(c.host.cfg.DenyPorts, o.port) || doubtful(o) {
			s.origin = origin{} // what was minted before is no longer what the host shows
			continue
		}
		s.origin = o
		r.replace(at+m[i].Offset(), len(m[i].Raw), quote(mint(s.instance, u)))
	}
}

// action learns from {channel, action, origin?, rejectionReason?}. What a client
// has said, accepted or not, and what was rejected, is not the host's own word:
// it teaches nothing, and passes as it is.
func (c *Conn) action(r *rewriter, raw []byte, at int) {
	m := [...]ahp.Member{{Name: "channel"}, {Name: "action"}, {Name: "origin"}, {Name: "rejectionReason"}}
	if ahp.Members(raw, m[:]) != nil || m[1].Raw == nil || !ahp.IsNone(m[2].Raw) || !ahp.IsNone(m[3].Raw) {
		return
	}
	channel, _ := ahp.Text(m[0].Raw)
	t := [...]ahp.Member{{Name: "type"}, {Name: "openCanvases"}}
	if ahp.Members(m[1].Raw, t[:]) != nil {
		return
	}
	switch kind, _ := ahp.Text(t[0].Raw); {
	case kind == "session/openCanvasesChanged":
		c.openCanvases(channel, t[1].Raw)
	case kind == "canvas/updated" && strings.HasPrefix(channel, canvasChannel):
		s := c.canvases[channel]
		if s == nil { // the client has just left
			known, _ := c.host.known(channel)
			s = &seen{canvas: known}
		}
		before := s.canvas
		c.address(r, s, m[1].Raw, at+m[1].Offset(), func(origin) bool { return false })
		if s.canvas != before {
			c.host.learn(channel, s.canvas)
		}
	}
}

// openCanvases takes the list of the canvases that a session has open. Those
// of the session that are not in it are closed.
func (c *Conn) openCanvases(session string, raw []byte) {
	elements, ok := ahp.Elements(raw)
	if !ok {
		return
	}
	open := map[string]bool{}
	for i := range elements {
		m := [...]ahp.Member{{Name: "channel"}}
		if ahp.Members(elements[i].Raw, m[:]) == nil {
			channel, _ := ahp.Text(m[0].Raw)
			open[channel] = true
			c.host.belongs(channel, session)
		}
	}
	for channel, s := range c.canvases {
		if !open[channel] && c.host.sessionOf(channel) == session {
			s.closed = true
			c.host.forget(channel)
		}
	}
}
