package mcpgate

import (
	"bytes"

	"ahprelay/ahp"
)

// lesson is what was learnt from one message.
type lesson struct {
	changed bool // something about channels
	apps    int  // customizations with mcpApp
	lost    bool // something could not be kept, or not be read
}

// mayConcern is a cheap look at a message: whether it may say anything about
// customizations. Letters may be written as escapes.
func mayConcern(message []byte) bool {
	return has(message, "ustomi", "zation") || has(message, "mcp", "Server") || hidesLetters(message)
}

// has reports whether a message has a word. Its end begins with a letter that
// texts seldom have, and so is found fast.
func has(message []byte, start, end string) bool {
	return bytes.Contains(message, []byte(end)) && bytes.Contains(message, []byte(start+end))
}

// hidesLetters reports whether a message has ASCII letters written as \u00xx.
func hidesLetters(message []byte) bool {
	for {
		i := bytes.Index(message, []byte(`\u00`))
		if i < 0 || i+4 >= len(message) {
			return false
		}
		if c := message[i+4]; '4' <= c && c <= '7' {
			return true
		}
		message = message[i+5:]
	}
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

// result learns from the result of initialize, subscribe or reconnect.
func (r *register) result(l *lesson, result []byte) {
	m := [...]ahp.Member{{Name: "snapshot"}, {Name: "snapshots"}, {Name: "actions"}}
	if ahp.Members(result, m[:]) != nil {
		l.lost = l.lost || isObject(result)
		return
	}
	if m[0].Raw != nil {
		r.snapshot(l, m[0].Raw)
	}
	each(m[1].Raw, func(raw []byte) { r.snapshot(l, raw) })
	each(m[2].Raw, func(raw []byte) { r.action(l, raw) })
}

// each calls f with each element of an array.
func each(array []byte, f func(raw []byte)) {
	elements, _ := ahp.Elements(array)
	for i := range elements {
		f(elements[i].Raw)
	}
}

// snapshot learns from {resource, state}. A state without customizations has
// none.
func (r *register) snapshot(l *lesson, raw []byte) {
	m := [...]ahp.Member{{Name: "resource"}, {Name: "state"}}
	if ahp.Members(raw, m[:]) != nil || !isObject(m[1].Raw) {
		return
	}
	uri := text(&m[0])
	c := [...]ahp.Member{{Name: "customizations"}}
	if ahp.Members(m[1].Raw, c[:]) != nil {
		l.lost = true
		return
	}
	if c[0].Raw == nil && r.sessions[uri] == nil {
		return // no session, or one without
	}
	r.customizations(l, uri, c[0].Raw)
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

// action learns from {channel, action, origin?, rejectionReason?}. One that the
// host has rejected changes nothing. Of a client's only those count that clients
// may dispatch, which say nothing of what a server can do.
func (r *register) action(l *lesson, raw []byte) {
	m := [...]ahp.Member{{Name: "channel"}, {Name: "action"}, {Name: "rejectionReason"}, {Name: "origin"}}
	if ahp.Members(raw, m[:]) != nil || !isObject(m[1].Raw) || !ahp.IsNone(m[2].Raw) {
		return
	}
	a := [...]ahp.Member{
		{Name: "type"}, {Name: "id"}, {Name: "customizations"}, {Name: "customization"},
		{Name: "enabled"}, {Name: "state"}, {Name: "channel"},
	}
	if ahp.Members(m[1].Raw, a[:]) != nil {
		l.lost = true
		return
	}
	kind, id, uri := text(&a[0]), text(&a[1]), text(&m[0])
	if !ahp.IsNone(m[3].Raw) && !clientsMay[kind] {
		return
	}
	switch kind {
	case "session/customizationsChanged":
		r.customizations(l, uri, a[2].Raw)
	case "session/customizationUpdated":
		r.updated(l, uri, a[3].Raw)
	case "session/customizationRemoved":
		if s := r.sessions[uri]; s != nil {
			r.remove(s, id)
			l.changed = true
		}
	case "session/customizationToggled":
		r.toggled(l, uri, id, string(a[4].Raw))
	case "session/mcpServerStateChanged":
		r.moved(l, uri, id, kindOf(a[5].Raw), mcpChannel(l, &a[6]))
	case "session/mcpServerStartRequested":
		r.moved(l, uri, id, "starting", "")
	case "session/mcpServerStopRequested":
		r.moved(l, uri, id, "stopped", "")
	}
}

// clientsMay are the actions on customizations that clients may dispatch.
var clientsMay = map[string]bool{
	"session/customizationToggled": true, "session/mcpServerStartRequested": true, "session/mcpServerStopRequested": true,
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
