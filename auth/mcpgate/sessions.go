package mcpgate

import (
	"maps"
	"slices"
	"sync"
)

// Bounds for a connection's gate.
const (
	maxSessions = 4096
	maxServers  = 1024
	maxGone     = 256
	maxName     = 4 << 10 // bytes of a URI or an id
)

// A customization is an MCP server in a session, or a container with servers. It is
// immutable.
type customization struct {
	id       string
	off      bool            // disabled
	children []customization // servers

	server  bool
	sets    surface
	state   string // kind; "" without a state
	channel string // the channel that it names, or ""
}

func (c *customization) servers() int {
	if c.server {
		return 1
	}
	return len(c.children)
}

// A session holds the known customizations of a session. It is immutable.
type session struct {
	full bool // the host has sent the complete list; if false, only changes are known
	tops []customization
}

// with replaces the first customization that has this id, and for which is returns true, by
// the result of put. It returns the new session, or s and false without such a
// customization. Like AHP's reducers, it searches the top level first.
func (s *session) with(id string, is func(*customization) bool, put func(customization) []customization) (*session, bool) {
	in := func(list []customization) ([]customization, bool) {
		i := slices.IndexFunc(list, func(c customization) bool { return c.id == id && is(&c) })
		if i < 0 {
			return list, false
		}
		return slices.Concat(list[:i], put(list[i]), list[i+1:]), true
	}
	if tops, ok := in(s.tops); ok {
		return &session{s.full, tops}, true
	}
	for i := range s.tops {
		if children, ok := in(s.tops[i].children); ok {
			tops := slices.Clone(s.tops)
			tops[i].children = children
			return &session{s.full, tops}, true
		}
	}
	return s, false
}

// A serverEntry is a server. It is off if the server or its container is disabled.
type serverEntry struct {
	*customization
	off bool
}

func (p serverEntry) ready() bool { return !p.off && (p.state == "" || p.state == "ready") }

// A channel is a channel that a customization names or has named.
type channel struct {
	named []serverEntry // the customizations that name it
	used  bool          // a request has passed on it
}

func (ch *channel) served() (all surface, ready bool) {
	for _, p := range ch.named {
		if p.ready() {
			all |= p.sets
			ready = true
		}
	}
	return all, ready
}

// A register holds a gate's facts about sessions and channels. It is kept for the
// client's return.
type register struct {
	mu       sync.Mutex // guards the fields below, and those of the Gate
	sessions map[string]*session
	order    []string // of the sessions
	channels map[string]*channel
	gone     []string        // channels that are no longer named, oldest first
	silent   map[string]bool // channels whose complete state has no customizations
	servers  int
}

// knows reports whether a channel's customizations are known.
func (r *register) knows(uri string) bool { return r.sessions[uri] != nil || r.silent[uri] }

// recordNone records that a session has no customizations.
func (r *register) recordNone(uri string) {
	if len(r.silent) < maxSessions {
		r.silent[uri] = true
	}
}

// some returns the known sessions among uris. A nil session means that the channel has no
// customizations.
func (r *register) some(uris []string) map[string]*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	some := map[string]*session{}
	for _, uri := range uris {
		if r.knows(uri) {
			some[uri] = r.sessions[uri]
		}
	}
	return some
}

// put records a session's customizations; nil removes them. It reports whether all of
// them fit.
func (r *register) put(uri string, s *session) (all bool) {
	old := r.sessions[uri]
	switch {
	case old != nil:
		for i := range old.tops {
			r.servers -= old.tops[i].servers()
		}
	case s == nil:
		return true
	case len(r.sessions) >= maxSessions || len(uri) > maxName:
		return false
	default:
		r.order = append(r.order, uri)
	}
	all = true
	if s == nil {
		delete(r.sessions, uri)
		r.order = slices.DeleteFunc(r.order, func(other string) bool { return other == uri })
	} else {
		kept := &session{full: s.full}
		for _, top := range s.tops {
			switch n := top.servers(); {
			case n == 0:
			case r.servers+n > maxServers:
				all = false
			default:
				r.servers += n
				kept.tops = append(kept.tops, top)
			}
		}
		r.sessions[uri] = kept
	}
	r.name()
	return all
}

// name updates which customizations name each channel. It keeps the last maxGone channels
// that are no longer named.
func (r *register) name() {
	before := r.channels
	r.channels = make(map[string]*channel, len(before))
	for _, uri := range r.order {
		tops := r.sessions[uri].tops
		for i := range tops {
			top := &tops[i]
			r.nameOne(before, serverEntry{top, top.off})
			for j := range top.children {
				r.nameOne(before, serverEntry{&top.children[j], top.off || top.children[j].off})
			}
		}
	}
	r.gone = slices.DeleteFunc(r.gone, func(uri string) bool { return r.channels[uri] != nil })
	for _, uri := range slices.Sorted(maps.Keys(before)) {
		if r.channels[uri] == nil && len(before[uri].named) > 0 {
			r.gone = append(r.gone, uri)
		}
	}
	r.gone = slices.Delete(r.gone, 0, max(0, len(r.gone)-maxGone))
	for _, uri := range r.gone {
		r.channels[uri] = &channel{used: before[uri].used}
	}
}

func (r *register) nameOne(before map[string]*channel, p serverEntry) {
	if !p.server || p.channel == "" {
		return
	}
	ch := r.channels[p.channel]
	if ch == nil {
		ch = new(channel)
		if was := before[p.channel]; was != nil {
			ch.used = was.used
		}
		r.channels[p.channel] = ch
	}
	ch.named = append(ch.named, p)
}
