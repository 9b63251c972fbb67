package mcpgate

import (
	"bytes"

	"ahprelay/ahp"
	"ahprelay/view"
)

// lesson is what was learnt from one message.
type lesson struct {
	changed bool // something about channels
	apps    int  // customizations with mcpApp
	lost    bool // something could not be kept, or not be read
}

// text returns the text of a member that is a string of a length that is
// kept.
func text(m *ahp.Member) string {
	s, _ := ahp.Text(m.Raw)
	if len(s) > maxName {
		return ""
	}
	return s
}

// each calls f with each element of an array.
func each(array []byte, f func(raw []byte)) {
	elements, _ := ahp.Elements(array)
	for i := range elements {
		f(elements[i].Raw)
	}
}

// customizations learns the list of all of a session's.
func (r *register) customizations(l *lesson, uri string, raw []byte) {
	s := r.of(uri)
	if s == nil {
		l.lost = true
		return
	}
	var tops []*container
	each(raw, func(one []byte) {
		if top := readContainer(l, one); top != nil {
			tops = append(tops, top)
		}
	})
	if !r.replace(s, tops) {
		l.lost = true
	}
	l.changed = true
}

// readContainer reads a customization of the top level; nil if it has no id.
func readContainer(l *lesson, raw []byte) *container {
	m := [...]ahp.Member{{Name: "type"}, {Name: "id"}, {Name: "enabled"}, {Name: "children"}}
	if ahp.Members(raw, m[:]) != nil || text(&m[1]) == "" {
		l.lost = true
		return nil
	}
	top := &container{id: text(&m[1]), off: string(m[2].Raw) == "false"}
	if text(&m[0]) == "mcpServer" {
		if top.self = readServer(l, raw); top.self != nil {
			top.self.off = false // top says that
		}
		return top
	}
	each(m[3].Raw, func(child []byte) {
		t := [...]ahp.Member{{Name: "type"}}
		if ahp.Members(child, t[:]) == nil && text(&t[0]) == "mcpServer" {
			if s := readServer(l, child); s != nil {
				top.children = append(top.children, s)
			}
		}
	})
	return top
}

// readServer reads a customization of type mcpServer; nil if it has no id.
func readServer(l *lesson, raw []byte) *server {
	m := [...]ahp.Member{{Name: "id"}, {Name: "enabled"}, {Name: "state"}, {Name: "channel"}}
	if ahp.Members(raw, m[:]) != nil || text(&m[0]) == "" {
		l.lost = true
		return nil
	}
	s := &server{id: text(&m[0]), off: string(m[1].Raw) == "false", state: kindOf(m[2].Raw), channel: mcpChannel(l, &m[3])}
	app := false
	if s.sets, app = readSurface(raw); app {
		l.apps++
	}
	return s
}

// kindOf returns the kind of a state, "" if there is no state. One that cannot
// be read is not ready.
func kindOf(raw []byte) string {
	if ahp.IsNone(raw) {
		return ""
	}
	m := [...]ahp.Member{{Name: "kind"}}
	if ahp.Members(raw, m[:]) != nil || len(text(&m[0])) == 0 || len(text(&m[0])) > 64 {
		return "unknown"
	}
	return text(&m[0])
}

// mcpChannel returns the channel that a customization names, "" if none or one
// of another scheme: those belong to AHP.
func mcpChannel(l *lesson, m *ahp.Member) string {
	uri := text(m)
	if !isMCP([]byte(uri)) {
		l.lost = l.lost || uri == "" && len(m.Raw) > maxName
		return ""
	}
	return uri
}

// isMCP reports whether a channel has the scheme mcp.
func isMCP(uri []byte) bool {
	return len(uri) > 4 && uri[3] == ':' && bytes.EqualFold(uri[:3], []byte("mcp"))
}

// learn takes what the host says of a session. A state without customizations
// has none.
func (r *register) learn(l *lesson, f *view.Fact) {
	if len(f.Of) > maxName || len(f.URI) > maxName {
		l.lost = l.lost || f.Kind >= view.Customizations
		return
	}
	switch f.Kind {
	case view.Customizations:
		if f.Raw != nil || f.Own || r.sessions[f.Of] != nil {
			r.customizations(l, f.Of, f.Raw)
		}
	case view.Customization:
		r.updated(l, f.Of, f.Raw)
	case view.CustomizationGone:
		if s := r.sessions[f.Of]; s != nil {
			r.remove(s, f.URI)
			l.changed = true
		}
	case view.CustomizationToggled:
		m := [...]ahp.Member{{Name: "enabled"}}
		if ahp.Members(f.Raw, m[:]) == nil {
			r.toggled(l, f.Of, f.URI, string(m[0].Raw))
		}
	case view.ServerIs:
		m := [...]ahp.Member{{Name: "state"}, {Name: "channel"}}
		if ahp.Members(f.Raw, m[:]) == nil {
			r.moved(l, f.Of, f.URI, kindOf(m[0].Raw), mcpChannel(l, &m[1]))
		}
	case view.ServerStarts:
		r.moved(l, f.Of, f.URI, "starting", "")
	case view.ServerStops:
		r.moved(l, f.Of, f.URI, "stopped", "")
	case view.SessionGone:
		r.forget(f.Of)
		l.changed = true
	}
}

// updated learns a customization of the top level, whole.
func (r *register) updated(l *lesson, uri string, raw []byte) {
	s := r.of(uri)
	if s == nil {
		l.lost = true
		return
	}
	if top := readContainer(l, raw); top != nil {
		l.lost = !r.upsert(s, top) || l.lost
		l.changed = true
	}
}

// toggled learns that a container or a server was enabled or disabled.
func (r *register) toggled(l *lesson, uri, id, enabled string) {
	s := r.sessions[uri]
	if s == nil || enabled != "true" && enabled != "false" {
		return
	}
	l.changed = true
	for _, top := range s.tops {
		if top.id == id {
			top.off = enabled == "false"
			return
		}
	}
	if p, ok := s.locate(id); ok {
		p.off = enabled == "false"
	}
}

// moved learns the state and the channel of a server. Of one that was not
// described before, nothing else is known.
func (r *register) moved(l *lesson, uri, id, state, channel string) {
	s := r.sessions[uri]
	if s == nil && channel != "" {
		s = r.of(uri)
	}
	if s == nil || id == "" {
		return
	}
	l.changed = true
	if p, ok := s.locate(id); ok {
		r.change(p, func(s *server) { s.state, s.channel = state, channel })
	} else if !s.full && channel != "" {
		top := &container{id: id, self: &server{id: id, sets: partial, state: state, channel: channel}}
		l.lost = !r.add(s, top) || l.lost
	}
}
