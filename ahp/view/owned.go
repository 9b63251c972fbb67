package view

import (
	"iter"
	"slices"
	"strings"
)

// A listKey identifies a complete list: of all things of one kind on a channel or, if the
// kind is Terminal, of all owners of one terminal. of is the channel or the terminal.
type listKey struct {
	of    string
	thing Thing
}

// owned lists a URI's present and past owners.
type owned struct{ links []link }

// A link states that a URI belongs, or no longer belongs, to a channel. Connections
// receive links at different times: the link with the highest serverSeq is valid.
type link struct {
	of    string
	thing Thing
	when  stamp
	gone  bool
}

// ownershipLocked records a fact about ownership.
func (h *Host) ownershipLocked(f *Fact) {
	l := link{of: f.Of, thing: f.Thing, when: f.when, gone: f.Kind == HasNot}
	switch f.Kind {
	case Claims:
		if h.listsLocked(listKey{h.key(f.URI), Terminal}, f.when) {
			for _, owner := range f.List {
				l.of = owner
				h.linkLocked(f.URI, l)
			}
		}
	case Keeps:
		kept := h.keptLocked(f)
		if h.listsLocked(listKey{h.key(f.URI), Terminal}, f.when) {
			for _, l.of = range kept {
				h.linkLocked(f.URI, l)
			}
		}
	case Lists:
		if h.listsLocked(listKey{h.key(f.Of), f.Thing}, f.when) {
			for _, uri := range f.List {
				h.linkLocked(uri, l)
			}
		}
	default:
		if f.Thing != Folder && f.Thing != FileText {
			h.linkLocked(f.URI, l)
		}
	}
}

// keptLocked returns those of a terminal's present owners that a fact's List has.
func (h *Host) keptLocked(f *Fact) (owners []string) {
	uri := h.key(f.URI)
	o, ok := h.owned.Get(uri)
	if !ok {
		return nil
	}
	for l := range h.heldLocked(uri, o) {
		if l.thing == f.Thing && slices.ContainsFunc(f.List, func(of string) bool { return h.key(of) == l.of }) {
			owners = append(owners, l.of)
		}
	}
	return owners
}

// listsLocked records a complete list. It returns false if a later list is known.
func (h *Host) listsLocked(key listKey, when stamp) bool {
	if last, _ := h.lists.Peek(key); when.before(last) {
		return false
	}
	h.lists.Add(key, when)
	h.changes.Add(1)
	return true
}

// linkLocked records a link unless a later one is known.
func (h *Host) linkLocked(uri string, l link) {
	table := h.owned
	if l.thing == Content || l.thing == Hint {
		table = h.named
	} else if before, _, template := strings.Cut(uri, "{"); template {
		if !isSpecific(before) {
			return
		}
		uri, table = before, h.prefixes
	}
	if uri, l.of = h.key(uri), h.key(l.of); uri == l.of {
		return
	}
	o, ok := table.Get(uri)
	if !ok {
		o = new(owned)
		table.Add(uri, o)
	}
	if l.gone {
		h.changes.Add(1)
	}
	i := slices.IndexFunc(o.links, func(k link) bool { return k.of == l.of && k.thing == l.thing })
	switch {
	case i >= 0 && !l.when.before(o.links[i].when):
		o.links[i] = l
	case i >= 0:
	case len(o.links) < maxOwners:
		o.links = append(o.links, l)
	default:
		copy(o.links, o.links[1:])
		o.links[maxOwners-1] = l
	}
}

// isSpecific reports whether the text of a template before its first variable identifies
// a session. Otherwise the template could match URIs of any session.
func isSpecific(before string) bool {
	_, path, ok := strings.Cut(strings.TrimSuffix(before, "/"), ":/")
	return ok && strings.Trim(path, "/") != "" && !strings.Contains(before, "*")
}

// holdsLocked reports whether a link is still valid: no later list omits the URI. said is
// the time at which the host last mentioned it.
func (h *Host) holdsLocked(uri string, l *link) (holds bool, said stamp) {
	key := listKey{l.of, l.thing}
	if l.thing == Terminal {
		key.of = uri
	}
	listed, ok := h.lists.Get(key) // a list in use stays
	if !ok {
		listed = h.floor
	}
	return !l.gone && !l.when.before(listed), later(l.when, listed)
}

// Owners returns the channels to which a URI belongs, according to the host.
func (h *Host) Owners(uri string) (list []string) {
	uri = h.key(uri)
	h.mu.Lock()
	defer h.mu.Unlock()
	add := func(o *owned) {
		for l := range h.heldLocked(uri, o) {
			list = append(list, l.of)
		}
	}
	if o, ok := h.owned.Get(uri); ok {
		add(o)
		return list
	}
	for end := len(uri); end > 0 && h.prefixes.Len() > 0; end-- {
		if o, ok := h.prefixes.Get(uri[:end]); ok {
			add(o)
		}
	}
	return list
}

// FormerOwners returns the channels to which a terminal belongs or has belonged, according to the
// host. Its content may be from that time.
func (h *Host) FormerOwners(uri string) (list []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o, ok := h.owned.Get(h.key(uri)); ok {
		for _, l := range o.links {
			if l.thing == Terminal {
				list = append(list, l.of)
			}
		}
	}
	return list
}

// Forgot reports whether the host has named more URIs than a Host remembers. Then a URI without
// known owners may have some.
func (h *Host) Forgot() bool { return h.forgot.Load() }

// ForgotContent reports whether the host has named more content than a Host remembers.
func (h *Host) ForgotContent() bool { return h.content.Load() }

// ContentOf returns the channels that name a URI as readable content. That does not make
// the URI a channel.
func (h *Host) ContentOf(uri string) []string { return h.naming(uri, Content) }

// Hinted returns the channels in which a tool or client claims to use a URI.
func (h *Host) Hinted(uri string) []string { return h.naming(uri, Hint) }

func (h *Host) naming(uri string, thing Thing) (list []string) {
	uri = h.key(uri)
	h.mu.Lock()
	defer h.mu.Unlock()
	if o, ok := h.named.Get(uri); ok {
		for l := range h.heldLocked(uri, o) {
			if l.thing == thing {
				list = append(list, l.of)
			}
		}
	}
	return list
}

// heldLocked returns the links of a URI that still hold.
func (h *Host) heldLocked(uri string, o *owned) iter.Seq[*link] {
	return func(yield func(*link) bool) {
		for i := range o.links {
			if holds, _ := h.holdsLocked(uri, &o.links[i]); holds && !yield(&o.links[i]) {
				return
			}
		}
	}
}

// Belonging returns the URIs that belong to a channel, according to the host.
func (h *Host) Belonging(channel string) (list []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	channel = h.key(channel)
	for _, uri := range h.owned.Keys() {
		o, _ := h.owned.Peek(uri)
		for l := range h.heldLocked(uri, o) {
			if l.of == channel {
				list = append(list, uri)
				break
			}
		}
	}
	return list
}
