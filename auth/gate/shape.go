package gate

import (
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// A client with limited channels gets only known shapes from a host: a message is cut
// down to its known and visible parts. Later AHP versions may add members about
// anything, so unknown parts are hidden.

// A sight is a message's visible part.
type sight struct {
	reach *reach
	edit  *view.Editor
	named []string // channels that the client has named itself
	all   bool     // the root is visible, and with it all unknown parts
}

// A shape examines a value, and cuts it down to its visible parts. It returns false if
// none remain: then the enclosing value decides.
type shape func(s *sight, m ahp.Member) bool

// whole is the shape for a value that is visible as it is.
func whole(*sight, ahp.Member) bool { return true }

// plain is the shape for a text, number or other scalar, which names nothing.
func plain(s *sight, m ahp.Member) bool { return s.all || m.Raw[0] != '{' && m.Raw[0] != '[' }

// known is the shape for a channel's URI that the client knows: the channel is in
// reach, or the client has named it.
func known(s *sight, m ahp.Member) bool {
	uri, _ := ahp.Text(m.Raw)
	return s.all || s.reach.allows(uri) || uri == rootChannel || slices.Contains(s.named, uri)
}

// reached is the shape for a URI in reach.
func reached(s *sight, m ahp.Member) bool {
	uri, _ := ahp.Text(m.Raw)
	return s.reach.allows(uri)
}

// flat is the shape for a scalar, or an object with scalars.
func flat(s *sight, m ahp.Member) bool {
	if s.all || !ahp.IsObject(m.Raw) {
		return plain(s, m)
	}
	members, err := ahp.AllMembers(m.Raw)
	return err == nil && !slices.ContainsFunc(members, func(one ahp.Member) bool { return !plain(s, one) })
}

// never is the shape for a hidden value.
func never(*sight, ahp.Member) bool { return false }

// zero is the shape for a count that must not be visible.
func zero(s *sight, m ahp.Member) bool {
	if !s.all {
		s.edit.Replace(placeOf(m), []byte("0"))
	}
	return true
}

// orNull returns a shape that replaces a hidden value by null.
func orNull(of shape) shape {
	return func(s *sight, m ahp.Member) bool {
		if !ahp.IsNone(m.Raw) && !of(s, m) {
			s.edit.Replace(placeOf(m), []byte("null"))
		}
		return true
	}
}

// each returns a shape for an array, which keeps its visible elements.
func each(of shape) shape {
	return func(s *sight, m ahp.Member) bool {
		elements, ok := ahp.Elements(m.Raw)
		if !ok {
			return ahp.IsNone(m.Raw)
		}
		at := make([]view.Place, len(elements))
		seen := make([]bool, len(elements))
		for i, e := range elements {
			e = e.In(m)
			at[i], seen[i] = placeOf(e), of(s, e)
		}
		s.edit.Keep(at, func(i int) bool { return seen[i] })
		return true
	}
}

// An object is a shape with known members. It is hidden if a known member is.
type object map[string]shape

func (o object) seen(s *sight, m ahp.Member) bool {
	members, err := ahp.AllMembers(m.Raw)
	if err != nil {
		return false
	}
	for _, one := range members {
		if of := o[one.Name]; of != nil && !of(s, one.In(m)) {
			return false
		}
	}
	if !s.all {
		s.edit.Keep(places(members, m), func(i int) bool { return o[members[i].Name] != nil })
	}
	return true
}

// about returns the shape of an object about the channel that a member names. The
// channel is in reach, or it is the root, which is partly visible.
func about(key string, in, ofRoot shape) shape {
	return func(s *sight, m ahp.Member) bool {
		switch uri := ahp.TextOf(m.Raw, key); {
		case s.reach.allows(uri):
			return in(s, m)
		case uri == rootChannel:
			return ofRoot(s, m)
		}
		return false
	}
}

// oneOf returns an object shape that depends on a member's value.
func oneOf(key string, shapes map[string]object) shape {
	return func(s *sight, m ahp.Member) bool {
		o := shapes[ahp.TextOf(m.Raw, key)]
		return o != nil && o.seen(s, m)
	}
}

// onTCP returns a shape for an object on a raw connection's channel.
func onTCP(of shape) shape {
	return func(s *sight, m ahp.Member) bool {
		return strings.HasPrefix(ahp.TextOf(m.Raw, "channel"), tcpScheme) && of(s, m)
	}
}

func placeOf(m ahp.Member) view.Place {
	return view.Place{At: m.Offset(), End: m.Offset() + len(m.Raw)}
}
