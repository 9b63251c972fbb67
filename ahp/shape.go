package ahp

import (
	"bytes"
	"slices"
	"strings"
)

// A limited client gets only known shapes from a host: a message is cut down to its
// known and visible parts. Later AHP versions may add members about anything, so
// unknown parts are hidden.

// A Place is a byte range in a message.
type Place struct{ At, End int }

// A Sight decides which parts are visible to a client, and hides the others.
type Sight interface {
	// All reports whether everything is visible, including unknown parts.
	All() bool

	// Reaches reports whether a URI is in the client's reach.
	Reaches(uri string) bool

	// Knows reports whether the client knows a channel: it is in reach, or the
	// client has named it.
	Knows(uri string) bool

	// Replace replaces a place.
	Replace(p Place, with []byte)

	// Keep removes the unwanted elements in a list, given all elements' places.
	Keep(all []Place, wanted func(i int) bool)
}

// A Shape examines a value, and cuts it down to its visible parts. It returns false if
// none remain: then the enclosing value decides.
type Shape func(s Sight, m Member) bool

// Whole is the shape for a value that is visible as it is.
func Whole(Sight, Member) bool { return true }

// Hidden is the shape for a value that is never visible.
func Hidden(Sight, Member) bool { return false }

// plain is the shape for a text, number or other scalar, which names nothing.
func plain(s Sight, m Member) bool { return s.All() || m.Raw[0] != '{' && m.Raw[0] != '[' }

// known is the shape for a channel's URI the client knows.
func known(s Sight, m Member) bool {
	uri, _ := Text(m.Raw)
	return s.All() || s.Knows(uri)
}

// reached is the shape for a URI in reach.
func reached(s Sight, m Member) bool {
	uri, _ := Text(m.Raw)
	return s.Reaches(uri)
}

// flat is the shape for a scalar, or an object with scalars.
func flat(s Sight, m Member) bool {
	if s.All() || !IsObject(m.Raw) {
		return plain(s, m)
	}
	members, err := AllMembers(m.Raw)
	return err == nil && !slices.ContainsFunc(members, func(one Member) bool { return !plain(s, one) })
}

// zero is the shape for a count that must not be visible.
func zero(s Sight, m Member) bool {
	if !s.All() {
		s.Replace(m.Place(), []byte("0"))
	}
	return true
}

// orNull returns a shape that replaces a hidden value by null.
func orNull(of Shape) Shape {
	return func(s Sight, m Member) bool {
		if !IsNone(m.Raw) && !of(s, m) {
			s.Replace(m.Place(), []byte("null"))
		}
		return true
	}
}

// each returns a shape for an array, which keeps its visible elements.
func each(of Shape) Shape {
	return func(s Sight, m Member) bool {
		elements, ok := Elements(m.Raw)
		if !ok {
			return IsNone(m.Raw)
		}
		at := make([]Place, len(elements))
		seen := make([]bool, len(elements))
		for i, e := range elements {
			e = e.In(m)
			at[i], seen[i] = e.Place(), of(s, e)
		}
		s.Keep(at, func(i int) bool { return seen[i] })
		return true
	}
}

// An Object has the shapes of an object's known members. The object is hidden if a
// known member is.
type Object map[string]Shape

// Seen is the object's [Shape].
func (o Object) Seen(s Sight, m Member) bool {
	members, err := AllMembers(m.Raw)
	if err != nil {
		return false
	}
	for _, one := range members {
		if of := o[one.Name]; of != nil && !of(s, one.In(m)) {
			return false
		}
	}
	if !s.All() {
		s.Keep(Places(members, m), func(i int) bool { return o[members[i].Name] != nil })
	}
	return true
}

// about returns the shape for an object about the channel a member names. The channel
// is in reach, or it is the root, which is partly visible.
func about(key string, in, ofRoot Shape) Shape {
	return func(s Sight, m Member) bool {
		switch uri := TextOf(m.Raw, key); {
		case s.Reaches(uri):
			return in(s, m)
		case uri == RootChannel:
			return ofRoot(s, m)
		}
		return false
	}
}

// oneOf returns an object shape that depends on a member's value.
func oneOf(key string, shapes map[string]Object) Shape {
	return func(s Sight, m Member) bool {
		o := shapes[TextOf(m.Raw, key)]
		return o != nil && o.Seen(s, m)
	}
}

// onTCP returns a shape for an object on a raw connection's channel.
func onTCP(of Shape) Shape {
	return func(s Sight, m Member) bool {
		return strings.HasPrefix(TextOf(m.Raw, "channel"), TCPScheme) && of(s, m)
	}
}

// Place returns the member's place in its object.
func (m *Member) Place() Place { return Place{m.offset, m.offset + len(m.Raw)} }

// Places returns the places of an object's members, with their keys, in the message
// around the object.
func Places(members []Member, object Member) []Place {
	out := make([]Place, len(members))
	at := 1 // behind the brace or a comma
	for i := range members {
		end := members[i].offset + len(members[i].Raw)
		out[i] = Place{object.offset + at, object.offset + end}
		at = end + bytes.IndexByte(object.Raw[end:], ',') + 1
	}
	return out
}
