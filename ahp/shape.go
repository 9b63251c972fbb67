package ahp

import (
	"bytes"
	"slices"
	"strings"
)

// The host's messages to a limited client are cut down to known and visible parts.
// Unknown parts are hidden, because later AHP versions may add members about other
// channels.

// A Place is a byte range in a message.
type Place struct{ At, End int }

// A Sight decides which parts of a message a client may see, and hides the others.
type Sight interface {
	// All reports whether unknown parts are visible, too.
	All() bool

	// Reaches reports whether a URI is in the client's reach.
	Reaches(uri string) bool

	// Knows reports whether the client knows a channel: it is in reach, or the
	// client has named it.
	Knows(uri string) bool

	// Replace replaces the bytes at a place.
	Replace(p Place, with []byte)

	// Keep removes the unwanted elements of an array, or members of an object. all has
	// the places of all of them.
	Keep(all []Place, wanted func(i int) bool)
}

// A Shape examines a value and removes its invisible parts. It returns false if
// nothing visible remains; the enclosing value then decides what happens.
type Shape func(s Sight, m Member) bool

// Whole is the shape of a value that is always visible, and unchanged.
func Whole(Sight, Member) bool { return true }

// Hidden is the shape for a value that is never visible.
func Hidden(Sight, Member) bool { return false }

// plain is the shape of a text, number or other scalar that is visible whatever it says.
func plain(s Sight, m Member) bool { return s.All() || m.Raw[0] != '{' && m.Raw[0] != '[' }

// known is the shape of a channel's URI. It is visible if the client knows the channel.
func known(s Sight, m Member) bool {
	uri, _ := Text(m.Raw)
	return s.All() || s.Knows(uri)
}

// reached is the [Shape] of a URI: the URI is visible if it is in the client's reach.
func reached(s Sight, m Member) bool {
	uri, _ := Text(m.Raw)
	return s.Reaches(uri)
}

// flat is the shape of a scalar, or of an object whose members are scalars.
func flat(s Sight, m Member) bool {
	if s.All() || !IsObject(m.Raw) {
		return plain(s, m)
	}
	members, err := AllMembers(m.Raw)
	return err == nil && !slices.ContainsFunc(members, func(one Member) bool { return !plain(s, one) })
}

// zero is the shape of a count that is replaced by 0.
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

// An Object maps the known members of an object to their shapes. If a known member is
// hidden, the whole object is hidden.
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

// about returns the shape of an object about one channel, which the member key names. If
// the channel is in reach, the object has the shape "in". If the channel is the root, which
// is partly visible, the object has the shape ofRoot. Otherwise, the object is hidden.
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

// oneOf returns the shape of an object that depends on the value of a member.
func oneOf(key string, shapes map[string]Object) Shape {
	return func(s Sight, m Member) bool {
		o := shapes[TextOf(m.Raw, key)]
		return o != nil && o.Seen(s, m)
	}
}

// onTCP returns a shape that hides an object unless its channel is a raw connection.
func onTCP(of Shape) Shape {
	return func(s Sight, m Member) bool {
		return strings.HasPrefix(TextOf(m.Raw, "channel"), TCPScheme) && of(s, m)
	}
}

// Place returns Raw's place in its object or, after [Member.In], in the message.
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
