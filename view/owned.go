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
	seq  int64
	gone bool
	hint bool
}

// ownershipLocked takes what the host says of what belongs to what.
func (h *Host) ownershipLocked(f *Fact) {
	switch f.Kind {
	case Has:
		h.linkLocked(f.URI, f.What, link{of: f.Of, seq: f.seq})
	case Hints:
		h.linkLocked(f.URI, f.What, link{of: f.Of, seq: f.seq, hint: true})
	case HasNot:
		h.linkLocked(f.URI, f.What, link{of: f.Of, seq: f.seq, gone: true})
	case Claims:
		if h.listsLocked(listKey{h.key(f.URI), Terminal}, f.seq) {
			for _, owner := range f.List {
				h.linkLocked(f.URI, f.What, link{of: owner, seq: f.seq})
			}
		}
	case Lists:
		if h.listsLocked(listKey{h.key(f.Of), f.What}, f.seq) {
			for _, uri := range f.List {
				h.linkLocked(uri, f.What, link{of: f.Of, seq: f.seq})
			}
		}
	}
}

// listsLocked notes that the host has listed all of a kind, and reports whether
// no later list is known.
func (h *Host) listsLocked(key listKey, seq int64) bool {
	if last, _ := h.lists.Peek(key); seq < last {
		return false
	}
	h.lists.Add(key, seq)
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
	case i >= 0 && o.links[i].seq <= l.seq:
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
// of its kind since, without it.
func (h *Host) holdsLocked(uri string, l *link, what What) bool {
	key := listKey{l.of, what}
	if what == Terminal {
		key.of = uri
	}
	listed, ok := h.lists.Peek(key)
	if !ok {
		listed = h.floor
	}
	return !l.gone && l.seq >= listed
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
		if l := &o.links[i]; l.hint == hints && h.holdsLocked(uri, l, o.what) {
			list = append(list, l.of)
		}
	}
	return list
}
