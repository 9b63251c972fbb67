package gate

import (
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// What a client with limited channels gets of a host has a known shape: a message
// is cut down to what is known and may be seen. A host may add anything some day,
// about anybody; what has another shape than here is not seen.

// A sight is what may be seen of one message.
type sight struct {
	reach *reach
	edit  *view.Editor
	named []string // channels that the client has named itself
	all   bool     // the root may be seen, and with it what is not known
}

// A shape looks at a value, and leaves in the message what may be seen of it. It
// reports false if that is nothing: then it is left to what the value stands in.
type shape func(s *sight, m ahp.Member) bool

// whole is a value that may be seen as it is.
func whole(*sight, ahp.Member) bool { return true }

// plain is a text, a number or the like, which names nothing.
func plain(s *sight, m ahp.Member) bool { return s.all || m.Raw[0] != '{' && m.Raw[0] != '[' }

// known is the URI of a channel that the client knows: one in reach, or that it has
// named itself.
func known(s *sight, m ahp.Member) bool {
	uri, _ := ahp.Text(m.Raw)
	return s.all || s.reach.allows(uri) || uri == rootChannel || slices.Contains(s.named, uri)
}

// reached is a URI in reach.
func reached(s *sight, m ahp.Member) bool {
	uri, _ := ahp.Text(m.Raw)
	return s.reach.allows(uri)
}

// flat is a value, or an object of values that name nothing.
func flat(s *sight, m ahp.Member) bool {
	if s.all || !ahp.IsObject(m.Raw) {
		return plain(s, m)
	}
	members, err := ahp.AllMembers(m.Raw)
	return err == nil && !slices.ContainsFunc(members, func(one ahp.Member) bool { return !plain(s, one) })
}

// never may not be seen.
func never(*sight, ahp.Member) bool { return false }

// zero is a number of things that may not be seen.
func zero(s *sight, m ahp.Member) bool {
	if !s.all {
		s.edit.Replace(placeOf(m), []byte("0"))
	}
	return true
}

// orNull is null where the value may not be seen.
func orNull(of shape) shape {
	return func(s *sight, m ahp.Member) bool {
		if !ahp.IsNone(m.Raw) && !of(s, m) {
			s.edit.Replace(placeOf(m), []byte("null"))
		}
		return true
	}
}

// each is an array of the elements that may be seen.
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

// An object has the members that are known; all of them may be seen, or the
// object may not.
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

// about is an object that is about the channel which a member names. That is in
// reach; or it is the root, of which some may be seen.
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

// oneOf is an object whose other members follow from that of one member.
func oneOf(key string, shapes map[string]object) shape {
	return func(s *sight, m ahp.Member) bool {
		o := shapes[ahp.TextOf(m.Raw, key)]
		return o != nil && o.seen(s, m)
	}
}

// onTCP is an object on the channel of a raw connection.
func onTCP(of shape) shape {
	return func(s *sight, m ahp.Member) bool {
		return strings.HasPrefix(ahp.TextOf(m.Raw, "channel"), tcpScheme) && of(s, m)
	}
}

func placeOf(m ahp.Member) view.Place {
	return view.Place{At: m.Offset(), End: m.Offset() + len(m.Raw)}
}
