package mcpgate

import (
	"bytes"
	"slices"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// findings collects the facts in a message.
type findings struct {
	changed bool // a channel has changed
	apps    int  // customizations with mcpApp
	lost    bool // a part was unreadable or did not fit
}

// text returns a member's text, or "" if it is no string or too long to keep.
func text(m *ahp.Member) string {
	s, _ := ahp.Text(m.Raw)
	if len(s) > maxName {
		return ""
	}
	return s
}

// read parses a customization. If it is at the top level, read also parses the servers
// among its children. ok is false if the customization is unreadable or has no ID.
func (l *findings) read(raw []byte, top bool) (c customization, ok bool) {
	m := [...]ahp.Member{{Name: "type"}, {Name: "id"}, {Name: "enabled"}, {Name: "enablement"}, {Name: "state"}, {Name: "channel"}, {Name: "children"}}
	if ahp.Members(raw, m[:]) != nil || text(&m[1]) == "" {
		l.lost = true
		return c, false
	}
	c = customization{id: text(&m[1]), server: text(&m[0]) == "mcpServer"}
	c.off, _ = disabled(&m[2], &m[3])
	if c.server {
		c.state, c.channel = kindOf(m[4].Raw), l.channel(&m[5])
		app := false
		if c.sets, app = readSurface(raw); app {
			l.apps++
		}
	} else if top {
		for _, e := range ahp.ElementsOf(m[6].Raw) {
			if ahp.TextOf(e.Raw, "type") != "mcpServer" {
				continue
			}
			if child, ok := l.read(e.Raw, false); ok {
				c.children = append(c.children, child)
			}
		}
	}
	return c, true
}

// disabled reports whether a customization is disabled; known is false if the message
// does not state that. Since AHP 0.9, enablement is a list, whose first entry decides.
func disabled(enabled, enablement *ahp.Member) (off, known bool) {
	if list, ok := ahp.Elements(enablement.Raw); ok {
		if len(list) == 0 {
			return false, true
		}
		return string(ahp.RawOf(list[0].Raw, "enabled")) == "false", true
	}
	off = string(enabled.Raw) == "false"
	return off, off || string(enabled.Raw) == "true"
}

// kindOf returns the kind of a state, or "" if there is no state. For an unreadable state
// it returns "unknown", which means not ready.
func kindOf(raw []byte) string {
	if ahp.IsNone(raw) {
		return ""
	}
	if kind := ahp.TextOf(raw, "kind"); kind != "" && len(kind) <= 64 {
		return kind
	}
	return "unknown"
}

// channel returns a customization's channel. It returns "" if there is none, or if the
// scheme is not mcp, because then the channel belongs to AHP.
func (l *findings) channel(m *ahp.Member) string {
	uri := text(m)
	if !isMCP([]byte(uri)) {
		l.lost = l.lost || uri == "" && len(m.Raw) > maxName
		return ""
	}
	return uri
}

func isMCP(uri []byte) bool {
	return len(uri) > 4 && uri[3] == ':' && bytes.EqualFold(uri[:3], []byte("mcp"))
}

func anyOne(*customization) bool { return true }

// learn records a fact about a session. A state without customizations means that the
// session has none. Each branch is a kind of fact.
func (r *register) learn(l *findings, f *view.Fact) {
	if len(f.Of) > maxName || len(f.URI) > maxName {
		l.lost = l.lost || f.Kind >= view.Customizations
		return
	}
	s, known := r.sessions[f.Of]
	if !known {
		s = new(session)
	}
	switch f.Kind {
	case view.Customizations:
		known = known || f.Raw != nil || f.Own
		s = &session{full: true}
		for _, e := range ahp.ElementsOf(f.Raw) {
			if top, ok := l.read(e.Raw, true); ok {
				s.tops = append(s.tops, top)
			}
		}
		if !known {
			r.recordNone(f.Of)
		}
	case view.Customization:
		top, ok := l.read(f.Raw, true)
		s, known = s.upsert(top), ok
	case view.CustomizationGone:
		s, _ = s.with(f.URI, anyOne, func(customization) []customization { return nil })
	case view.CustomizationToggled:
		m := [...]ahp.Member{{Name: "enabled"}, {Name: "enablement"}}
		_ = ahp.Members(f.Raw, m[:]) // the view has checked them
		off, said := disabled(&m[0], &m[1])
		if known = known && said; known {
			s, _ = s.with(f.URI, anyOne, func(c customization) []customization {
				c.off = off
				return []customization{c}
			})
		}
	case view.ServerIs:
		m := [...]ahp.Member{{Name: "state"}, {Name: "channel"}}
		_ = ahp.Members(f.Raw, m[:])
		channel := l.channel(&m[1])
		s, known = s.moved(f.URI, kindOf(m[0].Raw), channel), known || channel != ""
	case view.ServerStarts:
		s = s.moved(f.URI, "starting", "")
	case view.ServerStops:
		s = s.moved(f.URI, "stopped", "")
	case view.SessionGone:
		s = nil
	default:
		return
	}
	if known {
		l.lost = !r.put(f.Of, s) || l.lost
		l.changed = true
	}
}

// upsert returns the session with a new or changed customization at the top level. It
// replaces the entry with the same ID. It also removes entries that were known only from
// changes, if they turn out to be children of the new one.
func (s *session) upsert(top customization) *session {
	tops := slices.DeleteFunc(slices.Clone(s.tops), func(c customization) bool {
		return c.id == top.id || c.sets == partial && slices.ContainsFunc(top.children, func(child customization) bool { return child.id == c.id })
	})
	return &session{s.full, append(tops, top)}
}

// moved returns the session with a new state and channel for a server. If the server has
// not been described before, its capabilities are unknown.
func (s *session) moved(id, state, channel string) *session {
	moved, ok := s.with(id, func(c *customization) bool { return c.server }, func(c customization) []customization {
		c.state, c.channel = state, channel
		return []customization{c}
	})
	if !ok && !s.full && channel != "" {
		return &session{tops: append(slices.Clone(s.tops), customization{id: id, server: true, sets: partial, state: state, channel: channel})}
	}
	return moved
}
