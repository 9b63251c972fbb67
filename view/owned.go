package view

import (
	"slices"
	"strings"
)

// A listKey stands for all of a kind that belong to a channel; or, of terminals,
// for all to which one belongs.
type listKey struct {
	of   string
	what What
}

// owned is to what a URI belongs, or has belonged.
type owned struct {
	what  What
	links []link
}

// A link says that a URI belongs to a channel; or no more; or that somebody
// says so. Connections hear of it at different times: the one counts that the
// host has said last, as its serverSeq tells.
type link struct {
	of   string
	when stamp
	gone bool
	hint bool
}

// ownershipLocked takes what the host says of what belongs to what.
func (h *Host) ownershipLocked(f *Fact) {
	switch f.Kind {
	case Has:
		h.linkLocked(f.URI, f.What, link{of: f.Of, when: f.when})
	case Hints:
		h.linkLocked(f.URI, f.What, link{of: f.Of, when: f.when, hint: true})
	case HasNot:
		h.linkLocked(f.URI, f.What, link{of: f.Of, when: f.when, gone: true})
	case Claims:
		if h.listsLocked(listKey{h.key(f.URI), Terminal}, f.when) {
			for _, owner := range f.List {
				h.linkLocked(f.URI, f.What, link{of: owner, when: f.when})
			}
		}
	case Lists:
		if h.listsLocked(listKey{h.key(f.Of), f.What}, f.when) {
			for _, uri := range f.List {
				h.linkLocked(uri, f.What, link{of: f.Of, when: f.when})
			}
		}
	}
}

// listsLocked notes that the host has listed all of a kind, and reports whether
// no later list is known.
func (h *Host) listsLocked(key listKey, when stamp) bool {
	if last, _ := h.lists.Peek(key); when.before(last) {
		return false
	}
	h.lists.Add(key, when)
	h.changes.Add(1)
	return true
}

// linkLocked takes one link, unless a later one is known.
func (h *Host) linkLocked(uri string, what What, l link) {
	table := h.owned
	if before, _, template := strings.Cut(uri, "{"); template {
		if !saysOwn(before) {
			return
		}
		uri, table = before, h.prefixes
	}
	if uri, l.of = h.key(uri), h.key(l.of); uri == l.of {
		return
	}
	o, ok := table.Get(uri)
	if !ok {
		o = &owned{what: what}
		table.Add(uri, o)
	}
	if l.gone {
		h.changes.Add(1)
	}
	i := slices.IndexFunc(o.links, func(k link) bool { return k.of == l.of && k.hint == l.hint })
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

// saysOwn reports whether a template, up to its first variable, says anything
// of its own: else it could be anybody's.
func saysOwn(before string) bool {
	_, path, ok := strings.Cut(strings.TrimSuffix(before, "/"), ":/")
	return ok && strings.Trim(path, "/") != "" && !strings.Contains(before, "*")
}

// holdsLocked reports whether a link holds still: the host has not listed all
// of its kind since, without it. Said is when the host has last said whether.
func (h *Host) holdsLocked(uri string, l *link, what What) (holds bool, said stamp) {
	key := listKey{l.of, what}
	if what == Terminal {
		key.of = uri
	}
	listed, ok := h.lists.Peek(key)
	if !ok {
		listed = h.floor
	}
	return !l.gone && !l.when.before(listed), later(l.when, listed)
}

// Owners returns the channels that a URI belongs to, as the host has said.
func (h *Host) Owners(uri string) []string {
	uri = h.key(uri)
	h.mu.Lock()
	defer h.mu.Unlock()
	o, ok := h.owned.Get(uri)
	list := h.ownersLocked(nil, uri, o, false)
	if ok || h.prefixes.Len() == 0 {
		return list
	}
	for end := len(uri); end > 0; end-- {
		if o, ok := h.prefixes.Get(uri[:end]); ok {
			list = h.ownersLocked(list, uri, o, false)
		}
	}
	return list
}

// Hinted returns the channels of which somebody says there that a URI belongs
// to them.
func (h *Host) Hinted(uri string) []string {
	uri = h.key(uri)
	h.mu.Lock()
	defer h.mu.Unlock()
	o, _ := h.owned.Get(uri)
	return h.ownersLocked(nil, uri, o, true)
}

func (h *Host) ownersLocked(list []string, uri string, o *owned, hints bool) []string {
	if o == nil {
		return list
	}
	for i := range o.links {
		l := &o.links[i]
		if holds, _ := h.holdsLocked(uri, l, o.what); holds && l.hint == hints {
			list = append(list, l.of)
		}
	}
	return list
}
