package mcpgate

import "slices"

// Bounds of what a connection's gate keeps.
const (
	maxSessions = 4096
	maxServers  = 1024
	maxGone     = 256
	maxName     = 4 << 10 // bytes of a URI or an id
)

// A session is what is known of a session's customizations.
type session struct {
	full bool // the host has said what there is; else only what has changed is known
	tops []*container
}

// A container is a customization at the top level of a session that has to do
// with MCP servers: one itself, or what holds some.
type container struct {
	id       string
	off      bool    // disabled
	self     *server // nil: it is none
	children []*server
}

// A server is an MCP server of a session, as the host has described it.
type server struct {
	id      string
	sets    surface
	state   string // kind; "" if it has none
	channel string // "" if it names none
	off     bool   // disabled, beside what its container is
}

// A place is a server in its container.
type place struct {
	top *container
	*server
}

// ready reports whether what the server's customization says holds.
func (p place) ready() bool {
	return !p.top.off && !p.off && (p.state == "" || p.state == "ready")
}

// places returns the servers of a container.
func (top *container) places() (list []place) {
	if top.self != nil {
		list = append(list, place{top, top.self})
	}
	for _, s := range top.children {
		list = append(list, place{top, s})
	}
	return list
}

// locate returns the server with that id; as for reducers, the top level comes
// first.
func (s *session) locate(id string) (place, bool) {
	for _, top := range s.tops {
		if top.self != nil && top.id == id {
			return place{top, top.self}, true
		}
	}
	for _, top := range s.tops {
		for _, child := range top.children {
			if child.id == id {
				return place{top, child}, true
			}
		}
	}
	return place{}, false
}

// A channel is one that a customization names or has named.
type channel struct {
	named []place // by these
	used  bool    // a request has passed on it
	gone  int     // since when nobody names it, an entry of register.gone; 0: somebody does
}

// served returns what a channel serves, and whether it is ready at all.
func (ch *channel) served() (all surface, ready bool) {
	for _, p := range ch.named {
		if p.ready() {
			all |= p.sets
			ready = true
		}
	}
	return all, ready
}

// A register is what a connection's gate knows of sessions and channels.
type register struct {
	host     *Host
	sessions map[string]*session
	channels map[string]*channel
	servers  int
	gone     []goneChannel // oldest first
	count    int           // of all that have gone
}

// A goneChannel is one that nobody names.
type goneChannel struct {
	uri    string
	number int
}

func newRegister(h *Host) register {
	return register{host: h, sessions: map[string]*session{}, channels: map[string]*channel{}}
}

// of returns what is known of a session, nil if there is no room for it.
func (r *register) of(uri string) *session {
	s := r.sessions[uri]
	if s == nil && len(r.sessions) < maxSessions && len(uri) <= maxName {
		s = new(session)
		r.sessions[uri] = s
	}
	return s
}

// replace puts containers in the place of all that a session had, and reports
// whether there was room for them.
func (r *register) replace(s *session, tops []*container) (all bool) {
	for _, top := range s.tops {
		r.release(top)
	}
	s.full, s.tops = true, nil
	all = true
	for _, top := range tops {
		all = r.add(s, top) && all
	}
	r.retire()
	return all
}

// copyOf returns copies of what is known of sessions.
func (r *register) copyOf(uris []string) map[string]*session {
	copies := map[string]*session{}
	for _, uri := range uris {
		if s := r.sessions[uri]; s != nil {
			copies[uri] = s.clone()
		}
	}
	return copies
}

func (s *session) clone() *session {
	other := &session{full: s.full}
	for _, top := range s.tops {
		t := &container{id: top.id, off: top.off}
		if top.self != nil {
			self := *top.self
			t.self = &self
		}
		for _, child := range top.children {
			child := *child
			t.children = append(t.children, &child)
		}
		other.tops = append(other.tops, t)
	}
	return other
}

// inherit takes over what was known of a session elsewhere.
func (r *register) inherit(uri string, from *session) {
	s := r.of(uri)
	if s == nil {
		return
	}
	s.full = from.full
	for _, top := range from.tops {
		r.add(s, top)
	}
}

// forget drops a session.
func (r *register) forget(uri string) {
	if s := r.sessions[uri]; s != nil {
		r.replace(s, nil)
		delete(r.sessions, uri)
	}
}

// upsert puts a container in the place of what had its id, or that of a server
// in it, and reports whether there was room for it.
func (r *register) upsert(s *session, top *container) (all bool) {
	r.drop(s, top.id)
	for _, child := range top.children {
		if old, ok := s.locate(child.id); ok && old.sets == partial {
			r.drop(s, child.id) // of which only a change was known
		}
	}
	all = r.add(s, top)
	r.retire()
	return all
}

// remove drops a container, or a server in one.
func (r *register) remove(s *session, id string) {
	if !r.drop(s, id) {
		if p, ok := s.locate(id); ok {
			r.unname(p)
			r.servers--
			p.top.children = slices.DeleteFunc(p.top.children, func(o *server) bool { return o == p.server })
		}
	}
	r.retire()
}

// change has f change a server.
func (r *register) change(p place, f func(s *server)) {
	r.unname(p)
	f(p.server)
	r.name(p)
	r.retire()
}

// drop takes a container out of a session, if it is there.
func (r *register) drop(s *session, id string) bool {
	i := slices.IndexFunc(s.tops, func(top *container) bool { return top.id == id })
	if i < 0 {
		return false
	}
	r.release(s.tops[i])
	s.tops = slices.Delete(s.tops, i, i+1)
	return true
}

// add puts a container into a session, if there is room for it.
func (r *register) add(s *session, top *container) bool {
	places := top.places()
	if len(places) == 0 || r.servers+len(places) > maxServers {
		return len(places) == 0
	}
	r.servers += len(places)
	s.tops = append(s.tops, top)
	for _, p := range places {
		r.name(p)
	}
	return true
}

// release takes the servers of a container out of the channels that they name.
func (r *register) release(top *container) {
	for _, p := range top.places() {
		r.servers--
		r.unname(p)
	}
}

func (r *register) name(p place) {
	if p.channel == "" {
		return
	}
	ch := r.channels[p.channel]
	if ch == nil {
		ch = new(channel)
		r.channels[p.channel] = ch
		r.host.advertises.Store(true)
	}
	ch.named = append(ch.named, p)
	ch.gone = 0
}

// unname takes a server out of the channel that it names.
func (r *register) unname(p place) {
	ch := r.channels[p.channel]
	if ch == nil {
		return
	}
	ch.named = slices.DeleteFunc(ch.named, func(o place) bool { return o.server == p.server })
	if len(ch.named) == 0 {
		r.count++
		ch.gone = r.count
		r.gone = append(r.gone, goneChannel{p.channel, r.count})
	}
}

// retire forgets the channels that have been named by nobody for longest, if
// there are too many.
func (r *register) retire() {
	r.gone = slices.DeleteFunc(r.gone, func(g goneChannel) bool {
		ch := r.channels[g.uri]
		return ch == nil || ch.gone != g.number // it was named since
	})
	for len(r.gone) > maxGone {
		delete(r.channels, r.gone[0].uri)
		r.gone = slices.Delete(r.gone, 0, 1)
	}
}
